"""Dependency graph of one rank: its activities (kernels, calls, operators), and what waited for what.

Activity n has two nodes: 2n, its start, and 2n + 1, its end. Each node has one edge from what it actually
waited for, with the exact length; further edges bound how early it could otherwise have been. The recorded
times are therefore those of the longest path.
"""

from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from analysis.frames.anatomy import RunTrace, in_time
from analysis.frames.divide import Intervals, covered
from analysis.frames.study import reading
from profiling import tables
from profiling.schemas import CLASSES

COLUMNS = (
    "batch_index", "start_ns", "duration_ns", "short_name", "class", "direction", "operator", "layer",
    "device", "stream", "launch_ns", "launch_end_ns", "launch_thread",
)  # fmt: skip
TEXTS = ("short_name", "operator", "layer", "direction")
UNKNOWN = -1


class Recorded(NamedTuple):
    """What a rank did in some consecutive steps, and in the one before these; times in ns by its clock."""

    rank: int
    steps: pd.DataFrame  # batch_index, start_ns, load_end_ns, end_ns of these steps, in order
    # COLUMNS, numbers -1 where they are not recorded, classes as numbers of CLASSES; of collectives that
    # several ranks made together call, members and collective (see read_rank), 0 and None of others.
    kernels: pd.DataFrame
    waits: pd.DataFrame  # calls that waited for a device: start_ns, end_ns, thread, name


def read_rank(trace: RunTrace, place: int, steps: list[int], calls: pd.DataFrame) -> Recorded:
    """What the rank at a place of the trace did in some consecutive steps.

    ``calls``: rows of ``trace.collectives`` that are matched, with ``members``: how many ranks made each.
    """
    rank = trace.ranks[place]
    directory = tables.rank_directory(trace.source.path, rank.rank)
    with reading(trace.source):
        recorded, _ = in_time(tables.read(directory, "kernels", list(COLUMNS)))
        synchronizations = tables.as_table("synchronizations", {})
        if tables.table_path(directory, "synchronizations").is_file():
            synchronizations = tables.read(directory, "synchronizations")
    kernels, waits = _frame(recorded), _frame(synchronizations)
    numbers = kernels["class"].cat.set_categories(CLASSES).cat.codes
    kernels["class"] = numbers.where(numbers >= 0, CLASSES.index("other"))
    own = calls[calls["place"] == place].set_index("row")
    kernels = kernels.join(own[["call", "members", "collective"]]).fillna({"call": 0, "members": 0})
    start, load_end, *_, end = rank.edges_ns.T
    of_steps = {"batch_index": rank.batch_index, "start_ns": start, "load_end_ns": load_end, "end_ns": end}
    rows = np.flatnonzero(np.isin(rank.batch_index, steps))
    first, last = (rows[0], rows[-1]) if len(rows) else (0, 0)
    kernels, waits = (
        frame[frame["start_ns"].between(start[max(first - 1, 0)], end[last])].reset_index(drop=True)
        for frame in (kernels, waits)
    )
    return Recorded(rank.rank, pd.DataFrame(of_steps).iloc[rows], kernels, waits)


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
    """Arrays of one element an activity, in order of the start; times in ns."""

    start_ns: np.ndarray
    end_ns: np.ndarray
    kind: np.ndarray  # CALL, WAIT, OPERATOR or KERNEL
    row: np.ndarray  # of the kernels (a call's: of the first that it launched), or of the waits
    kernel_class: np.ndarray  # a number of CLASSES; of calls -1
    chain: np.ndarray  # for all that comes one after the other: on a stream, or in threads that take turns
    launch: np.ndarray  # of a kernel the activity that launched it; -1: not known
    batch_index: np.ndarray  # -1: of none

    def __len__(self) -> int:
        return len(self.start_ns)


def activities_of(recorded: Recorded) -> Activities:
    """A rank's activities; what was waited for ended when that began, or returned, which waited for it."""
    kernels, waits = recorded.kernels, recorded.waits
    launched = kernels[(kernels["device"] >= 0) & kernels["launch_ns"].between(0, kernels["start_ns"])]
    # A graph's kernels have one call.
    call = ["launch_ns", "launch_thread"]
    first = launched.sort_values(call, kind="stable").drop_duplicates(call)
    every = pd.concat([
        pd.DataFrame({
            "start_ns": kernels["start_ns"], "end_ns": kernels["start_ns"] + kernels["duration_ns"],
            "kind": np.where(kernels["device"] < 0, OPERATOR, KERNEL), "row": kernels.index,
            "kernel_class": kernels["class"], "thread": kernels["stream"], "device": kernels["device"],
            "batch_index": kernels["batch_index"],
        }),
        pd.DataFrame({
            "start_ns": first["launch_ns"], "end_ns": np.maximum(first["launch_end_ns"], first["launch_ns"]),
            "kind": CALL, "row": first.index, "thread": first["launch_thread"],
            "batch_index": first["batch_index"],
        }),
        waits[["start_ns", "end_ns", "thread"]].assign(kind=WAIT, row=waits.index),
    ], ignore_index=True)  # fmt: skip
    every["launch"] = pd.Series(len(kernels) + launched.groupby(call).ngroup(), launched.index)
    every = every.fillna(UNKNOWN).astype(np.int64)
    # Chains: a stream, a thread of collectives (on a CPU), and one that launched nothing but what readies the
    # next batch. The rest is one: the threads of a program take turns, as its own waits while autograd's has
    # the backward pass.
    loads = (launched["direction"] == "loader").groupby(launched["launch_thread"]).all()
    on_device = every["kind"] == KERNEL
    loading = (every["kind"] != OPERATOR) & every["thread"].isin(loads.index[loads])
    own = on_device | (every["kernel_class"] == COMMUNICATION) | loading
    chains = [every["device"].where(own, -2), every["thread"].where(own, 0), on_device]
    every["chain"] = every.groupby(chains).ngroup()
    # A call before the kernel that starts with it.
    every = every.sort_values(["start_ns", "kind", "end_ns"])
    place = np.append(np.argsort(every.index), UNKNOWN)
    # A call that waits is of the batch of the call before it in its chain.
    known = every["batch_index"].where(every["kind"] != WAIT).groupby(every["chain"]).ffill()
    every["launch"], every["batch_index"] = place[every["launch"]], known.fillna(UNKNOWN).astype(np.int64)
    activities = Activities(*(every[column.name].to_numpy() for column in fields(Activities)))
    end = activities.end_ns.copy()
    # A copy that blocked its call to its last piece ends with it.
    copies = np.flatnonzero((activities.kernel_class == MEMCPY) & (activities.launch >= 0))
    start, returned = activities.start_ns[copies], end[activities.launch[copies]]
    blocked = (returned < end[copies]) & (returned - start >= _BLOCKED * (end[copies] - start))
    end[copies[blocked]] = returned[blocked]
    _end_collectives(end, activities)
    return replace(activities, end_ns=end)


def last_ended(end_ns: np.ndarray, at_ns: np.ndarray) -> np.ndarray:
    """Of those that had ended at each of these times the one that ended last; -1: none had."""
    order = np.append(np.argsort(end_ns, kind="stable"), -1)
    return order[np.searchsorted(end_ns[order[:-1]], at_ns, side="right") - 1]


def in_chains(activities: Activities) -> np.ndarray:
    """Of each activity the one that ended last before it in its chain; -1: none."""
    start, end = activities.start_ns, activities.end_ns
    every = pd.DataFrame({"chain": activities.chain, "at": start})
    ended = pd.DataFrame({"chain": activities.chain, "at": end, "which": np.arange(len(end))})
    by_end = ended.sort_values("at", kind="stable")
    before = pd.merge_asof(every, by_end, on="at", by="chain", allow_exact_matches=False)
    last = before["which"].fillna(UNKNOWN).to_numpy(np.int64)
    # One that ends in the nanosecond in which the next starts is before it.
    neighbour = ended.groupby("chain")["which"].shift(fill_value=UNKNOWN).to_numpy()
    touched = at(end, neighbour)
    return np.where((touched <= start) & (touched >= at(end, last)), neighbour, last)


def at(times: np.ndarray, index: np.ndarray) -> np.ndarray:
    """The times of activities; long ago where the index is below 0."""
    return np.where(index >= 0, times[index], np.iinfo(np.int64).min // 2)


def on_host(activities: Activities, before: np.ndarray) -> tuple[np.ndarray, ...]:
    """Calls, and operators of a CPU, in order of their start; ``before``: of :func:`in_chains`.

    Arrays: which activities they are; when each began; the activity before it in its chain (-1: none), and
    when that ended (or long ago); which are operators that compute, and which are collectives. Last a number:
    a gap before an operator that is no longer than this is no wait, ns.
    """
    rows = np.flatnonzero(activities.kind != KERNEL)
    start, before = activities.start_ns[rows], before[rows]
    since = at(activities.end_ns, before)
    operates = activities.kind[rows] == OPERATOR
    talks = operates & (activities.kernel_class[rows] == COMMUNICATION)
    gaps = (start - since)[operates & ~talks & (before >= 0)]
    usual = int(np.percentile(gaps, 95)) if len(gaps) else 0  # a longer gap may be a wait
    return rows, start, before, since, operates & ~talks, talks, np.array(usual)


# How much later than the gap's end the end of what was waited for may be recorded, as a share of the gap.
# The rule errs in a tenth of the gaps at most: so likely one that nobody waits for ends there.
_LATE = 0.1
_COVERED = 0.5  # share of the gap for which the collective ran: a shorter one does not explain it
_BLOCKED = 0.9  # share of a copy during which its call ran: one that does not wait returns earlier


def _end_collectives(end: np.ndarray, activities: Activities) -> None:
    """A collective of a CPU that was waited for ends with the gap in which it was.

    Of several that ran for most of a gap and end little later, the one that ends nearest to the gap's end;
    none if one that ended in the gap is nearer. A collective is waited for once.
    """
    if not ((activities.kind == OPERATOR) & (activities.kernel_class == COMMUNICATION)).any():
        return
    rows, begin, before, since, works, of_calls, usual = on_host(activities, in_chains(activities))
    talks, long = rows[of_calls], works & (before >= 0) & (begin - since > usual)
    since, begin = since[long], begin[long]
    start, ended = activities.start_ns[talks], end[talks]
    first, behind = np.searchsorted(begin, start, side="right"), np.searchsorted(begin, ended, side="left")
    candidates = sorted(
        (gap, late, call)
        for call, gaps in enumerate(map(range, first.tolist(), behind.tolist()))
        for gap in gaps
        if (late := ended[call] - begin[gap]) <= _LATE * (begin[gap] - since[gap])
        and begin[gap] - max(start[call], since[gap]) >= _COVERED * (begin[gap] - since[gap])
    )
    found: dict[int, int] = {}  # call -> gap
    for gap, late, call in candidates:
        nearer = np.flatnonzero((ended >= max(begin[gap] - late, since[gap] + 1)) & (ended <= begin[gap]))
        if call not in found and gap not in found.values() and found.keys() >= set(nearer.tolist()):
            found[call] = gap
            end[talks[call]] = begin[gap]


# --- edges -------------------------------------------------------------------------------------------

# What the time of an edge is: kernels of a class of ``schemas.CLASSES``, or one of these.
HOST, LOADING, LAUNCHES, SYNCHRONIZATION, GAPS = range(len(CLASSES), len(CLASSES) + 5)
# From a call to the start of its kernel on an idle GPU; if it takes longer, something else was waited for.
LATENCY_NS = 20_000
# A stream takes 1024 launches, fewer if events are among them; the next call then waits until one has begun.
_FULL_QUEUE = 500  # kernels that began between a call and its own, from which a long call waited for room
_LONG_CALL = 10  # times the median
_TRIES = 32  # kernels among which that is looked for which a call waited for


def make_edges(tail: Any, head: Any, ns: Any, part: Any) -> pd.DataFrame:
    """Edges, one a row, in few bytes: a step of many ranks has millions.

    ``tail``, ``head``: nodes; a tail of -1: nothing is known to come before, and ``ns``, the length, is 0;
    ``part``: a class, or one of the numbers after them.
    """
    kinds = {"tail": "int32", "head": "int32", "ns": "int64", "part": "int8"}
    columns = zip(kinds.items(), np.broadcast_arrays(tail, head, ns, part), strict=True)
    return pd.DataFrame({name: column.astype(kind) for (name, kind), column in columns})


def edges_of(activities: Activities, loading: Intervals, met_ns: np.ndarray) -> pd.DataFrame:
    """All edges of a rank, and of which ``activity`` they are; but those to and from collectives of several.

    ``loading``: when batches were loaded, disjoint and in order; ``met_ns``: when the last rank entered each
    activity that is a collective of several; of others long ago.
    """
    before = in_chains(activities)
    edges = _starts_of_kernels(activities, before) + _starts_on_host(activities, before, loading)
    edges += _ends(activities, met_ns)
    first = np.setdiff1d(np.arange(2 * len(activities)), np.concatenate([some["head"] for some in edges]))
    begins = activities.start_ns[first // 2]
    # Whether most of the time since the batch began was loading it.
    since = np.append(loading[0], np.iinfo(np.int64).max)
    since = np.minimum(since[np.searchsorted(loading[0], begins, side="right") - 1], begins)
    part = np.where(activities.kind[first // 2] == KERNEL, GAPS, _host_or_loading(since, begins, loading))
    every = pd.concat([*edges, make_edges(-1, first, 0, part)], ignore_index=True)
    return every.assign(activity=every["head"] // 2)


def _host_or_loading(since: np.ndarray, until: np.ndarray, loading: Intervals) -> np.ndarray:
    """LOADING where most of the time was that, else HOST."""
    return np.where(2 * covered((since, until), loading) > until - since, LOADING, HOST)


def _starts_of_kernels(activities: Activities, before: np.ndarray) -> list[pd.DataFrame]:
    """A kernel starts after its launch, and after what its stream had to do.

    One that starts later, though it was launched and its stream was idle, waited for the kernel of another
    stream that ended last before it: events, by which streams wait for each other, are not in the recording.
    """
    rows = np.flatnonzero(activities.kind == KERNEL)
    start, end = activities.start_ns[rows], activities.end_ns[rows]
    stream, launch = before[rows], activities.launch[rows]
    streamed, called = at(activities.end_ns, stream), at(activities.start_ns, launch)
    # How long a kernel takes to start on an idle stream: a quartile, since some wait for more.
    idle = (start - called)[(streamed <= called) & (called >= 0)]
    usual = int(np.percentile(idle, 25, method="lower")) if len(idle) else LATENCY_NS
    latency = np.minimum(start - called, min(usual, LATENCY_NS))
    lasting = rows[end > start]
    other = np.append(lasting, -1)[last_ended(activities.end_ns[lasting], start)]
    other_ended = at(activities.end_ns, other)
    waited = other_ended > np.maximum(called + latency, streamed)
    waited &= activities.chain[other] != activities.chain[rows]
    by_stream = streamed >= called + latency
    by_call_ns = np.where(~waited & ~by_stream, start - called, latency)
    by_stream_ns = np.where(~waited & by_stream, start - streamed, 0)
    launched, follows = launch >= 0, stream >= 0
    return [
        make_edges(2 * launch[launched], 2 * rows[launched], by_call_ns[launched], LAUNCHES),
        make_edges(2 * stream[follows] + 1, 2 * rows[follows], by_stream_ns[follows], GAPS),
        make_edges(2 * other[waited] + 1, 2 * rows[waited], (start - other_ended)[waited], GAPS),
    ]


def _starts_on_host(activities: Activities, before: np.ndarray, loading: Intervals) -> list[pd.DataFrame]:
    """A call follows the one before it, an operator of a CPU the one before it or a collective."""
    rows, start, before, since, works, talks, usual = on_host(activities, before)
    # An operator waits for a collective, and a collective for the operator that made what it sends.
    other = np.full(len(rows), -1)
    for mine, theirs, patience in ((works, talks, usual), (talks, works, 0)):
        candidates = rows[theirs & (activities.end_ns[rows] > start)]
        last = np.append(candidates, -1)[last_ended(activities.end_ns[candidates], start[mine])]
        later = at(activities.end_ns, last) > since[mine] + patience
        other[mine] = np.where(later, last, -1)
    waited, known = other >= 0, before >= 0
    ns = np.where(waited, np.minimum(start - since, usual), start - since)
    # From when on a gap tells what the host did in it: by the device's events a batch is loaded from when the
    # device has done the step before, though the host was ahead and began earlier.
    ends = np.sort(activities.end_ns[activities.kind == KERNEL])
    first = np.append(loading[0], np.iinfo(np.int64).max)[np.searchsorted(loading[0], since)]
    busy = np.searchsorted(ends, np.minimum(first, start), side="right") > np.searchsorted(ends, since)
    begun = np.where((first < start) & busy, first, since)
    part = _host_or_loading(begun[known], start[known], loading)
    late_ns = (start - at(activities.end_ns, other))[waited]
    return [
        make_edges(2 * before[known] + 1, 2 * rows[known], ns[known], part),
        make_edges(2 * other[waited] + 1, 2 * rows[waited], late_ns, HOST),
    ]


def _ends(activities: Activities, met_ns: np.ndarray) -> list[pd.DataFrame]:
    """An activity lasts (a collective from its last rank's entry); a call that waits ends with its kernel."""
    every = np.arange(len(activities))
    lasts = activities.end_ns - np.maximum(activities.start_ns, met_ns)
    calls = [activities.kind == CALL, activities.kind == WAIT]
    part = np.select(calls, [LAUNCHES, SYNCHRONIZATION], activities.kernel_class)
    waiting, kernel = _waits(activities)
    # Returning from a wait for room in the queue, for another kernel than its own, is part of the launch.
    queued = (activities.kind[waiting] == CALL) & (activities.launch[kernel] != waiting)
    returning = np.where(queued, LAUNCHES, SYNCHRONIZATION)
    # What a call takes that need not wait: what was left of it when the kernel was done.
    returns = np.minimum(activities.end_ns[waiting] - activities.end_ns[kernel], lasts[waiting])
    lasts[waiting] = returns
    return [
        make_edges(2 * every, 2 * every + 1, lasts, part),
        make_edges(2 * kernel + 1, 2 * waiting + 1, returns, returning),
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
        place[later] -= 1
    found = place >= 0
    copies = np.flatnonzero((activities.kernel_class == MEMCPY) & (activities.launch >= 0))
    call = activities.launch[copies]
    done = activities.end_ns[copies] <= activities.end_ns[call]
    return np.concatenate([waits[found], call[done]]), np.concatenate([kernels[place[found]], copies[done]])


def _blocked(activities: Activities) -> np.ndarray:
    """Which activities are launches that waited for room in the queue of their stream."""
    rows = np.flatnonzero((activities.kind == KERNEL) & (activities.launch >= 0))
    call, chain = activities.launch[rows], activities.chain[rows]
    ahead = np.zeros(len(rows), np.int64)
    for stream in np.unique(chain).tolist():
        mine = chain == stream
        # Activities are in order of their start, and a stream runs them in the order of their launches.
        begins = activities.start_ns[(activities.chain == stream) & (activities.kind == KERNEL)]
        own, called = activities.start_ns[rows[mine]], activities.start_ns[call[mine]]
        ahead[mine] = np.searchsorted(begins, own) - np.searchsorted(begins, called, side="right")
    lasts = activities.end_ns - activities.start_ns
    median = np.median(lasts[activities.kind == CALL]) if len(rows) else 0
    found = np.zeros(len(activities), bool)
    found[call[(ahead >= _FULL_QUEUE) & (lasts[call] > _LONG_CALL * median)]] = True
    return found
