"""Assign times to steps, and count the slow steps at the start.

Steps are found by the markers of scaleprof's loop, PyTorch's ProfilerStep, the optimizer's steps, or ranges
that the user names; where nothing marks them, by the period of the kernels. A training loop launches the same
kernels again and again. The autocorrelation of the sequence of kernel names gives, for every distance, the
share of kernels that equal the kernel at that distance. A step is the shortest distance at which nearly all
recur. Layers recur at shorter distances, but kernels that run once per step (loss, optimizer) are missing
there, which distinguishes a layer from a step.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from profiling.attribution.events import Columns, contained, find_ranges
from profiling.errors import UserError
from profiling.schemas import END_OF_BATCH

MOST = 1 << 18  # kernels that are looked at
FEWEST_PERIODS = 3
LEAST_CONFIDENCE = 0.9  # of the kernels recur; fewer, and it is no period
_SHORTEST = 8  # kernels of a batch
_IN_STEP = 0.6  # of the kernels equal the one so many places on, in a period: one more shifts all behind it
_NEAR = 0.02  # below the best agreement a shorter distance is as good
_PROJECTIONS = 6
_IN_MOST = 0.9  # of the batches a kernel must be in most, to be one that each batch launches


@dataclass(frozen=True)
class Period:
    """Batches that were found by the period of their kernels."""

    edges_ns: np.ndarray  # where each whole batch begins, and at last where the last one ends; rising
    kernels: int  # of a batch
    confidence: float  # the share of a batch's kernels that the next batch has, too


def find_period(
    name: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray, last_of_batch: Sequence[int] = ()
) -> Period | None:
    """The period of a sequence of kernels, in the order of their starts; None: there is none that is sure.

    ``last_of_batch``: names (numbers) that end a batch (an optimizer's), so that batches are cut behind them.
    Without any they are cut at the longest pause.
    """
    names, place = np.unique(name[:MOST], return_inverse=True)
    count = len(place)
    if count < FEWEST_PERIODS * _SHORTEST or len(names) < 2:
        return None
    for distance in _candidates(place, len(names)):
        in_step = (place[distance:] == place[:-distance]).mean() >= _IN_STEP
        if not in_step or not _each_holds_all(place, distance, len(names)):
            continue
        edges = _edges(name, start_ns, end_ns, distance, last_of_batch)
        if edges is None:
            continue
        confidence = _recurring(place, np.searchsorted(start_ns[:MOST], edges))
        if confidence >= LEAST_CONFIDENCE:
            return Period(edges, distance, confidence)
    return None


def _recurring(place: np.ndarray, edges: np.ndarray) -> float:
    """The share of the kernels of batches that the batch behind them has, too, whatever their order."""
    edges = np.unique(np.minimum(edges, len(place)))
    counts = [np.bincount(place[low:high], minlength=place.max() + 1) for low, high in pairwise(edges)]
    shared = [np.minimum(one, after).sum() / max(one.sum(), after.sum()) for one, after in pairwise(counts)]
    return float(np.mean(shared)) if shared else 0.0


def _candidates(place: np.ndarray, names: int) -> list[int]:
    """Distances at which nearly all names recur, the shortest first."""
    count = len(place)
    longest = count // FEWEST_PERIODS
    # Random signs for names: the products of unequal ones cancel, those of equal ones are 1.
    generator = np.random.default_rng(0)
    size = 1 << (2 * count - 1).bit_length()
    total = np.zeros(size)
    for _ in range(_PROJECTIONS):
        signs = generator.choice([-1.0, 1.0], names)[place]
        spectrum = np.fft.rfft(signs, size)
        total += np.fft.irfft(spectrum * np.conj(spectrum), size)
    agreement = total[: longest + 1] / _PROJECTIONS / (count - np.arange(longest + 1))
    agreement[:_SHORTEST] = -1
    best = agreement.max(initial=-1)
    if best <= 0:
        return []
    # What several random signs make equal by chance is found out by whoever counts exactly.
    near = np.flatnonzero(agreement >= best - 5 * _NEAR)
    peaks = [one for one in near if agreement[one] >= agreement[max(one - 1, 0) : one + 2].max()]
    return [int(one) for one in peaks][:64]


def _each_holds_all(place: np.ndarray, distance: int, names: int) -> bool:
    """Whether what runs in most batches is nearly all that runs: a layer lacks what runs once a batch."""
    batches = len(place) // distance
    if batches < FEWEST_PERIODS:
        return False
    cut = place[: batches * distance].reshape(batches, distance)
    held = np.zeros((batches, names), bool)
    held[np.repeat(np.arange(batches), distance), cut.ravel()] = True
    often = held.mean(axis=0)
    regular = int((often >= _IN_MOST).sum())
    # What ran in one of them alone, or behind the last: a few kernels by chance (the recording's first, an
    # allocation), or, where a layer was taken for the batch, all that is not of a layer.
    seldom = int((held.sum(axis=0) <= 1).sum())
    return regular >= _IN_MOST * (names - seldom) and seldom <= (1 - _IN_MOST) * names


def _edges(
    name: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray, distance: int, last_of_batch: Sequence[int]
) -> np.ndarray | None:
    """Where batches begin, by a kernel that runs once in each; None: no kernel does."""
    first = _first_kernel(name, start_ns, end_ns, distance, last_of_batch)
    numbers, counts = np.unique(name, return_counts=True)
    expected = len(name) / distance
    once = numbers[np.abs(counts - expected) <= 1 + 0.02 * expected]
    # The kernel that runs once a batch nearest behind the cut: batches begin as far before it as in the
    # second period, since the first may be in part, or of the warm-up.
    steady = [one for number in once if _is_steady(one := np.flatnonzero(name == number), distance)]
    if not steady:
        places = np.arange(first % distance, len(name), distance)
    else:
        offsets = [int(one[one >= first][0] - first) if one[-1] >= first else len(one) for one in steady]
        nearest = int(np.argmin(offsets))
        places = np.maximum(steady[nearest] - offsets[nearest], 0)
    edges = start_ns[places]
    # What follows the last whole batch is none, unless it is as long as one.
    if len(name) - places[-1] >= distance:
        edges = np.append(edges, int(end_ns.max()) + 1)
    edges = edges[np.append(True, np.diff(edges) > 0)]
    return edges if len(edges) > FEWEST_PERIODS else None


def _is_steady(places: np.ndarray, distance: int) -> bool:
    """Whether a kernel's places lie at a distance of one batch."""
    near = np.abs(np.diff(places) - distance) <= max(2, 0.05 * distance)
    return len(places) >= FEWEST_PERIODS and bool(near.mean() >= _IN_MOST)


def _first_kernel(
    name: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray, distance: int, last: Sequence[int]
) -> int:
    """Place of the kernel with which a batch begins, in the second period or behind it: behind the
    optimizer's last, or the longest pause."""
    cycle = np.arange(distance, min(3 * distance, len(name) - 1))
    ends = cycle[np.isin(name[cycle], last)]
    if len(ends):
        # The last of a run of them: the next is a batch away.
        gaps = np.diff(np.append(ends, ends[0] + distance))
        return int(ends[int(np.argmax(gaps))] + 1)
    reach = np.maximum.accumulate(end_ns)
    pauses = start_ns[1:] - reach[:-1]
    batches = len(pauses) // distance
    by_place = np.median(pauses[: batches * distance].reshape(batches, distance), axis=0)
    return distance + int(np.argmax(by_place) + 1)


_STEP = re.compile(r"^ProfilerStep#?\s*(\d{1,9})$")
_OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
PROFILER_STEP, OPTIMIZER_STEP, PERIOD = "ProfilerStep", "Optimizer.step", "a period of the kernels"
NAMED = "ranges like "  # then the user's regular expression
WHOLE = "the whole recording"  # where nothing marks batches
_FIRST = np.iinfo(np.int64).min


@dataclass(frozen=True)
class BatchTimes:
    """In which batch a time lies."""

    of: Callable[[np.ndarray], np.ndarray]  # times in ns -> batch index, -1 outside every batch
    source: str  # what marks the batches, for people; empty if nothing does
    ends_ns: np.ndarray  # the last nanosecond of each batch (or of what comes before it), rising
    index: np.ndarray  # of each batch, its index, rising
    # start_ns, last_ns: of each batch, on the host's clock; the first of those that are known by their ends
    # alone has no start of its own, and has that of the recording
    start_ns: np.ndarray
    last_ns: np.ndarray
    begun: bool = True  # whether the recording holds the first batch from its start
    # of batches that the kernels tell, how many of these the next batch has, 0 to 1; 1: marked
    confidence: float = 1.0

    def or_whole(self, last_ns: int) -> "BatchTimes":
        """The same; where nothing marks batches, the whole recording as one, until ``last_ns``."""
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
    """Whether ranges of this name may mark batches."""
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
            start, end = start[outer], end[outer]
            if overlapping := int((start[1:] < end[:-1]).sum()):
                raise UserError(
                    f"--batch-marker {marker}: {overlapping} of {len(start)} ranges overlap the one before: "
                    "name ranges that follow one another"
                )
            return _within(start, end, np.arange(len(start)), f"{NAMED}{marker}")
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
        numbers = np.arange(len(edges) - 1)
        return _within(edges[:-1], edges[1:] - 1, numbers, PERIOD, recurring.confidence)
    none = np.empty(0, np.int64)
    return BatchTimes(lambda times: np.full(len(times), -1), "", none, none, none, none)


def ended_by(ends: np.ndarray, first: int, source: str) -> BatchTimes:
    """Batches that end at these rising times, in ns; ``first``: the index of the first batch."""

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


SLOW = 2.0  # times the median of those behind, from which on a step is slow by far
_FEWEST = 2  # steps behind one, of which the median says how long the others take
_FEWEST_SLOW = 3  # slow steps at equal distances: fewer are often so by chance


def slow_head(lasted_ns: np.ndarray) -> int:
    """How many first steps take over :data:`SLOW` times the median of those behind; 0: such steps recur."""
    slow = 0
    while len(behind := lasted_ns[slow + 1 :]) >= _FEWEST and lasted_ns[slow] > SLOW * np.median(behind):
        slow += 1
    return slow if slow and not recurs(lasted_ns, lasted_ns > SLOW * np.median(lasted_ns[slow:])) else 0


def recurs(lasted_ns: np.ndarray, slow: np.ndarray) -> bool:
    """Whether the first of the slow steps is one of many at equal distances: every n-th evaluates or logs."""
    places = np.flatnonzero(slow)
    if len(places) < _FEWEST_SLOW or places[0]:
        return False
    every = int(places[1])
    regular = every > 1 and np.array_equal(places, np.arange(0, len(slow), every))
    return regular and bool(lasted_ns[0] < SLOW * np.median(lasted_ns[places[1:]]))
