"""Do the kernels recur, batch after batch, where nothing marks a batch?

A training loop launches the same kernels again and again. Of their names, in the order in which they ran, the
share that equal the name so many places further on is found for every distance at once (an autocorrelation).
The batch is the shortest distance at which nearly all do. The layers of a model recur too, and sooner: but
what runs once a batch (the loss, the optimizer) is not in each of them, and so tells a layer from a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

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
    """What recurs.

    Attributes:
        edges_ns: where each whole batch begins, and at last where the last one ends; rising.
        kernels: of a batch.
        confidence: the share of a batch's kernels that the next batch has, too.
    """

    edges_ns: np.ndarray
    kernels: int
    confidence: float


def find_period(
    name: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray, last_of_batch: Sequence[int] = ()
) -> Period | None:
    """The period of a sequence of kernels; None: there is none, or none that is sure.

    Args:
        name: of each kernel, as a number; in the order of their starts, shape (kernels,).
        start_ns, end_ns: when each ran.
        last_of_batch: names that end a batch (an optimizer's), so that batches are cut behind them. Without
            any they are cut at the longest pause.
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
    name: np.ndarray,
    start_ns: np.ndarray,
    end_ns: np.ndarray,
    distance: int,
    last_of_batch: Sequence[int],
) -> np.ndarray | None:
    """Where batches begin, by a kernel that runs once in each; None: no kernel does."""
    first = _first_kernel(name, start_ns, end_ns, distance, last_of_batch)
    numbers, counts = np.unique(name, return_counts=True)
    expected = len(name) / distance
    once = numbers[np.abs(counts - expected) <= 1 + 0.02 * expected]
    # The kernel that runs once a batch nearest behind the cut: batches begin as far before it as there.
    behind = {int(number): _steady(np.flatnonzero(name == number), distance) for number in once}
    steady = {number: places for number, places in behind.items() if places is not None}
    if not steady:
        places = np.arange(first % distance, len(name), distance)
    else:
        # As far behind the cut as in the second period: the first may be in part, or of the warm-up.
        offset = {number: _behind(places, first) for number, places in steady.items()}
        nearest = min(offset, key=lambda number: offset[number])
        places = np.maximum(steady[nearest] - offset[nearest], 0)
    edges = start_ns[places]
    # What follows the last whole batch is none, unless it is as long as one.
    if len(name) - places[-1] >= distance:
        edges = np.append(edges, int(end_ns.max()) + 1)
    edges = edges[np.append(True, np.diff(edges) > 0)]
    return edges if len(edges) > FEWEST_PERIODS else None


def _behind(places: np.ndarray, first: int) -> int:
    """How far behind ``first`` the next of ``places`` is."""
    behind = places[places >= first]
    return int(behind[0] - first) if len(behind) else len(places)


def _steady(places: np.ndarray, distance: int) -> np.ndarray | None:
    """The places of a kernel, if they lie a batch apart."""
    apart = np.diff(places)
    if len(places) < FEWEST_PERIODS or not len(apart):
        return None
    near = np.abs(apart - distance) <= max(2, 0.05 * distance)
    return places if near.mean() >= _IN_MOST else None


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
