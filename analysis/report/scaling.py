"""Sections on scaling: throughput and efficiency, the loss by part, stages and anatomy of a step."""

import math
from collections.abc import Sequence
from typing import Any

from analysis.display import plots
from analysis.display.lines import EFFICIENCY, THROUGHPUT
from analysis.display.metrics import CONFIGURATION, Rows, columns, names_of
from analysis.display.plots import BLACK
from analysis.display.terminal import Part
from analysis.measures.anatomy import rows as anatomy
from analysis.measures.anatomy.divide import EVERY, finest
from analysis.measures.batches import rows as batches
from analysis.measures.scaling import figures
from analysis.measures.scaling.certainty import without_unusable_intervals
from analysis.published import scaled_parts
from analysis.report.base import Content, Context, SectionKind
from analysis.report.by_rank import chart_by_rank
from analysis.report.encoded import bar_chart, line_chart
from analysis.report.per_point import knowing, labels_of, merged, named
from analysis.report.render import Chart
from analysis.report.views import as_view, called, facts
from analysis.results.study import RECORDING, Study

_IDEAL = (
    "Dotted and dashed: ideal scaling from the baseline. Error bars: 95 % confidence intervals over runs."
)
_GROWTH = "Growth of each part of a profiled step, in percentage points of efficiency; negative: it shrank."
_STAGES = "Medians, without warmup. Backward includes the exchange of gradients."
_PARTS = "Mean of profiled steps over ranks and runs. Of two things at once the first in the legend counts."
_LOSS_COLOURS = {**plots.PART_COLOURS, "unattributed": BLACK}


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
    views = [as_view(part, "loss-table", context.factors)]
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
    part = batches.part(batches.rows(context.study))
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
