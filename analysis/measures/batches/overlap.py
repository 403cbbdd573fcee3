"""Sets of intervals of time: their union, their length, and how much of one another covers.

Intervals are half-open ``[start, end)`` in ns, as two arrays; all functions are vectorised over them.
"""

import numpy as np

Intervals = tuple[np.ndarray, np.ndarray]


def union(start: np.ndarray, end: np.ndarray) -> Intervals:
    """The same times as disjoint intervals in order; empty ones are dropped."""
    keep = end > start
    start, end = start[keep], end[keep]
    if not len(start):
        return start, end
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.concatenate([[True], start[1:] > reach[:-1]])
    heads = np.flatnonzero(first)
    tails = np.concatenate([heads[1:] - 1, [len(start) - 1]])
    return start[heads], reach[tails]


def length(intervals: Intervals) -> int:
    """The summed length of disjoint intervals, in ns."""
    start, end = intervals
    return int((end - start).sum())


def covered(intervals: Intervals, by: Intervals) -> np.ndarray:
    """How much of each of ``intervals`` is covered by ``by`` (disjoint, in order), in ns."""
    start, end = intervals
    return _until(end, by) - _until(start, by)


def _until(times: np.ndarray, intervals: Intervals) -> np.ndarray:
    """Covered time before each of ``times``."""
    start, end = intervals
    if not len(start):
        return np.zeros(len(times), dtype=np.int64)
    whole = np.concatenate([[0], np.cumsum(end - start)])
    count = np.searchsorted(start, times, side="right")
    last_end = end[np.maximum(count - 1, 0)]
    return whole[count] - np.where(count > 0, np.maximum(last_end - times, 0), 0)
