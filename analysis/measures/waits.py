"""Dependency graph of one rank: its activities (kernels, calls, operators), and what waited for what.

Activity n has two nodes: 2n, its start, and 2n + 1, its end. Each node has one edge from what it actually
waited for, with the exact length; further edges bound how early it could otherwise have been. The recorded
times are therefore those of the longest path.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from analysis.frames.anatomy import in_time, timed
from analysis.frames.divide import Intervals, covered
from analysis.frames.study import Source, reading
from profiling import schemas, tables
from profiling.schemas import CLASSES

COLUMNS = (
    "batch_index", "start_ns", "duration_ns", "short_name", "class", "direction", "operator", "layer",
    "device", "stream", "launch_ns", "launch_end_ns", "launch_thread",
)  # fmt: skip
TEXTS = ("short_name", "operator", "layer", "direction")
UNKNOWN = -1


@dataclass(frozen=True)
class Recorded:
    """What a rank did in some consecutive steps, and in the one before these; times in ns on its own clock.

    Attributes:
        batches: ``batch_index, start_ns, end_ns, load_ns`` of these steps, in order.
        kernels: :data:`COLUMNS`, numbers -1 where they are not recorded, classes as numbers of ``CLASSES``.
        waits: calls that waited for a device: ``start_ns, end_ns, thread, name``.
        calls: rows of the kernels that are collectives of attributed batches, in order of their start.
        first_call: how many such calls the rank had made before.
        calls_timed: whether the tool says when calls returned; without that none of them is known to wait.
    """

    rank: int
    batches: pd.DataFrame
    kernels: pd.DataFrame
    waits: pd.DataFrame
    calls: np.ndarray
    first_call: int
    calls_timed: bool


def steps_of(source: Source, directory: Path) -> pd.DataFrame:
    """The attributed batches of a rank that have times, in order (``schemas.TIMES_OF_BATCHES``)."""
    with reading(source):
        batches = tables.read(directory, "batches", schemas.TIMES_OF_BATCHES)
    batches = batches.filter(batches["attributed"])
    batches = batches.filter(timed(batches)).select(["batch_index", "start_ns", "end_ns", "load_ns"])
    return _frame(batches.sort_by("start_ns"))


def read_rank(source: Source, directory: Path, batches: pd.DataFrame, steps: Sequence[int]) -> Recorded:
    """What a rank did in some steps.

    Args:
        batches: its :func:`steps_of`.
        steps: their numbers, one after the other.
    """
    with reading(source):
        recorded, _ = in_time(tables.read(directory, "kernels", list(COLUMNS)))
        synchronizations = tables.as_table("synchronizations", {})
        if tables.table_path(directory, "synchronizations").is_file():
            synchronizations = tables.read(directory, "synchronizations")
    kernels, waits = _frame(recorded), _frame(synchronizations)
    numbers = kernels["class"].cat.set_categories(CLASSES).cat.codes
    kernels["class"] = numbers.where(numbers >= 0, CLASSES.index("other"))
    rows = np.flatnonzero(batches["batch_index"].isin(steps))
    first, last = (rows[0], rows[-1]) if len(rows) else (0, 0)
    first_ns, last_ns = batches["start_ns"][max(first - 1, 0)], batches["end_ns"][last]
    kernels["talks"] = (kernels["class"] == COMMUNICATION) & kernels["batch_index"].isin(
        batches["batch_index"]
    )
    before = kernels["talks"] & (kernels["start_ns"] < first_ns)
    kernels = kernels[kernels["start_ns"].between(first_ns, last_ns)].reset_index(drop=True)
    waits = waits[waits["start_ns"].between(first_ns, last_ns)].reset_index(drop=True)
    calls = kernels["start_ns"][kernels.pop("talks")].sort_values(kind="stable").index.to_numpy()
    return Recorded(
        tables.rank_of(directory), batches.iloc[rows], kernels, waits, calls, int(before.sum()),
        calls_timed=bool((kernels["launch_end_ns"] != UNKNOWN).any()),
    )  # fmt: skip


def _frame(table: pa.Table) -> pd.DataFrame:
    """A table with categories for texts, and -1 for numbers that are not recorded."""
    texts = {name: table[name] for name in table.column_names if pa.types.is_dictionary(table[name].type)}
    numbers = [name for name in table.column_names if name not in texts]
    return pd.DataFrame(
        {name: pc.fill_null(table[name], UNKNOWN).to_numpy().astype(np.int64) for name in numbers}
        | {name: column.to_pandas() for name, column in texts.items()}
    )


# What an activity is: a call that launches, one that waits for a device, an operator of a CPU, a kernel.
CALL, WAIT, OPERATOR, KERNEL = range(4)
COMMUNICATION = CLASSES.index("communication")
MEMCPY, MEMSET = CLASSES.index("memcpy"), CLASSES.index("memset")


@dataclass(frozen=True)
class Activities:
    """Arrays of one element an activity, in order of the start; times in ns.

    Attributes:
        kind: CALL, WAIT, OPERATOR or KERNEL.
        row: of the kernels (a call's: of the first that it launched), or of the waits.
        kernel_class: a number of ``CLASSES``; of calls -1.
        chain: a number for all that comes one after the other: on a stream, or in threads that take turns.
        launch: of a kernel the activity that launched it; -1: not known.
        batch_index: -1: of none.
    """

    start_ns: np.ndarray
    end_ns: np.ndarray
    kind: np.ndarray
    row: np.ndarray
    kernel_class: np.ndarray
    chain: np.ndarray
    launch: np.ndarray
    batch_index: np.ndarray

    def __len__(self) -> int:
        return len(self.start_ns)


def activities_of(recorded: Recorded) -> Activities:
    """A rank's activities."""
    kernels, waits = (
        {str(name): column.to_numpy() for name, column in frame.items()}
        for frame in (recorded.kernels.drop(columns=list(TEXTS)), recorded.waits)
    )
    start, device = kernels["start_ns"], kernels["device"]
    launched = np.flatnonzero((device >= 0) & (kernels["launch_ns"] >= 0) & (kernels["launch_ns"] <= start))
    # A graph's kernels have one call.
    calls, first, call_of = np.unique(
        np.stack([kernels["launch_ns"][launched], kernels["launch_thread"][launched]]),
        axis=1, return_index=True, return_inverse=True,
    )  # fmt: skip
    rows = launched[first]
    counts = len(start), len(rows), len(waits["start_ns"])
    thread = np.concatenate([kernels["stream"], calls[1], waits["thread"]])
    # Threads that launched nothing but what readies the next batch.
    loads, thread_of = (
        (recorded.kernels["direction"] == "loader").to_numpy()[launched],
        kernels["launch_thread"][launched],
    )
    loaders = np.setdiff1d(thread_of[loads], thread_of[~loads])
    kind = np.repeat([KERNEL, CALL, WAIT], counts)
    kind[: counts[0]][device < 0] = OPERATOR
    kernel_class = np.concatenate([kernels["class"], np.full(counts[1] + counts[2], UNKNOWN)])
    unsorted = {
        "start_ns": np.concatenate([start, calls[0], waits["start_ns"]]),
        "end_ns": np.concatenate(
            [start + kernels["duration_ns"], np.maximum(kernels["launch_end_ns"][rows], calls[0]),
             waits["end_ns"]]
        ),
        "kind": kind,
        "row": np.concatenate([np.arange(counts[0]), rows, np.arange(counts[2])]),
        "kernel_class": kernel_class,
        "chain": _chains(kind, kernel_class, thread, device, loaders),
        "batch_index": np.concatenate(
            [kernels["batch_index"], kernels["batch_index"][rows], np.full(counts[2], UNKNOWN)]
        ),
    }  # fmt: skip
    # A call before the kernel that starts with it.
    order = np.lexsort((unsorted["end_ns"], kind, unsorted["start_ns"]))
    place = np.argsort(order)
    launch = np.full(len(order), UNKNOWN)
    launch[launched] = place[counts[0] :][call_of.ravel()]
    found = Activities(launch=launch[order], **{name: column[order] for name, column in unsorted.items()})
    _fill_batches(found)
    return found


def _chains(
    kind: np.ndarray, kernel_class: np.ndarray, thread: np.ndarray, device: np.ndarray, loaders: np.ndarray
) -> np.ndarray:
    """Numbers of chains: a stream, a thread of collectives (on a CPU), a loader's thread; the rest is one.

    The threads of a program take turns: its own waits while autograd's has the backward pass.
    """
    own = (kind == KERNEL) | (kernel_class == COMMUNICATION) | ((kind != OPERATOR) & np.isin(thread, loaders))
    devices = np.zeros(len(kind), np.int64)
    devices[: len(device)] = device + 1
    threads, line = np.unique(thread, return_inverse=True)
    place = np.where(own, devices * len(threads) + line, -1)
    return 2 * place + (kind == KERNEL)


def _fill_batches(found: Activities) -> None:
    """A call that waits is of the batch of the call before it in its chain."""
    for chain in np.unique(found.chain[found.kind == WAIT]).tolist():
        mine = np.flatnonzero(found.chain == chain)
        place = np.where(found.kind[mine] == WAIT, -1, np.arange(len(mine)))
        known = np.maximum.accumulate(place)
        found.batch_index[mine] = np.where(known >= 0, found.batch_index[mine][known], UNKNOWN)


def last_ended(end_ns: np.ndarray, at_ns: np.ndarray, earlier: bool = False) -> np.ndarray:
    """Of those that had ended at each of these times the one that ended last; -1: none had.

    Args:
        earlier: one that ends in that nanosecond does not count.
    """
    order = np.append(np.argsort(end_ns, kind="stable"), -1)
    side: Literal["left", "right"] = "left" if earlier else "right"
    return order[np.searchsorted(end_ns[order[:-1]], at_ns, side=side) - 1]


def previous(start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """Of each of these, in order of the start, the one that ended last before it started; -1: none did.

    One that ends in the nanosecond in which the next starts is before it.
    """
    last = last_ended(end_ns, start_ns, earlier=True)
    neighbour = np.arange(len(start_ns)) - 1
    touches = (neighbour >= 0) & (end_ns[neighbour] <= start_ns)
    return np.where(touches & ((last < 0) | (end_ns[neighbour] >= end_ns[last])), neighbour, last)


def in_chains(activities: Activities) -> np.ndarray:
    """Of each activity that which was before it in its chain; -1: none."""
    before = np.full(len(activities), -1)
    order = np.argsort(activities.chain, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(activities.chain[order])) + 1):
        place = previous(activities.start_ns[mine], activities.end_ns[mine])
        before[mine] = np.where(place >= 0, mine[place], -1)
    return before


def at(times: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The times of activities; long ago where the index is below 0."""
    return np.where(index >= 0, times[index], np.iinfo(np.int64).min // 2)


_USUAL_PCT = 95  # percentile of the gaps between a CPU's operators: a longer one may be a wait


@dataclass(frozen=True)
class OnHost:
    """Calls, and operators of a CPU, in order of their start.

    Attributes:
        rows: which activities they are.
        start_ns: when each began.
        before: the activity before it in its chain, -1: none; ``since_ns``: when that ended, or long ago.
        works: operators that compute; ``talks``: collectives.
        usual_ns: a gap before an operator that is no longer than this is no wait.
    """

    rows: np.ndarray
    start_ns: np.ndarray
    before: np.ndarray
    since_ns: np.ndarray
    works: np.ndarray
    talks: np.ndarray
    usual_ns: int


def on_host(activities: Activities) -> OnHost:
    """What a rank's host did."""
    rows = np.flatnonzero(activities.kind != KERNEL)
    start, before = activities.start_ns[rows], in_chains(activities)[rows]
    since = at(activities.end_ns, before)
    operates = activities.kind[rows] == OPERATOR
    talks = operates & (activities.kernel_class[rows] == COMMUNICATION)
    works = operates & ~talks
    gaps = (start - since)[works & (before >= 0)]
    usual = int(np.percentile(gaps, _USUAL_PCT)) if len(gaps) else 0
    return OnHost(rows, start, before, since, works, talks, usual)


# How much later than the gap's end the end of what was waited for may be recorded, as a share of the gap. A
# collective that nobody waits for ends as likely here as in any other tenth of such a gap: the rule takes one
# that ended in a long gap for what was waited for, and so errs at most a tenth more often.
_LATE = 0.1
_COVERED = 0.5  # share of the gap for which the collective ran: a shorter one does not explain it
_BLOCKED = 0.9  # share of a copy during which its call ran: one that does not wait returns earlier


def ended_in_time(activities: Activities) -> Activities:
    """The same, but what was waited for ended when that began, or returned, which waited for it."""
    end = activities.end_ns.copy()
    _end_copies(end, activities)
    _end_collectives(end, activities)
    return replace(activities, end_ns=end)


def _end_copies(end: np.ndarray, activities: Activities) -> None:
    """A copy that blocked its call to its last piece ends with it."""
    copies = np.flatnonzero((activities.kernel_class == MEMCPY) & (activities.launch >= 0))
    start, returned = activities.start_ns[copies], end[activities.launch[copies]]
    blocked = (returned < end[copies]) & (returned - start >= _BLOCKED * (end[copies] - start))
    end[copies[blocked]] = returned[blocked]


def _end_collectives(end: np.ndarray, activities: Activities) -> None:
    """A collective of a CPU that was waited for ends with the gap in which it was."""
    host = on_host(activities)
    talks = host.rows[host.talks]
    if not len(talks):
        return
    waits = np.flatnonzero(host.works & (host.before >= 0) & (host.start_ns - host.since_ns > host.usual_ns))
    gaps = host.since_ns[waits], host.start_ns[waits]
    for call, gap in _waited(gaps, (activities.start_ns[talks], end[talks])).items():
        end[talks[call]] = gaps[1][gap]


def _waited(gaps: Intervals, calls: Intervals) -> dict[int, int]:
    """Collectives that are recorded as ending after the gap in which they were waited for, and that gap.

    Of several in a gap it is the one that ends nearest to the gap's end, and none if one that ended in the
    gap is nearer. A collective is waited for once.
    """
    order = np.argsort(calls[1], kind="stable")
    ends = calls[1][order]
    found: dict[int, int] = {}
    explained: set[int] = set()
    for gap, call in _candidates(gaps, calls):
        since, begin = int(gaps[0][gap]), int(gaps[1][gap])
        late = int(calls[1][call]) - begin
        nearer = slice(*np.searchsorted(ends, [max(begin - late, since + 1), begin + 1]).tolist())
        in_gap = any(one not in found for one in order[nearer].tolist())
        if call not in found and gap not in explained and not in_gap:
            found[call] = gap
            explained.add(gap)
    return found


def _candidates(gaps: Intervals, calls: Intervals) -> list[tuple[int, int]]:
    """Gaps, and collectives that ran in most of them and ended little later: in order, the nearest first."""
    since, begin = gaps
    start, end = calls
    first = np.searchsorted(begin, start, side="right")
    counts = np.maximum(np.searchsorted(begin, end, side="left") - first, 0)
    call = np.repeat(np.arange(len(start)), counts)
    gap = np.arange(len(call)) - np.repeat(np.cumsum(counts) - counts - first, counts)
    lasts, late = (begin - since)[gap], end[call] - begin[gap]
    ran = begin[gap] - np.maximum(start[call], since[gap])
    fits = np.flatnonzero((late <= _LATE * lasts) & (ran >= _COVERED * lasts))
    fits = fits[np.lexsort((late[fits], gap[fits]))]
    return list(zip(gap[fits].tolist(), call[fits].tolist(), strict=True))


# --- edges -------------------------------------------------------------------------------------------

# What the time of an edge is: kernels of a class of ``schemas.CLASSES``, or one of these.
HOST, LOADING, LAUNCHES, SYNCHRONIZATION, GAPS = range(len(CLASSES), len(CLASSES) + 5)
# From a call to the start of its kernel on an idle GPU; if it takes longer, something else was waited for.
LATENCY_NS = 20_000
# A stream takes 1024 launches, fewer if events are among them; the next call then waits until one has begun.
_FULL_QUEUE = 500  # kernels that began between a call and its own, from which a long call waited for room
_LONG_CALL = 10  # times the median
_TRIES = 32  # kernels among which that is looked for which a call waited for


# Columns of edges, one a row: a step of many ranks has millions.
_TYPES = {"tail": "int32", "head": "int32", "ns": "int64", "part": "int8", "activity": "int32",
          "rank": "int32", "across": "bool"}  # fmt: skip


def make_edges(
    tail: np.ndarray | int,
    head: np.ndarray,
    ns: np.ndarray | int,
    part: np.ndarray | int,
    activity: np.ndarray,
    rank: int = 0,
    across: bool = False,
) -> pd.DataFrame:
    """Edges.

    Args:
        tail, head: moments; a tail of -1: nothing is known to come before.
        ns: length; of an edge without a tail 0, since it takes as long as there is.
        part: a class, or one of the numbers after them.
        activity, rank: to which the time is charged; the rank by its place among those that are joined.
        across: whether it is from a collective's last arrival: another rank may have been waited for.
    """
    columns = np.broadcast_arrays(tail, head, ns, part, activity, rank, across)
    typed = zip(_TYPES.items(), columns, strict=True)
    return pd.DataFrame({name: column.astype(kind) for (name, kind), column in typed})


def edges_of(activities: Activities, loading: Intervals) -> pd.DataFrame:
    """All edges of a rank, but those from collectives that it made with others.

    Args:
        loading: when batches were loaded, disjoint and in order.
    """
    edges = [*_starts_of_kernels(activities), *_starts_on_host(activities, loading), *_ends(activities)]
    preceded = np.zeros(2 * len(activities), bool)
    preceded[np.concatenate([one["head"] for one in edges])] = True
    first = np.flatnonzero(~preceded)
    begins = first // 2
    part = np.where(
        activities.kind[begins] == KERNEL,
        GAPS,
        np.where(_loads(activities.start_ns[begins], loading), LOADING, HOST),
    )
    return pd.concat([*edges, make_edges(-1, first, 0, part, begins)], ignore_index=True)


def _loads(at_ns: np.ndarray, loading: Intervals) -> np.ndarray:
    """Whether most of the time since the batch began was loading it."""
    begin = np.append(loading[0], np.iinfo(np.int64).max)[
        np.searchsorted(loading[0], at_ns, side="right") - 1
    ]
    begin = np.minimum(begin, at_ns)
    return 2 * covered((begin, at_ns), loading) > at_ns - begin


# --- starts -------------------------------------------------------------------------------------------


def _starts_of_kernels(activities: Activities) -> list[pd.DataFrame]:
    """A kernel starts after its launch, and after what its stream had to do.

    One that starts later, though it was launched and its stream was idle, waited for the kernel of another
    stream that ended last before it: events, by which streams wait for each other, are not in the recording.
    """
    rows = np.flatnonzero(activities.kind == KERNEL)
    start, end = activities.start_ns[rows], activities.end_ns[rows]
    stream, launch = in_chains(activities)[rows], activities.launch[rows]
    streamed, called = at(activities.end_ns, stream), at(activities.start_ns, launch)
    # How long a kernel takes to start on an idle stream: a quartile, since some wait for more.
    idle = (start - called)[(streamed <= called) & (called >= 0)]
    usual = int(np.percentile(idle, 25, method="lower")) if len(idle) else LATENCY_NS
    latency = np.minimum(start - called, min(usual, LATENCY_NS))
    free = np.maximum(called + latency, streamed)
    lasting = rows[end > start]
    other = np.append(lasting, -1)[last_ended(activities.end_ns[lasting], start)]
    waited = (at(activities.end_ns, other) > free) & (activities.chain[other] != activities.chain[rows])
    by_stream = ~waited & (streamed >= called + latency)
    by_call = ~waited & ~by_stream
    by_call_ns = np.where(by_call, start - called, latency)
    by_stream_ns = np.where(by_stream, start - streamed, 0)
    launched, follows = launch >= 0, stream >= 0
    return [
        make_edges(2 * launch[launched], 2 * rows[launched], by_call_ns[launched], LAUNCHES, rows[launched]),
        make_edges(2 * stream[follows] + 1, 2 * rows[follows], by_stream_ns[follows], GAPS, rows[follows]),
        make_edges(
            2 * other[waited] + 1, 2 * rows[waited], (start - at(activities.end_ns, other))[waited], GAPS,
            rows[waited],
        ),
    ]  # fmt: skip


def _starts_on_host(activities: Activities, loading: Intervals) -> list[pd.DataFrame]:
    """A call follows the one before it, an operator of a CPU the one before it or a collective."""
    host = on_host(activities)
    rows, start, before, since = host.rows, host.start_ns, host.before, host.since_ns
    works, talks, usual = host.works, host.talks, host.usual_ns
    # An operator waits for a collective, and a collective for the operator that made what it sends.
    other = np.full(len(rows), -1)
    for mine, theirs, patience in ((works, talks, usual), (talks, works, 0)):
        candidates = rows[theirs & (activities.end_ns[rows] > start)]
        last = np.append(candidates, -1)[last_ended(activities.end_ns[candidates], start[mine])]
        later = at(activities.end_ns, last) > since[mine] + patience
        other[mine] = np.where(later, last, -1)
    waited = other >= 0
    known = before >= 0
    loads = np.zeros(len(rows), bool)
    begun = _begun(activities, since[known], start[known], loading)
    loads[known] = 2 * covered((begun, start[known]), loading) > start[known] - begun
    part = np.where(loads, LOADING, HOST)
    ns = np.where(waited, np.minimum(start - since, usual), start - since)
    return [
        make_edges(2 * before[known] + 1, 2 * rows[known], ns[known], part[known], rows[known]),
        make_edges(
            2 * other[waited] + 1, 2 * rows[waited], (start - at(activities.end_ns, other))[waited], HOST,
            rows[waited],
        ),
    ]  # fmt: skip


def _begun(activities: Activities, since: np.ndarray, start: np.ndarray, loading: Intervals) -> np.ndarray:
    """From when on the host's gaps tell what it did in them.

    By the device's events a batch is loaded from when the device has done the step before: the host was ahead
    and began earlier.
    """
    ends = np.sort(activities.end_ns[activities.kind == KERNEL])
    first = np.append(loading[0], np.iinfo(np.int64).max)[np.searchsorted(loading[0], since)]
    busy = np.searchsorted(ends, np.minimum(first, start), side="right") > np.searchsorted(ends, since)
    return np.where((first < start) & busy, first, since)


# --- ends ---------------------------------------------------------------------------------------------


def _ends(activities: Activities) -> list[pd.DataFrame]:
    """An activity ends when it has lasted; a call that waits for a device when that has done its work."""
    every = np.arange(len(activities))
    lasts = activities.end_ns - activities.start_ns
    part = np.select(
        [activities.kind == CALL, activities.kind == WAIT], [LAUNCHES, SYNCHRONIZATION],
        activities.kernel_class,
    )  # fmt: skip
    waiting, kernel = _waits(activities)
    # Returning from a wait for room in the queue, for another kernel than its own, is part of the launch.
    queued = (activities.kind[waiting] == CALL) & (activities.launch[kernel] != waiting)
    returning = np.where(queued, LAUNCHES, SYNCHRONIZATION)
    # What a call takes that need not wait: what was left of it when the kernel was done.
    returns = np.minimum(activities.end_ns[waiting] - activities.end_ns[kernel], lasts[waiting])
    lasts[waiting] = returns
    return [
        make_edges(2 * every, 2 * every + 1, lasts, part, every),
        make_edges(2 * kernel + 1, 2 * waiting + 1, returns, returning, waiting),
    ]


def _waits(activities: Activities) -> tuple[np.ndarray, np.ndarray]:
    """Calls that waited for a device, and each one's kernel: of those launched before, the last that ended.

    A copy's call that returned after the copy was done waited for it, too, and a launch for room in a full
    queue: what it waited for has begun or ended just before it returned.
    """
    kernels = np.flatnonzero(activities.kind == KERNEL)
    kernels = kernels[np.argsort(activities.end_ns[kernels], kind="stable")]
    end, launch = activities.end_ns[kernels], activities.launch[kernels]
    # Of a recording without kernels nothing says what was waited for.
    waits = np.flatnonzero((activities.kind == WAIT) | _blocked(activities)) if len(kernels) else kernels
    place = np.searchsorted(end, activities.end_ns[waits], side="right") - 1
    for _ in range(_TRIES):
        later = (place >= 0) & (at(activities.start_ns, launch[place]) >= activities.start_ns[waits])
        if not later.any():
            break
        place[later] -= 1
    found = place >= 0
    copies = np.flatnonzero((activities.kernel_class == MEMCPY) & (activities.launch >= 0))
    call = activities.launch[copies]
    done = activities.end_ns[copies] <= activities.end_ns[call]
    return (np.concatenate([waits[found], call[done]]), np.concatenate([kernels[place[found]], copies[done]]))


def _blocked(activities: Activities) -> np.ndarray:
    """Which activities are launches that waited for room in the queue of their stream."""
    rows = np.flatnonzero((activities.kind == KERNEL) & (activities.launch >= 0))
    call = activities.launch[rows]
    ahead = np.zeros(len(rows), np.int64)
    for chain in np.unique(activities.chain[rows]).tolist():
        # Activities are in order of their start, and a stream runs them in the order of their launches.
        begins = activities.start_ns[(activities.chain == chain) & (activities.kind == KERNEL)]
        mine = activities.chain[rows] == chain
        own, called = activities.start_ns[rows[mine]], activities.start_ns[call[mine]]
        ahead[mine] = np.searchsorted(begins, own) - np.searchsorted(begins, called, side="right")
    lasts = activities.end_ns - activities.start_ns
    median = np.median(lasts[activities.kind == CALL]) if len(rows) else 0
    found = np.zeros(len(activities), bool)
    found[call[(ahead >= _FULL_QUEUE) & (lasts[call] > _LONG_CALL * median)]] = True
    return found
