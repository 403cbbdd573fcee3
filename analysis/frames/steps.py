"""The steps of runs and traces: durations and stages of each rank's, warmup, and which steps count."""

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis import estimates
from analysis.frames.study import Source, Study, reading
from jobs.run import STEPS_BEFORE_GRAPH
from profiling import tables
from profiling.attribution.batch_times import slow_head
from profiling.errors import UserError
from profiling.schemas import ATTRIBUTED

_RECORDED = ("load", "forward", "backward", "update")
STAGES = (*_RECORDED, "other")  # other: the rest of a step, a program's own code; they add up to the step
_LONGER = 1.01  # than a step its stages cannot be, but by rounding
_READ = ["batch_index", "start_ns", *(f"{stage}_ns" for stage in _RECORDED), "end_ns", "images", "attributed"]


Read = tuple[np.ndarray, np.ndarray]  # how long steps took, ns, and which were recorded; (ranks x steps) each


class Counted(NamedTuple):
    """The steps that count, as far as they were recorded."""

    steps: range
    dropped: int = 0  # how many before them do not count: of a run those that were recorded, of traces all


ALL = Counted(range(1 << 62))


def counted_steps(study: Study, source: Source, read: Read | None = None) -> Counted:
    """The profiled steps of a run or of traces that count; a study asks once.

    ``read``: of all its steps, if there; Unusable: a rank's table is missing, damaged or wrong.
    """
    counted = study.once("counted steps", source.id, lambda: _counted_steps(source, read))
    if counted.dropped:
        study.note("first_steps_left_out", source, n=counted.dropped, why="warmup")
    return counted


def _counted_steps(source: Source, read: Read | None) -> Counted:
    if source.without_steps:
        return ALL
    if read is None:
        with reading(source):
            columns = _columns(source)
        read = columns["duration_ns"], columns["attributed"] == 1
    rank_ns, attributed = read
    if not rank_ns.size or not (rank_ns > 0).all():
        return ALL
    if source.kind == "run":
        return _of_run(rank_ns.max(axis=0), np.any(attributed, axis=0))
    warmup = warmup_of_traces(rank_ns, attributed)
    return Counted(range(warmup, rank_ns.shape[1]), warmup)


def _of_run(step_ns: np.ndarray, attributed: np.ndarray) -> Counted:
    # Of a schedule all recordings together: one may be shorter than the warm-up.
    recorded = np.flatnonzero(attributed)
    if not len(recorded):
        return ALL
    before_ns, recorded_ns = step_ns[: recorded[0]], step_ns[recorded]
    if len(before_ns) >= estimates.SHORTEST_SERIES:
        # It had warmed up, unless what is steady before took much longer: recording makes no step shorter.
        steady_ns = before_ns[estimates.warmup(before_ns) :]
        if np.median(steady_ns) <= 1.2 * np.median(recorded_ns[len(recorded_ns) // 2 :]):
            return ALL
    warmup = estimates.warmup(recorded_ns)
    return Counted(range(int(recorded[warmup]), len(step_ns)), warmup) if recorded[warmup] else ALL


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


def attributed_that_count(study: Study, source: Source) -> str:
    """SQL: the rank and number of the attributed batches that count."""
    steps = counted_steps(study, source).steps
    return f"(select * from {ATTRIBUTED} where batch_index between {steps.start} and {steps.stop - 1})"


def in_steps(batch_index: np.ndarray, steps: range) -> np.ndarray:
    """Which of these batches are among the steps."""
    return (batch_index >= steps.start) & (batch_index < steps.stop)


@dataclass(frozen=True)
class Series:
    """A run's batches, in order; arrays have one element a batch."""

    rank_ns: np.ndarray  # duration of each rank's batch (ranks x batches)
    images: np.ndarray  # of all ranks
    # name of STAGES -> duration in ns of each rank's (ranks x batches); ``other``, the rest, is added
    rank_stages: dict[str, np.ndarray]
    attributed: np.ndarray  # whether the profiler recorded it (on any rank)
    warmup: int  # how many batches at the head are off the steady level, or were not yet in CUDA graphs
    counted: range = ALL.steps  # of the recorded batches those that count (:func:`counted_steps`)

    def __post_init__(self) -> None:
        rest_ns = self.rank_ns - sum(self.rank_stages[name] for name in _RECORDED)
        self.rank_stages["other"] = np.maximum(rest_ns, 0)

    @property
    def stages(self) -> dict[str, np.ndarray]:
        """name -> duration in ns, mean over ranks."""
        return {name: of_ranks.mean(axis=0) for name, of_ranks in self.rank_stages.items()}

    @property
    def step_ns(self) -> np.ndarray:
        """Duration of the job's batch, which ends when its slowest rank does: the maximum over ranks."""
        return self.rank_ns.max(axis=0)

    @property
    def steady(self) -> np.ndarray:
        """Which batches a figure of the run's own speed is made of.

        Not the warm-up, and not those that the profiler slowed down by recording, if there are others.
        """
        after = np.arange(len(self.step_ns)) >= self.warmup
        unrecorded = after & ~self.attributed
        return unrecorded if unrecorded.any() else after

    @property
    def recorded_ns(self) -> np.ndarray:
        """The job's batches that the profiler recorded, without warm-up among them."""
        return self.step_ns[self.attributed & in_steps(np.arange(len(self.step_ns)), self.counted)]

    @property
    def steady_ns(self) -> np.ndarray:
        return self.step_ns[self.steady]

    @property
    def pace_ns(self) -> np.ndarray:
        """The steady batches of the rank that took longest for all of them: their sum is the job's time.

        The sum of the slowest batches is more than that where ranks are late by turns.
        """
        of_ranks = self.rank_ns[:, self.steady]
        return of_ranks[np.argmax(of_ranks.sum(axis=1))]

    @property
    def images_per_s(self) -> float:
        """Images of all ranks over the job's time for the steady batches."""
        return float(self.images[self.steady].sum() / self.pace_ns.sum() * 1e9)


def series_of(study: Study, source: Source) -> Series:
    """The steps of a run or of traces, read once; Unusable: a rank's table is missing, damaged or wrong."""
    with reading(source):
        series = study.once("series", source.id, lambda: _series(study, source))
    if longer := int((sum(series.rank_stages.values()) > _LONGER * series.rank_ns).sum()):
        study.note("stages_exceed_step", source, n=longer, of=series.rank_ns.size)
    return series


def _series(study: Study, source: Source) -> Series:
    of_traces = source.kind == "trace"
    columns = _columns(source) if of_traces else _columns_of_all_ranks(source)
    rank_ns, attributed = columns["duration_ns"], columns["attributed"].astype(bool)
    if of_traces and (not rank_ns.size or source.without_steps):
        raise UserError("no markers separate its steps")
    if (rank_ns <= 0).any():
        raise UserError("a step in its tables ends before it starts")
    stages = {name: columns[f"{name}_ns"] for name in _RECORDED}
    counted = counted_steps(study, source, (rank_ns, attributed)).steps
    if of_traces:
        # None is slower than another for being recorded: all are. Their number of images is not known.
        count = rank_ns.shape[1]
        return Series(rank_ns, np.full(count, np.nan), stages, np.zeros(count, bool), counted.start, counted)
    images, recorded = columns["images"].sum(axis=0), np.any(attributed, axis=0)
    if not images.sum():
        raise UserError("its steps hold no images")
    # What the profiler records is slower; that is no end of the warm-up.
    step_ns = rank_ns.max(axis=0)
    own = step_ns[: np.argmax(recorded)] if recorded.any() and not recorded[0] else step_ns
    # Nor are steps that were issued kernel by kernel those of a graph, however steady they were. What of the
    # recording is warm-up, so is then all that came before.
    graph = STEPS_BEFORE_GRAPH if source.fields.get("graph") else 0
    warmup = max(graph, estimates.warmup(own), counted.start)
    return Series(rank_ns, images, stages, recorded, warmup, counted)


def _columns_of_all_ranks(source: Source) -> dict[str, np.ndarray]:
    """:func:`_columns` of a run, all of whose ranks have all its steps; a program may have gone on."""
    count = source.fields["batches"]
    ranks = [_steps_of(tables.rank_directory(source.path, rank)) for rank in range(source.ranks)]
    for rank, table in enumerate(ranks):
        if len(table) != count and not (source.fields.get("program") and len(table) > count):
            raise UserError(f"rank {rank} recorded {len(table)} of {count} steps")
        # Of a program that was watched, the samples of a step may be unknown.
        if any(table[name].null_count for name in table.column_names if name != "images"):
            raise UserError(f"rank {rank} recorded steps without timestamps")
    return _stacked(ranks, count)


def _columns(source: Source) -> dict[str, np.ndarray]:
    """name -> (ranks x steps) of the steps that all ranks that left any have, in order; NaN: not known."""
    ranks = [_steps_of(path.parent) for path in source.tables("batches")]
    return _stacked(ranks, min(map(len, ranks), default=0))


def _steps_of(directory: Path) -> pa.Table:
    """A rank's steps in order, with their ``duration_ns`` (a float holds times since 1970 to 256 ns only)."""
    table = tables.read(directory, "batches", _READ).sort_by("batch_index")
    return table.append_column("duration_ns", pc.subtract(table["end_ns"], table["start_ns"]))


def _stacked(ranks: list[pa.Table], count: int) -> dict[str, np.ndarray]:
    return {
        name: np.array([table[name].to_numpy()[:count].astype(float) for table in ranks])
        for name in ("duration_ns", "images", "attributed", *(f"{stage}_ns" for stage in _RECORDED))
    }


def all_series(study: Study) -> dict[str, Series]:
    """The steps of every run that can be used, by id."""
    each = study.each(study.of_kind("run"), lambda source: series_of(study, source))
    by_id = {source.id: series for source, series in each}
    levels = {name: _change_of_level(one.steady_ns) for name, one in by_id.items()}
    slower = {name: found for name, one in by_id.items() if (found := estimates.slower_from(one.steady_ns))}
    if slower:
        first = min(int(np.flatnonzero(by_id[name].steady)[place]) for name, (place, _) in slower.items())
        longer_pct = float(np.median([pct for _, pct in slower.values()]))
        study.note("slower_from", n=len(slower), of=len(by_id), step=first, longer_pct=longer_pct)
    # Without a steady level a median, or images/s, is that of no pace they keep.
    unsettled = [
        name for name, one in by_id.items()
        if (one.warmup and one.warmup >= len(one.step_ns) // 2 and not one.attributed.any())
        or (levels[name][0] and name not in slower)
    ]  # fmt: skip
    if unsettled:
        study.note("no_steady_state", n=len(unsettled), of=len(by_id), runs=unsettled)
    warming = {name: pct for name, (_, pct) in levels.items() if pct is not None and name not in unsettled}
    if warming:
        most = max(warming.values())
        study.note("still_warming", n=len(warming), of=len(by_id), runs=list(warming), longer_pct=most)
    return by_id


def series_of_traces(study: Study) -> dict[str, Series]:
    """The steps of all traces that tell them, by id."""

    def of(source: Source) -> Series | None:
        if source.without_times or source.without_steps:
            study.note("not_recorded", source, what="times of steps")
            return None
        return series_of(study, source)

    return {source.id: series for source, series in study.each(study.of_kind("trace"), of)}


def _change_of_level(steady_ns: np.ndarray) -> tuple[bool, float | None]:
    """Whether a series ends on another level than it began on, and by how much it warms up, %.

    A level is the median of a third. It is another one from a fifth on, if the middle halves of the first and
    the last third are apart. A series warms up if each third is below the lower quartile of the one before,
    by as much as its first third is longer than its last; None: it does not, or by a tenth at most.
    """
    if (third := len(steady_ns) // 3) < 4:
        return False, None
    parts = steady_ns[:third], steady_ns[third:-third], steady_ns[-third:]
    quartiles = [np.percentile(part, [25, 50, 75]) for part in parts]
    (low, first, high), (lower, middle, _), (lowest, last, highest) = quartiles
    drifts = (low > highest or lowest > high) and abs(last / first - 1) > 0.2
    falls = middle < low and last < lower and first / last - 1 > 0.1
    return bool(drifts), 100 * float(first / last - 1) if falls else None
