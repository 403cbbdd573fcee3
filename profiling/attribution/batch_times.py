"""In which batch does a time lie?

By the ends that our loop marks, PyTorch's steps, the optimizer's, or ranges that the user names; where
nothing marks them, by the period of the kernels.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from profiling.attribution.events import Columns, contained, find_ranges
from profiling.attribution.period import Period
from profiling.errors import UserError
from profiling.schemas import END_OF_BATCH
from profiling.wording import verb

_STEP = re.compile(r"^ProfilerStep#?\s*(\d{1,9})$")
_OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
PROFILER_STEP, OPTIMIZER_STEP, PERIOD = "ProfilerStep", "Optimizer.step", "a period of the kernels"
NAMED = "ranges like "  # then the user's regular expression
WHOLE = "the whole recording"  # where nothing tells batches apart
_FIRST = np.iinfo(np.int64).min


@dataclass(frozen=True)
class BatchTimes:
    """In which batch a time lies.

    Attributes:
        of: times in ns -> batch index, -1 outside every batch.
        source: what tells batches apart, for people; empty if nothing does.
        ends_ns: the last nanosecond of each batch (or of what comes before it), rising.
        index: of each batch, its index, rising.
        start_ns, last_ns: of each batch, on the host's clock; the first of those that are told by their ends
            alone has no start of its own, and has that of the recording.
        begun: whether the recording holds the first batch from its start.
        confidence: of batches that the kernels tell, how many of these the next batch has, 0 to 1; 1: marked.
    """

    of: Callable[[np.ndarray], np.ndarray]
    source: str
    ends_ns: np.ndarray
    index: np.ndarray
    start_ns: np.ndarray
    last_ns: np.ndarray
    begun: bool = True
    confidence: float = 1.0

    def or_whole(self, last_ns: int) -> "BatchTimes":
        """The same; where nothing tells batches apart, all of the recording as one, until ``last_ns``."""
        if len(self.index):
            return self
        one = np.zeros(1, np.int64)
        start, last = np.array([_FIRST]), np.array([last_ns])
        return BatchTimes(lambda times: np.zeros(len(times), np.int64), WHOLE, last, one, start, last)

    def from_0(self) -> "BatchTimes":
        """The same, numbered from 0 without a gap."""

        def batch_of(times: np.ndarray) -> np.ndarray:
            number = self.of(times)
            return np.where(number >= 0, np.searchsorted(self.index, number), -1)

        return replace(self, of=batch_of, index=np.arange(len(self.index)))


def tells_batch(name: str, marker: str = "") -> bool:
    """Whether ranges of this name may tell batches apart."""
    if marker and re.search(marker, name):
        return True
    return name == END_OF_BATCH or bool(_STEP.match(name) or _OPTIMIZER_STEP.match(name))


def find_batches(
    names: list[str],
    host: Columns,
    first: int | None,
    marker: str = "",
    period: Callable[[], Period | None] = lambda: None,
) -> BatchTimes:
    """What tells the batches of a recording.

    Args:
        first: index of the batch in which the recording began, where the training loop marks batches with
            ``End of Batch``; None: a file, in which PyTorch's own step numbers are preferred.
        marker: a regular expression; ranges of such names are the batches, if there are any.
        period: finds a period of the kernels, where nothing marks batches.

    Raises:
        UserError: ranges like ``marker`` overlap, so that they are no batches.
    """
    if marker:
        ranges = find_ranges(names, host, lambda name: re.search(marker, name) is not None)
        start, end = host["start_ns"][ranges], host["end_ns"][ranges]
        outer = ~contained(start, end)
        if outer.any():
            _refuse_overlaps(start[outer], end[outer], marker)
            return _within(start[outer], end[outer], np.arange(int(outer.sum())), f"{NAMED}{marker}")
    marks = find_ranges(names, host, lambda name: name == END_OF_BATCH)
    steps = find_ranges(names, host, lambda name: bool(_STEP.match(name)))
    if len(marks) and (first is not None or not len(steps)):
        return ended_by(host["start_ns"][marks], first or 0, END_OF_BATCH)
    if len(steps):
        numbers = np.array([int(_STEP.match(names[name])[1]) for name in host["name"][steps]])  # type: ignore[index]
        return _within(host["start_ns"][steps], host["end_ns"][steps], numbers, PROFILER_STEP)
    updates = find_ranges(names, host, lambda name: bool(_OPTIMIZER_STEP.match(name)))
    # Another hook's range inside the first (Optimizer.step#SGD.step twice) is the same step.
    outer = updates[~contained(host["start_ns"][updates], host["end_ns"][updates])]
    if len(outer):
        return ended_by(host["end_ns"][outer], first or 0, OPTIMIZER_STEP)
    recurring = period()
    if recurring is not None:
        edges = recurring.edges_ns
        whole = np.arange(len(edges) - 1)
        return _within(edges[:-1], edges[1:] - 1, whole, PERIOD, recurring.confidence)
    none = np.empty(0, np.int64)
    return BatchTimes(lambda times: np.full(len(times), -1), "", none, none, none, none)


def _refuse_overlaps(start: np.ndarray, end: np.ndarray, marker: str) -> None:
    overlapping = int((start[1:] < end[:-1]).sum())
    if overlapping:
        raise UserError(
            f"--batch-marker {marker}: {overlapping} of {len(start)} ranges {verb(overlapping, 'overlap')} "
            "the one before; steps follow one another: name ranges that do not overlap"
        )


def ended_by(ends: np.ndarray, first: int, source: str) -> BatchTimes:
    """Batches that end at these times: a time is of the first that ends at or after it, or of none.

    Args:
        ends: in ns, ascending.
        first: the index of the first batch.
    """

    def batch_of(times: np.ndarray) -> np.ndarray:
        place = np.searchsorted(ends, times, side="left")
        return np.where(place < len(ends), place + first, -1)

    starts = np.concatenate([[_FIRST], ends[:-1]])
    return BatchTimes(batch_of, source, ends, first + np.arange(len(ends)), starts, ends, begun=False)


def _within(
    start: np.ndarray, end: np.ndarray, number: np.ndarray, source: str, confidence: float = 1.0
) -> BatchTimes:
    # Starts rise. A time is of the last batch that began by then, unless that one has ended.
    def batch_of(times: np.ndarray) -> np.ndarray:
        place = np.searchsorted(start, times, side="right") - 1
        return np.where((place >= 0) & (times <= end[place]), number[place], -1)

    return BatchTimes(batch_of, source, start - 1, number, start, end, True, confidence)
