"""Sections on kernels: the longest ones, roofline, hotspots, GPU utilization."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.display import plots
from analysis.display.metrics import CONFIGURATION, columns
from analysis.display.output import Part
from analysis.display.plots import GREY
from analysis.frames.study import Source
from analysis.measures import hotspots, kernels, utilization
from analysis.measures.hotspots import TOOLS
from analysis.measures.kernels import BY
from analysis.measures.peaks import Roof, bounds, roofs
from analysis.report.base import Context, chart_of, labels_of, section, sized, table_of
from analysis.report.render import Section
from profiling.errors import UserError

_HOVER = "<br>%{x:.3g} FLOP/byte, %{y:.4g} GFLOP/s<extra></extra>"
_SMALLEST, _LARGEST = 6.0, 36.0  # diameter of a kernel's point, in pixels
_MARGIN = 2.0  # how far the roofs go beyond the kernels, as a factor


def _rows(context: Context) -> pd.DataFrame:
    """A row a kernel of each run, with the run's fields; of each run the longest first."""
    study = context.study
    sources = kernels.with_kernels(study)
    if not sources:
        raise UserError("no profiled run or trace with kernels")
    rows = kernels.figures(study, sources)
    if rows.empty:
        raise UserError("no profiled run has a kernel in a profiled step")
    for finding in kernels.exceeded(rows):
        study.add(finding)
    return study.with_fields(rows)


@section("kernels", "Which kernels take the time?", lambda context: bool(context.study.sources))
def top(context: Context) -> Section:
    rows = context.once(_rows)
    each = rows.drop_duplicates("run")
    names = dict(zip(each["run"], labels_of(each, context.factors, context.unit), strict=True))
    source = _foremost(context, rows)
    longest = rows[rows["run"] == source.id].head(15)
    bars = longest.assign(label=longest["kernel"], series=longest["class"], value=longest["ms_per_step"])
    # Those of one name stand in one bar.
    whole = bars.groupby("label")["value"].transform("sum").sort_values(ascending=False, kind="stable")
    bars = bars.loc[whole.index]
    colours = {str(name): plots.CLASS_COLOURS.get(str(name), plots.WHITE) for name in bars["class"].unique()}
    title = f"Top kernels: {names[source.id]}"
    figure = plots.bars(bars, colours, title, "ms per step", "%{x:.2f} ms per step")
    shown = rows.groupby("run", sort=False).head(40)
    shown = shown.assign(configuration=shown["run"].map(names))
    figures = columns(
        kernels.METRICS, "ms_per_step", "share_pct", "calls_per_step", "mean_us", "gflop_per_step",
        "flops_efficiency_pct", "bandwidth_efficiency_pct",
    )  # fmt: skip
    keys = [*([CONFIGURATION] if len(names) > 1 else []), *(BY[name] for name in kernels.DEFAULT_BY)]
    tables = [Part("", shown, [*keys, *figures])]
    return Section("", [chart_of(context, source, "kernels", figure)], tables)


def _foremost(context: Context, rows: pd.DataFrame) -> Source:
    """The run whose longest kernel matters most."""
    longest_ms = rows.groupby("run")["ms_per_step"].max()

    def order(source: Source) -> tuple[bool, int, float]:
        # Traces are of unlike jobs; of the runs of a sweep those on the most ranks matter most.
        ranks = 0 if source.kind == "trace" else source.world_size or 0
        return not source.without_steps, ranks, longest_ms[source.id]

    sources = kernels.with_kernels(context.study)
    return max((one for one in sources if one.id in longest_ms), key=order)


@section("roofline", "What bounds the kernels?", lambda context: bool(kernels.with_kernels(context.study)))
def roofline(context: Context) -> Section:
    """The roofline of the run of which most ranks were recorded."""
    study, sources = context.study, kernels.with_kernels(context.study)
    source = max(sources, key=lambda each: len(each.tables("kernels")))
    rows = context.once(_rows)
    rows = rows[rows["run"] == source.id]
    placed = rows[rows["intensity_flop_per_byte"] > 0].head(60)
    named_roofs = list(roofs(bounds(study, [source]).iloc[0]).items())
    if rows.empty:
        raise UserError("no profiled run has a kernel in a profiled step")
    if placed.empty:
        raise UserError("the profiler recorded no FLOPs or bytes for any kernel")
    if not named_roofs:
        raise UserError("no peak of this device: neither from a datasheet (--peaks FILE) nor measured")
    # The rate is of the launches whose bytes are known, as the intensity is.
    share = placed["roof_pct"].fillna(placed["roof_of_measured_pct"]) / 100
    names = placed[["kernel", "direction", "ms_per_step"]].to_numpy()
    points = placed.assign(
        flops_per_s=share * placed["intensity_flop_per_byte"].map(named_roofs[0][1].at),
        hint=[f"{kernel} ({way}): {ms:.2f} ms per step" for kernel, way, ms in names],
    )
    name = sized(source.fields, context.factors, context.unit)
    drawn = figure(points, named_roofs, plots.escaped(f"Roofline: {name}"))
    classes = study.with_fields(kernels.figures(study, [source], ("class",)))
    of_roof = {"datasheet": "roof_pct", "measured": "roof_of_measured_pct"}
    shown = [
        BY["class"],
        *columns(kernels.METRICS, "ms_per_step", "share_pct", "intensity_flop_per_byte", "bound"),
        *columns(kernels.METRICS, *(of_roof[name] for name, _ in named_roofs)),
    ]
    tables = [Part("", classes.dropna(subset="intensity_flop_per_byte"), shown)]
    return Section("", [chart_of(context, source, "roofline", drawn)], tables)


def figure(kernels: pd.DataFrame, roofs: Sequence[tuple[str, Roof]], title: str) -> plots.Figure:
    """FLOP/s against arithmetic intensity, log-log, with both roofs; a point a kernel, its area its time.

    ``kernels``: columns ``class, ms_per_step, intensity_flop_per_byte`` (above 0), ``flops_per_s``, and
    ``hint``, what the pointer shows; ``roofs``: name and roof, the first is drawn solid.
    """
    intensity = kernels["intensity_flop_per_byte"]
    ridges = [roof.ridge_flop_per_byte for _, roof in roofs]
    span = (min([intensity.min(), *ridges]) / _MARGIN, max([intensity.max(), *ridges]) * _MARGIN)
    traces = [_roof_line(name, roof, span, number) for number, (name, roof) in enumerate(roofs)]
    largest = float(kernels["ms_per_step"].max())
    classes = enumerate(kernels.groupby("class", sort=False))
    traces += [_trace(of_class, str(name), number, largest) for number, (name, of_class) in classes]
    layout = {
        **plots.layout(title), "height": 480,
        "xaxis": {"title": plots.beside_ticks("arithmetic intensity, FLOP/byte"), **plots.LOG},
        "yaxis": {"title": plots.beside_ticks("GFLOP/s"), **plots.LOG},
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def _roof_line(name: str, roof: Roof, span: tuple[float, float], number: int) -> dict[str, Any]:
    at = [span[0], roof.ridge_flop_per_byte, span[1]]
    text = plots.escaped(name)
    return {
        "x": at, "y": [roof.at(intensity) / 1e9 for intensity in at], "name": text, "mode": "lines",
        "line": {"color": GREY, "width": 2, "dash": "solid" if number == 0 else "dash"},
        "hovertemplate": text + _HOVER,
    }  # fmt: skip


def _trace(of_class: pd.DataFrame, name: str, number: int, largest: float) -> dict[str, Any]:
    sizes = np.sqrt(of_class["ms_per_step"] / largest) * _LARGEST if largest else of_class["ms_per_step"]
    return {
        "x": of_class["intensity_flop_per_byte"].tolist(), "y": (of_class["flops_per_s"] / 1e9).tolist(),
        "name": plots.escaped(name), "mode": "markers",
        "hovertext": [plots.escaped(text) for text in of_class["hint"]],
        "hovertemplate": "%{hovertext}" + _HOVER,
        "marker": {
            **plots.outlined(plots.CLASS_COLOURS.get(name, plots.WHITE)), "opacity": 0.8,
            "size": np.maximum(sizes, _SMALLEST).tolist(),
            "symbol": plots.SYMBOLS[number % len(plots.SYMBOLS)],
        },
    }  # fmt: skip


HOTSPOTS = table_of(
    "hotspots", "Why are the hottest kernels slow?",
    lambda study: hotspots.hotspots(study, top=5),
    lambda context: any(source.fields["profile"] in TOOLS for source in context.study.of_kind("run")),
)  # fmt: skip
UTILIZATION = table_of(
    "utilization", "How busy is each device?", utilization.utilization,
    lambda context: any(source.tables("kernels") for source in context.study.of_kind("run")),
)  # fmt: skip
