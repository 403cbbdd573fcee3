"""How does it scale, what is lost, and where does a batch's time go?"""

import math
from collections.abc import Sequence
from typing import Any

from analysis.display import plots
from analysis.display.lines import EFFICIENCY, THROUGHPUT
from analysis.display.metrics import CONFIGURATION, Rows, columns, names_of
from analysis.display.numbers import digits
from analysis.display.plots import BLACK
from analysis.display.terminal import Part
from analysis.measures.anatomy import rows as anatomy
from analysis.measures.anatomy.divide import EVERY, finest
from analysis.measures.scaling import figures
from analysis.measures.scaling.certainty import is_unsure, leading, without_unusable_intervals
from analysis.published import scaled_parts
from analysis.report.base import Content, Context, SectionKind
from analysis.report.by_rank import chart_by_rank
from analysis.report.encoded import bar_chart, line_chart
from analysis.report.longest import longest
from analysis.report.per_point import knowing, labels_of, merged, named
from analysis.report.render import Chart
from analysis.report.sentences import ranks_in_words
from analysis.report.verdict import fastest, has_scaled, unscaled
from analysis.report.views import as_view, called, facts
from analysis.results.study import RECORDING, Study
from profiling.wording import how_many

_LOSS_COLOURS = {**plots.PART_COLOURS, "unattributed": BLACK}


def _scaling(context: Context) -> Content:
    """Throughput and efficiency against ranks."""
    own = context.own
    points = points_against_ranks(own, context.curves)
    charts = [
        line_chart(context, "throughput", points, THROUGHPUT, "Images/s by number of ranks"),
        line_chart(context, "efficiency", points, EFFICIENCY, "Scaling efficiency by number of ranks"),
    ]
    strong = own[0]["scaling"] == "strong"
    kind = "Strong scaling (fixed global" if strong else f"Weak scaling (fixed per-{context.study.unit}"
    text = (
        f"{kind} batch size). Error bars: 95 % confidence intervals over repeated runs. Dotted and dashed "
        "lines: ideal scaling from the baseline of each configuration, which is 100 % by definition."
    )
    if not has_scaled(own):
        charts = charts[:1] if fastest(own) else []
        text = _why_not(context)
    return Content(text, charts)


def _why_not(context: Context) -> str:
    """Why nothing is said of scaling; what is, the opening says."""
    own = context.own
    if not own or has_scaled(own):
        return ""
    why = unscaled(own)
    return f"{why[0].upper()}{why[1:]}{': only throughput can be shown' if fastest(own) else ''}."


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
    text = (
        "Step: duration of a step of the job, which ends when its slowest rank does; without warmup. MFU: "
        "analytic FLOPs divided by step duration and peak. Profiled / unprofiled: slowdown of a step "
        "while the profiler records it."
    )
    return Content(text, tables=views)


def _fastest(context: Context) -> str:
    own = context.own
    count, best = how_many(len(own), "configuration"), fastest(own)
    if best is None:
        return f"{count}."
    rate = f"{digits(best['images_per_s'], 3)} images/s on {ranks_in_words(best['world_size'])}"
    return f"{count}; the fastest reaches {rate}." if len(own) > 1 else f"{count}: {rate}."


def _lost(context: Context) -> Part | None:
    return scaled_parts.loss_part(context.own, intervals=True)


def _loss(context: Context) -> Content:
    """The loss of each point by part, stacked, and the figures."""
    part = context.once(_lost)
    assert part is not None  # else the section does not apply
    attributable = [row for row in part.rows if row["loss_unattributed_pct"] is not None]
    text = (
        "Growth of each part of a profiled step relative to the baseline, in percentage points of scaling "
        "efficiency; negative parts shrank. Exposed transfer: gradients in transit that computation does "
        "not overlap. Exposed wait: waiting for other ranks in a collective. Unattributed: growth of "
        "unprofiled steps that profiled ones do not show. Segments (negative ones subtracted) sum to 100 "
        "% minus the scaling efficiency."
    )
    views = [as_view(part, "loss-table", context.factors)]
    if not attributable:
        return Content(_parts_unknown(part.rows), tables=views)
    return Content(text, [_loss_chart(context, attributable)], views)


def _parts_unknown(rows: Rows) -> str:
    head = "The parts of the loss are not available"
    reasons = scaled_parts.parts_not_available(rows, head=head) or [f"{head}: no profiled runs."]
    more = f" Other reasons below the table: {len(reasons) - 1}." if len(reasons) > 1 else ""
    return reasons[0] + more


def _if_not_lost(context: Context) -> str:
    """That nothing is lost, or that nobody knows what; else the opening says it."""
    rows = context.rows_of(_rows_lost) if has_scaled(context.own) else []
    known = [row["loss_pct"] for row in rows if row["loss_unattributed_pct"] is not None]
    if rows and not known:
        return _parts_unknown(rows)
    if known and max(known) <= 0:
        return "No scaling efficiency is lost."
    compared = [row for row in context.own if row["world_size"] != row["base_world_size"]]
    unsure = bool(compared) and is_unsure(leading(compared)[-1])
    return "Not known: identical runs differ too much." if unsure else ""


def _rows_lost(context: Context) -> Rows:
    part = context.once(_lost)
    return list(part.rows) if part else []


def _loss_chart(context: Context, rows: Rows) -> Chart:
    series = context.series
    ordered = sorted(rows, key=lambda row: (called(row, series), row["world_size"] or 0))
    bars = named([{**row, **_parts_lost(row)} for row in ordered], [*series, "world_size"], context.lines)
    title, label = (
        "Loss of scaling efficiency",
        "Percentage points of scaling efficiency lost, by part of the step",
    )
    return bar_chart(context, "loss", bars, _LOSS_COLOURS, title, label, unit="pct", of="percentage points")


def _parts_lost(row: dict[str, Any]) -> dict[str, float]:
    """The parts that a bar is stacked of, each time once."""
    parts = finest({name: row.get(f"loss_{name}_pct") for name in EVERY})
    return {f"{name}_pct": value for name, value in parts.items()} | {
        "unattributed_pct": float(row["loss_unattributed_pct"])
    }


def _stages(context: Context) -> Content:
    """Where a batch's time goes, by stage."""
    own, factors = context.own, context.factors
    text = (
        "Median durations of the stages of a step, without warmup. Load: waiting for the next batch. "
        "Backward includes gradient communication and waiting for other ranks, which run at the same time."
    )
    title, label = "Stages of a step", "Milliseconds per step in each stage"
    chart = bar_chart(context, "stages", named(own, factors), plots.STAGE_COLOURS, title, label)
    rows = [{**row, "configuration": label} for row, label in zip(own, labels_of(own, factors), strict=True)]
    shown = columns(
        (CONFIGURATION, *figures.METRICS), "configuration", *(f"{name}_ms" for name in plots.STAGE_COLOURS)
    )
    view = as_view(Part("", rows, shown), "stages-table", factors)
    return Content(text, [chart], [view])


def _longest_stage(context: Context) -> str:
    return longest(context.own, {name: f"{name}_ms" for name in plots.STAGE_COLOURS}, "stage")


def anatomy_of_points(study: Study) -> Rows:
    """A row of the anatomy for each configuration: the mean of its runs.

    Raises:
        UserError: no run has attributed batches with kernels that have a place in time.
    """
    # A trace without collectives counts what these took as idle.
    complete = knowing(anatomy.rows(study), "exposed_communication_ms")
    return merged(complete, names_of(anatomy.METRICS))


def _anatomy(context: Context) -> Content:
    """Where it goes, by what runs: parts that add up."""
    rows = context.once(_anatomies)
    bars = named(context.once(_parts_of_steps), context.factors)
    of, per = _step_of(context, rows)
    label = f"Milliseconds {per} of computation, communication, data loading and idle time"
    chart = bar_chart(context, "anatomy", bars, plots.PART_COLOURS, f"Anatomy of {of}", label, of=f"ms {per}")
    text = (
        "Mean over the profiled steps of all ranks and runs of a configuration. "
        "The parts sum to the wall time. Time in which two of them overlap counts for the first "
        "in the legend. Exposed communication is not overlapped with computation: wait until the last rank "
        "enters the collective, transfer after that. Host-bound idle time: waiting for the next kernel "
        "launch."
    )
    whole, within = anatomy.parts(rows, of=of)
    ids = {"anatomy-table": whole, "anatomy-within": within}
    views = [as_view(part, id, context.factors) for id, part in ids.items()]
    charts = [one for one in (chart, chart_by_rank(context)) if one]
    return Content(text, charts, views)


def _longest_part(context: Context) -> str:
    every, without = context.rows_of(_parts_of_steps), context.study.without_steps()
    rows = [row for row in every if row.get("job") not in without] or every
    names = {name.replace("_", " "): f"{name}_ms" for name in plots.PART_COLOURS}
    return longest(rows, names, "part", _step_of(context, rows)[1], len(every) > 1)


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


SCALING = SectionKind("scaling", "How does it scale?", _scaling, _ran, finding=_why_not)
TABLE = SectionKind("table", "Results", _table, _ran, finding=_fastest)
LOSS = SectionKind(
    "loss",
    "Where is scaling efficiency lost?",
    _loss,
    lambda context: context.once(_lost) is not None,
    finding=_if_not_lost,
)
STAGES = SectionKind("stages", "How long are the stages of a step?", _stages, _ran, finding=_longest_stage)
ANATOMY = SectionKind(
    "anatomy",
    "Where does the time of a step go?",
    _anatomy,
    lambda context: _ran(context) or bool(context.traces),
    finding=_longest_part,
)
