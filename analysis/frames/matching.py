"""Match the same collective across ranks, and align the ranks' clocks.

Ranks call collectives in process groups: of all ranks, or of some (that share a layer, or its shards). The
n-th collective of a kind in a group's recording is the same on all of its ranks.

All ranks leave a collective at nearly the same moment, so the differences between its ends are the
differences between clocks; what remains at single ends is the residual. Groups that share ranks align the
clocks of all their ranks. Ranks that no chain of groups connects cannot be aligned.
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
class Clock:
    """A rank's clock: ahead of the reference by ``offset_ns + slope x (t - middle_ns)``."""

    offset_ns: float = 0.0
    slope: float = 0.0
    middle_ns: int = 0

    def ahead_ns(self, reference_ns: np.ndarray) -> np.ndarray:
        """By how much it is ahead, at times of the reference clock."""
        return np.rint(self.offset_ns + self.slope * (reference_ns - self.middle_ns)).astype(np.int64)

    def to_reference(self, rank_ns: np.ndarray) -> np.ndarray:
        """Its times as the reference clock shows them (ns)."""
        # Since the middle, so that a float holds them to the nanosecond.
        since = rank_ns - self.middle_ns
        ahead = (self.offset_ns + self.slope * since) / (1 + self.slope)
        return rank_ns - np.rint(ahead).astype(np.int64)


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
        start_ns, end_ns: on the reference clock, that of the lowest rank that the rank's groups lead to.
        transfer_ns: from the arrival of a group's last rank to each rank's end; NaN: the call is not matched.
        residual_ns: median difference of single ends after the alignment of clocks.
        clocks: of the ranks.
        reference: of each rank the place of the rank whose clock is its reference.
        shared: the matched collectives.
        unmatched: the kinds of those that are not matched, and why.
    """

    start_ns: tuple[np.ndarray, ...]
    end_ns: tuple[np.ndarray, ...]
    transfer_ns: tuple[np.ndarray, ...]
    residual_ns: float
    clocks: tuple[Clock, ...]
    reference: np.ndarray
    shared: tuple[Shared, ...]
    unmatched: tuple[tuple[str, str], ...] = ()

    @property
    def numbers(self) -> tuple[np.ndarray, ...]:
        """Of each rank's calls a number from 1 that the same call has on all ranks; 0: it is not matched."""
        of_ranks = tuple(np.zeros(len(start), np.uint64) for start in self.start_ns)
        first = 1
        for shared in self.shared:
            number = np.arange(first, first := first + shared.calls.shape[1], dtype=np.uint64)
            for member, calls in zip(shared.members, shared.calls, strict=True):
                of_ranks[member][calls] = number
        return of_ranks


def match(ranks: Sequence[Calls]) -> Matched | None:
    """Find the collectives that ranks made together, and align their clocks; None if there is none.

    Within a process group all ranks leave a collective of all at nearly the same moment: the median
    difference of its ends is the difference of the clocks, and its change over the recording their drift. The
    remaining difference of single ends is the residual.
    """
    matched, left_out = _shared(ranks)
    if not matched and any(len(calls.kind) for calls in ranks):
        return None
    groups = together(matched) or _pooled(matched)
    clocks, reference = _clocks(ranks, groups)
    start, end = (
        tuple(clock.to_reference(getattr(calls, name)) for clock, calls in zip(clocks, ranks, strict=True))
        for name in ("start_ns", "end_ns")
    )
    transfer = tuple(np.full(len(calls.kind), np.nan) for calls in ranks)
    for shared in matched:
        if len(set(reference[list(shared.members)])) > 1:
            left_out.append((shared.kind, "clocks unknown"))
            continue
        lasted = np.maximum(shared.of(end) - shared.of(start).max(axis=0), 0)
        for member, calls, values in zip(shared.members, shared.calls, lasted, strict=True):
            transfer[member][calls] = values
    rest = [np.abs(group.of(end) - group.of(end)[0])[1:].ravel() for group in groups]
    residual = float(np.median(np.concatenate(rest))) if sum(map(len, rest)) else 0.0
    why = tuple(_by_reason(left_out))
    return Matched(start, end, transfer, residual, clocks, reference, tuple(matched), why)


def unmatched(ranks: Sequence[Calls]) -> list[tuple[str, str]]:
    """Which of the ranks' collectives cannot be matched, and why."""
    return _by_reason(_shared(ranks)[1])


def _by_reason(left_out: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Kinds with the reason that they share: ``allgather, allreduce``."""
    of_reason: dict[str, dict[str, None]] = {}
    for kind, reason in left_out:
        of_reason.setdefault(reason, {})[kind] = None
    return [(", ".join(kinds), reason) for reason, kinds in of_reason.items()]


def together(matched: Sequence[Shared]) -> list[Shared]:
    """The collectives that all ranks of a group leave together, of all kinds and groups of the same ranks."""
    return _pooled([shared for shared in matched if shared.kind in TOGETHER and len(shared.members) > 1])


def _pooled(matched: Sequence[Shared]) -> list[Shared]:
    by_members: dict[tuple[int, ...], list[np.ndarray]] = {}
    for shared in matched:
        by_members.setdefault(shared.members, []).append(shared.calls)
    groups = []
    for members, of_kinds in by_members.items():
        calls = np.concatenate(of_kinds, axis=1)
        # In the order of the first rank's calls, which is that of time.
        groups.append(Shared("", "", members, calls[:, np.argsort(calls[0], kind="stable")]))
    return sorted(groups, key=lambda group: (-len(group.members), group.members))


def _shared(ranks: Sequence[Calls]) -> tuple[list[Shared], list[tuple[str, str]]]:
    """The collectives that all ranks of their group made; the kinds of those that are not, and why."""
    calls_of: dict[tuple[str, int, str], dict[int, np.ndarray]] = {}
    for place, calls in enumerate(ranks):
        for key, of_key in _by_key(calls).items():
            calls_of.setdefault(key, {})[place] = of_key
    matched, left_out = [], []
    for (group, size, kind), of_rank in calls_of.items():
        members = tuple(sorted(of_rank))
        steps = [ranks[member].batch_index[of_rank[member]] for member in members]
        if group == ONE_OF_SEVERAL or len(members) > (size or len(ranks)):
            left_out.append((kind, "groups not recorded"))
        elif len(members) != (size or len(ranks)):
            left_out.append((kind, "ranks not recorded"))
        elif any(not np.array_equal(of_member, steps[0]) for of_member in steps):
            left_out.append((kind, "different calls"))
        else:
            matched.append(Shared(group, kind, members, np.stack([of_rank[member] for member in members])))
    return matched, left_out


def _by_key(calls: Calls) -> dict[tuple[str, int, str], np.ndarray]:
    """Which of a rank's calls are of each group, its size, and kind."""
    known: dict[Any, int] = {}
    keys = zip(calls.group.tolist(), calls.group_size.tolist(), calls.kind.tolist(), strict=True)
    code = np.fromiter((known.setdefault(key, len(known)) for key in keys), np.int64, len(calls.kind))
    order = np.argsort(code, kind="stable")
    parts = np.split(order, np.searchsorted(code[order], np.arange(1, len(known))))
    return {key: part for key, part in zip(known, parts, strict=False) if len(part)}


def _clocks(ranks: Sequence[Calls], groups: Sequence[Shared]) -> tuple[tuple[Clock, ...], np.ndarray]:
    """Each rank's clock, and the place of the rank whose clock is its reference.

    From the lowest rank the clocks are followed through groups, the largest first.
    """
    clocks = [Clock()] * len(ranks)
    reference = np.full(len(ranks), -1)
    of_rank: dict[int, list[int]] = {}
    for number, group in enumerate(groups):
        for member in group.members:
            of_rank.setdefault(member, []).append(number)
    for root in range(len(ranks)):
        if reference[root] >= 0:
            continue
        reference[root] = root
        connected = [groups[number] for number in _connected(root, groups, of_rank)]
        reached = True
        while reached:
            reached = False
            for group in connected:
                of_members = reference[list(group.members)]
                if not ((of_members == root).any() and (of_members < 0).any()):
                    continue
                reached, known = True, int(np.argmax(of_members == root))
                ends = group.of([calls.end_ns for calls in ranks])
                on_reference = clocks[group.members[known]].to_reference(ends[known])
                for member, end in zip(group.members, ends, strict=True):
                    if reference[member] < 0:
                        clocks[member], reference[member] = _clock(on_reference, end), root
    return tuple(clocks), reference


def _connected(root: int, groups: Sequence[Shared], of_rank: Mapping[int, Sequence[int]]) -> list[int]:
    """Which groups a rank is in, or is led to by ranks that it shares one with; in their order."""
    found = set(of_rank.get(root, ()))
    queue = list(found)
    while queue:
        more = {number for member in groups[queue.pop()].members for number in of_rank[member]} - found
        found |= more
        queue += more
    return sorted(found)


def _clock(reference_ns: np.ndarray, rank_ns: np.ndarray) -> Clock:
    """A rank's clock from ends of the same calls, in order."""
    ahead = rank_ns - reference_ns
    constant = Clock(float(np.median(ahead)))
    third = len(ahead) // 3
    if third < _MANY // 3:
        return constant
    early, late = float(np.median(ahead[:third])), float(np.median(ahead[-third:]))
    span = float(np.median(reference_ns[-third:])) - float(np.median(reference_ns[:third]))
    drifting = Clock(constant.offset_ns, (late - early) / (span or 1.0), int(np.median(reference_ns)))
    # A line through scatter is no drift: it must explain most of what the constant does not.
    rest, rest_drifting = (
        float(np.median(np.abs(ahead - clock.ahead_ns(reference_ns)))) for clock in (constant, drifting)
    )
    return drifting if rest_drifting < rest / 2 else constant
