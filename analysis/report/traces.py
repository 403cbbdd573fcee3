"""What do traces say of their jobs, and how do these scale? And the opening of a page of traces."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from analysis.display import plots
from analysis.display.metrics import FIELDS, Metric, Rows, columns
from analysis.display.terminal import Part
from analysis.measures.anatomy import communication
from analysis.measures.anatomy import rows as anatomy
from analysis.measures.anatomy.divide import EVERY, finest
from analysis.measures.anatomy.traces import traces_of
from analysis.measures.kernels.of_run import kernels_of_each
from analysis.measures.scaling import traced
from analysis.report import small
from analysis.report.base import Content, Context, SectionKind
from analysis.report.render import Chart
from analysis.report.sentences import Sentence
from analysis.report.stragglers import late_runs, said_of
from analysis.report.views import as_view, called
from analysis.results.study import Source
from profiling.attribution.batch_times import WHOLE
from profiling.errors import UserError
from profiling.number_ranges import listed
from profiling.traced_job import TracedJob
from profiling.wording import how_many, in_a_row

_NO_MODEL = ("communication", "memcpy", "memset", "loader")  # classes of kernels that compute nothing
_UNSURE = 0.999  # of the kernels that recur, below which the confidence is said
METRICS = (
    FIELDS["job"],
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
    Metric("batches", "recorded steps per rank", "steps"),
    Metric("batches_from", "how steps were identified", "steps\nfrom", text=True),
    Metric("versions", "versions of libraries", text=True),
)
# What costs a batch its time, and what to look at: a sentence each.
_NEXT = {
    "compute": "kernels of the model",
    "exposed_communication": "exposed communication",
    "exposed_transfer": "exposed transfer in collectives",
    "exposed_wait": "exposed wait for other ranks in collectives",
    "exposed_loader": "data loading",
    "exposed_copies": "copies",
    "idle": "idle time",
    "idle_host_bound": "host-bound idle time",
    "idle_other": "other idle time (dependencies, synchronisation)",
}
# What traces cannot say, in one line.
NOT_KNOWN = (
    "Not in traces: the batch size (so no images/s, and scaling efficiency needs an assumption), "
    "unprofiled durations, the cost of the job, and measured peaks."
)


def counted(jobs: Sequence[Source]) -> str:
    """How many jobs and traces there are."""
    traces = sum(len(source.job.ranks) for source in jobs if source.job)
    devices = list(dict.fromkeys(name for source in jobs for name in source.devices))
    text = f"traces of {how_many(traces, 'rank')} of {how_many(len(jobs), 'job')}"
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
        "job": name,
        "tool": job.tool,
        "world_size": job.world_size,
        "there": listed([one.rank for one in job.ranks]),
        "hosts": ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "") or None,
        "device": in_a_row(job.devices) if job.devices else None,
        "backend": job.backend or None,
        "groups": ", ".join(f"{count} of {size}" for size, count in sorted(sizes.items())) or None,
        "batches": None if told == WHOLE else recorded[0] if len(recorded) == 1 else None,
        "batches_from": told,
        "versions": ", ".join(f"{name} {version}" for name, version in job.versions.items()) or None,
    }


def _traces(context: Context) -> Content:
    rows = rows_of_jobs(context.traces)
    text = f"Contents of the traces; a dash: not recorded. {NOT_KNOWN}"
    view = as_view(Part("", rows, columns(METRICS)), "traces-table", ())
    said = counted(context.traces)
    return Content(text, tables=[view], finding=f"{said[0].upper()}{said[1:]}.")


def _answer(context: Context) -> traced.Answer:
    return traced.answer(context.study)


def _scaling(context: Context) -> Content:
    found = context.once(_answer)
    parts = [traced.part(found), *([grown] if (grown := traced.grown(found)) else [])]
    views = [as_view(part, f"traced-scaling-{number}", ()) for number, part in enumerate(parts)]
    # Bars of one label would be stacked.
    sizes = [row["world_size"] for row in found.scales]
    bars = [
        {
            "label": called(row, ("world_size", *(["job"] if sizes.count(size) > 1 else []))), "facts": {},
            **{f"{name}_ms": value for name, value in _parts(row).items()},
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
    return Content(found.assumed.replace("\n", " "), [chart], views)


def _parts(row: Mapping[str, Any]) -> dict[str, float]:
    return finest({name: row.get(f"{name}_ms") for name in EVERY})


TRACES = SectionKind("traces", "What do the traces contain?", _traces, lambda context: bool(context.traces))
SCALING = SectionKind(
    "traced-scaling",
    "How does it scale?",
    _scaling,
    lambda context: bool(context.once(_answer).scales),
)


# --- the opening --------------------------------------------------------------------------------------


def opening(context: Context) -> list[Sentence]:
    """What the traces say, the most important first; of several jobs the largest of all, and whose it is."""
    return [
        *_scales(context),
        *_batch(context, _largest(context)),
        *_late(context),
        *_collective(context),
        *_kernel(context),
        *_not_compared(context),
        Sentence(NOT_KNOWN, "traces"),
    ]


def _scales(context: Context) -> list[Sentence]:
    found = context.once(_answer)
    rows = found.scales
    if not rows:
        return []
    most, base = rows[-1], rows[0]
    whose = f" ({', '.join(row['job'] for row in rows)})" if len(rows) < len(context.traces) else ""
    grown = {name: most[f"grew_{name}_ms"] for name in traced.GREW if most[f"grew_{name}_ms"] > 0}
    text = (
        f"Scaling efficiency on {most['world_size']} ranks{whose}: {most['scaling_efficiency_pct']:.0f} %, "
        f"relative to {how_many(base['world_size'], 'rank')}"
    )
    if grown:
        name = max(grown, key=lambda one: grown[one])
        text += f". Largest growth: {_NEXT[name]} (+{grown[name]:.3g} ms per step)"
    assumed, *kernels = found.scales_assumed.splitlines()
    doubts = [line for line in kernels if line.endswith(traced.MISFIT)]
    return [Sentence(" ".join([f"{text}. {assumed}", *doubts]), "traced-scaling")]


def _not_compared(context: Context) -> list[Sentence]:
    """How to ask for scaling, where traces of several jobs do not show that they are one program's."""
    found = context.once(_answer)
    several = len({row["world_size"] for row in found.rows}) > 1
    return [Sentence(found.assumed, "traces")] if several and not found.scales else []


def _largest(context: Context) -> Source:
    """The job of which most ranks are there."""
    return max(context.traces, key=lambda one: (len(one.job.ranks) if one.job else 0, one.world_size or 0))


def mean_step(context: Context) -> Mapping[str, Any] | None:
    """The parts of a step of the largest job, mean over its ranks; None where no kernel's place is known."""
    source = _largest(context)
    for one in traces_of(context.study, [source]):
        for row in anatomy.means(one):
            return row
    return None


def step_drawing(context: Context) -> small.Drawing | None:
    """Where a step of the largest job goes: its largest parts."""
    row = context.once(mean_step)
    if row is None:
        return None
    largest = sorted(_parts(row).items(), key=lambda part: -part[1])[: small.MOST_BARS]
    shown = [(name.replace("_", " "), value) for name, value in largest if value > 0]
    source = _largest(context)
    what = "the recording" if source.without_steps else "a step"
    label = f"Milliseconds of {what}{_whose(context, source.id)}, largest parts"
    return small.bars(shown, "ms", label) if shown else None


def _batch(context: Context, source: Source) -> list[Sentence]:
    row = context.once(mean_step)
    if row is None:
        return []
    fine = _parts(row)
    order = sorted(fine, key=lambda name: -fine[name])
    shares = [f"{100 * fine[name] / row['wall_ms']:.0f} % {_NEXT[name]}" for name in order[:3] if fine[name]]
    whose = _whose(context, source.id)
    what = "The recording" if source.without_steps else "A step"
    there = len(source.job.ranks) if source.job else 1
    over = f", mean over {there} ranks" if there > 1 else ""
    return [Sentence(
        f"{what} takes {row['wall_ms']:.4g} ms{whose}{over}: {', '.join(shares)}.", "anatomy"
    )]  # fmt: skip


def _late(context: Context) -> list[Sentence]:
    late = context.once(late_runs) or []
    return [Sentence(text, "stragglers") for text in said_of(late)] if late else []


def _whose(context: Context, job: str) -> str:
    """The job that a sentence is of, where there are several."""
    return f" ({job})" if len(context.traces) > 1 else ""


def _collective(context: Context) -> list[Sentence]:
    try:
        rows = communication.rows(context.study)
    except UserError:
        return []
    known = [row for row in rows if row.get("exposed_ms") is not None]
    if not known:
        return []
    most = max(known, key=lambda row: row["exposed_ms"])
    whose = _whose(context, most["id"])
    of = f" of {most['group_size']} ranks" if most["group_size"] else ""
    speed = f", at {most['busbw_gb_per_s']:.3g} GB/s bus bandwidth" if most.get("busbw_gb_per_s") else ""
    return [Sentence(
        f"Collective with the most exposed time: {most['collective']}{of}, {most['exposed_ms']:.3g} ms per "
        f"step{speed}{whose}.", "communication",
    )]  # fmt: skip


def _kernel(context: Context) -> list[Sentence]:
    jobs = [source for source in context.traces if source.tables("kernels")]
    found = [
        (row, source)
        for source, rows in kernels_of_each(context.study, jobs, by=("class",))
        for row in rows
        if row["class"] not in _NO_MODEL
    ]
    if not found:
        return []
    top, source = max(found, key=lambda one: one[0]["ms_per_batch"])
    per = "in the recording" if source.without_steps else "per step"
    whose = _whose(context, source.id)
    bound = f", {top['bound']}-bound" if top.get("bound") in ("compute", "bandwidth") else ""
    return [Sentence(
        f"Largest class of the model's kernels: {top['class']}, {top['ms_per_batch']:.4g} ms {per} "
        f"({top['share_pct']:.0f} % of the time of all kernels{bound}){whose}.", "kernels",
    )]  # fmt: skip
