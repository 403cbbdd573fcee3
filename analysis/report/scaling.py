"""Sections on scaling: throughput and efficiency, the loss by part, factors, stages and anatomy of a step."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from analysis.display import plots
from analysis.display.lines import EFFICIENCY, THROUGHPUT
from analysis.display.metrics import CONFIGURATION, Rows, columns, names_of
from analysis.display.plots import BLACK, BLUE, BROWN
from analysis.display.terminal import Part
from analysis.frames.anatomy import traces_of
from analysis.frames.divide import EVERY, finest
from analysis.frames.study import RECORDING, Study
from analysis.measures import anatomy, batches, factors
from analysis.measures import scaled as figures
from analysis.measures.certainty import without_unusable_intervals
from analysis.measures.factors import varying_of
from analysis.published import scaled_parts
from analysis.report.base import Content, Context, SectionKind, bar_chart, effects, line_chart, responses
from analysis.report.render import Chart
from analysis.report.views import as_view, called, facts, knowing, labels_of, merged, named, varied

_IDEAL = (
    "Dotted and dashed: ideal scaling from the baseline. Error bars: 95 % confidence intervals over runs."
)
_GROWTH = "Growth of each part of a profiled step, in percentage points of efficiency; negative: it shrank."
_STAGES = "Medians, without warmup. Backward includes the exchange of gradients."
_PARTS = "Mean of profiled steps over ranks and runs. Of two things at once the first in the legend counts."
_LOSS_COLOURS = {**plots.PART_COLOURS, "unattributed": BLACK}
MOST_RANKS = 128  # that a chart has a bar for: of more, those that communicate longest and shortest
_RANK_DIGITS = 4
_LEAST_FACTORS = 2  # of which the section speaks
_EFFECT_COLOURS = {"main effect": BLUE, "interaction": BROWN}


def _scaling(context: Context) -> Content:
    """Throughput and efficiency against ranks."""
    own = context.own
    points = points_against_ranks(own, context.curves)
    charts = [
        line_chart(context, "throughput", points, THROUGHPUT),
        line_chart(context, "efficiency", points, EFFICIENCY),
    ]
    if not any(row["world_size"] != row["base_world_size"] for row in own):
        known = any(not math.isnan(row["images_per_s"]) for row in own)
        return Content("", charts[:1] if known else [])
    return Content(_IDEAL, charts)


def points_against_ranks(own: Rows, series: Sequence[str]) -> Rows:
    """The points of the charts: a row a configuration and world size, each series from its base point on.

    A base point can be another configuration's (one rank sends no gradients, whatever their precision): it
    is repeated in each series that is compared with it.
    """
    points = [
        {**without_unusable_intervals(row), "label": called(row, series), "facts": facts(row, series)}
        for row in own
    ]
    sizes = {(row["label"], row["world_size"]) for row in points}
    for row in list(points):
        start = (row["label"], row["base_world_size"])
        if start not in sizes and row["base_world_size"]:
            sizes.add(start)
            rate = row["base_images_per_s"]
            points.append({
                "label": row["label"], "facts": row["facts"], "world_size": row["base_world_size"],
                "images_per_s": rate, "scaling_efficiency_pct": 100.0,
            })  # fmt: skip
    return points


def _table(context: Context) -> Content:
    """The figures themselves, as the terminal shows them."""
    parts = scaled_parts.parts(context.own, with_loss=False)
    factors = context.factors
    views = [as_view(part, f"table-{number}", factors) for number, part in enumerate(parts)]
    return Content(tables=views)


def _lost(context: Context) -> Part | None:
    return scaled_parts.loss_part(context.own, intervals=True)


def _loss(context: Context) -> Content:
    """The loss of each point by part, stacked, and the figures."""
    part = context.once(_lost)
    assert part is not None  # else the section does not apply
    attributable = [row for row in part.rows if row["loss_unattributed_pct"] is not None]
    views = [as_view(replace(part, caption=""), "loss-table", context.factors)]
    return Content(_GROWTH, [_loss_chart(context, attributable)] if attributable else [], views)


def _loss_chart(context: Context, rows: Rows) -> Chart:
    series = context.series
    ordered = sorted(rows, key=lambda row: (called(row, series), row["world_size"] or 0))
    bars = named([{**row, **_parts_lost(row)} for row in ordered], [*series, "world_size"], context.lines)
    title = "Loss of scaling efficiency"
    return bar_chart(context, "loss", bars, _LOSS_COLOURS, title, unit="pct", of="percentage points")


def _parts_lost(row: dict[str, Any]) -> dict[str, float]:
    """The parts that a bar is stacked of, each time once."""
    parts = finest({name: row.get(f"loss_{name}_pct") for name in EVERY})
    return {f"{name}_pct": value for name, value in parts.items()} | {
        "unattributed_pct": float(row["loss_unattributed_pct"])
    }


def _stages(context: Context) -> Content:
    """Where a batch's time goes, by stage."""
    own, factors = context.own, context.factors
    chart = bar_chart(context, "stages", named(own, factors), plots.STAGE_COLOURS, "Stages of a step")
    rows = [{**row, "configuration": label} for row, label in zip(own, labels_of(own, factors), strict=True)]
    shown = columns(
        (CONFIGURATION, *figures.METRICS), "configuration", *(f"{name}_ms" for name in plots.STAGE_COLOURS)
    )
    view = as_view(Part("", rows, shown), "stages-table", factors)
    return Content(_STAGES, [chart], [view])


def anatomy_of_points(study: Study) -> Rows:
    """A row of the anatomy for each configuration: the mean of its runs.

    Raises:
        UserError: no run has attributed batches with kernels that have a place in time.
    """
    # A trace without collectives counts what these took as idle.
    complete = knowing(anatomy.rows(study), "exposed_communication_ms")
    return merged(complete, names_of(anatomy.METRICS))


def _batches(context: Context) -> Content:
    """The table of analysis.batches: a row a run."""
    (part,) = batches.batches(context.study).tables
    return Content(tables=[as_view(part, "batches-table", context.factors)])


def _anatomy(context: Context) -> Content:
    """Where it goes, by what runs: parts that add up."""
    rows = context.once(_anatomies)
    bars = named(context.once(_parts_of_steps), context.factors)
    of, per = _step_of(context, rows)
    chart = bar_chart(context, "anatomy", bars, plots.PART_COLOURS, f"Anatomy of {of}", of=f"ms {per}")
    whole, within = anatomy.parts(rows, of=of)
    ids = {"anatomy-table": whole, "anatomy-within": within}
    views = [as_view(part, id, context.factors) for id, part in ids.items()]
    charts = [one for one in (chart, chart_by_rank(context)) if one]
    return Content(_PARTS, charts, views)


def _anatomies(context: Context) -> Rows:
    return anatomy_of_points(context.study)


def _parts_of_steps(context: Context) -> Rows:
    return _bars(context.once(_anatomies))


def _step_of(context: Context, rows: Rows) -> tuple[str, str]:
    """(what the anatomy is of, what its durations are per)."""
    of = context.study.a_step(row.get("job") or "" for row in rows)
    return of, "in the recording" if of == RECORDING else "per step"


def _bars(rows: Rows) -> Rows:
    """Rows of the anatomy with each time once: split where it is known how, else whole."""
    parts = [finest({name: row[f"{name}_ms"] for name in EVERY}) for row in rows]
    names = {name for of_row in parts for name in of_row}
    figures = names_of(anatomy.METRICS)
    rest = [{name: value for name, value in row.items() if name not in figures} for row in rows]
    return [
        {**row, **{f"{name}_ms": of_row.get(name, math.nan) for name in names}}
        for row, of_row in zip(rest, parts, strict=True)
    ]


def chart_by_rank(context: Context) -> Chart | None:
    """A bar for each rank, of the same parts as a bar of the run; None where no run has several ranks."""
    traces = traces_of(context.study, context.study.recorded)
    trace = max(traces, key=lambda one: len(one.recorded), default=None)
    if trace is None or len(trace.recorded) < 2:
        return None
    rows = foremost(anatomy.means(trace, ("rank",)))
    fields = trace.source.fields
    name = called(fields, context.factors)
    return Chart("anatomy-ranks", _by_rank(rows, f"Anatomy by rank: {name}", facts(fields, context.factors)))


def foremost(rows: Rows) -> Rows:
    """The rows of ranks, in their order; of more than :data:`MOST_RANKS` the two ends by communication."""
    if len(rows) <= MOST_RANKS:
        return rows
    by_communication = sorted(rows, key=lambda row: row["exposed_communication_ms"])
    ends = [*by_communication[: MOST_RANKS // 2], *by_communication[-MOST_RANKS // 2 :]]
    return sorted(ends, key=lambda row: row["rank"])


def _by_rank(rows: Rows, title: str, meta: dict[str, Any]) -> plots.Figure:
    parts = [finest({name: row[f"{name}_ms"] for name in EVERY}) for row in rows]
    traces = [
        {
            "type": "bar",
            "name": (name := part.replace("_", " ")),
            "x": [str(row["rank"]) for row in rows],
            "y": [float(f"{of.get(part, 0.0):.{_RANK_DIGITS}g}") for of in parts],
            "hovertemplate": f"rank %{{x}}<br>{name}: %{{y:.2f}} ms per step<extra></extra>",
            "meta": meta,
            "marker": {"color": colour},
        }
        for part, colour in plots.PART_COLOURS.items()
        if any(of.get(part) for of in parts)
    ]
    layout = {
        **plots.layout(title), "barmode": "relative",
        "xaxis": {"title": plots.beside_ticks("rank"), "type": "category"},
        "yaxis": {"title": plots.beside_ticks("ms per step"), "rangemode": "tozero"},
    }  # fmt: skip
    return {"data": traces, "layout": layout}


def _varying(context: Context) -> bool:
    """Whether two factors vary or more: what one explains, the scaling charts show."""
    runs = varied(source.fields for source in context.study.of_kind("run"))
    if len(runs) < _LEAST_FACTORS and not context.study.tau_intervals:
        return False
    _, cells = context.once(responses)
    return len(varying_of(cells)) >= _LEAST_FACTORS


def _factors(context: Context) -> Content:
    """Share of the variance by factor with its interval, largest first."""
    what, _ = context.once(responses)
    rows = context.once(effects)
    finite = [row for row in rows if math.isfinite(row["omega_squared"])]
    part = Part("", rows, factors.shown())
    charts = [Chart("factors", effect_bars(finite, what))] if finite else []
    return Content("", charts, [as_view(part, "factor-table", ())])


def effect_bars(rows: Rows, what: str) -> plots.Figure:
    """Omega squared of each factor and pair as a bar with its interval, largest on top.

    Args:
        rows: of :func:`analysis.factors.rows`.
        what: the response.
    """
    order = sorted(rows, key=lambda row: -row["omega_squared"])
    traces = []
    for kind, colour in _EFFECT_COLOURS.items():
        of_kind = [row for row in order if (" x " in row["factor"]) == (kind == "interaction")]
        if of_kind:
            traces.append(_effects_of(of_kind, kind, colour))
    factors = [row["factor"] for row in order]
    return plots.bars(traces, f"What explains {what}", "omega squared", factors)


def _effects_of(rows: Rows, kind: str, colour: str) -> dict[str, Any]:
    labels, shares = [row["factor"] for row in rows], [row["omega_squared"] for row in rows]
    trace = plots.bars_across(kind, labels, shares, colour, "%{x:.3f} of the variance")
    if all(row["omega_squared_low"] is not None for row in rows):
        # The estimate of next to nothing may lie below 0, where no share is.
        low = [min(row["omega_squared_low"], row["omega_squared"]) for row in rows]
        high = [max(row["omega_squared_high"], row["omega_squared"]) for row in rows]
        trace["error_x"] = plots.error_bars(shares, low, high, width=4)
    return trace


def _ran(context: Context) -> bool:
    return bool(context.own)


SCALING = SectionKind("scaling", "How does it scale?", _scaling, _ran, opened=True)
TABLE = SectionKind("table", "Results", _table, _ran)
LOSS = SectionKind(
    "loss", "Where is scaling efficiency lost?", _loss, lambda context: context.once(_lost) is not None,
    opened=True,
)  # fmt: skip
STAGES = SectionKind("stages", "How long are the stages of a step?", _stages, _ran)
ANATOMY = SectionKind(
    "anatomy", "Where does the time of a step go?", _anatomy,
    lambda context: _ran(context) or bool(context.traces),
)  # fmt: skip
BATCHES = SectionKind(
    "batches", "How steady is a step?", _batches, lambda context: _ran(context) or bool(context.traces)
)
FACTORS = SectionKind("factors", "Which factor matters?", _factors, _varying)
