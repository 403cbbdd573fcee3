"""What does the opening of a page of traces say? What is said of a job stands together, behind its name.

Of jobs of one program on several numbers of ranks the largest is described. Unlike jobs are not comparable:
what takes most milliseconds of all would be another job's in each sentence. So each is described by itself.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.display.numbers import change, digits
from analysis.measures.anatomy import communication
from analysis.measures.anatomy import rows as anatomy
from analysis.measures.anatomy.traces import traces_of
from analysis.measures.batches.series import Series, series_of
from analysis.measures.kernels.rows import kernels_of_each
from analysis.measures.scaling import traced
from analysis.report import small
from analysis.report.base import Context
from analysis.report.sentences import SCALES, Sentence
from analysis.report.stragglers import late_runs, said_of
from analysis.report.traced_evidence import untold
from analysis.report.traces import NOT_KNOWN, parts_of, scaling_of
from analysis.results.query import untimed_launches
from analysis.results.source import Source
from profiling.errors import UserError
from profiling.wording import first_of, how_many, verb

_MOST_JOBS = 3  # that are described
_LEAST_PCT = 0.5  # of a step: less reads as 0 %
_MOST_WAIT_PCT = 90.0  # of a collective: of what waits more, no bandwidth is said
_NO_MODEL = ("communication", "memcpy", "memset", "loader")  # classes of kernels that compute nothing
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


def opening(context: Context) -> list[Sentence]:
    """What the traces say: how they scale, then each job's step, collectives and kernels."""
    jobs = _described(context)
    return [
        *(_scales(context) or _not_compared(context)),
        *(sentence for source in jobs for sentence in _of_job(context, source)),
        *_of_sums(context),
        *_others(context, jobs),
        *_late(context),
        Sentence(NOT_KNOWN, "traces"),
    ]


def of_job(context: Context, job: str, text: str) -> str:
    """A sentence, with the job that it is of where there are several."""
    return f"{job}: {text[0].lower()}{text[1:]}" if len(context.traces) > 1 else text


def _described(context: Context) -> list[Source]:
    """The jobs that the sentences are of: with steps, and of these with most ranks there, first."""

    def place(source: Source) -> tuple[bool, bool, int, int]:
        return (
            source.of_sums,
            source.without_steps,
            -(len(source.job.ranks) if source.job else 0),
            -(source.world_size or 0),
        )

    order = sorted(context.traces, key=place)
    one_program = len(context.once(scaling_of).scales) == len(order)
    return order[: 1 if one_program else _MOST_JOBS]


def _others(context: Context, jobs: Sequence[Source]) -> list[Sentence]:
    """Which jobs more the sections show, where none stands for them."""
    more = [source.id for source in context.traces if source not in jobs]
    if len(jobs) < _MOST_JOBS or not more or not any(_of_job(context, source) for source in jobs):
        return []
    text = f"{how_many(len(more), 'further job')} {verb(len(more), 'are')} in the sections below"
    return [Sentence(f"{text}: {first_of(more)}.", "anatomy")]


def _of_sums(context: Context) -> list[Sentence]:
    """How the mean step of TAU's profiles is known, of which the sections show MPI only."""
    count = sum(source.of_sums for source in context.traces)
    if not count:
        return []
    jobs = (
        f"{how_many(count, 'job')} {verb(count, 'hold')} sums of the run (TAU), and no times of single steps"
    )
    return [Sentence(f"{jobs}. Mean step of a job: python -m analysis.tau_batches JOB.", "batches")]


def _of_job(context: Context, source: Source) -> list[Sentence]:
    texts = {
        "anatomy": _step(context, source),
        "communication": _collective(context, source),
        "kernels": _kernel(context, source),
    }
    said = {section: text for section, text in texts.items() if text}
    if len(_described(context)) > 1 and said:  # a paragraph each
        return [Sentence(of_job(context, source.id, " ".join(said.values())), next(iter(said)))]
    return [Sentence(of_job(context, source.id, text), section) for section, text in said.items()]


def _scales(context: Context) -> list[Sentence]:
    found = context.once(scaling_of)
    rows = found.scales
    if not rows:
        return []
    most, base = rows[-1], rows[0]
    of_some = len(rows) < len(context.study.of_kind("trace"))
    whose = f" ({', '.join(row['run'] for row in rows)})" if of_some else ""
    least_ms = _LEAST_PCT / 100 * most["wall_ms"]
    grown = {name: most[f"grew_{name}_ms"] for name in traced.GREW if most[f"grew_{name}_ms"] >= least_ms}
    text = (
        f"Scaling efficiency on {most['world_size']} ranks{whose}: {most['scaling_efficiency_pct']:.0f} %, "
        f"relative to {how_many(base['world_size'], 'rank')}"
    )
    if grown:
        name = max(grown, key=lambda one: grown[one])
        text += f". Largest growth: {_NEXT[name]} ({change(grown[name])} ms per step)"
    return [Sentence(f"{text}.", "traced-scaling", of_all=True)]


def _not_compared(context: Context) -> list[Sentence]:
    """How to ask for scaling, where traces of several jobs do not show that they are one program's."""
    found = context.once(scaling_of)
    several = len({row["world_size"] for row in found.rows}) > 1
    text = "Scaling is not computed: these jobs differ in device or kernels."
    return [Sentence(text, "traces", answers=SCALES, of_all=True)] if several else []


def mean_steps(context: Context) -> dict[str, Mapping[str, Any]]:
    """Of jobs that are described, the parts of a step, mean over ranks; none where no kernel has a place."""
    rows: dict[str, Mapping[str, Any]] = {}
    for one in traces_of(context.study, _described(context)):
        for row in anatomy.means(one):
            rows[one.source.id] = row
    return rows


def step_drawing(context: Context) -> small.Drawing | None:
    """Where a step of the first job goes: its largest parts."""
    source, *_ = _described(context)
    row = context.once(mean_steps).get(source.id)
    if row is None:
        return None
    largest = sorted(parts_of(row).items(), key=lambda part: -part[1])[: small.MOST_BARS]
    shown = [(name.replace("_", " "), value) for name, value in largest if value > 0]
    what = "the recording" if source.without_steps else "a step"
    whose = f" ({source.id})" if len(context.traces) > 1 else ""
    label = f"Milliseconds of {what}{whose}, largest parts"
    return small.bars(shown, "ms", label) if shown else None


def _step(context: Context, source: Source) -> str:
    row = context.once(mean_steps).get(source.id)
    if row is None:
        return ""
    fine = parts_of(row)
    order = sorted(fine, key=lambda name: -fine[name])
    shares = {name: 100 * fine[name] / row["wall_ms"] for name in order[:3]}
    called = _NEXT | {"exposed_communication": "exposed communication (transfer or wait)"}
    parts = [f"{pct:.0f} % {called[name]}" for name, pct in shares.items() if pct >= _LEAST_PCT]
    other = 100 - sum(round(pct) for pct in shares.values() if pct >= _LEAST_PCT)
    parts += [f"{other} % other parts"] if other > 0 else []
    what, which = "The recording" if source.without_steps else "A step", _which_mean(context, source)
    # The percentages are not of the other duration in the brackets.
    made_of = ". Of the mean: " if ", mean" in which else ": "
    return f"{what} takes {digits(row['wall_ms'])} ms{which}{made_of}{', '.join(parts)}."


def _which_mean(context: Context, source: Source) -> str:
    """Of what the step is the mean, and how long analysis.batches says that it takes."""
    there = len(source.job.ranks) if source.job else 1
    missing = there < source.ranks
    over = f", mean of {there} {f'of {source.ranks} ' if missing else ''}ranks" if there > 1 else ", mean"
    series = context.once(_series).get(source.id)
    if series is None:
        return over if there > 1 else ""
    steps = series.steady_ns
    count = how_many(len(steps), "step")
    if there == 1 and len(steps) == 1:
        return f" ({count})"
    median = f"{'median ' if len(steps) > 1 else ''}{digits(float(np.median(steps)) / 1e6)} ms"
    slowest = f"slowest {'recorded ' if missing else ''}rank: " if there > 1 else ""
    return f"{over} ({slowest}{median}; {count})"


def _series(context: Context) -> dict[str, Series]:
    """The steps of jobs that are described; none of one without."""
    stepped = [one for one in _described(context) if not (one.without_steps or one.without_times)]
    found = context.study.each(stepped, lambda one: series_of(context.study, one))
    return {source.id: series for source, series in found}


def _late(context: Context) -> list[Sentence]:
    late = context.once(late_runs) or []
    return [Sentence(text, "stragglers") for text in said_of(late, len(context.traces) > 1)] if late else []


def _collectives(context: Context) -> list[dict[str, Any]]:
    try:
        return communication.rows(context.study)
    except UserError:
        return []


def _collective(context: Context, source: Source) -> str:
    rows = [row for row in context.once(_collectives) if row["run"] == source.id]
    known = [row for row in rows if row.get("exposed_ms") is not None]
    if not known:
        return ""
    most = max(known, key=lambda row: row["exposed_ms"])
    of = f" of {most['group_size']} ranks" if most["group_size"] else ""
    return (
        f"Collective with the most exposed time: {most['collective']}{of}, "
        f"{digits(most['exposed_ms'], 3)} ms per step{_made_of(context, source, most)}."
    )


def _made_of(context: Context, source: Source, row: Mapping[str, Any]) -> str:
    """How much of a collective is waiting, and how fast the rest is; why that is not known."""
    if row.get("wait_ms") is None:
        doubt = untold(context.study, source)
        return doubt and f" ({doubt})"
    share_pct = 100 * row["wait_ms"] / row["ms_per_step"]
    waits = f"{share_pct:.0f} % of its duration is waiting for the last rank"
    # The rate of what little is left would read as the reason for the rest.
    speed = row.get("busbw_gb_per_s") if share_pct <= _MOST_WAIT_PCT else None
    return f" ({waits}{f'; transfer at {digits(speed, 3)} GB/s bus bandwidth' if speed else ''})"


def _classes(context: Context) -> dict[str, list[dict[str, Any]]]:
    """Of jobs that are described, the classes of kernels that compute something."""
    jobs = [source for source in _described(context) if source.tables("kernels")]
    return {
        source.id: [row for row in rows if row["class"] not in _NO_MODEL]
        for source, rows in kernels_of_each(context.study, jobs, by=("class",))
    }


def _untimed(context: Context) -> dict[str, int]:
    """Of jobs that are described and have no times of kernels, the launches without a duration."""
    jobs = [source for source in _described(context) if not context.once(_classes).get(source.id)]
    return {
        source.id: count
        for source, count in context.study.each(jobs, lambda one: untimed_launches(context.study, one))
    }


def _kernel(context: Context, source: Source) -> str:
    rows = context.once(_classes).get(source.id)
    if not rows:
        untimed = context.once(_untimed).get(source.id, 0)
        lack = f"{how_many(untimed, 'launch')} {verb(untimed, 'have')} none"
        return f"Durations of its kernels are not known: {lack}." if untimed else ""
    top = max(rows, key=lambda row: row["ms_per_step"])
    per = "in the recording" if source.without_steps else "per step"
    bound = {"compute": ", compute-bound", "bandwidth": ", memory-bound"}.get(str(top.get("bound")), "")
    return (
        f"Largest class of the model's kernels: {top['class']}, {digits(top['ms_per_step'])} ms {per} "
        f"({top['share_pct']:.0f} % of the time of all kernels{bound})."
    )
