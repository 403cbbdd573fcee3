"""Sections on kernels: the longest, their change on more ranks, roofline, hotspots, and the use of GPUs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.display import plots
from analysis.display.metrics import CONFIGURATION, Column, Rows, columns, picked, records
from analysis.display.plots import GREY
from analysis.display.terminal import Part
from analysis.frames.study import Source
from analysis.measures import hotspots, kernels, utilization
from analysis.measures.hotspots import TOOLS
from analysis.measures.kernels import BY, kernels_of
from analysis.measures.peaks import Roof, bound_of, roofs
from analysis.measures.traced import programs
from analysis.report.base import Content, Context, SectionKind, called, facts, labels_of
from analysis.report.render import Chart
from profiling.errors import UserError

TOP_KERNELS = 15  # of a chart
TABLE_KERNELS = 40  # of a run, in the table
TOP_CHANGES = 15
TOP_HOTSPOTS = 5
ROOFLINE_KERNELS = 60  # kernels of the chart: those that take most time
_SMALLEST, _LARGEST = 6.0, 36.0  # diameter of a kernel's point, in pixels
_MARGIN = 2.0  # how far the roofs go beyond the kernels, as a factor
# In these the two runs whose kernels are compared may differ: two make the number of ranks.
_ANY = ("nodes", "gpus_per_node", "attribute_from", "seed", "job")


def _top(context: Context) -> Content:
    """The kernels that take most time: a chart of one run, a table of all."""
    sources = kernels.with_kernels(context.study)
    if not sources:
        raise UserError("no profiled run or trace with kernels")
    of_run = context.once(_by_run)
    by_id = {source.id: source for source in sources}
    shown = _foremost(context)
    top = pd.DataFrame(of_run[shown][:TOP_KERNELS]).rename(columns={"kernel": "short_name"})
    names = _names(context, [by_id[run] for run in of_run])
    of_run_shown = facts(by_id[shown].fields, context.factors)
    figure = plots.of_one(plots.kernels(top, f"Top kernels: {names[shown]}"), of_run_shown)
    chart = Chart("kernels", figure)
    of_table = [
        {**row, **facts(by_id[run].fields, context.factors), "configuration": names[run]}
        for run in of_run
        for row in of_run[run][:TABLE_KERNELS]
    ]
    part = Part("", of_table, _top_columns(len(of_run) > 1))
    return Content("", [chart], {"kernel-table": part})


def _by_run(context: Context) -> dict[str, Rows]:
    """The kernels of each run, the longest first."""
    rows = kernels.figures(context.study, kernels.with_kernels(context.study))
    if rows.empty:
        raise UserError("no profiled run has a kernel in a profiled step")
    for finding in kernels.exceeded(rows):
        context.study.log.add(finding)
    return {str(run): records(of_run) for run, of_run in rows.groupby("run", sort=False)}


def _foremost(context: Context) -> str:
    """The run whose longest kernel matters most, by its id."""
    of_run = context.once(_by_run)

    def order(source: Source) -> tuple[bool, int, float]:
        # Traces are of unlike jobs; of the runs of a sweep those on the most ranks matter most.
        ranks = 0 if source.kind == "trace" else source.world_size or 0
        return not source.without_steps, ranks, of_run[source.id][0]["ms_per_step"]

    measured = [source for source in kernels.with_kernels(context.study) if source.id in of_run]
    return max(measured, key=order).id


def _names(context: Context, sources: Sequence[Source]) -> dict[str, str]:
    """What runs are called, by their ids."""
    every = [{**source.fields, "repetition": source.repetition} for source in sources]
    return dict(zip([source.id for source in sources], labels_of(every, context.factors), strict=True))


def _top_columns(several: bool) -> list[Column]:
    of_run = [CONFIGURATION] if several else []
    figures = picked(
        kernels.METRICS, "ms_per_step", "share_pct", "calls_per_step", "mean_us", "gflop_per_step",
        "flops_efficiency_pct", "bandwidth_efficiency_pct",
    )  # fmt: skip
    return columns([*of_run, *(BY[name] for name in kernels.DEFAULT_BY), *figures])


def _pair(context: Context) -> tuple[Source, Source] | None:
    """Two profiled runs of one configuration on the numbers of ranks that are furthest apart, if there are.

    One rank sends no gradients: if it is the smaller one, their precision may be another.
    """
    sources = [source for source in kernels.with_kernels(context.study) if source.world_size]
    runs = [source for source in sources if source.kind != "trace"]
    groups = programs(context.study, [source for source in sources if source.kind == "trace"])
    groups += [[a, b] for a in runs for b in runs if _alike(a, b)]
    pairs = [(min(group, key=_ranks), max(group, key=_ranks)) for group in groups]
    return max(
        (pair for pair in pairs if _ranks(pair[0]) < _ranks(pair[1])),
        # Of equally far ones those that differ in nothing else.
        key=lambda pair: (
            _ranks(pair[1]) / _ranks(pair[0]),
            pair[0].fields.get("grad") == pair[1].fields.get("grad"),
        ),
        default=None,
    )


def _ranks(source: Source) -> int:
    return source.world_size or 1


def _alike(a: Source, b: Source) -> bool:
    free = (*_ANY, "grad") if a.world_size == 1 else _ANY
    return all(str(value) == str(b.fields.get(name)) for name, value in a.fields.items() if name not in free)


def _sides(context: Context) -> list[kernels.Side]:
    """Two profiled runs of a configuration with their kernels; none if none ran on two numbers of ranks."""
    pair = context.once(_pair)
    sides = [kernels.side_of(context.study, source) for source in pair or ()]
    return sides if not any(side.kernels.empty for side in sides) else []


def _change(context: Context) -> Content:
    """The difference of two profiled runs of a configuration."""
    pair = context.once(_pair)
    assert pair is not None  # else the section does not apply
    a, b = context.once(_sides)
    pairs = kernels.differences(a.kernels, b.kernels)
    totals = kernels.summary(pairs, a, b)
    fields = [*(name for name in context.factors if name not in ("nodes", "gpus_per_node")), "world_size"]
    names = [called({**source.fields, "world_size": source.world_size}, fields) for source in pair]
    title = ("Kernels on more ranks", f"A: {names[0]}; B: {names[1]}")
    parts = kernels.tables_of_change(pairs.head(TOP_CHANGES), totals, kernels.DEFAULT_BY, *title)
    return Content(title[1], tables={f"kernel-change-{number}": part for number, part in enumerate(parts)})


def _hotspots(context: Context) -> Content:
    """The table of analysis.hotspots, of runs that have read counters."""
    (part,) = hotspots.hotspots(context.study, top=TOP_HOTSPOTS).tables
    return Content(tables={"hotspots-table": replace(part, title="")})


def _utilization(context: Context) -> Content:
    """How busy each GPU was, and what more of them gained: a row a rank and GPU."""
    (part,) = utilization.utilization(context.study).tables
    return Content(tables={"utilization-table": replace(part, title="")})


def _counters_read(context: Context) -> bool:
    return any(source.fields["profile"] in TOOLS for source in context.study.of_kind("run"))


def _profiled(context: Context) -> bool:
    return any(source.tables("kernels") for source in context.study.of_kind("run"))


def _with_kernels(context: Context) -> list[Source]:
    return kernels.with_kernels(context.study)


def _roofline(context: Context) -> Content:
    """The roofline of the run of which most ranks were recorded."""
    study, (source, placed, named_roofs) = context.study, context.once(_placed)
    name, of_run = called(source.fields, context.factors), facts(source.fields, context.factors)
    points = _points(placed[:ROOFLINE_KERNELS], named_roofs[0][1])
    drawn = figure(points, named_roofs, plots.escaped(f"Roofline: {name}"))
    chart = Chart("roofline", plots.of_one(drawn, of_run))
    by_class = [
        {**row, **of_run}
        for row in kernels_of(study, source, by=("class",))
        if row["intensity_flop_per_byte"] is not None
    ]
    return Content(name, [chart], {"roofline-table": Part("", by_class, _roof_columns(named_roofs))})


def _placed(context: Context) -> tuple[Source, Rows, list[tuple[str, Roof]]]:
    """The run that is shown, its kernels that have a place in the chart, and the roofs.

    Raises:
        UserError: none is known.
    """
    study, sources = context.study, context.once(_with_kernels)
    source = max(sources, key=lambda each: (len(each.tables("kernels")), -sources.index(each)))
    rows = kernels_of(study, source)
    placed = [row for row in rows if row["intensity_flop_per_byte"]]
    named_roofs = [
        (name, roof)
        for name, roof in zip(("datasheet", "measured"), roofs(bound_of(study, source)), strict=True)
        if roof
    ]
    if not rows:
        raise UserError("no profiled run has a kernel in a profiled step")
    if not placed:
        raise UserError("the profiler recorded no FLOPs or bytes for any kernel")
    if not named_roofs:
        raise UserError("no peak of this device: neither from a datasheet (--peaks FILE) nor measured")
    return source, placed, named_roofs


def _points(placed: Rows, roof: Roof) -> pd.DataFrame:
    """What the chart needs; the rate is of the launches whose bytes are known, as the intensity is."""
    table = pd.DataFrame(placed)
    table["flops_per_s"] = [
        (row["roof_pct"] if row["roof_pct"] is not None else row["roof_of_measured_pct"])
        / 100 * roof.at(row["intensity_flop_per_byte"])
        for row in placed
    ]  # fmt: skip
    table["hint"] = [
        f"{row['kernel']} ({row['direction']}): {row['ms_per_step']:.3f} ms per step" for row in placed
    ]
    return table


def _roof_columns(named_roofs: Sequence[tuple[str, Roof]]) -> list[Column]:
    figures = picked(kernels.METRICS, "ms_per_step", "share_pct", "intensity_flop_per_byte", "bound")
    roof, of_measured = picked(kernels.METRICS, "roof_pct", "roof_of_measured_pct")
    of_roof = {
        "datasheet": roof.column("of datasheet roof, %"),
        "measured": of_measured.column("of measured roof, %"),
    }
    return [*columns([BY["class"], *figures]), *(of_roof[name] for name, _ in named_roofs)]


def figure(kernels: pd.DataFrame, roofs: Sequence[tuple[str, Roof]], title: str) -> plots.Figure:
    """FLOP/s against arithmetic intensity, log-log, with both roofs; a point a kernel, its area its time.

    Args:
        kernels: columns ``kernel, class, direction, ms_per_step, intensity_flop_per_byte`` (above 0) and
            ``flops_per_s``, and ``hint``, what the pointer shows of each.
        roofs: name and roof; the first is drawn solid.
    """
    lowest = float(kernels["intensity_flop_per_byte"].min())
    highest = float(kernels["intensity_flop_per_byte"].max())
    ridges = [roof.ridge_flop_per_byte for _, roof in roofs]
    span = (min([lowest, *ridges]) / _MARGIN, max([highest, *ridges]) * _MARGIN)
    lines = [_roof_line(name, roof, span, number) for number, (name, roof) in enumerate(roofs)]
    largest = float(kernels["ms_per_step"].max())
    points = [
        _trace(of_class, str(name), number, largest)
        for number, (name, of_class) in enumerate(kernels.groupby("class", sort=False))
    ]
    rates = [rate for line in (*lines, *points) for rate in line["y"] if rate > 0]
    return {"data": [*lines, *points], "layout": _layout(title, span, (min(rates), max(rates)))}


def _roof_line(name: str, roof: Roof, span: tuple[float, float], number: int) -> dict[str, Any]:
    at = [span[0], roof.ridge_flop_per_byte, span[1]]
    return {
        "x": at,
        "y": [roof.at(intensity) / 1e9 for intensity in at],
        "name": plots.escaped(name),
        "mode": "lines",
        "line": {"color": GREY, "width": 2, "dash": "solid" if number == 0 else "dash"},
        "hovertemplate": f"{plots.escaped(name)}: %{{y:.4g}} GFLOP/s at %{{x:.3g}} FLOP/byte<extra></extra>",
    }


def _trace(of_class: pd.DataFrame, name: str, number: int, largest: float) -> dict[str, Any]:
    sizes = np.sqrt(of_class["ms_per_step"] / largest) * _LARGEST if largest else of_class["ms_per_step"]
    return {
        "x": of_class["intensity_flop_per_byte"].tolist(),
        "y": (of_class["flops_per_s"] / 1e9).tolist(),
        "name": plots.escaped(name),
        "mode": "markers",
        "hovertext": [plots.escaped(text) for text in of_class["hint"]],
        "hovertemplate": "%{hovertext}<br>%{x:.3g} FLOP/byte, %{y:.4g} GFLOP/s<extra></extra>",
        "marker": {
            "size": np.maximum(sizes, _SMALLEST).tolist(),
            **plots.outlined(plots.class_colour(name)),
            "symbol": plots.SYMBOLS[number % len(plots.SYMBOLS)],
            "opacity": 0.8,
        },
    }


def _layout(title: str, span: tuple[float, float], rates: tuple[float, float]) -> dict[str, Any]:
    return {
        **plots.layout(title),
        "height": 480,
        "xaxis": plots.log_axis("arithmetic intensity, FLOP/byte", *span),
        "yaxis": plots.log_axis("GFLOP/s", *rates),
    }


TOP = SectionKind(
    "kernels",
    "Which kernels take the time?",
    _top,
    lambda context: bool(context.study.sources),
)
CHANGE = SectionKind(
    "kernel-change",
    "What changes in the kernels on more ranks?",
    _change,
    lambda context: bool(context.once(_sides)),
)
HOTSPOTS = SectionKind("hotspots", "Why are the hottest kernels slow?", _hotspots, _counters_read)
UTILIZATION = SectionKind(
    "utilization",
    "How busy is each GPU?",
    _utilization,
    _profiled,
    on_cpus="How busy is each rank?",
)
ROOFLINE = SectionKind(
    "roofline",
    "What bounds the kernels?",
    _roofline,
    lambda context: bool(context.once(_with_kernels)),
)
