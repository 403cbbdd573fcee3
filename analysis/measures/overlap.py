"""How much of the communication does the computing hide?

Intervals are half-open ``[start, end)`` in ns, as two arrays; all functions are vectorised over them.
"""

from dataclasses import dataclass

import numpy as np

from analysis.measures.costs import query_arrays
from analysis.results.study import Source, Study
from profiling.tables import IS_MODEL

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


def intersection_length(first: Intervals, second: Intervals) -> int:
    """How long two sets of disjoint intervals, each in order, overlap, in ns."""
    return int(covered(first, second).sum())


def _until(times: np.ndarray, intervals: Intervals) -> np.ndarray:
    """Covered time before each of ``times``."""
    start, end = intervals
    if not len(start):
        return np.zeros(len(times), dtype=np.int64)
    whole = np.concatenate([[0], np.cumsum(end - start)])
    count = np.searchsorted(start, times, side="right")
    last_end = end[np.maximum(count - 1, 0)]
    return whole[count] - np.where(count > 0, np.maximum(last_end - times, 0), 0)


def exposed(communication: Intervals, compute: Intervals) -> int:
    """Communication while nothing is computed, in ns; both are any intervals."""
    talking, working = union(*communication), union(*compute)
    return length(talking) - intersection_length(talking, working)


# --- of a run -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Communication:
    """Of one batch of one rank, mean over the attributed batches, in ns; exposed + overlapped = all of it."""

    exposed_ns: float
    overlapped_ns: float


_ROWS = f"""
select batch_index, start_ns, start_ns + duration_ns, "class"::varchar = 'communication'
from read_parquet($kernels) semi join (
    select rank, batch_index from read_parquet($batches) where attributed
) using (rank, batch_index)
where start_ns is not null and duration_ns is not null
    and ("class"::varchar = 'communication' or {IS_MODEL})
"""


def communication_of(study: Study, source: Source) -> Communication | None:
    """A run's communication; None where its trace cannot say (a finding says why).

    A trace of several ranks without a collective is not "0 ms exposed": the profiler did not see it.
    """
    kernels, batches = source.tables("kernels"), source.tables("batches")
    if not kernels or not batches or (source.world_size or 1) == 1:
        return None
    batches_done = talked = hidden = 0
    for path in kernels:  # a rank at a time: a run may have tens of millions of rows
        rows = query_arrays(study, source, _ROWS, kernels=[path], batches=batches)
        if rows is None:
            return None
        batch, start, end, talks = rows.values()
        if not len(batch):
            continue
        # Times of one batch never meet those of another: give each a stretch of its own.
        attributed = np.unique(batch)
        stretch = int(end.max()) - int(start.min()) + 1
        shift = np.searchsorted(attributed, batch) * stretch - int(start.min())
        talking = union(start[talks] + shift[talks], end[talks] + shift[talks])
        computing = union(start[~talks] + shift[~talks], end[~talks] + shift[~talks])
        talked += length(talking)
        hidden += intersection_length(talking, computing)
        batches_done += len(attributed)
    if not talked:
        study.find(
            f"{source.id}: its trace of {source.world_size} ranks holds no collective: exposed unknown"
        )
        return None
    return Communication((talked - hidden) / batches_done, hidden / batches_done)
