"""Sections on results that scaleprof did not measure: traces of jobs, and the reference study's files."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.diagnosis import compared
from analysis.diagnosis.evidence import PARTS, WORDS, finest_ms, in_words, shares_of
from analysis.display import plots
from analysis.display.lines import EFFICIENCY
from analysis.display.metrics import JOB, Metric, columns, records, varied
from analysis.display.output import Part
from analysis.frames.anatomy import anatomy as anatomy_frame
from analysis.frames.study import Source
from analysis.measures import anatomy, scaled, traced
from analysis.measures.published import explain
from analysis.report import base
from analysis.report.base import Context, section
from analysis.report.render import Chart, Section
from profiling.attribution.batch_times import WHOLE
from profiling.findings import listed
from profiling.traced_job import TracedJob

_UNSURE = 0.999  # of the kernels that recur, below which the confidence is said
METRICS = (
    JOB,
    Metric("tool", "profiler that recorded the traces", text=True),
    Metric("world_size", "number of ranks of the job", "ranks"),
    Metric("there", "ranks whose traces are available", "traces\nof ranks", text=True),
    Metric("hosts", "hosts of the ranks", text=True),
    Metric("device", "devices of the ranks", text=True),
    Metric("backend", "backend of the collectives", text=True),
    Metric("groups", "process groups of several ranks, number by size", "process\ngroups", text=True),
    Metric("steps", "recorded steps per rank"),
    Metric("steps_from", "how steps were identified", text=True),
    Metric("versions", "versions of libraries", text=True),
)


def _row(name: str, job: TracedJob) -> dict[str, Any]:
    """What its traces say of a job; with :data:`METRICS`."""
    hosts = list(dict.fromkeys(one.host for one in job.ranks if one.host))
    sizes = Counter(group.size for group in job.groups if group.size > 1)
    recorded = sorted({one.batches for one in job.ranks})
    steps_from = job.batches_from
    if job.batches_confidence < _UNSURE:
        steps_from += f" ({100 * job.batches_confidence:.1f} % recur)"
    return {
        "run": name,
        "tool": job.tool,
        "world_size": job.world_size,
        "there": listed([one.rank for one in job.ranks]),
        "hosts": ", ".join([*hosts[:4], *(["..."] if len(hosts) > 4 else [])]) or None,
        "device": ", ".join(job.devices) or None,
        "backend": job.backend or None,
        "groups": ", ".join(f"{count} of {size}" for size, count in sorted(sizes.items())) or None,
        "steps": None if steps_from == WHOLE else recorded[0] if len(recorded) == 1 else None,
        "steps_from": steps_from,
        "versions": ", ".join(f"{name} {version}" for name, version in job.versions.items()) or None,
    }


@section("traces", "What do the traces contain?", lambda context: bool(context.traces))
def traces(context: Context) -> Section:
    rows = [_row(source.id, source.job) for source in context.traces if source.job]
    return Section(tables=[Part("", rows, columns(METRICS))])


_MOST_SHARES = 4  # of a job's step
# Codes of findings on one job, which :func:`unlike_jobs` says of each.
OF_EACH_JOB = ("traced_step_takes", "longest_collective", "one_step", "profiles_missing")
OF_JOBS = (
    JOB,
    Metric("ranks", "ranks whose traces are available, of all", text=True),
    Metric("step_ms", "duration of a step; without steps, of the recording", "step\nms"),
    Metric("parts", "the largest parts of a step", "what a step takes", text=True),
    Metric("advice", "what may help against the largest part that a step need not have", "to try", text=True),
)


def unlike_jobs(context: Context) -> Part | None:
    """A row a job, where traces are of several programs: a page of sentences on each is not read."""
    if len(context.traces) < 2 or len(compared(context)) == len(context.traces):
        return None
    means = anatomy.means(anatomy_frame(context.study, context.traces))
    steps = {row["run"]: row for row in records(means)}
    rows = [_of_job(source, steps[source.id]) for source in context.traces if source.id in steps]
    return Part("", rows, OF_JOBS) if rows else None


def _of_job(source: Source, row: Mapping[str, Any]) -> dict[str, Any]:
    shares = shares_of({name: ms for name, ms in finest_ms(row).items() if name in PARTS})
    avoidable = next((name for name in shares if name in WORDS["avoidable"]), None)
    there = len(source.job.ranks) if source.job else 1
    return {
        "run": source.id, "ranks": f"{there} of {source.ranks}", "step_ms": row["wall_ms"],
        "parts": "; ".join(in_words(shares)[:_MOST_SHARES]),
        "advice": WORDS["advice"][PARTS[avoidable]["advice"][0]]["words"] if avoidable else None,
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


# --- the reference's own files ----------------------------------------------------------------------------

_BY_WHOLE_TIME = "From the duration of the whole application, startup included."


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
    return Section(_BY_WHOLE_TIME, [chart], scaled.tables(rows))


@section("kernel-tables", "The kernel tables", lambda context: len(known(context, "tables")) > 0)
def kernel_tables(context: Context) -> Section:
    """Counts and coverage of PyProf tables."""
    return Section(tables=scaled.tables(known(context, "tables")))


def _moved(context: Context) -> list[str]:
    """A line a correction; of studies that hold something published only."""
    if context.others.empty:
        return []
    return [line.strip() for line in explain(context.study)[2:] if line.strip()]


@section("corrections", "Effect of each correction", lambda context: bool(context.once(_moved)))
def corrections(context: Context) -> Section:
    return Section(notes=context.once(_moved))
