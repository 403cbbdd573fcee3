"""Sections on scaling: throughput and efficiency, the loss by part, factors, stages and anatomy of a step."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from analysis.display import plots
from analysis.display.lines import EFFICIENCY, THROUGHPUT
from analysis.display.metrics import CONFIGURATION, Rows, columns, records
from analysis.display.plots import BLACK, BLUE, BROWN
from analysis.display.terminal import Answer, Part
from analysis.frames.anatomy import anatomy as anatomy_frame
from analysis.frames.anatomy import traces_of
from analysis.frames.divide import EVERY, finest
from analysis.measures import anatomy, batches, factors
from analysis.measures import scaled as figures
from analysis.measures.certainty import without_unusable_intervals
from analysis.measures.factors import levels_of
from analysis.report.base import (
    Content,
    Context,
    SectionKind,
    as_view,
    bar_chart,
    by_configuration,
    called,
    effects,
    facts,
    labels_of,
    line_chart,
    named,
    responses,
    varied,
)
from analysis.report.render import Chart

_IDEAL = (
    "Dotted and dashed: ideal scaling from the baseline. Error bars: 95 % confidence intervals over runs."
)
_GROWTH = "Growth of each part of a profiled step, in percentage points of efficiency; negative: it shrank."
_STAGES = "Medians, without warmup. Backward includes the exchange of gradients."
_PARTS = "Mean of profiled steps over ranks and runs. Of two things at once the first in the legend counts."
_LOSS_COLOURS = {**plots.PART_COLOURS, "unattributed": BLACK}
MOST_RANKS = 128  # that a chart has a bar for: of more, those that communicate longest and shortest
_RANK_PLACES = 3  # of a millisecond
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
        known = any(row["images_per_s"] is not None for row in own)
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
    parts = figures.tables(context.own, with_loss=False)
    factors = context.factors
    views = [as_view(part, f"table-{number}", factors) for number, part in enumerate(parts)]
    return Content(tables=views)


def _lost(context: Context) -> Part | None:
    return figures.loss_part(context.own, intervals=True)


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


def _batches(context: Context) -> Content:
    """The table of analysis.batches: a row a run."""
    (part,) = batches.batches(context.study).tables
    return Content(tables=[as_view(part, "batches-table", context.factors)])


def _anatomy(context: Context) -> Content:
    """Where it goes, by what runs: parts that add up."""
    answer = context.once(anatomies)
    figures = [f"{name}_ms" for name in plots.PART_COLOURS]
    bars = by_configuration(finest_parts(records(answer.rows)), figures, context.factors)
    chart = bar_chart(context, "anatomy", bars, plots.PART_COLOURS, "Anatomy of a step")
    whole, within = answer.tables
    ids = {"anatomy-table": whole, "anatomy-within": within}
    views = [as_view(part, id, context.factors) for id, part in ids.items()]
    return Content(_PARTS, [one for one in (chart, chart_by_rank(context)) if one], views)


def anatomies(context: Context) -> Answer:
    """The answer of analysis.anatomy, a row a run.

    Raises:
        UserError: no run has profiled steps with kernels that have a place in time.
    """
    return anatomy.anatomy(context.study)


def finest_parts(rows: Rows) -> pd.DataFrame:
    """Rows with each time once: split where it is known how, else whole; NaN: not known."""
    parts = [finest({name: row[f"{name}_ms"] for name in EVERY}) for row in rows]
    columns = {f"{name}_ms": [of.get(name, math.nan) for of in parts] for name in EVERY}
    return pd.DataFrame(rows).assign(**columns)


def chart_by_rank(context: Context) -> Chart | None:
    """A bar for each rank of the widest run, of the same parts as a bar of the run; None: one rank each.

    Of more than :data:`MOST_RANKS` those that communicate longest and shortest.
    """
    traces = traces_of(context.study, context.study.recorded)
    trace = max(traces, key=lambda one: len(one.recorded), default=None)
    if trace is None or len(trace.recorded) < 2:
        return None
    means = anatomy.means(anatomy_frame(context.study, [trace.source]), ("rank",))
    ranks = finest_parts(records(means)).fillna(0.0)
    if len(ranks) > MOST_RANKS:
        talked = ranks["exposed_communication_ms"].sort_values(kind="stable").index
        ranks = ranks.loc[sorted([*talked[: MOST_RANKS // 2], *talked[-MOST_RANKS // 2 :]])]
    fields = trace.source.fields
    meta = facts(fields, context.factors)
    traces_of_parts = [
        {
            "type": "bar", "name": name, "marker": {"color": colour}, "meta": meta,
            "x": ranks["rank"].astype(str).tolist(), "y": ranks[f"{part}_ms"].round(_RANK_PLACES).tolist(),
            "hovertemplate": f"rank %{{x}}<br>{name}: %{{y:.2f}} ms per step<extra></extra>",
        }
        for part, colour in plots.PART_COLOURS.items()
        if (name := part.replace("_", " ")) and ranks[f"{part}_ms"].any()
    ]  # fmt: skip
    layout = {
        **plots.layout(f"Anatomy by rank: {called(fields, context.factors)}"), "barmode": "relative",
        "xaxis": {"title": plots.beside_ticks("rank"), "type": "category"},
        "yaxis": {"title": plots.beside_ticks("ms per step"), "rangemode": "tozero"},
    }  # fmt: skip
    return Chart("anatomy-ranks", {"data": traces_of_parts, "layout": layout})


def _varying(context: Context) -> bool:
    """Whether two factors vary or more: what one explains, the scaling charts show."""
    runs = varied(source.fields for source in context.study.of_kind("run"))
    if len(runs) < _LEAST_FACTORS and not context.study.tau_intervals:
        return False
    _, observations = context.once(responses)
    return len(levels_of(observations).columns) >= _LEAST_FACTORS


def _factors(context: Context) -> Content:
    """Share of the variance by factor with its interval, largest first."""
    what, _ = context.once(responses)
    rows = context.once(effects)
    finite = [row for row in rows if row["omega_squared"] is not None]
    (part,) = Answer(rows, factors.METRICS).tables
    charts = [Chart("factors", effect_bars(finite, what))] if finite else []
    return Content("", charts, [as_view(part, "factor-table", ())])


def effect_bars(rows: Rows, what: str) -> plots.Figure:
    """Omega squared of each factor and pair as a bar with its interval, largest on top.

    Args:
        rows: of :func:`factors.effects`.
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
