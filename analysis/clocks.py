"""By how much do the clocks of a run's ranks differ? Told by the collectives that all of them made.

All ranks leave a collective of all at nearly the same moment, so the differences of its ends are those of the
clocks; what single ends differ from that is the residual.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# No rank ends one of these before all have come to it: their ends are the same moment on all ranks. The root
# of a broadcast, or a sender, may be done while others are still to come.
TOGETHER = ("allreduce", "reducescatter", "allgather", "alltoall", "barrier")
_MANY = 30  # calls from which on a drift can be told from scatter


@dataclass(frozen=True)
class Calls:
    """One rank's collectives in attributed batches, in order of their start; arrays of one element a call."""

    rank: int
    batches: int
    batch_index: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    kind: np.ndarray
    bytes: np.ndarray  # NaN: not known
    exposed_ns: np.ndarray


@dataclass(frozen=True)
class Ahead:
    """By how much a clock is ahead of rank 0's: ``offset_ns + slope x (t - middle_ns)``, t on rank 0's."""

    offset_ns: float = 0.0
    slope: float = 0.0
    middle_ns: int = 0

    def at(self, reference_ns: np.ndarray) -> np.ndarray:
        """In ns, at times of rank 0's clock."""
        return np.rint(self.offset_ns + self.slope * (reference_ns - self.middle_ns)).astype(np.int64)

    def remove(self, own_ns: np.ndarray) -> np.ndarray:
        """Times of the rank's own clock, as rank 0's clock shows them (ns)."""
        # Since the middle, so that a float holds them to the nanosecond.
        since = own_ns - self.middle_ns
        ahead = (self.offset_ns + self.slope * since) / (1 + self.slope)
        return own_ns - np.rint(ahead).astype(np.int64)


@dataclass(frozen=True)
class Matched:
    """The same collectives on all ranks, arrays (ranks, calls) on rank 0's clock; each rank's own clock."""

    start_ns: np.ndarray
    end_ns: np.ndarray
    residual_ns: float
    ahead: tuple[Ahead, ...]

    @property
    def transfer_ns(self) -> np.ndarray:
        """From the arrival of the last rank to each rank's end, shape (ranks, calls)."""
        return np.maximum(self.end_ns - self.start_ns.max(axis=0), 0)

    @property
    def wait_ns(self) -> np.ndarray:
        """The rest of each rank's time in the collective."""
        return self.end_ns - self.start_ns - self.transfer_ns


def match(ranks: Sequence[Calls]) -> Matched | None:
    """Align the ranks' clocks on their common collectives; None if they did not make the same ones.

    All ranks leave a collective of all at nearly the same moment: the median difference of its ends is the
    difference of the clocks, and what that changes by over the recording their drift. What single ends differ
    from that is the residual.
    """
    first = ranks[0]
    for other in ranks[1:]:
        if len(other.kind) != len(first.kind) or not (
            np.array_equal(other.kind, first.kind) and np.array_equal(other.batch_index, first.batch_index)
        ):
            return None
    start = np.stack([one.start_ns for one in ranks])
    end = np.stack([one.end_ns for one in ranks])
    if len(ranks) == 1 or not len(first.kind):
        return Matched(start, end, 0.0, (Ahead(),) * len(ranks))
    together = np.isin(first.kind, TOGETHER)
    used = together if together.any() else np.ones(len(first.kind), dtype=bool)
    ahead = tuple(_ahead(end[0], one, used) for one in end)
    offset = np.stack([one.at(end[0]) for one in ahead])
    residual = float(np.median(np.abs(end - offset - end[0])[1:, used]))
    return Matched(start - offset, end - offset, residual, ahead)


def _ahead(reference: np.ndarray, own: np.ndarray, used: np.ndarray) -> Ahead:
    """By how much a rank's clock is ahead of the reference's.

    Args:
        reference, own: ends of the same calls, in order.
        used: which of them tell.
    """
    ahead, at = (own - reference)[used], reference[used]
    constant = Ahead(float(np.median(ahead)))
    third = len(ahead) // 3
    if third < _MANY // 3:
        return constant
    early, late = float(np.median(ahead[:third])), float(np.median(ahead[-third:]))
    slope = (late - early) / (float(np.median(at[-third:])) - float(np.median(at[:third])) or 1.0)
    drifting = Ahead(constant.offset_ns, slope, int(np.median(at)))
    # A line through scatter is no drift: it must explain most of what the constant does not.
    rest, rest_drifting = (float(np.median(np.abs(ahead - one.at(at)))) for one in (constant, drifting))
    return drifting if rest_drifting < rest / 2 else constant
