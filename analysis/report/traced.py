"""Traces of jobs: what they hold, how they scale, and their findings of the report's opening.

Of jobs of one program on several numbers of ranks the largest is described; unlike jobs each by itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.display import plots
from analysis.display.metrics import JOB, Metric, Rows, columns, records
from analysis.display.terminal import Answer, Part
from analysis.frames.anatomy import anatomy as anatomy_frame
from analysis.frames.divide import EVERY, finest
from analysis.frames.study import Source
from analysis.measures import anatomy, communication, traced
from analysis.measures.critical_path import COLLECTIVES, COPIES, WAITING
from analysis.report import stragglers
from analysis.report.base import Content, Context, SectionKind, as_view, called
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
        "hosts": ", ".join([*hosts[:4], *(["..."] if len(hosts) > 4 else [])]) or None,
        "device": ", ".join(job.devices) or None,
        "backend": job.backend or None,
        "groups": ", ".join(f"{count} of {size}" for size, count in sorted(sizes.items())) or None,
        "steps": None if told == WHOLE else recorded[0] if len(recorded) == 1 else None,
        "steps_from": told,
        "versions": ", ".join(f"{name} {version}" for name, version in job.versions.items()) or None,
    }


def _traces(context: Context) -> Content:
    part = Part("", rows_of_jobs(context.traces), columns(METRICS))
    return Content(tables=[as_view(part, "traces-table", ())])


def scaling_of(context: Context) -> pd.DataFrame:
    return traced.jobs(context.study)


def _compared(context: Context) -> Rows:
    """The jobs of one program on several numbers of ranks, the fewest first."""
    found = context.once(scaling_of)
    return records(found[found["compared"]])


def _scaling(context: Context) -> Content:
    scales = context.once(_compared)
    parts = traced.tables(context.once(scaling_of))
    views = [as_view(part, f"traced-scaling-{number}", ()) for number, part in enumerate(parts)]
    # Bars of one label would be stacked.
    sizes = [row["world_size"] for row in scales]
    bars = [
        {
            "label": called(row, ("world_size", *(["run"] if sizes.count(size) > 1 else []))), "facts": {},
            **{f"{name}_ms": value for name, value in parts_of(row).items()},
        }
        for size, row in zip(sizes, scales, strict=True)
    ]  # fmt: skip
    figure = plots.parts(pd.DataFrame(bars), plots.PART_COLOURS, "Parts of a step")
    return Content("", [Chart("traced-scaling", figure)], views)


def parts_of(row: Mapping[str, Any]) -> dict[str, float]:
    return finest({name: row.get(f"{name}_ms") for name in EVERY})


TRACES = SectionKind("traces", "What do the traces contain?", _traces, lambda context: bool(context.traces))
SCALING = SectionKind(
    "traced-scaling",
    "How does it scale?",
    _scaling,
    lambda context: bool(context.once(_compared)),
    opened=True,
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
    one_program = len(context.once(_compared)) == len(order)
    return order[: 1 if one_program else _MOST_JOBS]


def _scales(context: Context) -> list[Finding]:
    rows = context.once(_compared)
    if not rows:
        return []
    most, base = rows[-1], rows[0]
    data = {"ranks": most["world_size"], "pct": most["scaling_efficiency_pct"],
            "base_ranks": base["world_size"]}  # fmt: skip
    return [Finding("traced_efficiency", run=most["run"], data=data)]


def _mean_steps(context: Context) -> dict[str, Mapping[str, Any]]:
    """Of described jobs the parts of a step, mean over ranks; none where no kernel has a place in time."""
    parts = anatomy_frame(context.study, _described(context))
    return {row["run"]: row for row in records(anatomy.means(parts))}


def _of_job(context: Context, source: Source) -> list[Finding]:
    row = context.once(_mean_steps).get(source.id)
    if row is None:
        return []
    parts = sorted(parts_of(row).items(), key=lambda part: -part[1])
    shares = [(100 * ms / row["wall_ms"], name.replace("_", " ")) for name, ms in parts]
    data = {
        "what": "recording" if source.without_steps else "step", "step_ns": 1e6 * row["wall_ms"],
        "n": len(source.job.ranks) if source.job else 1, "of": source.ranks, "parts_ms": dict(parts),
        "steps": row["attributed_steps"],
        "shares": [f"{share:.0f} % {name}" for share, name in shares if share >= 1][:3],
    }  # fmt: skip
    return [Finding("traced_step_takes", run=source.id, data=data), *_collective(context, source)]


def _collectives(context: Context) -> Answer:
    return communication.communication(context.study)


def _collective(context: Context, source: Source) -> list[Finding]:
    rows = [row for row in context.rows_if_any(_collectives) if row["run"] == source.id]
    known = [row for row in rows if row.get("exposed_ms") is not None]
    if not known:
        return []
    most = max(known, key=lambda row: row["exposed_ms"])
    waited = most.get("wait_ms")
    data = {
        "collective": most["collective"], "group_size": most["group_size"],
        "exposed_ns": 1e6 * most["exposed_ms"],
        "waiting": "unknown" if waited is None else f"{100 * waited / most['ms_per_step']:.0f} %",
    }  # fmt: skip
    return [Finding("longest_collective", run=source.id, data=data)]


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
