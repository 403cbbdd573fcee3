"""In which batch does a time lie? By the ends that our loop marks, PyTorch's steps, or the optimizer's."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from profiling.attribution.events import Columns, contained, find_ranges
from profiling.tables import END_OF_BATCH

_STEP = re.compile(r"^ProfilerStep#?\s*(\d{1,9})$")
_OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")


@dataclass(frozen=True)
class BatchTimes:
    """In which batch a time lies.

    Attributes:
        of: times in ns -> batch index, -1 outside every batch.
        source: what tells batches apart, for people; empty if nothing does.
        ends_ns: the last nanosecond of each batch (or of what comes before it), rising.
    """

    of: Callable[[np.ndarray], np.ndarray]
    source: str
    ends_ns: np.ndarray


def tells_batch(name: str) -> bool:
    """Whether ranges of this name may tell batches apart."""
    return name == END_OF_BATCH or bool(_STEP.match(name) or _OPTIMIZER_STEP.match(name))


def find_batches(names: list[str], host: Columns, first: int | None) -> BatchTimes:
    """What tells the batches of a recording.

    Args:
        first: index of the batch in which the recording began, where the training loop marks batches with
            ``End of Batch``; None: a file, in which PyTorch's own step numbers are preferred.
    """
    marks = find_ranges(names, host, lambda name: name == END_OF_BATCH)
    steps = find_ranges(names, host, lambda name: bool(_STEP.match(name)))
    if len(marks) and (first is not None or not len(steps)):
        return _ended_by(host["start_ns"][marks], first or 0, END_OF_BATCH)
    if len(steps):
        numbers = np.array([int(_STEP.match(names[name])[1]) for name in host["name"][steps]])  # type: ignore[index]
        starts = host["start_ns"][steps]
        return BatchTimes(_within(starts, host["end_ns"][steps], numbers), "ProfilerStep", starts - 1)
    updates = find_ranges(names, host, lambda name: bool(_OPTIMIZER_STEP.match(name)))
    # Another hook's range inside the first (Optimizer.step#SGD.step twice) is the same step.
    outer = updates[~contained(host["start_ns"][updates], host["end_ns"][updates])]
    if len(outer):
        return _ended_by(host["end_ns"][outer], first or 0, "Optimizer.step")
    return BatchTimes(lambda times: np.full(len(times), -1), "", np.empty(0, np.int64))


def _ended_by(ends: np.ndarray, first: int, source: str) -> BatchTimes:
    # ``ends`` rise. A time is of the first batch that ends at or after it; behind the last it is of none.
    def batch_of(times: np.ndarray) -> np.ndarray:
        place = np.searchsorted(ends, times, side="left")
        return np.where(place < len(ends), place + first, -1)

    return BatchTimes(batch_of, source, ends)


def _within(start: np.ndarray, end: np.ndarray, number: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    # Starts rise. A time is of the last batch that began by then, unless that one has ended.
    def batch_of(times: np.ndarray) -> np.ndarray:
        place = np.searchsorted(start, times, side="right") - 1
        return np.where((place >= 0) & (times <= end[place]), number[place], -1)

    return batch_of
