"""Reduce the kernel tables of a run, rank by rank, to the frames of anatomy and collectives.

Anatomy, communication, lateness and the simulation's collectives are computed from these. Each rank is read,
reduced and dropped, so the kernels of all ranks are never in memory at once. No other module reads the kernel
tables of a run for these measures.
"""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from analysis.frames.behind import WAITS, Account, account_of, waits_by_cause
from analysis.frames.divide import (
    EVERY,
    NOTHING,
    STAGES,
    Activities,
    Intervals,
    activities_of,
    covered,
    edges_of,
    launch_known,
    shares,
    split,
    transfer_and_wait,
    union,
    windows_of,
)
from analysis.frames.kernel_sums import note_left_out
from analysis.frames.matching import Calls, Matched, match, unmatched
from analysis.frames.steps import Counted, counted_steps, in_steps
from analysis.frames.study import Source, Study, reading
from profiling import schemas, tables
from profiling.attribution.messages import ONE_OF_SEVERAL, kind_of
from profiling.workers import in_threads

_STAGES = ("load_ns", "forward_ns", "backward_ns", "update_ns")
# What the process group of a collective is told by.
GROUP = ("collective", "process_group", "group_ranks", "group_size")
KERNEL_COLUMNS = (
    "batch_index", "start_ns", "duration_ns", "class", "direction", "device", "launch_ns", "bytes",
    "short_name", *GROUP,
)  # fmt: skip


def timed(batches: pa.Table) -> pa.ChunkedArray:
    """Which batches have all times, or lack those of their stages alone, all of them."""
    lacking = [pc.is_null(batches[name]) for name in _STAGES]
    edges = pc.and_(pc.is_valid(batches["start_ns"]), pc.is_valid(batches["end_ns"]))
    same = functools.reduce(pc.and_, [pc.equal(one, lacking[0]) for one in lacking])
    return pc.and_(edges, same)


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
    numbers = ("start_ns", "duration_ns", "bytes", "group_size")
    found = {name: column_of(kernels, name) for name in (*numbers, "class", "direction")}
    talks = found["class"] == "communication"
    calls = kernels.filter(pa.array(talks))
    for name in ("short_name", "collective", "process_group", "group_ranks"):
        found[name] = np.full(len(kernels), None)
        found[name][talks] = column_of(calls, name)
    # In no batch is what has an index below 0; a launch below 0 is not known.
    for name in ("batch_index", "device", "launch_ns"):
        found[name] = pc.fill_null(kernels[name], -1).to_numpy()
    return found


def column_of(table: pa.Table, name: str) -> np.ndarray:
    """A column of a kernels table; texts are None where they are null, numbers NaN.

    Arrow's own conversion takes a null text for the last one that it knows.
    """
    column = table[name]
    if not pa.types.is_dictionary(column.type):
        return column.to_numpy()
    parts = [
        np.array([*chunk.dictionary.to_pylist(), None], object)[
            chunk.indices.fill_null(len(chunk.dictionary)).to_numpy(zero_copy_only=False)
        ]
        for chunk in column.chunks
    ]
    return np.concatenate([np.empty(0, object), *parts])


def calls_of(
    rank: int,
    kernels: dict[str, np.ndarray],
    attributed: np.ndarray,
    windows: Intervals,
    activities: Activities,
    steps: range | None = None,
) -> Calls:
    """A rank's collectives in its attributed batches.

    Args:
        kernels: ``traces.KERNEL_COLUMNS``, rows with a place in time and a duration only; in no batch is what
            has an index below 0.
        attributed: indices of the attributed batches.
        windows: when the batches were whose kernels lie in their time, of those that count: what is exposed
            is of these.
        activities: what runs on the rank.
        steps: the batches that count; None: all.
    """
    mine = np.isin(kernels["batch_index"], attributed)
    order = rows_of_calls(kernels, attributed)
    call = {name: column[order] for name, column in kernels.items()}
    end = call["start_ns"] + call["duration_ns"]
    counted = in_steps(call["batch_index"], steps)
    exposed, hidden = np.zeros(len(order)), np.zeros(len(order))
    exposed[counted], hidden[counted] = shares((call["start_ns"][counted], end[counted]), windows, activities)
    indices = np.unique(kernels["batch_index"][mine])
    return Calls(
        rank,
        len(indices),
        call["batch_index"],
        call["start_ns"],
        end,
        kinds(call["collective"], call["short_name"]),
        call["bytes"].astype(float),
        groups(call["process_group"], call["group_ranks"], call["group_size"]),
        np.where(call["group_size"] > 0, call["group_size"], 0).astype(np.int64),
        exposed,
        hidden,
        len(windows[0]),
        counted,
        int(in_steps(indices, steps).sum()),
    )


def rows_of_calls(kernels: dict[str, np.ndarray], attributed: np.ndarray) -> np.ndarray:
    """The rows of a rank's collectives in attributed batches, in order of their start."""
    talks = (kernels["class"] == "communication") & np.isin(kernels["batch_index"], attributed)
    return np.flatnonzero(talks)[np.argsort(kernels["start_ns"][talks], kind="stable")]


def kinds(recorded: np.ndarray, names: np.ndarray) -> np.ndarray:
    """The kind of each collective: as recorded, else as its name says."""
    pairs = list(zip(recorded.tolist(), names.tolist(), strict=True))
    known = {pair: pair[0] if isinstance(pair[0], str) else kind_of(str(pair[1])) for pair in set(pairs)}
    return np.array([known[pair] for pair in pairs], object)


def groups(names: np.ndarray, ranks: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The process group of each collective in one text, ``NAME [RANKS]``; empty: not recorded."""

    def group(name: str | None, ranks: str | None, size: float) -> str:
        if isinstance(ranks, str):
            return f"{name or ''} [{ranks}]".strip()
        if size and name in (None, ONE_OF_SEVERAL):
            return f"of {size:.0f} ranks"  # the same on all ranks, and enough if that is all of them
        return name or ""

    rows = list(zip(names.tolist(), ranks.tolist(), np.where(sizes > 0, sizes, 0).tolist(), strict=True))
    known = {row: group(*row) for row in set(rows)}
    return np.array([known[row] for row in rows], object)


def match_ranks(
    ranks: list[Calls], world_size: int | None, gpus_per_rank: int
) -> tuple[Matched | None, list[tuple[str, str]]]:
    """The same collectives of all ranks, on one clock (None: none is known); kinds that are not, and why."""
    if gpus_per_rank > 1:
        return None, [("all", "one process")]
    whole = len(ranks) == world_size
    # Of some of the ranks those groups are told apart that say how many they are.
    sized = all((one.group_size > 0).all() for one in ranks)
    matched = match(ranks) if whole or sized else None
    if matched is None and not whole:
        return None, [("all", "ranks not recorded")]
    return matched, list(unmatched(ranks) if matched is None else matched.unmatched)


@dataclass(frozen=True)
class RankTrace:
    """One rank; times in ns on its own clock.

    Attributes:
        attributed: attributed batches; 0 where no kernel has a place in time.
        calls: its collectives in attributed batches.
        batch_index: of each attributed batch in whose time something ran; one without was not recorded.
        edges_ns: the instants between which the stages of these lie, (batches, 6).
        parts_ns: of :data:`divide.EVERY` what is known of these stages, (batches x 5,) each.
        staged: whether their stages are known.
        activities, unknown_launches: of the device from the first of these batches to the last, and how many
            of them have no known launch.
        untimed_batches, untimed_kernels: what lacks a time and is left out.
    """

    attributed: int
    calls: Calls
    batch_index: np.ndarray
    edges_ns: np.ndarray
    parts_ns: dict[str, np.ndarray]
    activities: int
    unknown_launches: int
    untimed_batches: int
    untimed_kernels: int
    staged: bool


@dataclass(frozen=True)
class RunTrace:
    """All ranks of a run that have kernels.

    Attributes:
        matched: the same collectives of all ranks, on one clock; None: not known, or there is none.
        unmatched: the kinds of collectives whose transfer and wait are not known, and why.
        counted: the batches that means are of; None: all attributed.
        caused_ns: what each rank made the others wait by coming last, a step, (ranks, causes); None: not
            known (:func:`~analysis.frames.behind.waits_by_cause`).
    """

    source: Source
    ranks: tuple[RankTrace, ...]
    matched: Matched | None
    unmatched: tuple[tuple[str, str], ...]
    counted: Counted | None
    caused_ns: np.ndarray | None

    def note_unmatched(self, study: Study) -> None:
        for kinds, reason in self.unmatched:
            study.note("transfer_unknown", self.source, collectives=kinds, reason=reason)

    @property
    def calls(self) -> list[Calls]:
        """The collectives of each rank."""
        return [one.calls for one in self.ranks]

    @property
    def has_collectives(self) -> bool:
        return any(len(one.calls.kind) for one in self.ranks)

    @property
    def staged(self) -> bool:
        """Whether the stages of all batches are known."""
        return all(one.staged for one in self.ranks)

    @property
    def recorded(self) -> list[RankTrace]:
        """The ranks in whose attributed batches something ran."""
        return [one for one in self.ranks if len(one.batch_index)]


# --- reading ------------------------------------------------------------------------------------------


def traces_of(study: Study, sources: Iterable[Source]) -> list[RunTrace]:
    """The trace of each of the runs that can be used, with findings on what its anatomy lacks."""
    traces = [trace for _, trace in study.each(sources, lambda source: trace_of(study, source))]
    for trace in traces:
        if trace.source.without_times:
            study.note("not_recorded", trace.source, what="times of steps")
        else:
            _note_unknown(study, trace)
    return traces


def trace_of(study: Study, source: Source) -> RunTrace:
    """A run's trace; a study reads it once."""
    kept: dict[str, RunTrace] = study.kept("traces")
    if source.id not in kept:
        counted = counted_steps(study, source)
        # Some ranks at a time, one a core: Arrow and NumPy let other threads go on.
        steps = counted.steps if counted else None
        read = in_threads(lambda path: _read_rank(source, path.parent, steps), source.tables("kernels"))
        kept[source.id] = _joined(source, list(read), counted)
        ranks = kept[source.id].ranks
        if untimed := sum(one.untimed_batches for one in ranks):
            study.note("rows_left_out", source, n=untimed, what="steps without times")
        attributed = sum(one.attributed for one in ranks)
        without = attributed - sum(one.calls.batches for one in ranks)
        note_left_out(study, source, without, attributed, sum(one.untimed_kernels for one in ranks))
    return kept[source.id]


def _read_rank(source: Source, directory: Path, steps: range | None) -> tuple[RankTrace, Intervals, Account]:
    """The trace of a rank from its tables, when its communication was exposed, and what it did until when.

    Args:
        steps: the batches that count; None: all.
    """
    with reading(source):
        table = tables.read(directory, "batches", schemas.TIMES_OF_BATCHES)
        launches = tables.read(directory, "kernels", list(KERNEL_COLUMNS))
    attributed = table.filter(table["attributed"])  # null is not attributed
    whole = attributed.filter(timed(attributed))
    # Of a batch without stages all is after its last.
    batches = {
        name: (whole[name].fill_null(0) if name in _STAGES else whole[name]).to_numpy()
        for name in schemas.TIMES_OF_BATCHES
    }
    placed, untimed = in_time(launches)
    kernels = arrays_of(placed)
    start, end = kernels["start_ns"], kernels["start_ns"] + kernels["duration_ns"]
    busy = covered((batches["start_ns"], batches["end_ns"]), union(start, end)) > 0
    mine = {name: column[busy] for name, column in batches.items()}
    edges = edges_of(mine)
    activities = activities_of(kernels, (edges[:, 0], edges[:, 1]))
    among = in_steps(mine["batch_index"], steps)
    windows = mine["start_ns"][among], mine["end_ns"][among]
    begun = (kernels["device"] >= 0) & (start >= edges.min(initial=_LAST)) & (start < edges.max(initial=0))
    trace = RankTrace(
        attributed=len(busy) if len(start) else 0,
        calls=calls_of(
            tables.rank_of(directory), kernels, batches["batch_index"], windows, activities, steps
        ),
        batch_index=mine["batch_index"],
        edges_ns=edges,
        parts_ns=split(windows_of(edges), activities, len(STAGES)),
        activities=int(begun.sum()),
        unknown_launches=int((begun & ~launch_known(kernels)).sum()),
        untimed_batches=len(attributed) - len(whole),
        untimed_kernels=untimed,
        staged=not any(whole[name].null_count for name in _STAGES),
    )
    calls = rows_of_calls(kernels, batches["batch_index"])
    return trace, activities.exposed, account_of(kernels, calls, activities, batches)


_LAST = np.iinfo(np.int64).max


def _joined(
    source: Source, ranks: Sequence[tuple[RankTrace, Intervals, Account]], counted: Counted | None
) -> RunTrace:
    """The ranks of a run; what their exposed communication is made of, where that is known."""
    calls = [one.calls for one, _, _ in ranks]
    if not any(len(one.kind) for one in calls):
        matched, left = None, list[tuple[str, str]]()
        # One rank has no collective to make; those of several were not recorded.
        transfers = [NOTHING] * len(ranks) if source.ranks == 1 else None
    else:
        matched, left = match_ranks(calls, source.world_size, source.gpus_per_rank)
        transfers = transfers_of(calls, matched)
    whole, caused = [one for one, _, _ in ranks], None
    if transfers is not None:
        exposed = [one for _, one, _ in ranks]
        causes = [np.zeros((0, len(WAITS)))] * len(ranks)
        if matched is not None:
            causes, caused = waits_by_cause(calls, matched, [one for _, _, one in ranks], exposed)
        whole = [
            replace(one, parts_ns=one.parts_ns | _communication(one, of_rank, moved, waited))
            for one, of_rank, moved, waited in zip(whole, exposed, transfers, causes, strict=True)
        ]
    return RunTrace(source, tuple(whole), matched, tuple(left), counted, caused)


def _communication(
    rank: RankTrace, exposed: Intervals, transfers: Intervals, causes_ns: np.ndarray
) -> dict[str, np.ndarray]:
    """What the exposed communication of each stage is made of, and waiting in it by cause, in ns.

    Args:
        causes_ns: the waits of the rank's collectives, by cause; a stage has those of its step.
    """
    parts = transfer_and_wait(windows_of(rank.edges_ns), exposed, transfers)
    of_steps = np.zeros((len(rank.batch_index), len(WAITS)))
    place = np.searchsorted(rank.batch_index, rank.calls.batch_index[: len(causes_ns)])
    inside = np.isin(rank.calls.batch_index[: len(causes_ns)], rank.batch_index)
    np.add.at(of_steps, place[inside], causes_ns[inside])
    of_steps[of_steps.sum(axis=1) == 0, -1] = 1  # other
    shares = of_steps / of_steps.sum(axis=1, keepdims=True)
    waits = parts["exposed_wait"][:, None] * np.repeat(shares, len(STAGES), axis=0)
    return parts | dict(zip(WAITS, waits.T, strict=True))


def transfers_of(calls: Sequence[Calls], matched: Matched | None) -> list[Intervals] | None:
    """When each rank's collectives moved data: since the last rank had come; None: not known of all."""
    lasted = [np.asarray(one, float) for one in matched.transfer_ns] if matched else []
    if not lasted or any(np.isnan(one).any() for one in lasted):
        return None
    return [
        (one.end_ns - np.rint(ns).astype(np.int64), one.end_ns) for one, ns in zip(calls, lasted, strict=True)
    ]


# --- frames -----------------------------------------------------------------------------

_COMMUNICATION = ("exposed_communication_ns", "overlapped_communication_ns")
# Idle time before kernels of unknown launches is not the host's: from so many on, that is said.
_UNKNOWN_SHARE = 0.01


def anatomy_of(trace: RunTrace, with_warmup: bool = False) -> pd.DataFrame:
    """:func:`anatomy` of a run, with the columns that are known of it."""
    steps = None if trace.counted is None or with_warmup else trace.counted.steps
    ranks = [
        pd.DataFrame({
            "rank": one.calls.rank,
            "step": np.repeat(one.batch_index, len(STAGES)),
            "stage": np.tile(np.array(STAGES), len(one.batch_index)),
            "wall_ns": np.diff(one.edges_ns).ravel(),
            **{f"{name}_ns": value for name, value in one.parts_ns.items()},
        })[in_steps(np.repeat(one.batch_index, len(STAGES)), steps)]
        for one in trace.recorded
    ]  # fmt: skip
    frame = pd.concat([one for one in ranks if len(one)] or [pd.DataFrame()], ignore_index=True)
    if trace.source.ranks > 1 and len(frame) and not frame[list(_COMMUNICATION)].any(axis=None):
        # Not 0 ms: the profiler did not see them, and what they took counts as idle.
        return frame.drop(columns=list(_COMMUNICATION))
    return frame


def anatomy(study: Study, sources: Iterable[Source], with_warmup: bool = False) -> pd.DataFrame:
    """The anatomy of the steps of runs and traces that can be used.

    Args:
        with_warmup: of all attributed steps, not only of those that count.

    Returns:
        A row a run, rank, step and stage. Columns: ``run, rank, step, stage, wall_ns`` and ``<part>_ns`` of
        :data:`~analysis.frames.divide.EVERY` and :data:`~analysis.frames.behind.WAITS`; NaN: not known.
    """
    found = [(trace.source.id, anatomy_of(trace, with_warmup)) for trace in traces_of(study, sources)]
    frames = [frame.assign(run=run) for run, frame in found if len(frame)]
    names = ["run", "rank", "step", "stage", "wall_ns", *(f"{name}_ns" for name in (*EVERY, *WAITS))]
    if not frames:
        return pd.DataFrame(columns=names)
    return pd.concat(frames, ignore_index=True).reindex(columns=names)


def collectives(trace: RunTrace) -> pd.DataFrame:
    """The collectives of a run in its attributed steps.

    Returns:
        A row a call of a rank, in order of ranks and starts. Columns: ``rank, step, counted, collective,
        group, group_size`` (0: not recorded), ``duration_ns, bytes, exposed_ns, overlapped_ns``, and where
        matched ``transfer_ns``, ``start_ns`` and ``end_ns`` on the common clock (NaN: not known), and
        ``call``, a number that the same call has on all ranks (0: none).
    """
    made = []
    numbers = trace.matched.numbers if trace.matched else []
    for place, one in enumerate(trace.calls):
        moved, start, end = np.full((3, len(one.kind)), np.nan)
        if trace.matched is not None:
            moved, start, end = (
                values[place]
                for values in (trace.matched.transfer_ns, trace.matched.start_ns, trace.matched.end_ns)
            )
        made.append(pd.DataFrame({
            "rank": one.rank, "step": one.batch_index, "counted": one.counted, "collective": one.kind,
            "group": one.group.astype(str), "group_size": one.group_size,
            "duration_ns": one.end_ns - one.start_ns, "bytes": one.bytes, "exposed_ns": one.exposed_ns,
            "overlapped_ns": one.hidden_ns, "transfer_ns": moved, "start_ns": start, "end_ns": end,
            "call": numbers[place] if numbers else 0,
        }))  # fmt: skip
    return pd.concat(made, ignore_index=True)


def _note_unknown(study: Study, trace: RunTrace) -> None:
    """What of a run's anatomy is not known, and of which batches none is."""
    source, ranks = trace.source, trace.recorded
    trace.note_unmatched(study)
    if not trace.has_collectives and trace.ranks and source.ranks > 1:
        study.note("not_recorded", source, what="collectives")
    attributed = sum(one.attributed for one in trace.ranks)
    note_left_out(study, source, attributed - sum(len(one.batch_index) for one in ranks), attributed)
    count, unknown = (sum(getattr(one, name) for one in ranks) for name in ("activities", "unknown_launches"))
    if unknown > _UNKNOWN_SHARE * count:
        study.note("launches_missing", source, n=unknown, of=count)
