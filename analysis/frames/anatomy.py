"""Reduce the kernel tables of a run, rank by rank, to the frames of anatomy and collectives.

Each rank is read, reduced and dropped: the kernels of all ranks are never in memory at once.
"""

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from analysis.frames import divide
from analysis.frames.divide import EVER, Activities, Intervals
from analysis.frames.kernel_sums import note_left_out
from analysis.frames.matching import WAITS, Account, Matched, Unmatched, account_of, match, waits_by_cause
from analysis.frames.steps import ALL, Counted, counted_steps, in_steps
from analysis.frames.study import Source, Study, in_threads, reading
from profiling import schemas, tables
from profiling.attribution.messages import ONE_OF_SEVERAL, kind_of

_STAGES = ("load_ns", "forward_ns", "backward_ns", "update_ns")
# What the process group of a collective is told by.
GROUP = ("collective", "process_group", "group_ranks", "group_size")
KERNEL_COLUMNS = (
    "batch_index", "start_ns", "duration_ns", "class", "direction", "device", "launch_ns", "bytes",
    "short_name", "sequence", *GROUP,
)  # fmt: skip
_OF_CALLS = ("short_name", "collective", "process_group", "group_ranks")


def in_time(kernels: pa.Table) -> tuple[pa.Table, int]:
    """The kernels that have a place in time; how many have no duration, or one below 0."""
    lasts = pc.fill_null(pc.greater_equal(kernels["duration_ns"], 0), False)
    in_time = pc.and_(pc.is_valid(kernels["start_ns"]), lasts)
    placed = kernels if pc.all(in_time).as_py() else kernels.filter(in_time)
    return placed, len(kernels) - (pc.sum(lasts).as_py() or 0)


def arrays_of(kernels: pa.Table) -> dict[str, np.ndarray]:
    """:data:`KERNEL_COLUMNS` of a kernels table as arrays.

    Texts are None, bytes and group sizes NaN, and other numbers -1, where they are not recorded. Names are of
    collectives alone (None elsewhere): those of all kernels would take as long as all the rest.
    """
    found = {name: _column(kernels, name) for name in KERNEL_COLUMNS if name not in _OF_CALLS}
    talks = divide.of_class(found, "communication")
    calls = kernels.filter(pa.array(talks))
    for name in _OF_CALLS:
        found[name] = np.full(len(kernels), None)
        found[name][talks] = _column(calls, name)
    return found


def _column(table: pa.Table, name: str) -> np.ndarray:
    column = table[name]
    if name in ("batch_index", "device", "launch_ns", "sequence"):
        return pc.fill_null(column, -1).to_numpy()  # in no batch is what has an index below 0
    if not pa.types.is_dictionary(column.type):
        return column.to_numpy()
    texts = column.to_pandas().cat
    return np.array([*texts.categories, None], object)[texts.codes]  # a null text has the code -1


def calls_of(
    rank: int, kernels: dict[str, np.ndarray], attributed: np.ndarray, windows: Intervals,
    activities: Activities, steps: range = ALL.steps,
) -> pd.DataFrame:  # fmt: skip
    """A rank's collectives in its attributed batches, in order of their start; see :class:`RunTrace`.

    ``kernels``: of :func:`arrays_of`, with a place in time; ``windows, steps``: of the batches that count.
    """
    rows = np.flatnonzero(divide.of_class(kernels, "communication"))
    rows = rows[np.isin(kernels["batch_index"][rows], attributed)]
    rows = rows[np.argsort(kernels["start_ns"][rows], kind="stable")]
    call = {name: column[rows] for name, column in kernels.items()}
    start, end = call["start_ns"], call["start_ns"] + call["duration_ns"]
    counted = in_steps(call["batch_index"], steps)
    exposed, hidden = np.zeros((2, len(rows)))
    exposed[counted], hidden[counted] = divide.shares((start[counted], end[counted]), windows, activities)
    texts = list(zip(*(call[name].tolist() for name in (*GROUP, "short_name")), strict=True))
    known = {row: _kind_and_group(*row) for row in set(texts)}
    return pd.DataFrame({
        "rank": rank, "row": rows, "step": call["batch_index"], "counted": counted,
        "collective": [known[row][0] for row in texts],
        # The same text a rank, not one a call: a group of 1,024 ranks has 4 kB.
        "group": pd.Series([known[row][1] for row in texts], dtype=object),
        "group_size": np.where(call["group_size"] > 0, call["group_size"], 0).astype(np.int64),
        "sequence": call["sequence"],
        "bytes": call["bytes"].astype(float), "start_ns": start, "end_ns": end,
        "exposed_ns": exposed, "overlapped_ns": hidden,
    })  # fmt: skip


def _kind_and_group(
    kind: str | None, name: str | None, ranks: str | None, size: float, kernel: str | None
) -> tuple[str, str]:
    """A collective's kind, as recorded or as its kernel says, and its process group, ``NAME [RANKS]``."""
    if ranks:
        group = f"{name or ''} [{ranks}]".strip()
    elif size > 0 and name in (None, ONE_OF_SEVERAL):
        group = f"of {size:.0f} ranks"  # the same on all ranks, and enough if that is all of them
    else:
        group = name or ""
    return kind or kind_of(str(kernel)), group


@dataclass(frozen=True)
class RankTrace:
    """One rank; times in ns on its own clock."""

    rank: int
    attributed: int  # attributed batches; 0 where no kernel has a place in time
    with_kernels: int  # those of them that hold kernels
    counted: int  # of these those that count
    timed: int  # of the batches that count those in whose time something ran
    batch_index: np.ndarray  # of each attributed batch in whose time something ran; others were not recorded
    edges_ns: np.ndarray  # the instants between which the stages of these lie, (batches, 6)
    parts_ns: dict[str, np.ndarray]  # of divide.EVERY what is known of these stages, (batches x 5,) each
    activities: int  # of the device from the first of these batches to the last
    unknown_launches: int  # how many of them have no known launch
    untimed_batches: int  # what lacks a time and is left out
    untimed_kernels: int
    staged: bool  # whether their stages are known


@dataclass(frozen=True)
class RunTrace:
    """All ranks of a run that have kernels.

    Its collectives are those of attributed steps: a row a call of a rank, in order of ranks and starts.
    ``rank``, its ``place``, the ``row`` of its kernels in time, ``step, counted, collective, group``,
    ``group_size`` (0: not recorded), ``bytes, start_ns, end_ns, exposed_ns, overlapped_ns``, and what
    :class:`Matched` adds.
    """

    source: Source
    ranks: tuple[RankTrace, ...]
    collectives: pd.DataFrame
    matched: Matched | None  # the same collectives of all ranks, on one clock; None: not known, or none
    unmatched: Unmatched  # the kinds of collectives whose transfer and wait are not known, by reason
    lost: int  # how many calls are left out because some ranks of the group lack their record
    counted: Counted  # the batches that means are of
    caused_ns: np.ndarray | None  # what each made the others wait by coming last, a step, (ranks, causes)

    def note_unmatched(self, study: Study) -> None:
        for reason, kinds in self.unmatched.items():
            study.note("transfer_unknown", self.source, collectives=", ".join(kinds), reason=reason)

    @property
    def collectives_alone(self) -> bool:
        """Whether nothing but collectives was recorded (NCCL Inspector): what else ran is not known."""
        return len(self.collectives) > 0 and not any(one.parts_ns["compute"].any() for one in self.ranks)

    @property
    def staged(self) -> bool:
        """Whether the stages of all batches are known."""
        return all(one.staged for one in self.ranks)

    @property
    def recorded(self) -> list[RankTrace]:
        """The ranks in whose attributed batches something ran."""
        return [one for one in self.ranks if len(one.batch_index)]


def traces_of(study: Study, sources: Iterable[Source]) -> list[RunTrace]:
    """The trace of each of the runs that can be used, with findings on what its anatomy lacks."""
    traces = [trace for _, trace in study.each(sources, lambda source: trace_of(study, source))]
    for trace in traces:
        source, ranks = trace.source, trace.recorded
        if source.without_times:
            study.note("not_recorded", source, what="times of steps")
            continue
        trace.note_unmatched(study)
        if not len(trace.collectives) and trace.ranks and source.ranks > 1:
            study.note("not_recorded", source, what="collectives")
        attributed = sum(one.attributed for one in trace.ranks)
        note_left_out(study, source, attributed - sum(len(one.batch_index) for one in ranks), attributed)
        count, unknown = sum(one.activities for one in ranks), sum(one.unknown_launches for one in ranks)
        if unknown > 0.01 * count:  # fewer do not matter for idle time
            study.note("launches_missing", source, n=unknown, of=count)
    return traces


def trace_of(study: Study, source: Source) -> RunTrace:
    """A run's trace; a study reads it once."""
    kept: dict[str, RunTrace] = study.kept("traces")
    if source.id not in kept:
        counted = counted_steps(study, source)
        # Some ranks at a time, one a core: Arrow and NumPy let other threads go on.
        read = in_threads(lambda path: _read_rank(source, path.parent, counted), source.tables("kernels"))
        kept[source.id] = _joined(source, list(read), counted)
        ranks = kept[source.id].ranks
        if untimed := sum(one.untimed_batches for one in ranks):
            study.note("rows_left_out", source, n=untimed, what="steps without times")
        if lost := kept[source.id].lost:
            study.note("rows_left_out", source, n=lost, what="collectives that some ranks did not record")
        attributed = sum(one.attributed for one in ranks)
        without = attributed - sum(one.with_kernels for one in ranks)
        note_left_out(study, source, without, attributed, sum(one.untimed_kernels for one in ranks))
    return kept[source.id]


_Read = tuple[RankTrace, pd.DataFrame, Intervals, Account]


def _read_rank(source: Source, directory: Path, counted: Counted) -> _Read:
    """A rank's trace from its tables, its collectives, when they were exposed, and what it did until when."""
    with reading(source):
        table = tables.read(directory, "batches", schemas.TIMES_OF_BATCHES)
        launches = tables.read(directory, "kernels", list(KERNEL_COLUMNS))
    attributed = table.filter(table["attributed"])  # null is not attributed
    # They have all times, or lack those of their stages alone, all of them.
    lacking = [pc.is_null(attributed[name]) for name in _STAGES]
    edges_known = [pc.is_valid(attributed[name]) for name in ("start_ns", "end_ns")]
    alike = [pc.equal(one, lacking[0]) for one in lacking[1:]]
    whole = attributed.filter(functools.reduce(pc.and_, [*edges_known, *alike]))
    # Of a batch without stages all is after its last.
    batches = {
        name: (whole[name].fill_null(0) if name in _STAGES else whole[name]).to_numpy()
        for name in schemas.TIMES_OF_BATCHES
    }
    placed, untimed = in_time(launches)
    kernels = arrays_of(placed)
    start, end = kernels["start_ns"], kernels["start_ns"] + kernels["duration_ns"]
    busy = divide.covered((batches["start_ns"], batches["end_ns"]), divide.union(start, end)) > 0
    mine = {name: column[busy] for name, column in batches.items()}
    edges = divide.edges_of(mine)
    activities = divide.activities_of(kernels, (edges[:, 0], edges[:, 1]))
    among = in_steps(mine["batch_index"], counted.steps)
    windows = mine["start_ns"][among], mine["end_ns"][among]
    begun = (kernels["device"] >= 0) & (start >= edges.min(initial=EVER)) & (start < edges.max(initial=0))
    of_batch = kernels["batch_index"]
    with_kernels = np.unique(of_batch[np.isin(of_batch, batches["batch_index"])])
    trace = RankTrace(
        rank=tables.rank_of(directory), attributed=len(busy) if len(start) else 0,
        with_kernels=len(with_kernels), counted=int(in_steps(with_kernels, counted.steps).sum()),
        timed=len(windows[0]), batch_index=mine["batch_index"], edges_ns=edges,
        parts_ns=divide.split(divide.windows_of(edges), activities, len(divide.STAGES)),
        activities=int(begun.sum()),
        unknown_launches=int((begun & ~divide.launch_known(kernels)).sum()),
        untimed_batches=len(attributed) - len(whole), untimed_kernels=untimed,
        staged=not any(whole[name].null_count for name in _STAGES),
    )  # fmt: skip
    calls = calls_of(trace.rank, kernels, batches["batch_index"], windows, activities, counted.steps)
    return trace, calls, activities.exposed, account_of(kernels, calls["row"].to_numpy(), activities, batches)


def _joined(source: Source, read: Sequence[_Read], counted: Counted) -> RunTrace:
    """The ranks of a run; what their exposed communication is made of, where that is known."""
    ranks = [one for one, *_ in read]
    calls = [of_rank.assign(place=place) for place, (_, of_rank, *_) in enumerate(read)]
    full = [of_rank for of_rank in calls if len(of_rank)]
    every = pd.concat(full or calls or [pd.DataFrame()], ignore_index=True)
    accounts, there = [one for *_, one in read], _on_all_ranks(every)
    if lost := int((~there).sum()):
        of_ranks = np.split(there, np.cumsum([*map(len, calls)])[:-1])
        accounts = [one.of_calls(kept) for one, kept in zip(accounts, of_ranks, strict=True)]
        every = every[there].reset_index(drop=True)
    matched, left = _matched(source, every, len(ranks))
    every = every.assign(transfer_ns=math.nan, left_ns=math.nan, call=0) if matched is None else matched.calls
    caused = None
    # One rank has no collective to make; those of several that have none were not recorded.
    if ranks and not every["transfer_ns"].isna().any() and (len(every) or source.ranks == 1):
        causes = np.zeros((len(every), len(WAITS)))  # not known, unless the model's kernels are
        first = np.searchsorted(every["place"], np.arange(len(ranks) + 1))
        if matched is not None and any(one.parts_ns["compute"].any() for one in ranks):
            causes, caused = waits_by_cause(matched, accounts, [one for *_, one, _ in read])
            caused /= max(*(one.counted for one in ranks), 1)
        ranks = [
            replace(one, parts_ns=one.parts_ns | _communication(one, exposed, of_rank, causes[of_rank.index]))
            for place, (one, _, exposed, _) in enumerate(read)
            for of_rank in [every.iloc[first[place] : first[place + 1]]]
        ]
    return RunTrace(source, tuple(ranks), every, matched, left, lost, counted, caused)


def _on_all_ranks(calls: pd.DataFrame) -> np.ndarray:
    """Which calls are on all ranks of their group, of those that have numbers: NCCL Inspector loses some."""
    if not len(calls) or (calls["sequence"] < 0).all():
        return np.ones(len(calls), bool)
    family = calls.groupby(["group", "collective"])["place"].transform("nunique")
    there = calls.groupby(["group", "collective", "sequence"])["place"].transform("nunique")
    return ((calls["sequence"] < 0) | (there == family)).to_numpy()


def _matched(source: Source, calls: pd.DataFrame, ranks: int) -> tuple[Matched | None, Unmatched]:
    """The collectives of all ranks on one clock (None: none is known), and kinds that are not matched."""
    if not len(calls):
        return None, {}
    if source.gpus_per_rank > 1:
        return None, {"one process": {"all": None}}
    # Of some of the ranks those groups are told apart that say how many they are.
    whole = ranks == source.world_size
    if whole or (calls["group_size"] > 0).all():
        matched, left = match(calls, ranks)
        if matched or whole:
            return matched, left
    return None, {"ranks not recorded": {"all": None}}


def _communication(
    rank: RankTrace, exposed: Intervals, calls: pd.DataFrame, causes_ns: np.ndarray
) -> dict[str, np.ndarray]:
    """What the exposed communication of each stage is made of, and waiting in it by cause, in ns.

    ``causes_ns``: the waits of the rank's calls by cause; a stage has those of its step.
    """
    end = calls["end_ns"].to_numpy()
    # Data moves since the last rank had come.
    begin = end - np.rint(calls["transfer_ns"].to_numpy()).astype(np.int64)
    parts = divide.transfer_and_wait(divide.windows_of(rank.edges_ns), exposed, (begin, end))
    of_steps = np.zeros((len(rank.batch_index), len(WAITS)))
    inside = np.isin(calls["step"], rank.batch_index)
    np.add.at(of_steps, np.searchsorted(rank.batch_index, calls["step"][inside]), causes_ns[inside])
    of_steps[of_steps.sum(axis=1) == 0, -1] = 1  # other
    shares = of_steps / of_steps.sum(axis=1, keepdims=True)
    waits = parts["exposed_wait"][:, None] * np.repeat(shares, len(divide.STAGES), axis=0)
    return parts | dict(zip(WAITS, waits.T, strict=True))


def anatomy_of(trace: RunTrace, with_warmup: bool = False) -> pd.DataFrame:
    """:func:`anatomy` of a run, with the columns that are known of it."""
    steps = (ALL if with_warmup else trace.counted).steps
    ranks = [
        pd.DataFrame({
            "rank": one.rank,
            "step": np.repeat(one.batch_index, len(divide.STAGES)),
            "stage": np.tile(np.array(divide.STAGES), len(one.batch_index)),
            "wall_ns": np.diff(one.edges_ns).ravel(),
            **{f"{name}_ns": value for name, value in one.parts_ns.items()},
        })[in_steps(np.repeat(one.batch_index, len(divide.STAGES)), steps)]
        for one in trace.recorded
    ]  # fmt: skip
    frame = pd.concat([one for one in ranks if len(one)] or [pd.DataFrame()], ignore_index=True)
    talk = ["exposed_communication_ns", "overlapped_communication_ns"]
    if trace.source.ranks > 1 and len(frame) and not frame[talk].any(axis=None):
        # Not 0 ms: the profiler did not see them, and what they took counts as idle.
        return frame.drop(columns=talk)
    if trace.collectives_alone:
        of_loading = ("exposed_loader", "loader", "exposed_copies", "overlapped")
        unknown = ("compute", "idle", *(of_loading if trace.source.without_steps else ()))
        return frame.drop(columns=[name for name in map(str, frame) if name.startswith(unknown)])
    return frame


def anatomy(study: Study, sources: Iterable[Source], with_warmup: bool = False) -> pd.DataFrame:
    """The anatomy of the steps of runs and traces that can be used: a row a run, rank, step and stage.

    Columns: ``run, rank, step, stage, wall_ns`` and ``<part>_ns`` of :data:`~analysis.frames.divide.EVERY`
    and :data:`~analysis.frames.matching.WAITS`; NaN: not known. ``with_warmup``: all attributed steps.
    """
    found = [(trace.source.id, anatomy_of(trace, with_warmup)) for trace in traces_of(study, sources)]
    frames = [frame.assign(run=run) for run, frame in found if len(frame)]
    names = ["run", "rank", "step", "stage", "wall_ns", *(f"{name}_ns" for name in (*divide.EVERY, *WAITS))]
    return pd.concat(frames or [pd.DataFrame(columns=names)], ignore_index=True).reindex(columns=names)
