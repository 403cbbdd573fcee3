"""Sections on results that scaleprof did not measure: traces of jobs, and the reference study's files."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.diagnosis import compared
from analysis.diagnosis.evidence import PARTS, WORDS, finest_ms, in_words, shares_of
from analysis.display import plots
from analysis.display.lines import EFFICIENCY
from analysis.display.metrics import JOB, Metric, columns, records
from analysis.display.terminal import Part
from analysis.frames.anatomy import anatomy as anatomy_frame
from analysis.frames.study import Source
from analysis.measures import anatomy, scaled, traced
from analysis.measures.published import explain
from analysis.report.base import (
    NAMES,
    Content,
    Context,
    SectionKind,
    finest_parts,
    labelled,
    line_chart,
    named,
    varied,
    with_lines,
)
from analysis.report.render import Chart
from profiling.attribution.batch_times import WHOLE
from profiling.findings import Finding, listed
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


def _traces(context: Context) -> Content:
    rows = [_row(source.id, source.job) for source in context.traces if source.job]
    return Content(tables={"traces-table": Part("", rows, columns(METRICS))})


_MOST_SHARES = 4  # of a job's step
_OF_EACH = ("traced_step_takes", "longest_collective", "one_step", "profiles_missing")
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


def of_each_job(finding: Finding) -> bool:
    """Whether :func:`unlike_jobs` has what a finding says of one job."""
    return finding.code in _OF_EACH


def _of_job(source: Source, row: Mapping[str, Any]) -> dict[str, Any]:
    shares = shares_of({name: ms for name, ms in finest_ms(row).items() if name in PARTS})
    avoidable = next((name for name in shares if name in WORDS["avoidable"]), None)
    there = len(source.job.ranks) if source.job else 1
    return {
        "run": source.id, "ranks": f"{there} of {source.ranks}", "step_ms": row["wall_ms"],
        "parts": "; ".join(in_words(shares)[:_MOST_SHARES]),
        "advice": WORDS["advice"][PARTS[avoidable]["advice"][0]]["words"] if avoidable else None,
    }  # fmt: skip


def _scaling(context: Context) -> Content:
    scales = finest_parts(compared(context))
    # Bars of one label would be stacked.
    several = scales["world_size"].duplicated().any()
    bars = named(scales, ["world_size", *(["run"] if several else [])], [])
    chart = Chart("traced-scaling", plots.parts(bars, plots.PART_COLOURS, "Parts of a step", names=NAMES))
    parts = enumerate(traced.tables(context.once(traced.jobs, context.study)))
    return Content("", [chart], {f"traced-scaling-{number}": part for number, part in parts})


TRACES = SectionKind("traces", "What do the traces contain?", _traces, lambda context: bool(context.traces))
SCALING = SectionKind(
    "traced-scaling",
    "How does it scale?",
    _scaling,
    lambda context: len(compared(context)) > 0,
)


# --- the reference's own files ----------------------------------------------------------------------------

_BY_WHOLE_TIME = "From the duration of the whole application, startup included."


def published(context: Context) -> pd.DataFrame:
    """The rows that were timed by the whole application."""
    return known(context, "epoch_duration_s")


def known(context: Context, column: str) -> pd.DataFrame:
    """The rows of which a column is known: each kind of tables has columns of its own."""
    others = context.others
    return others[others[column].notna()] if column in others else others[:0]


def _published(context: Context) -> Content:
    """Scaling as the reference computed it."""
    rows = published(context)
    # Each has its own base point for a number of GPUs a node.
    fields = [name for name in varied(rows) if name not in ("nodes", "world_size")]
    points = with_lines(labelled(rows, fields, context.facts_of_lines(fields)), "world_size")
    chart = line_chart(context, "published", points, EFFICIENCY)
    parts = enumerate(scaled.tables(rows))
    return Content(_BY_WHOLE_TIME, [chart], {f"published-{number}": part for number, part in parts})


def _kernel_tables(context: Context) -> Content:
    """Counts and coverage of PyProf tables."""
    parts = enumerate(scaled.tables(known(context, "tables")))
    return Content(tables={f"counted-{number}": part for number, part in parts})


def _moved(context: Context) -> list[str]:
    """A line a correction; of studies that hold something published only."""
    if context.others.empty:
        return []
    return [line.strip() for line in explain(context.study, context.own)[2:] if line.strip()]


PUBLISHED = SectionKind(
    "published-scaling", "Scaling, as published", _published, lambda context: len(published(context)) > 0
)
TABLES = SectionKind(
    "kernel-tables", "The kernel tables", _kernel_tables, lambda context: len(known(context, "tables")) > 0
)
CORRECTIONS = SectionKind(
    "corrections", "Effect of each correction", lambda context: Content(notes=context.once(_moved)),
    lambda context: bool(context.once(_moved)),
)  # fmt: skip
