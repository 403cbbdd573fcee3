"""The steps frame: durations and stages of each rank's steps, warmup, and which steps count."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis.frames.study import Source, Study, reading
from analysis.statistics import estimates
from jobs.run import STEPS_BEFORE_GRAPH
from profiling import tables
from profiling.attribution.batch_times import WHOLE, slow_head
from profiling.errors import UserError
from profiling.schemas import ATTRIBUTED

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
    if read is None:
        with reading(source):
            columns = columns_of_steps(source, ["batch_index", "start_ns", "end_ns", "attributed"])
        read = columns["end_ns"] - columns["start_ns"], np.asarray(columns["attributed"], bool)
    rank_ns, attributed = read
    if not rank_ns.size or not (rank_ns > 0).all():
        return None
    if source.kind == "run":
        return _of_run(rank_ns.max(axis=0), np.logical_or.reduce(attributed))
    warmup = warmup_of_traces(rank_ns, attributed)
    return Counted(range(warmup, rank_ns.shape[1]), warmup)


def _of_run(step_ns: np.ndarray, attributed: np.ndarray) -> Counted | None:
    # Of a schedule all recordings together: one may be shorter than the warm-up.
    recorded = np.flatnonzero(attributed)
    if not len(recorded):
        return None
    before_ns, recorded_ns = step_ns[: recorded[0]], step_ns[recorded]
    if len(before_ns) >= estimates.SHORTEST_SERIES:
        # It had warmed up, unless all that is steady before the recording took longer than what was recorded.
        steady_ns = before_ns[estimates.warmup(before_ns) :]
        if np.median(steady_ns) <= _AS_STEADY * np.median(recorded_ns[len(recorded_ns) // 2 :]):
            return None
    warmup = estimates.warmup(recorded_ns)
    return Counted(range(int(recorded[warmup]), len(step_ns)), warmup) if recorded[warmup] else None


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


_RECORDED = ("load", "forward", "backward", "update")
STAGES = (*_RECORDED, "other")  # other: the rest of a step, a program's own code; they add up to the step
_DRIFT = 0.2  # of the level, from the first third of a run to the last
_WARMING = 0.1  # longer than its end: what gets faster by less has warmed up
_FEWEST_TO_DRIFT = 12
_LONGER = 1.01  # than a batch its stages cannot be, but by rounding
_READ = ["batch_index", "start_ns", "load_ns", "forward_ns", "backward_ns", "update_ns", "end_ns", "images",
         "attributed"]  # fmt: skip


@dataclass(frozen=True)
class Series:
    """A run's batches, in order; arrays have one element a batch.

    Attributes:
        rank_ns: duration of each rank's batch (ranks x batches).
        images: of all ranks.
        rank_stages: name of :data:`STAGES` -> duration in ns of each rank's (ranks x batches); ``other``, the
            rest, is added.
        attributed: whether the profiler recorded it (on any rank).
        warmup: how many batches at the head are off the steady level, or were not yet in CUDA graphs.
        counted: of the recorded batches those that count (:func:`counted_steps`); None: all.
    """

    rank_ns: np.ndarray
    images: np.ndarray
    rank_stages: dict[str, np.ndarray]
    attributed: np.ndarray
    warmup: int
    counted: range | None = None

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
    """A run's batches; a study reads them once.

    Raises:
        Unusable: a rank's table is missing, damaged or wrong.
    """
    kept: dict[str, Series] = study.kept("series")
    if source.id not in kept:
        with reading(source):
            kept[source.id] = _series(study, source)
    series = kept[source.id]
    longer = int((sum(series.rank_stages.values()) > _LONGER * series.rank_ns).sum())
    if longer:
        study.note("stages_exceed_step", source, n=longer, of=series.rank_ns.size)
    return series


def _series(study: Study, source: Source) -> Series:
    of_traces = source.kind == "trace"
    columns = columns_of_steps(source, _READ) if of_traces else _of_all_ranks(source)
    rank_ns = columns["end_ns"] - columns["start_ns"]
    if of_traces and (not rank_ns.size or source.job is None or source.without_steps):
        raise UserError("no markers separate its steps")
    if (rank_ns <= 0).any():
        raise UserError("a step in its tables ends before it starts")
    stages = {name: columns[f"{name}_ns"] for name in _RECORDED}
    attributed = columns["attributed"].astype(bool)
    if of_traces:
        # None of them is slower than another for being recorded: all are. How many images they are of is
        # not known.
        warmup, count = warmup_of_traces(rank_ns, attributed), rank_ns.shape[1]
        return Series(
            rank_ns, np.full(count, np.nan), stages, np.zeros(count, bool), warmup, range(warmup, count)
        )
    images, recorded = np.sum(columns["images"], axis=0), np.any(attributed, axis=0)
    if not images.sum():
        raise UserError("its steps hold no images")
    # What the profiler records is slower; that is no end of the warm-up.
    step_ns = rank_ns.max(axis=0)
    own = step_ns[: np.argmax(recorded)] if recorded.any() and not recorded[0] else step_ns
    # Nor are steps that were issued kernel by kernel those of a graph, however steady they were.
    warmup = max(STEPS_BEFORE_GRAPH if source.fields.get("graph") else 0, estimates.warmup(own))
    counted = counted_steps(study, source, (rank_ns, attributed)) if recorded.any() else None
    if counted is None:
        return Series(rank_ns, images, stages, recorded, warmup)
    # What of the recording is warm-up, so is then all that came before.
    return Series(rank_ns, images, stages, recorded, max(warmup, counted.steps.start), counted.steps)


def _of_all_ranks(source: Source) -> dict[str, np.ndarray]:
    """name -> (ranks x steps) of a run: all steps; of a program those that all ranks have."""
    count = source.fields["batches"]
    folders = [tables.rank_directory(source.path, rank) for rank in range(source.ranks)]
    of_ranks = [tables.read(folder, "batches", _READ).sort_by("batch_index") for folder in folders]
    for rank, table in enumerate(of_ranks):
        if len(table) != count and not (source.fields.get("program") and len(table) > count):
            raise UserError(f"rank {rank} recorded {len(table)} of {count} steps")
        # Of a program that was watched, the samples of a step may be unknown.
        if any(table[name].null_count for name in _READ if name != "images"):
            raise UserError(f"rank {rank} recorded steps without timestamps")
    return {name: np.stack([table[name].to_numpy()[:count] for table in of_ranks]) for name in _READ}


def all_series(study: Study) -> dict[str, Series]:
    """The batches of every run that can be used, by id."""
    each = study.each(study.of_kind("run"), lambda source: series_of(study, source))
    by_id = {source.id: series for source, series in each}
    levels = {name: _change_of_level(one.steady_ns) for name, one in by_id.items()}
    # Without a steady level a median, or images/s, is that of no pace they keep.
    unsettled = [
        name
        for name, one in by_id.items()
        if (one.warmup and one.warmup >= len(one.step_ns) // 2 and not one.attributed.any())
        or levels[name][0]
    ]
    if unsettled:
        study.note("no_steady_state", n=len(unsettled), of=len(by_id), runs=unsettled)
    warming = {name: pct for name, (_, pct) in levels.items() if pct is not None and name not in unsettled}
    if warming:
        most = max(warming.values())
        study.note("still_warming", n=len(warming), of=len(by_id), runs=list(warming), longer_pct=most)
    return by_id


def series_of_traces(study: Study) -> dict[str, Series]:
    """The batches of all traces that tell them, by id."""

    def of(source: Source) -> Series | None:
        if source.without_times or (source.job is not None and source.job.batches_from in ("", WHOLE)):
            study.note("not_recorded", source, what="times of steps")
            return None
        return series_of(study, source)

    return {source.id: series for source, series in study.each(study.of_kind("trace"), of)}


def steps(study: Study) -> pd.DataFrame:
    """The steps of all runs and traces that can be used; a study makes them once.

    Returns:
        A row a run, rank and step. Columns: ``run, rank, step, duration_ns, load_ns, forward_ns, backward_ns,
        update_ns, other_ns``, and of the job's step ``images`` (of all ranks; NaN: not known), ``recorded``
        by a profiler, ``counted`` (of these, not warmup) and ``steady`` (:attr:`Series.steady`).
    """
    kept: dict[str, pd.DataFrame] = study.kept("frames")
    if "steps" not in kept:
        series = all_series(study) | series_of_traces(study)
        frames = [_frame(run, one) for run, one in series.items()]
        kept["steps"] = pd.concat(frames, ignore_index=True) if frames else _NO_STEPS
    return kept["steps"]


_NO_STEPS = pd.DataFrame(
    columns=["run", "rank", "step", "duration_ns", *(f"{stage}_ns" for stage in STAGES),
             "images", "recorded", "counted", "steady"]
)  # fmt: skip


def _frame(run: str, series: Series) -> pd.DataFrame:
    ranks, steps = series.rank_ns.shape
    of_job = {
        "images": series.images,
        "recorded": series.attributed,
        "counted": series.attributed & in_steps(np.arange(steps), series.counted),
        "steady": series.steady,
    }
    return pd.DataFrame({
        "run": run,
        "rank": np.repeat(np.arange(ranks), steps),
        "step": np.tile(np.arange(steps), ranks),
        "duration_ns": series.rank_ns.ravel(),
        **{f"{stage}_ns": of_ranks.ravel() for stage, of_ranks in series.rank_stages.items()},
        **{name: np.tile(values, ranks) for name, values in of_job.items()},
    })  # fmt: skip


def job_steps(steps: pd.DataFrame) -> pd.DataFrame:
    """The steps of jobs: a step lasts until its slowest rank ends it; stages are means over ranks.

    Args:
        steps: of :func:`steps`.

    Returns:
        A row a run and step, with the columns of :func:`steps` but ``rank``.
    """
    of_ranks = {"duration_ns": "max", **{f"{stage}_ns": "mean" for stage in STAGES}}
    of_job = dict.fromkeys(("images", "recorded", "counted", "steady"), "first")
    return steps.groupby(["run", "step"], sort=False, as_index=False).agg(of_ranks | of_job)


def _change_of_level(steady_ns: np.ndarray) -> tuple[bool, float | None]:
    """Whether a series ends on another level than it began on, and by how much it warms up, %.

    A level is the median of a third. It is another one from a fifth on, if the middle halves of the first and
    the last third are apart. A series warms up if each third is below the lower quartile of the one before,
    by as much as its first third is longer than its last; None: it does not, or by little.
    """
    third = len(steady_ns) // 3
    if len(steady_ns) < _FEWEST_TO_DRIFT:
        return False, None
    parts = steady_ns[:third], steady_ns[third:-third], steady_ns[-third:]
    (low, first, high), (lower, middle, _), (lowest, last, highest) = (
        np.percentile(part, [25, 50, 75]) for part in parts
    )
    drifts = (low > highest or lowest > high) and abs(last / first - 1) > _DRIFT
    falls = middle < low and last < lower and first / last - 1 > _WARMING
    return bool(drifts), 100 * float(first / last - 1) if falls else None
