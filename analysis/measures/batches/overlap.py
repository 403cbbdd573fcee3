"""Sets of intervals of time: their union, their length, and how much of one another covers.

Intervals are half-open ``[start, end)`` in ns, as two arrays; all functions are vectorised over them.
"""

import numpy as np

Intervals = tuple[np.ndarray, np.ndarray]
NOTHING: Intervals = (np.array([], np.int64), np.array([], np.int64))
EVER = 1 << 61  # ns, 73 years: later than any clock's time, and twice that and a time fit into 63 bits


def union(start: np.ndarray, end: np.ndarray) -> Intervals:
    """The same times as disjoint intervals in order; empty ones are dropped."""
    keep = end > start
    if not keep.all():
        start, end = start[keep], end[keep]
    if (start[1:] > end[:-1]).all():  # as those of one stream are, which are most
        return start, end
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    heads = np.flatnonzero(first)
    tails = np.concatenate([heads[1:] - 1, [len(start) - 1]])
    return start[heads], reach[tails]


def minus(intervals: Intervals, others: Intervals) -> Intervals:
    """What of disjoint ``intervals`` no interval of ``others`` covers."""
    left = complement(intervals)
    return complement(union(np.concatenate([left[0], others[0]]), np.concatenate([left[1], others[1]])))


def complement(intervals: Intervals) -> Intervals:
    """All times outside of disjoint intervals that are in order."""
    start, end = intervals
    start, end = np.concatenate([[-EVER], end]), np.concatenate([start, [EVER]])
    keep = end > start
    return start[keep], end[keep]


def length(intervals: Intervals) -> int:
    """The summed length of disjoint intervals, in ns."""
    start, end = intervals
    return int((end - start).sum())


def covered(intervals: Intervals, by: Intervals) -> np.ndarray:
    """How much of each of ``intervals`` is covered by ``by`` (disjoint, in order), in ns."""
    before_start, before_end = np.split(_until(np.concatenate(intervals), by), 2)
    return before_end - before_start


def _until(times: np.ndarray, intervals: Intervals) -> np.ndarray:
    """Covered time before each of ``times``."""
    start, end = intervals
    if not len(start):
        return np.zeros(len(times), dtype=np.int64)
    whole = np.concatenate([[0], np.cumsum(end - start)])
    count = np.searchsorted(start, times, side="right")
    last_end = end[np.maximum(count - 1, 0)]
    return whole[count] - np.where(count > 0, np.maximum(last_end - times, 0), 0)
