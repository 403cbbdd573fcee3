"""Match the same collective across ranks, and align the ranks' clocks.

Ranks call collectives in process groups: of all ranks, or of some (that share a layer, or its shards). The
n-th collective of a kind in a group's recording is the same on all of its ranks.

All ranks leave a collective at nearly the same moment, so the differences between its ends are the
differences between clocks; what remains at single ends is the residual. Groups that share ranks align the
clocks of all their ranks. Ranks that no chain of groups connects cannot be aligned.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import pandas as pd

from profiling.attribution.messages import ONE_OF_SEVERAL

# No rank ends one of these before all have come to it: their ends are the same moment on all ranks. The root
# of a broadcast, or a sender, may be done while others are still to come.
TOGETHER = ("allreduce", "reducescatter", "allgather", "alltoall", "barrier")
_MANY = 30  # calls from which on a drift can be told from scatter


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
        kind: of the collectives; empty: of several kinds.
        members: places of its ranks among the run's.
        calls: (members, calls), the rows of each member's calls among the run's.
    """

    kind: str
    members: tuple[int, ...]
    calls: np.ndarray


@dataclass(frozen=True)
class Matched:
    """A run's collectives on common clocks.

    Attributes:
        calls: those of :func:`match`, and with ``entered_ns`` and ``left_ns``, their start and end on the
            reference clock, that of the lowest rank that the rank's groups lead to; ``transfer_ns``, from the
            arrival of a group's last rank to each rank's end (NaN: the call is not matched); and ``call``, a
            number from 1 that the same call has on all ranks (0: it is not matched).
        residual_ns: median difference of single ends after the alignment of clocks.
        clocks: of the ranks.
        reference: of each rank the place of the rank whose clock is its reference.
        shared: the matched collectives.
    """

    calls: pd.DataFrame
    residual_ns: float
    clocks: tuple[Clock, ...]
    reference: np.ndarray
    shared: tuple[Shared, ...]


Unmatched = list[tuple[str, str]]  # kinds of collectives, and why they are not matched


def match(calls: pd.DataFrame, ranks: int) -> tuple[Matched | None, Unmatched]:
    """Find the collectives that ranks made together, and align their clocks.

    Within a process group all ranks leave a collective of all at nearly the same moment: the median
    difference of its ends is the difference of the clocks, and its change over the recording their drift. The
    remaining difference of single ends is the residual.

    Args:
        calls: a row a call, in order of ranks and starts. ``place`` of the rank; ``step``; ``collective``;
            ``group``, the process group, one text for all its ranks (empty: not recorded, and taken to be
            all); ``group_size``, its ranks (0: not recorded); ``start_ns, end_ns`` on the rank's clock.
        ranks: how many there are, some of which may have made none.

    Returns:
        None: there is none; and the kinds of those that are not matched, with the reason that they share.
    """
    matched, left_out = _shared(calls, ranks)
    if not matched:
        return None, _by_reason(left_out)
    groups = together(matched) or _pooled(matched)
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    clocks, reference = _clocks(end, ranks, groups)
    of_call: list[Any] = [
        np.array(values)[calls["place"]] for values in zip(*map(astuple, clocks), strict=True)
    ]
    start, end = (Clock(*of_call).to_reference(times) for times in (start, end))
    transfer, number = np.full(len(calls), np.nan), np.zeros(len(calls), np.uint64)
    for shared in matched:
        number[shared.calls] = number.max() + np.arange(1, shared.calls.shape[1] + 1, dtype=np.uint64)
        if len(set(reference[list(shared.members)])) > 1:
            left_out.append((shared.kind, "clocks unknown"))
        else:
            last = start[shared.calls].max(axis=0)
            transfer[shared.calls] = np.maximum(end[shared.calls] - last, 0)
    rest = [np.abs(end[group.calls] - end[group.calls[0]])[1:].ravel() for group in groups]
    residual = float(np.median(np.concatenate(rest))) if sum(map(len, rest)) else 0.0
    calls = calls.assign(entered_ns=start, left_ns=end, transfer_ns=transfer, call=number)
    return Matched(calls, residual, clocks, reference, tuple(matched)), _by_reason(left_out)


def _by_reason(left_out: Unmatched) -> Unmatched:
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
        groups.append(Shared("", members, calls[:, np.argsort(calls[0], kind="stable")]))
    return sorted(groups, key=lambda group: (-len(group.members), group.members))


def _shared(calls: pd.DataFrame, ranks: int) -> tuple[list[Shared], Unmatched]:
    """The collectives that all ranks of their group made; the kinds of those that are not, and why."""
    matched, left_out = [], []
    step = calls["step"].to_numpy()
    families: Any = calls.groupby(["group", "group_size", "collective"], sort=False)["place"]
    for (group, size, kind), of in families:
        members, counts = np.unique(of, return_counts=True)
        rows = of.index.to_numpy()
        if group == ONE_OF_SEVERAL or len(members) > (size or ranks):
            left_out.append((kind, "groups not recorded"))
        elif len(members) != (size or ranks):
            left_out.append((kind, "ranks not recorded"))
        elif (counts != counts[0]).any() or np.ptp(step[rows.reshape(len(members), -1)], axis=0).any():
            left_out.append((kind, "different calls"))
        else:
            matched.append(Shared(kind, tuple(members.tolist()), rows.reshape(len(members), -1)))
    return matched, left_out


def _clocks(end_ns: np.ndarray, ranks: int, groups: Sequence[Shared]) -> tuple[tuple[Clock, ...], np.ndarray]:
    """Each rank's clock, and the place of the rank whose clock is its reference.

    From the lowest rank the clocks are followed through groups, the largest first.
    """
    clocks = [Clock()] * ranks
    reference = np.full(ranks, -1)
    for root in range(ranks):
        if reference[root] >= 0:
            continue
        reference[root] = root
        reached = True
        while reached:
            reached = False
            for group in groups:
                of_members = reference[list(group.members)]
                if not ((of_members == root).any() and (of_members < 0).any()):
                    continue
                reached, known = True, int(np.argmax(of_members == root))
                ends = end_ns[group.calls]
                on_reference = clocks[group.members[known]].to_reference(ends[known])
                for member, end in zip(group.members, ends, strict=True):
                    if reference[member] < 0:
                        clocks[member], reference[member] = _clock(on_reference, end), root
    return tuple(clocks), reference


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
