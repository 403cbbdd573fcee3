"""Does arithmetic or memory bound the kernels? A section of the report: the roofline and a table by class."""

from collections.abc import Sequence

import pandas as pd

from analysis.display.metrics import Column, Rows, columns, picked
from analysis.display.terminal import Part
from analysis.measures.kernels import costs
from analysis.measures.kernels import rows as kernels
from analysis.measures.kernels.of_run import BY, kernels_of
from analysis.measures.kernels.roofline import Roof, roofs
from analysis.report import plot_roofline
from analysis.report.render import Chart, Section
from analysis.report.views import as_view, called
from analysis.results.study import Source, Study

HEADING = "What bounds the kernels?"
TOP = 60  # kernels of the chart: those that take most time


def section(study: Study, factors: Sequence[str]) -> Section | None:
    """The roofline of the run with most ranks; in words, why there is none; none without any kernels."""
    sources = kernels.with_kernels(study)
    if not sources:
        return None
    source = max(sources, key=lambda each: (each.world_size or 0, -sources.index(each)))
    made = kernels_of(study, source)
    placed = [row for row in made if row["intensity_flop_per_byte"]]
    known = [
        (name, roof)
        for name, roof in zip(("datasheet", "measured"), roofs(costs.bound_of(study, source)), strict=True)
        if roof
    ]
    why = _why_not(made, placed, known)
    if why:
        return Section("roofline", HEADING, f"Not known: {why}.")
    name = called(source.fields, factors)
    chart = Chart(
        "roofline",
        plot_roofline.roofline(_points(placed[:TOP], known[0][1]), known, f"Roofline: {name}"),
        "FLOP rate of kernels against their arithmetic intensity, below the roofs of the device",
    )
    by_class = [
        row for row in kernels_of(study, source, by=("class",)) if row["intensity_flop_per_byte"] is not None
    ]
    view = as_view(Part("", by_class, _columns(known), ""), "roofline-table", factors)
    return Section("roofline", HEADING, _text(study, source, made, placed, known), [chart], [view])


def _why_not(made: Rows, placed: Rows, known: Sequence[tuple[str, Roof]]) -> str:
    if not made:
        return "no profiled run has a kernel in an attributed batch"
    if not placed:
        return "the tool recorded no FLOPs and bytes of any kernel"
    if not known:
        return "neither a datasheet (--peaks FILE) nor a measured peak of this device is there"
    return ""


def _points(placed: Rows, roof: Roof) -> pd.DataFrame:
    """What the chart needs; the rate is of the launches whose bytes are known, as the intensity is."""
    table = pd.DataFrame(placed)
    table["flops_per_s"] = [
        (row["roof_pct"] if row["roof_pct"] is not None else row["roof_of_measured_pct"])
        / 100 * roof.at(row["intensity_flop_per_byte"])
        for row in placed
    ]  # fmt: skip
    table["hint"] = [
        f"{row['kernel']} ({row['direction']}): {row['ms_per_batch']:.3f} ms a batch" for row in placed
    ]
    return table


def _text(study: Study, source: Source, made: Rows, placed: Rows, known: Sequence[tuple[str, Roof]]) -> str:
    share = {
        bound: sum(row["share_pct"] or 0.0 for row in made if row["bound"] == bound)
        for bound in ("compute", "bandwidth")
    }
    ridges = " and ".join(f"{roof.ridge_flop_per_byte:.3g} ({name})" for name, roof in known)
    left_out = max(len(placed) - TOP, 0)
    return (
        f"Of the kernels' time {share['compute']:.0f} % is of kernels that the arithmetic bounds, "
        f"{share['bandwidth']:.0f} % of such as the memory's bandwidth bounds; "
        f"{100 - sum(share.values()):.0f} % is of kernels whose bytes are not known, of collectives and of "
        f"copies. A kernel left of the ridge ({ridges} FLOP/byte) cannot reach the peak FLOP rate. Bytes are "
        "tensors read and written, so that what stays in a cache can be above the roof. The area of a point "
        "is its time; kernels without FLOPs are in the table only."
        + (f" {left_out} kernels that take less time are not drawn." if left_out else "")
    )


def _columns(known: Sequence[tuple[str, Roof]]) -> list[Column]:
    figures = picked(kernels.METRICS, "ms_per_batch", "share_pct", "intensity_flop_per_byte", "bound")
    roof, of_measured = picked(kernels.METRICS, "roof_pct", "roof_of_measured_pct")
    of_roof = {
        "datasheet": roof.column("of the datasheet's roof, %"),
        "measured": of_measured.column("of the measured roof, %"),
    }
    return [*columns([BY["class"], *figures]), *(of_roof[name] for name, _ in known)]
