"""Match the same collective across ranks, and align the ranks' clocks.

Ranks make collectives in process groups: all ranks, or some of them (that share a layer, or its shards).
The n-th collective of a kind that a group makes in a recording is the same on all its ranks.

All ranks leave a collective of all at nearly the same moment, so the differences of its ends are those of the
clocks; what single ends differ from that is the residual. Groups that have ranks in common set the clocks of
all their ranks; nothing is known between ranks that no group joins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from profiling.attribution.messages import ONE_OF_SEVERAL

# No rank ends one of these before all have come to it: their ends are the same moment on all ranks. The root
# of a broadcast, or a sender, may be done while others are still to come.
TOGETHER = ("allreduce", "reducescatter", "allgather", "alltoall", "barrier")
_MANY = 30  # calls from which on a drift can be told from scatter


@dataclass(frozen=True)
class Calls:
    """One rank's collectives in attributed batches, in order of their start; arrays of one element a call."""

    rank: int
    batches: int  # attributed batches that hold kernels
    batch_index: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    kind: np.ndarray
    bytes: np.ndarray  # NaN: not known
    group: np.ndarray  # the process group, one text for all its ranks; "": not recorded, and taken to be all
    group_size: np.ndarray  # its ranks; 0: not recorded
    # The share of each in what is exposed and what is hidden in the recorded batches; empty: not asked.
    exposed_ns: np.ndarray = field(default_factory=lambda: np.zeros(0))
    hidden_ns: np.ndarray = field(default_factory=lambda: np.zeros(0))
    # Of ``counted_batches``, those whose kernels lie in their time: what is exposed is of these.
    timed: int = 0
    # Which are in batches that count (no warm-up), and how many of ``batches`` do; empty: not asked.
    counted: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    counted_batches: int = 0


@dataclass(frozen=True)
class Ahead:
    """By how much a clock is ahead of the reference: ``offset_ns + slope x (t - middle_ns)``."""

    offset_ns: float = 0.0
    slope: float = 0.0
    middle_ns: int = 0

    def at(self, reference_ns: np.ndarray) -> np.ndarray:
        """In ns, at times of the reference clock."""
        return np.rint(self.offset_ns + self.slope * (reference_ns - self.middle_ns)).astype(np.int64)

    def remove(self, own_ns: np.ndarray) -> np.ndarray:
        """Times of the rank's own clock, as the reference clock shows them (ns)."""
        # Since the middle, so that a float holds them to the nanosecond.
        since = own_ns - self.middle_ns
        ahead = (self.offset_ns + self.slope * since) / (1 + self.slope)
        return own_ns - np.rint(ahead).astype(np.int64)


@dataclass(frozen=True)
class Shared:
    """The collectives of one kind of one process group, matched.

    Attributes:
        group, kind: as :class:`Calls` has them.
        members: places of its ranks among the run's.
        calls: (members, calls), which of each member's calls they are.
    """

    group: str
    kind: str
    members: tuple[int, ...]
    calls: np.ndarray

    def of(self, values: Sequence[np.ndarray]) -> np.ndarray:
        """Values of each rank's calls as an array (members, calls) of these."""
        return np.stack([values[member][call] for member, call in zip(self.members, self.calls, strict=True)])


@dataclass(frozen=True)
class Matched:
    """A run's collectives on common clocks; of each rank an array of one element a call.

    Attributes:
        start_ns, end_ns: on the clock of the lowest rank that the rank's groups lead to.
        transfer_ns: from the arrival of a group's last rank to each rank's end; NaN: the call is not matched.
        residual_ns: median of what single ends differ by, where clocks are aligned.
        ahead: each rank's clock.
        clock: of each rank the place of the rank whose clock it is set to.
        shared: the matched collectives.
        unmatched: the kinds of those that are not matched, and why.
    """

    start_ns: tuple[np.ndarray, ...]
    end_ns: tuple[np.ndarray, ...]
    transfer_ns: tuple[np.ndarray, ...]
    residual_ns: float
    ahead: tuple[Ahead, ...]
    clock: np.ndarray
    shared: tuple[Shared, ...]
    unmatched: tuple[tuple[str, str], ...] = ()

    @property
    def numbers(self) -> tuple[np.ndarray, ...]:
        """Of each rank's calls a number from 1 that the same call has on all ranks; 0: it is not matched."""
        of_ranks = tuple(np.zeros(len(one), np.uint64) for one in self.start_ns)
        first = 1
        for one in self.shared:
            number = np.arange(first, first := first + one.calls.shape[1], dtype=np.uint64)
            for member, calls in zip(one.members, one.calls, strict=True):
                of_ranks[member][calls] = number
        return of_ranks


def match(ranks: Sequence[Calls]) -> Matched | None:
    """Find the collectives that ranks made together, and align their clocks; None if there is none.

    Within a process group all ranks leave a collective of all at nearly the same moment: the median
    difference of its ends is the difference of the clocks, and what that changes by over the recording their
    drift. What single ends differ from that is the residual.
    """
    shared, left = _shared(ranks)
    if not shared and any(len(one.kind) for one in ranks):
        return None
    pools = together(shared) or _pooled(shared)
    ahead, clock = _clocks(ranks, pools)
    start, end = (
        tuple(one.remove(getattr(calls, name)) for one, calls in zip(ahead, ranks, strict=True))
        for name in ("start_ns", "end_ns")
    )
    transfer = tuple(np.full(len(one.kind), np.nan) for one in ranks)
    for one in shared:
        if len(set(clock[list(one.members)])) > 1:
            left.append((one.kind, "clocks unknown"))
            continue
        lasted = np.maximum(one.of(end) - one.of(start).max(axis=0), 0)
        for member, calls, values in zip(one.members, one.calls, lasted, strict=True):
            transfer[member][calls] = values
    rest = [np.abs(one.of(end) - one.of(end)[0])[1:].ravel() for one in pools]
    residual = float(np.median(np.concatenate(rest))) if sum(map(len, rest)) else 0.0
    why = tuple(_by_reason(left))
    return Matched(start, end, transfer, residual, ahead, clock, tuple(shared), why)


def unmatched(ranks: Sequence[Calls]) -> list[tuple[str, str]]:
    """Which of the ranks' collectives cannot be matched, and why."""
    return _by_reason(_shared(ranks)[1])


def _by_reason(left: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Kinds with the reason that they share: ``allgather, allreduce``."""
    of_reason: dict[str, dict[str, None]] = {}
    for kind, reason in left:
        of_reason.setdefault(reason, {})[kind] = None
    return [(", ".join(kinds), reason) for reason, kinds in of_reason.items()]


def together(shared: Sequence[Shared]) -> list[Shared]:
    """The collectives that all ranks of a group leave together, of all kinds and groups of the same ranks."""
    return _pooled([one for one in shared if one.kind in TOGETHER and len(one.members) > 1])


def _pooled(shared: Sequence[Shared]) -> list[Shared]:
    by_members: dict[tuple[int, ...], list[Shared]] = {}
    for one in shared:
        by_members.setdefault(one.members, []).append(one)
    pools = []
    for members, several in by_members.items():
        calls = np.concatenate([one.calls for one in several], axis=1)
        # In the order of the first rank's calls, which is that of time.
        pools.append(Shared("", "", members, calls[:, np.argsort(calls[0], kind="stable")]))
    return sorted(pools, key=lambda one: (-len(one.members), one.members))


def _shared(ranks: Sequence[Calls]) -> tuple[list[Shared], list[tuple[str, str]]]:
    """The collectives that all ranks of their group made; the kinds of those that are not, and why."""
    whose: dict[tuple[str, int, str], dict[int, np.ndarray]] = {}
    for place, one in enumerate(ranks):
        for key, calls in _by_key(one).items():
            whose.setdefault(key, {})[place] = calls
    matched, left = [], []
    for (group, size, kind), of_rank in whose.items():
        members = tuple(sorted(of_rank))
        batches = [ranks[member].batch_index[of_rank[member]] for member in members]
        if group == ONE_OF_SEVERAL or len(members) > (size or len(ranks)):
            left.append((kind, "groups not recorded"))
        elif len(members) != (size or len(ranks)):
            left.append((kind, "ranks not recorded"))
        elif any(not np.array_equal(one, batches[0]) for one in batches):
            left.append((kind, "different calls"))
        else:
            matched.append(Shared(group, kind, members, np.stack([of_rank[member] for member in members])))
    return matched, left


def _by_key(calls: Calls) -> dict[tuple[str, int, str], np.ndarray]:
    """Which of a rank's calls are of each group, its size, and kind."""
    known: dict[Any, int] = {}
    keys = zip(calls.group.tolist(), calls.group_size.tolist(), calls.kind.tolist(), strict=True)
    code = np.fromiter((known.setdefault(key, len(known)) for key in keys), np.int64, len(calls.kind))
    order = np.argsort(code, kind="stable")
    parts = np.split(order, np.searchsorted(code[order], np.arange(1, len(known))))
    return {key: part for key, part in zip(known, parts, strict=False) if len(part)}


def _clocks(ranks: Sequence[Calls], pools: Sequence[Shared]) -> tuple[tuple[Ahead, ...], np.ndarray]:
    """Each rank's clock, and the place of the rank whose clock it is set to.

    From the lowest rank the clocks are followed through groups, the largest first.
    """
    ahead = [Ahead()] * len(ranks)
    clock = np.full(len(ranks), -1)
    of_rank: dict[int, list[int]] = {}
    for number, one in enumerate(pools):
        for member in one.members:
            of_rank.setdefault(member, []).append(number)
    for root in range(len(ranks)):
        if clock[root] >= 0:
            continue
        clock[root] = root
        joined = [pools[number] for number in _joined(root, pools, of_rank)]
        reached = True
        while reached:
            reached = False
            for one in joined:
                of_members = clock[list(one.members)]
                if not ((of_members == root).any() and (of_members < 0).any()):
                    continue
                reached, known = True, int(np.argmax(of_members == root))
                end = one.of([calls.end_ns for calls in ranks])
                reference = ahead[one.members[known]].remove(end[known])
                for member, own in zip(one.members, end, strict=True):
                    if clock[member] < 0:
                        ahead[member], clock[member] = _ahead(reference, own), root
    return tuple(ahead), clock


def _joined(root: int, pools: Sequence[Shared], of_rank: Mapping[int, Sequence[int]]) -> list[int]:
    """Which pools a rank is in, or is led to by ranks that it shares one with; in their order."""
    found = set(of_rank.get(root, ()))
    left = list(found)
    while left:
        more = {number for member in pools[left.pop()].members for number in of_rank[member]} - found
        found |= more
        left += more
    return sorted(found)


def _ahead(reference: np.ndarray, own: np.ndarray) -> Ahead:
    """By how much a rank's clock is ahead of the reference's: by ends of the same calls, in order."""
    ahead = own - reference
    constant = Ahead(float(np.median(ahead)))
    third = len(ahead) // 3
    if third < _MANY // 3:
        return constant
    early, late = float(np.median(ahead[:third])), float(np.median(ahead[-third:]))
    span = float(np.median(reference[-third:])) - float(np.median(reference[:third]))
    drifting = Ahead(constant.offset_ns, (late - early) / (span or 1.0), int(np.median(reference)))
    # A line through scatter is no drift: it must explain most of what the constant does not.
    rest, rest_drifting = (
        float(np.median(np.abs(ahead - one.at(reference)))) for one in (constant, drifting)
    )
    return drifting if rest_drifting < rest / 2 else constant
