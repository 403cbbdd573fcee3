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
class Matched:
    """The same collectives on all ranks: arrays (ranks, calls), on rank 0's clock."""

    start_ns: np.ndarray
    end_ns: np.ndarray
    residual_ns: float

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
        return Matched(start, end, 0.0)
    together = np.isin(first.kind, TOGETHER)
    used = together if together.any() else np.ones(len(first.kind), dtype=bool)
    offset = np.stack([_offset(end[0], one, used) for one in end])
    residual = float(np.median(np.abs(end - offset - end[0])[1:, used]))
    return Matched(start - offset, end - offset, residual)


def _offset(reference: np.ndarray, own: np.ndarray, used: np.ndarray) -> np.ndarray:
    """By how much a rank's clock is ahead of the reference's at each of its calls, in ns.

    Args:
        reference, own: ends of the same calls, in order.
        used: which of them tell.
    """
    ahead, at = (own - reference)[used], reference[used]
    offset = float(np.median(ahead))
    third = len(ahead) // 3
    if third < _MANY // 3:
        return np.full(len(own), round(offset))
    early, late = float(np.median(ahead[:third])), float(np.median(ahead[-third:]))
    middle = float(np.median(at))
    slope = (late - early) / (float(np.median(at[-third:])) - float(np.median(at[:third])) or 1.0)
    drifting = offset + slope * (reference - middle)
    # A line through scatter is no drift: it must explain most of what the constant does not.
    rest, rest_drifting = (float(np.median(np.abs(ahead - line))) for line in (offset, drifting[used]))
    line = drifting if rest_drifting < rest / 2 else np.full(len(own), offset)
    return np.rint(line).astype(np.int64)
