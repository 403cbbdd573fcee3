"""Edges between the moments of one rank's activities: what waited for what.

Activity n has the moments 2n, its start, and 2n + 1, its end. Each moment has one edge from what it waited
for, which tells its recorded time exactly; other edges say how early it could have been without that. So the
recorded times are those of the longest path.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.frames.divide import Intervals, covered
from analysis.measures.critical_path.activities import (
    CALL,
    KERNEL,
    MEMCPY,
    WAIT,
    Activities,
    at,
    in_chains,
    last_ended,
    on_host,
)
from profiling.schemas import CLASSES

# What the time of an edge is: kernels of a class of ``schemas.CLASSES``, or one of these.
HOST, LOADING, LAUNCHES, SYNCHRONIZATION, GAPS = range(len(CLASSES), len(CLASSES) + 5)
# From a call to the start of its kernel on an idle GPU; if it takes longer, something else was waited for.
LATENCY_NS = 20_000
# A stream takes 1024 launches, fewer if events are among them; the next call then waits until one has begun.
_FULL_QUEUE = 500  # kernels that began between a call and its own, from which a long call waited for room
_LONG_CALL = 10  # times the median
_TRIES = 32  # kernels among which that is looked for which a call waited for


@dataclass(frozen=True)
class Edges:
    """Arrays of one element an edge.

    Attributes:
        tail, head: moments; a tail of -1: nothing is known to come before.
        ns: length; of an edge without a tail 0, since it takes as long as there is.
        part: a class, or one of the numbers after them.
        activity: to which the time is charged.
    """

    tail: np.ndarray
    head: np.ndarray
    ns: np.ndarray
    part: np.ndarray
    activity: np.ndarray


# A step of many ranks has millions of them.
TYPES = {"tail": np.int32, "head": np.int32, "ns": np.int64, "part": np.int8, "activity": np.int32}


def joined(pieces: Sequence[Edges]) -> Edges:
    """All edges of the pieces."""
    return Edges(
        **{
            name: np.concatenate([getattr(one, name) for one in pieces], dtype=kind)
            for name, kind in TYPES.items()
        }
    )


def edges_of(activities: Activities, loading: Intervals) -> Edges:
    """All edges of a rank, but those from collectives that it made with others.

    Args:
        loading: when batches were loaded, disjoint and in order.
    """
    edges = joined(
        [*_starts_of_kernels(activities), *_starts_on_host(activities, loading), *_ends(activities)]
    )
    preceded = np.zeros(2 * len(activities), bool)
    preceded[edges.head] = True
    first = np.flatnonzero(~preceded)
    begins = first // 2
    part = np.where(
        activities.kind[begins] == KERNEL,
        GAPS,
        np.where(_loads(activities.start_ns[begins], loading), LOADING, HOST),
    )
    return joined([edges, _edges(np.full(len(first), -1), first, 0, part, begins)])


def _loads(at_ns: np.ndarray, loading: Intervals) -> np.ndarray:
    """Whether most of the time since the batch began was loading it."""
    begin = np.append(loading[0], np.iinfo(np.int64).max)[
        np.searchsorted(loading[0], at_ns, side="right") - 1
    ]
    begin = np.minimum(begin, at_ns)
    return 2 * covered((begin, at_ns), loading) > at_ns - begin


def _edges(
    tail: np.ndarray, head: np.ndarray, ns: np.ndarray | int, part: np.ndarray | int, activity: np.ndarray
) -> Edges:
    return Edges(tail, head, *np.broadcast_arrays(ns, part, activity, head)[:3])


# --- starts -------------------------------------------------------------------------------------------


def _starts_of_kernels(activities: Activities) -> list[Edges]:
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
        _edges(2 * launch[launched], 2 * rows[launched], by_call_ns[launched], LAUNCHES, rows[launched]),
        _edges(2 * stream[follows] + 1, 2 * rows[follows], by_stream_ns[follows], GAPS, rows[follows]),
        _edges(
            2 * other[waited] + 1, 2 * rows[waited], (start - at(activities.end_ns, other))[waited], GAPS,
            rows[waited],
        ),
    ]  # fmt: skip


def _starts_on_host(activities: Activities, loading: Intervals) -> list[Edges]:
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
    loads[known] = 2 * covered((since[known], start[known]), loading) > (start - since)[known]
    part = np.where(loads, LOADING, HOST)
    ns = np.where(waited, np.minimum(start - since, usual), start - since)
    return [
        _edges(2 * before[known] + 1, 2 * rows[known], ns[known], part[known], rows[known]),
        _edges(
            2 * other[waited] + 1, 2 * rows[waited], (start - at(activities.end_ns, other))[waited], HOST,
            rows[waited],
        ),
    ]  # fmt: skip


# --- ends ---------------------------------------------------------------------------------------------


def _ends(activities: Activities) -> list[Edges]:
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
        _edges(2 * every, 2 * every + 1, lasts, part, every),
        _edges(2 * kernel + 1, 2 * waiting + 1, returns, returning, waiting),
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
