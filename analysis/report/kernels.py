"""Sections on kernels: the longest ones, changes with more ranks, roofline, hotspots, GPU utilization."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.display import plots
from analysis.display.metrics import CONFIGURATION, Metric, columns, records
from analysis.display.plots import GREY
from analysis.display.terminal import Part
from analysis.frames.study import Source
from analysis.measures import hotspots, kernels, utilization
from analysis.measures.hotspots import TOOLS
from analysis.measures.kernels import BY
from analysis.measures.peaks import Roof, bounds, roofs
from analysis.measures.traced import programs
from analysis.report.base import Content, Context, SectionKind, facts, labels_of, sized, table_of
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


def _with_kernels(context: Context) -> list[Source]:
    return kernels.with_kernels(context.study)


def _rows(context: Context) -> pd.DataFrame:
    """A row a kernel of each run, with the run's fields; of each run the longest first."""
    study, sources = context.study, context.once(_with_kernels)
    if not sources:
        raise UserError("no profiled run or trace with kernels")
    rows = kernels.figures(study, sources)
    if rows.empty:
        raise UserError("no profiled run has a kernel in a profiled step")
    for finding in kernels.exceeded(rows):
        study.add(finding)
    return study.with_fields(rows)


def _top(context: Context) -> Content:
    """The kernels that take most time: a chart of one run, a table of all."""
    rows = context.once(_rows)
    each = rows.drop_duplicates("run")
    names = dict(zip(each["run"], labels_of(records(each), context.factors, context.unit), strict=True))
    source = _foremost(context, rows)
    top = rows[rows["run"] == source.id].head(TOP_KERNELS)
    top = top.assign(label=top["kernel"], series=top["class"], value=top["ms_per_step"])
    # Those of one name stand in one bar.
    whole = top.groupby("label")["value"].transform("sum").sort_values(ascending=False, kind="stable")
    top = top.loc[whole.index]
    colours = {str(name): plots.class_colour(str(name)) for name in top["class"].unique()}
    title = f"Top kernels: {names[source.id]}"
    figure = plots.bars(top, colours, title, "ms per step", "%{x:.2f} ms per step")
    chart = Chart("kernels", plots.of_one(figure, facts(source.fields, context.factors)))
    shown = rows.groupby("run", sort=False).head(TABLE_KERNELS)
    shown = shown.assign(configuration=shown["run"].map(names))
    return Content("", [chart], {"kernel-table": Part("", shown, _top_columns(len(names) > 1))})


def _foremost(context: Context, rows: pd.DataFrame) -> Source:
    """The run whose longest kernel matters most."""
    longest_ms = rows.groupby("run")["ms_per_step"].max()

    def order(source: Source) -> tuple[bool, int, float]:
        # Traces are of unlike jobs; of the runs of a sweep those on the most ranks matter most.
        ranks = 0 if source.kind == "trace" else source.world_size or 0
        return not source.without_steps, ranks, longest_ms[source.id]

    return max((one for one in context.once(_with_kernels) if one.id in longest_ms), key=order)


def _top_columns(several: bool) -> list[Metric]:
    of_run = [CONFIGURATION] if several else []
    figures = columns(
        kernels.METRICS, "ms_per_step", "share_pct", "calls_per_step", "mean_us", "gflop_per_step",
        "flops_efficiency_pct", "bandwidth_efficiency_pct",
    )  # fmt: skip
    return columns([*of_run, *(BY[name] for name in kernels.DEFAULT_BY), *figures])


def _pair(context: Context) -> tuple[Source, Source] | None:
    """Two profiled runs of one configuration on the numbers of ranks that are furthest apart, if there are.

    One rank sends no gradients: if it is the smaller one, their precision may be another.
    """
    sources = [source for source in context.once(_with_kernels) if source.world_size]
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
    names = [
        sized({**source.fields, "world_size": source.world_size}, fields, context.unit) for source in pair
    ]
    title = ("Kernels on more ranks", f"A: {names[0]}; B: {names[1]}")
    parts = kernels.tables_of_change(pairs.head(TOP_CHANGES), totals, kernels.DEFAULT_BY, *title)
    return Content(title[1], tables={f"kernel-change-{number}": part for number, part in enumerate(parts)})


def _roofline(context: Context) -> Content:
    """The roofline of the run of which most ranks were recorded."""
    study, sources = context.study, context.once(_with_kernels)
    source = max(sources, key=lambda each: (len(each.tables("kernels")), -sources.index(each)))
    rows = context.once(_rows)
    rows = rows[rows["run"] == source.id]
    placed = rows[rows["intensity_flop_per_byte"] > 0]
    named_roofs = list(roofs(bounds(study, [source]).iloc[0]).items())
    if rows.empty:
        raise UserError("no profiled run has a kernel in a profiled step")
    if placed.empty:
        raise UserError("the profiler recorded no FLOPs or bytes for any kernel")
    if not named_roofs:
        raise UserError("no peak of this device: neither from a datasheet (--peaks FILE) nor measured")
    name = sized(source.fields, context.factors, context.unit)
    points = _points(placed.head(ROOFLINE_KERNELS), named_roofs[0][1])
    drawn = figure(points, named_roofs, plots.escaped(f"Roofline: {name}"))
    chart = Chart("roofline", plots.of_one(drawn, facts(source.fields, context.factors)))
    classes = study.with_fields(kernels.figures(study, [source], ("class",)))
    classes = classes.dropna(subset="intensity_flop_per_byte")
    return Content("", [chart], {"roofline-table": Part("", classes, _roof_columns(named_roofs))})


def _points(placed: pd.DataFrame, roof: Roof) -> pd.DataFrame:
    """What the chart needs; the rate is of the launches whose bytes are known, as the intensity is."""
    share = placed["roof_pct"].fillna(placed["roof_of_measured_pct"]) / 100
    names = ["kernel", "direction", "ms_per_step"]
    hints = [f"{kernel} ({way}): {ms:.2f} ms per step" for kernel, way, ms in placed[names].to_numpy()]
    return placed.assign(flops_per_s=share * placed["intensity_flop_per_byte"].map(roof.at), hint=hints)


def _roof_columns(named_roofs: Sequence[tuple[str, Roof]]) -> list[Metric]:
    figures = ("ms_per_step", "share_pct", "intensity_flop_per_byte", "bound")
    of_roof = {"datasheet": "roof_pct", "measured": "roof_of_measured_pct"}
    return [BY["class"], *columns(kernels.METRICS, *figures, *(of_roof[name] for name, _ in named_roofs))]


def figure(kernels: pd.DataFrame, roofs: Sequence[tuple[str, Roof]], title: str) -> plots.Figure:
    """FLOP/s against arithmetic intensity, log-log, with both roofs; a point a kernel, its area its time.

    Args:
        kernels: columns ``kernel, class, direction, ms_per_step, intensity_flop_per_byte`` (above 0) and
            ``flops_per_s``, and ``hint``, what the pointer shows of each.
        roofs: name and roof; the first is drawn solid.
    """
    intensity = kernels["intensity_flop_per_byte"]
    ridges = [roof.ridge_flop_per_byte for _, roof in roofs]
    span = (min([intensity.min(), *ridges]) / _MARGIN, max([intensity.max(), *ridges]) * _MARGIN)
    traces = [_roof_line(name, roof, span, number) for number, (name, roof) in enumerate(roofs)]
    largest = float(kernels["ms_per_step"].max())
    traces += [
        _trace(of_class, str(name), number, largest)
        for number, (name, of_class) in enumerate(kernels.groupby("class", sort=False))
    ]
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
        "hovertemplate": f"{text}: %{{y:.4g}} GFLOP/s at %{{x:.3g}} FLOP/byte<extra></extra>",
    }  # fmt: skip


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


TOP = SectionKind(
    "kernels", "Which kernels take the time?", _top, lambda context: bool(context.study.sources)
)
CHANGE = SectionKind(
    "kernel-change", "What changes in the kernels on more ranks?", _change,
    lambda context: bool(context.once(_sides)),
)  # fmt: skip
HOTSPOTS = SectionKind(
    "hotspots", "Why are the hottest kernels slow?",
    table_of("hotspots-table", lambda study: hotspots.hotspots(study, top=TOP_HOTSPOTS)),
    lambda context: any(source.fields["profile"] in TOOLS for source in context.study.of_kind("run")),
)  # fmt: skip
UTILIZATION = SectionKind(
    "utilization", "How busy is each GPU?", table_of("utilization-table", utilization.utilization),
    lambda context: any(source.tables("kernels") for source in context.study.of_kind("run")),
    on_cpus="How busy is each rank?",
)  # fmt: skip
ROOFLINE = SectionKind(
    "roofline", "What bounds the kernels?", _roofline, lambda context: bool(context.once(_with_kernels))
)
