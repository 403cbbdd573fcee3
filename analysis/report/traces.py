"""What do traces say of their jobs, and how do these scale?"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.display import plots
from analysis.display.metrics import JOB, Metric, Rows, columns
from analysis.display.terminal import Part
from analysis.measures.anatomy.divide import EVERY, finest
from analysis.measures.scaling import traced
from analysis.report.base import Content, Context, SectionKind
from analysis.report.render import Chart
from analysis.report.views import as_view, called
from analysis.results.source import Source
from profiling.attribution.batch_times import WHOLE
from profiling.number_ranges import listed
from profiling.traced_job import TracedJob
from profiling.wording import how_many, in_a_row

_UNSURE = 0.999  # of the kernels that recur, below which the confidence is said
METRICS = (
    JOB,
    Metric("tool", "profiler that recorded the traces", text=True),
    Metric("world_size", "number of ranks of the job", "ranks"),
    Metric("there", "ranks whose traces are available", "traces\nof ranks", text=True),
    Metric("hosts", "hosts of the ranks", text=True),
    Metric("device", "devices of the ranks", text=True),
    Metric("backend", "backend of the collectives", text=True),
    Metric(
        "groups",
        "process groups of several ranks: number of groups of each size",
        "process\ngroups",
        text=True,
    ),
    Metric("steps", "recorded steps per rank"),
    Metric("steps_from", "how steps were identified", text=True),
    Metric("versions", "versions of libraries", text=True),
)
# What traces cannot say, in one line.
NOT_KNOWN = (
    "Traces do not tell the batch size (so no images/s; scaling efficiency assumes that it is fixed, per GPU "
    "or globally), step times without the profiler, the cost of the job or measured peaks."
)


def counted(jobs: Sequence[Source]) -> str:
    """How many jobs and traces there are."""
    traces = sum(len(source.job.ranks) for source in jobs if source.job)
    devices = list(dict.fromkeys(name for source in jobs for name in source.devices))
    ranks = sum(source.ranks for source in jobs)
    there = f"{traces} of {how_many(ranks, 'rank')}" if traces < ranks else how_many(traces, "rank")
    text = f"traces of {there} of {how_many(len(jobs), 'job')}"
    return "; ".join([text, *([in_a_row(devices)] if devices else [])])


def rows_of_jobs(sources: Sequence[Source]) -> Rows:
    """A row a job: what its traces say of it; with :data:`METRICS`."""
    return [_row(source.id, source.job) for source in sources if source.job]


def _row(name: str, job: TracedJob) -> dict[str, Any]:
    hosts = list(dict.fromkeys(one.host for one in job.ranks if one.host))
    sizes: dict[int, int] = {}
    for group in job.groups:
        if group.size > 1:
            sizes[group.size] = sizes.get(group.size, 0) + 1
    recorded = sorted({one.batches for one in job.ranks})
    told = job.batches_from
    if job.batches_confidence < _UNSURE:
        told += f" ({100 * job.batches_confidence:.1f} % recur)"
    return {
        "run": name,
        "tool": job.tool,
        "world_size": job.world_size,
        "there": listed([one.rank for one in job.ranks]),
        "hosts": ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "") or None,
        "device": in_a_row(job.devices) if job.devices else None,
        "backend": job.backend or None,
        "groups": ", ".join(f"{count} of {size}" for size, count in sorted(sizes.items())) or None,
        "steps": None if told == WHOLE else recorded[0] if len(recorded) == 1 else None,
        "steps_from": told,
        "versions": ", ".join(f"{name} {version}" for name, version in job.versions.items()) or None,
    }


def _traces(context: Context) -> Content:
    rows = rows_of_jobs(context.traces)
    text = f"Contents of the traces; a dash: not recorded. {NOT_KNOWN}"
    view = as_view(Part("", rows, columns(METRICS)), "traces-table", ())
    said = counted(context.traces)
    return Content(text, tables=[view], finding=f"{said[0].upper()}{said[1:]}.")


def scaling_of(context: Context) -> traced.Answer:
    return traced.answer(context.study)


def _scaling(context: Context) -> Content:
    found = context.once(scaling_of)
    parts = [traced.part(found), *([grown] if (grown := traced.grown(found)) else [])]
    views = [as_view(part, f"traced-scaling-{number}", ()) for number, part in enumerate(parts)]
    # Bars of one label would be stacked.
    sizes = [row["world_size"] for row in found.scales]
    bars = [
        {
            "label": called(row, ("world_size", *(["run"] if sizes.count(size) > 1 else []))), "facts": {},
            **{f"{name}_ms": value for name, value in parts_of(row).items()},
        }
        for size, row in zip(sizes, found.scales, strict=True)
    ]  # fmt: skip
    figure = plots.parts(pd.DataFrame(bars), plots.PART_COLOURS, "Parts of a step, by number of ranks")
    chart = Chart(
        "traced-scaling",
        figure,
        "Milliseconds per step in each part, by number of ranks",
        runs=how_many(len(bars), "job"),
    )
    return Content("", [chart], views)


def parts_of(row: Mapping[str, Any]) -> dict[str, float]:
    return finest({name: row.get(f"{name}_ms") for name in EVERY})


TRACES = SectionKind("traces", "What do the traces contain?", _traces, lambda context: bool(context.traces))
SCALING = SectionKind(
    "traced-scaling",
    "How does it scale?",
    _scaling,
    lambda context: bool(context.once(scaling_of).scales),
)
