"""Find the profiled steps that means are made of: without warmup, the same for all answers."""

from dataclasses import dataclass

import numpy as np

from analysis.results.source import Source, reading
from analysis.results.study import Study
from analysis.statistics import estimates
from profiling import tables
from profiling.attribution.batch_times import slow_head
from profiling.schemas import ATTRIBUTED

_READ = ["batch_index", "start_ns", "end_ns", "attributed"]
# By so much the steps before a recording may take longer than those in it: recording makes no step shorter.
_AS_STEADY = 1.2


@dataclass(frozen=True)
class Counted:
    """The steps that count, as far as they were recorded.

    Attributes:
        steps: their indices.
        dropped: how many before them do not: of a run those that were recorded, of traces all.
    """

    steps: range
    dropped: int


Read = tuple[np.ndarray, np.ndarray]  # how long steps took, ns, and which were recorded; (ranks x steps) each


def counted_steps(study: Study, source: Source, read: Read | None = None) -> Counted | None:
    """The profiled steps of a run or of traces that count; None: all. A study asks once.

    Args:
        read: of all its steps, if whoever asks has read them.

    Raises:
        Unusable: a rank's table is missing, damaged or wrong.
    """
    kept: dict[str, Counted | None] = study.kept("counted steps")
    if source.id not in kept:
        kept[source.id] = _counted_steps(source, read)
    counted = kept[source.id]
    if counted is not None and counted.dropped:
        study.note("first_steps_left_out", source, n=counted.dropped, why="warmup")
    return counted


def _counted_steps(source: Source, read: Read | None) -> Counted | None:
    if source.kind not in ("run", "trace") or source.without_steps:
        return None
    rank_ns, attributed = read or _read(source)
    if not rank_ns.size or not (rank_ns > 0).all():
        return None
    if source.kind == "run":
        return _of_run(rank_ns.max(axis=0), np.logical_or.reduce(attributed))
    warmup = warmup_of_traces(rank_ns, attributed)
    return Counted(range(warmup, rank_ns.shape[1]), warmup)


def _read(source: Source) -> Read:
    with reading(source):
        columns = columns_of_steps(source, _READ)
    return columns["end_ns"] - columns["start_ns"], np.asarray(columns["attributed"], bool)


def _of_run(step_ns: np.ndarray, attributed: np.ndarray) -> Counted | None:
    # Of a schedule all recordings together: one may be shorter than the warm-up.
    recorded = np.flatnonzero(attributed)
    if not len(recorded) or _warmed_up(step_ns[: recorded[0]], step_ns[recorded]):
        return None
    warmup = estimates.warmup(step_ns[recorded])
    return Counted(range(int(recorded[warmup]), len(step_ns)), warmup) if recorded[warmup] else None


def _warmed_up(before_ns: np.ndarray, recorded_ns: np.ndarray) -> bool:
    """Whether the steps before a run's recording tell that it had warmed up.

    Not if they are too few, nor if all that is steady among them took longer than what was recorded.
    """
    if len(before_ns) < estimates.SHORTEST_SERIES:
        return False
    steady = before_ns[estimates.warmup(before_ns) :]
    return bool(np.median(steady) <= _AS_STEADY * np.median(recorded_ns[len(recorded_ns) // 2 :]))


def attributed_that_count(study: Study, source: Source) -> str:
    """SQL: the rank and number of the attributed batches that count."""
    counted = counted_steps(study, source)
    if counted is None:
        return ATTRIBUTED
    first, last = counted.steps.start, counted.steps.stop - 1
    return f"(select * from {ATTRIBUTED} where batch_index between {first} and {last})"


def in_steps(batch_index: np.ndarray, steps: range | None) -> np.ndarray:
    """Which of these batches count; None: all."""
    if steps is None:
        return np.ones(len(batch_index), bool)
    return (batch_index >= steps.start) & (batch_index < steps.stop)


def columns_of_steps(source: Source, names: list[str]) -> dict[str, np.ndarray]:
    """name -> (ranks x steps) of the steps that all ranks have, in order; NaN: not known."""
    read = [tables.read(path.parent, "batches", names) for path in source.tables("batches")]
    every = [table.sort_by("batch_index") for table in read]
    fewest = min((len(table) for table in every), default=0)
    return {
        name: np.array([table[name].to_numpy()[:fewest].astype(float) for table in every]) for name in names
    }


def warmup_of_traces(rank_ns: np.ndarray, attributed: np.ndarray) -> int:
    """How many steps at the head of traces are no steady ones; both (ranks x steps).

    First those that the conversion left out: recorded in part, or slow by far (:func:`slow_head`). Then what
    is off the level; of few steps again only what is slow by far. Most recordings begin long after the job
    did: a first step that is somewhat slower than a few others is more often chance than warm-up.
    """
    counts = attributed.all(axis=0)
    head = int(np.argmax(counts)) if counts.any() else 0
    step_ns = rank_ns.max(axis=0)[head:]
    few = len(step_ns) < estimates.FEWEST_FOR_WIDTH
    return head + (slow_head(step_ns) if few else estimates.warmup(step_ns))
