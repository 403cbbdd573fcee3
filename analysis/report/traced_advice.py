"""What is to be tried, of a job that only traces know? What its step would be without a part of its path.

Nothing here was simulated or measured: a saving is an upper bound, of a part that takes no time at all.
"""

from collections.abc import Callable
from typing import Any

from analysis.display.metrics import Rows
from analysis.display.numbers import digits
from analysis.measures.anatomy.traces import trace_of
from analysis.measures.critical_path.paths import COLLECTIVES, COPIES, MODEL_KERNELS, WAITING, RunPaths
from analysis.report import small
from analysis.report.base import Context
from analysis.report.critical_path import Longest, longest
from analysis.report.forecast import WORTH_TRYING_PCT
from analysis.report.sentences import TRY, Sentence
from analysis.report.traced_evidence import (
    about_collectives,
    about_copies,
    about_loading,
    ranks_are_missing,
    untold,
)
from analysis.report.traced_opening import of_job
from analysis.results.study import RECORDING, Study

_FEWER_LAUNCHES = "torch.compile or CUDA graphs (fewer launches); larger batches (fewer per sample)"
# What a program could do without -> its name in a sentence, and what to try (empty: the trace tells, see
# BY_EVIDENCE). Kernels that compute are not among it: no program can do without.
AGAINST = {
    COLLECTIVES: ("collectives", ""),
    WAITING: ("waiting for other ranks", "see which ranks are late (section on stragglers); give all ranks "
              "batches of equal cost"),
    COPIES: ("copies", ""),
    "data loading": ("data loading", ""),
    "host": ("the host's code between launches", "time steps without the profiler first; a dedicated core "
             f"for the launching thread; {_FEWER_LAUNCHES}"),
    "launches": ("launches", _FEWER_LAUNCHES),
    "synchronization": ("calls that wait for the device", "fewer of them (.item(), .cpu(), printed tensors)"),
    "gaps": ("gaps between kernels", "see in the timeline what each waits for (python -m analysis.timeline)"),
}  # fmt: skip
# Part -> what to try against it, by what the trace says.
BY_EVIDENCE: dict[str, Callable[[Study, RunPaths], str]] = {
    COPIES: about_copies,
    COLLECTIVES: about_collectives,
    "data loading": about_loading,
}


def to_try(context: Context) -> list[Sentence]:
    """The part that a step could be without and that would save most; of one rank, or all on one clock."""
    found = _path(context)
    if found is None:
        return []
    of = context.study.a_step([found.paths.source.id])
    what = "The recording" if of == RECORDING else "A step"
    best = _avoidable(found.rows)[0]
    name, change = AGAINST[best["part"]]
    if best["saved_pct"] < WORTH_TRYING_PCT:
        kernels = next((row["path_pct"] for row in found.rows if row["part"] == MODEL_KERNELS), 0.0)
        text = (
            f"The model's kernels are {kernels:.0f} % of the critical path. {what} would be at most "
            f"{best['saved_pct']:.1f} % shorter if {name} took no time, so only fewer or faster kernels help "
            "(precision, memory layout, torch.compile)."
        )
        return [Sentence(_of_which(context, found, text), "critical-path", answers=TRY)]
    if best["part"] in BY_EVIDENCE:
        change = BY_EVIDENCE[best["part"]](context.study, found.paths)
    doubt = _doubt(context.study, found.paths, best["part"])
    if best["part"] == COLLECTIVES and doubt and ranks_are_missing(found.paths.source):
        change = f"record all ranks, to tell these apart; {change}"
    text = (
        f"{what} would be at most {best['saved_pct']:.0f} % shorter if {name} took no time ("
        f"{digits(best['saved_ms'], 3)} ms of a critical path of {digits(best['step_ms'], 3)} ms"
        f"{_whose_steps(context.study, found.paths)}{doubt and f'; {doubt}'}). To try: {change}."
    )
    return [Sentence(_of_which(context, found, text), "critical-path", answers=TRY)]


def _of_which(context: Context, found: Longest, text: str) -> str:
    """A sentence, with the job that it is of, and why of that one, where there are several."""
    job = found.paths.source.id
    return of_job(context, f"Largest saving of a single part, in {job}" if found.of_several else job, text)


def _doubt(study: Study, paths: RunPaths, part: str) -> str:
    """Why a part may not be what its name says: a clause."""
    if part == COLLECTIVES:
        return untold(study, paths.source)
    return "recorded under the profiler, which slows the host" if part in ("host", "launches") else ""


def _whose_steps(study: Study, paths: RunPaths) -> str:
    """How many steps the path is the mean of, and from when to when they last on several ranks."""
    if paths.source.without_steps:
        return ""
    count = len({step.batch_index for step in paths.steps})
    steps = f", mean of {count} steps" if count > 1 else ", 1 step"
    together = len(paths.steps) == count and len(trace_of(study, paths.source).ranks) > 1
    return f"{steps} from the last rank's start to the last rank's end" if together else steps


def savings(context: Context) -> small.Drawing | None:
    """What a step would be shorter by without each of these parts, the largest first."""
    found = _path(context)
    if found is None:
        return None
    shown = [(row["part"], row["saved_pct"]) for row in _avoidable(found.rows) if row["saved_pct"] >= 0.05]
    of = context.study.a_step([found.paths.source.id])
    whose = f" of {found.paths.source.id}" if len(context.traces) > 1 else ""
    label = (
        f"Percent by which {of}{whose} would be shorter without this part, at most (not shown: the model's "
        "kernels)"
    )
    return small.bars(shown[: small.MOST_BARS], "%", label) if shown else None


def _path(context: Context) -> Longest | None:
    if not any(source.tables("kernels") for source in context.traces):
        return None
    found = context.once(longest)
    return None if isinstance(found, str) or not _avoidable(found.rows) else found


def _avoidable(rows: Rows) -> list[dict[str, Any]]:
    return sorted((row for row in rows if row["part"] in AGAINST), key=lambda row: -row["saved_ms"])
