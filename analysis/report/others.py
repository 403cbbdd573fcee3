"""Sections on results that scaleprof did not measure: traces of jobs, and the reference study's files."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.diagnosis import advice_on, compared
from analysis.diagnosis.evidence import PARTS, finest_ms, in_words, shares_of
from analysis.display import plots
from analysis.display.metrics import JOB, Metric, records, varied
from analysis.display.output import Part
from analysis.display.plots import EFFICIENCY
from analysis.frames.anatomy import anatomy as anatomy_frame
from analysis.frames.study import Source
from analysis.measures import anatomy, scaled, traced
from analysis.measures.published import explain
from analysis.report import base
from analysis.report.base import Context, section
from analysis.report.render import Chart, Section

# Codes of findings on one job, which :func:`unlike_jobs` says of each.
OF_EACH_JOB = ("traced_step_takes", "longest_collective", "one_step", "profiles_missing")
OF_JOBS = (
    JOB,
    Metric("ranks", "ranks whose traces are available, of all", text=True),
    Metric("step_ms", "duration of a step; without steps, of the recording", "step\nms"),
    Metric("parts", "the largest parts of a step", "parts of a step", text=True),
    Metric("advice", "what may help against the largest avoidable part of a step", "to try", text=True),
)


def unlike_jobs(context: Context) -> Part | None:
    """A row a job, where traces are of several programs: a page of sentences on each is not read."""
    if len(context.traces) < 2 or len(compared(context)) == len(context.traces):
        return None
    means = anatomy.means(anatomy_frame(context.study, context.traces))
    steps = {row["run"]: row for row in records(means)}
    rows = [_of_job(context, source, steps[source.id]) for source in context.traces if source.id in steps]
    return Part("", pd.DataFrame(rows, dtype=object), OF_JOBS) if rows else None


def _of_job(context: Context, source: Source, row: Mapping[str, Any]) -> dict[str, Any]:
    shares = shares_of({name: ms for name, ms in finest_ms(row).items() if name in PARTS})
    words = [word for one in advice_on(context, source, row) for word in one.data["words"]]
    there = len(source.job.ranks) if source.job else 1
    return {
        "run": source.id, "ranks": f"{there} of {source.ranks}", "step_ms": row["wall_ms"],
        "parts": "; ".join(in_words(shares)[:4]), "advice": words[0] if words else None,
    }  # fmt: skip


@section("traced-scaling", "How does it scale?", lambda context: len(compared(context)) > 0)
def scaling(context: Context) -> Section:
    scales = base.finest_parts(compared(context))
    # Bars of one label would be stacked.
    several = scales["world_size"].duplicated().any()
    bars = base.named(scales, ["world_size", *(["run"] if several else [])], [])
    figure = plots.parts(bars, plots.PART_COLOURS, "Parts of a step", names=base.NAMES)
    parts = traced.tables(context.once(traced.jobs, context.study))
    return Section("", [Chart("traced-scaling", figure)], parts)


def known(context: Context, column: str) -> pd.DataFrame:
    """The rows of which a column is known: each kind of tables has columns of its own."""
    others = context.others
    return others[others[column].notna()] if column in others else others[:0]


@section(
    "published-scaling", "Scaling, as published",
    lambda context: len(known(context, "epoch_duration_s")) > 0,
)  # fmt: skip
def published(context: Context) -> Section:
    """Scaling as the reference computed it, of what was timed by the whole application."""
    rows = known(context, "epoch_duration_s")
    # Each has its own base point for a number of GPUs a node.
    fields = [name for name in varied(rows) if name not in ("nodes", "world_size")]
    points = base.with_lines(base.labelled(rows, fields, context.facts_of_lines(fields)), "world_size")
    chart = base.line_chart(context, "published", points, EFFICIENCY)
    text = "From the duration of the whole application, startup included."
    return Section(text, [chart], scaled.tables(rows))


@section("kernel-tables", "The kernel tables", lambda context: len(known(context, "tables")) > 0)
def kernel_tables(context: Context) -> Section:
    return Section(tables=scaled.tables(known(context, "tables")))


def _moved(context: Context) -> list[str]:
    """A line a correction; of studies that hold something published only."""
    said = [] if context.others.empty else explain(context.study)[2:]
    return [line.strip() for line in said if line.strip()]


@section("corrections", "Effect of each correction", lambda context: bool(context.once(_moved)))
def corrections(context: Context) -> Section:
    return Section(notes=context.once(_moved))
