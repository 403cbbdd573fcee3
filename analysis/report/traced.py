"""Traces of jobs: what they hold, how they scale, and their findings of the report's opening.

Of jobs of one program on several numbers of ranks the largest is described; unlike jobs each by itself.
"""

from collections import Counter
from typing import Any

import pandas as pd

from analysis.display import plots
from analysis.display.metrics import JOB, Metric, columns, records
from analysis.display.terminal import Answer, Part
from analysis.frames.anatomy import anatomy as anatomy_frame
from analysis.frames.divide import EVERY
from analysis.frames.study import Source
from analysis.measures import anatomy, communication, traced
from analysis.measures.critical_path import COLLECTIVES, COPIES, WAITING
from analysis.report import stragglers
from analysis.report.base import Content, Context, SectionKind, finest_parts, named
from analysis.report.critical_path import longest
from analysis.report.render import Chart
from profiling.attribution.batch_times import WHOLE
from profiling.errors import UserError
from profiling.findings import Finding, listed
from profiling.traced_job import TracedJob

_MOST_JOBS = 3  # that the opening describes
_UNSURE = 0.999  # of the kernels that recur, below which the confidence is said
_LEAST_SAVED_PCT = 5.0
# What a program could do without; kernels of the model are not among it.
AVOIDABLE = (COLLECTIVES, WAITING, COPIES, "data loading", "host", "launches", "synchronization", "gaps")
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


def _jobs(context: Context) -> pd.DataFrame:
    return traced.jobs(context.study)


def _compared(context: Context) -> pd.DataFrame:
    """The jobs of one program on several numbers of ranks, the fewest first."""
    jobs = context.once(_jobs)
    return jobs[jobs["compared"]]


def _scaling(context: Context) -> Content:
    scales = finest_parts(_compared(context))
    # Bars of one label would be stacked.
    several = scales["world_size"].duplicated().any()
    bars = named(scales, ["world_size", *(["run"] if several else [])], [])
    chart = Chart("traced-scaling", plots.parts(bars, plots.PART_COLOURS, "Parts of a step"))
    parts = enumerate(traced.tables(context.once(_jobs)))
    return Content("", [chart], {f"traced-scaling-{number}": part for number, part in parts})


TRACES = SectionKind("traces", "What do the traces contain?", _traces, lambda context: bool(context.traces))
SCALING = SectionKind(
    "traced-scaling",
    "How does it scale?",
    _scaling,
    lambda context: len(_compared(context)) > 0,
)


# --- findings of the opening ------------------------------------------------------------------------------


def findings_of(context: Context) -> list[Finding]:
    """How the jobs scale; what a step takes, its collectives and stragglers; what would shorten it."""
    jobs = _described(context)
    return [
        *_scales(context),
        *(one for source in jobs for one in _of_job(context, source)),
        *stragglers.verdicts(context),
        *_saving(context),
    ]


def _described(context: Context) -> list[Source]:
    """The jobs that findings are of: those with steps, and of these with most ranks there, first."""

    def place(source: Source) -> tuple[bool, bool, int, int]:
        there = len(source.job.ranks) if source.job else 0
        return source.of_sums, source.without_steps, -there, -(source.world_size or 0)

    order = sorted(context.traces, key=place)
    one_program = len(_compared(context)) == len(order)
    return order[: 1 if one_program else _MOST_JOBS]


def _scales(context: Context) -> list[Finding]:
    rows = records(_compared(context))
    return [
        Finding("traced_efficiency", run=most["run"], data={
            "ranks": most["world_size"], "pct": most["scaling_efficiency_pct"],
            "base_ranks": rows[0]["world_size"],
        })
        for most in rows[-1:]
    ]  # fmt: skip


def _mean_steps(context: Context) -> dict[str, dict[str, Any]]:
    """Of described jobs the parts of a step, mean over ranks; none where no kernel has a place in time."""
    means = anatomy.means(anatomy_frame(context.study, _described(context)))
    return {row["run"]: row for row in records(finest_parts(means))}


def _of_job(context: Context, source: Source) -> list[Finding]:
    row = context.once(_mean_steps).get(source.id)
    if row is None:
        return []
    known = {name: ms for name in EVERY if (ms := row[f"{name}_ms"]) is not None}
    parts_ms = dict(sorted(known.items(), key=lambda part: -part[1]))
    shares = [(100 * ms / row["wall_ms"], name.replace("_", " ")) for name, ms in parts_ms.items()]
    data = {
        "what": "recording" if source.without_steps else "step", "step_ns": 1e6 * row["wall_ms"],
        "n": len(source.job.ranks) if source.job else 1, "of": source.ranks, "parts_ms": parts_ms,
        "steps": row["attributed_steps"],
        "shares": [f"{share:.0f} % {name}" for share, name in shares if share >= 1][:3],
    }  # fmt: skip
    return [Finding("traced_step_takes", run=source.id, data=data), *_collective(context, source)]


def _collectives(context: Context) -> Answer:
    return communication.communication(context.study)


def _collective(context: Context, source: Source) -> list[Finding]:
    """The collective that costs a step most."""
    rows = context.frame_if_any(_collectives)
    if rows.empty:
        return []
    most = rows[rows["run"] == source.id].dropna(subset="exposed_ms").nlargest(1, "exposed_ms")
    return [
        Finding("longest_collective", run=source.id, data={
            "collective": row["collective"], "group_size": row["group_size"],
            "exposed_ns": 1e6 * row["exposed_ms"],
            "waiting": "unknown" if (waited := row["wait_ms"]) is None
            else f"{100 * waited / row['ms_per_step']:.0f} %",
        })
        for row in records(most)
    ]  # fmt: skip


def _saving(context: Context) -> list[Finding]:
    """The part that a step could be without and that would save most."""
    if not any(source.tables("kernels") for source in context.traces):
        return []
    try:
        paths, parts = context.once(longest)
    except UserError:
        return []
    rows = parts[parts["part"].isin(AVOIDABLE)]
    if rows.empty:
        return []
    best = rows.sort_values("saved_ms").iloc[-1]
    if not best["saved_pct"] >= _LEAST_SAVED_PCT:
        return []
    source = paths.source
    data = {
        "part": best["part"], "what": "recording" if source.without_steps else "step",
        "saved_pct": best["saved_pct"], "saved_ns": 1e6 * best["saved_ms"],
        "steps": paths.steps["step"].nunique(),
    }  # fmt: skip
    return [Finding("saving_of_part", run=source.id, data=data)]
