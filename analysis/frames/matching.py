"""Match the same collective across ranks, align the ranks' clocks, and divide waits by cause.

Ranks call collectives in process groups: of all ranks, or of some (that share a layer, or its shards). The
n-th collective of a kind in a group's recording is the same on all of its ranks.

All ranks leave a collective at nearly the same moment: the median difference between its ends is that between
the clocks, its change over the recording their drift, and what remains at single ends the residual. Groups
that share ranks align the clocks of all their ranks; without a chain of groups ranks cannot be aligned.

From the moment at which a group leaves a collective to its next one, each rank's time is divided into parts.
The last rank's parts minus a waiting rank's explain the wait: its data came late, its kernels took longer, or
its host launched late. A wait within that time is replaced by its own causes, so that a rank that was itself
delayed by another is not blamed.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames.divide import EVER, Activities, Intervals, covered, launch_known, of_class, split
from profiling.attribution.messages import ONE_OF_SEVERAL

# No rank ends one of these before all have come to it: their ends are the same moment on all ranks. The root
# of a broadcast, or a sender, may be done while others are still to come.
TOGETHER = ("allreduce", "reducescatter", "allgather", "alltoall", "barrier")


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
    """The collectives of one kind of one process group, matched."""

    kind: str  # of the collectives; empty: of several kinds
    members: tuple[int, ...]  # places of its ranks among the run's
    calls: np.ndarray  # (members, calls), the rows of each member's calls among the run's


@dataclass(frozen=True)
class Matched:
    """A run's collectives on common clocks.

    Its calls are those of :func:`match`, with ``entered_ns`` and ``left_ns``, their start and end on the
    reference clock, that of the lowest rank that the rank's groups lead to; ``transfer_ns``, from the arrival
    of a group's last rank to each rank's end (NaN: the call is not matched); and ``call``, a number from 1
    that the same call has on all ranks (0: it is not matched).
    """

    calls: pd.DataFrame
    residual_ns: float  # median difference of single ends after the alignment of clocks
    clocks: tuple[Clock, ...]  # of the ranks
    reference: np.ndarray  # of each rank the place of the rank whose clock is its reference
    shared: tuple[Shared, ...]  # the matched collectives


Unmatched = dict[str, dict[str, None]]  # reason -> the kinds of collectives that are not matched for it


def match(calls: pd.DataFrame, ranks: int) -> tuple[Matched | None, Unmatched]:
    """Find the collectives that ranks made together (None: there is none), and align their clocks.

    ``calls``: a row a call, in order of ranks and starts. ``place`` of the rank; ``step``; ``collective``;
    ``group``, the process group, one text for all its ranks (empty: not recorded, and taken to be all);
    ``group_size``, its ranks (0: not recorded); ``start_ns, end_ns`` on the rank's clock. ``ranks``: how many
    there are, some of which may have made none.
    """
    matched, left_out = _shared(calls, ranks)
    if not matched:
        return None, left_out
    groups = together(matched) or _pooled(matched)
    start, end = calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy()
    clocks, reference = _clocks(end, ranks, groups)
    of_call: list[Any] = [np.array(of)[calls["place"]] for of in zip(*map(astuple, clocks), strict=True)]
    start, end = (Clock(*of_call).to_reference(times) for times in (start, end))
    transfer, number = np.full(len(calls), np.nan), np.zeros(len(calls), np.uint64)
    for shared in matched:
        number[shared.calls] = number.max() + np.arange(1, shared.calls.shape[1] + 1, dtype=np.uint64)
        if len(set(reference[list(shared.members)])) > 1:
            left_out.setdefault("clocks unknown", {})[shared.kind] = None
        else:
            last = start[shared.calls].max(axis=0)
            transfer[shared.calls] = np.maximum(end[shared.calls] - last, 0)
    rest = [np.abs(end[group.calls] - end[group.calls[0]])[1:].ravel() for group in groups]
    residual = float(np.median(np.concatenate(rest))) if sum(map(len, rest)) else 0.0
    calls = calls.assign(entered_ns=start, left_ns=end, transfer_ns=transfer, call=number)
    return Matched(calls, residual, clocks, reference, tuple(matched)), left_out


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
    matched: list[Shared] = []
    left_out: Unmatched = {}
    step = calls["step"].to_numpy()
    families: Any = calls.groupby(["group", "group_size", "collective"], sort=False)["place"]
    for (group, size, kind), of in families:
        members, counts = np.unique(of, return_counts=True)
        rows = of.index.to_numpy()
        if group == ONE_OF_SEVERAL or len(members) > (size or ranks):
            reason = "groups not recorded"
        elif len(members) != (size or ranks):
            reason = "ranks not recorded"
        elif (counts != counts[0]).any() or np.ptp(step[rows.reshape(len(members), -1)], axis=0).any():
            reason = "different calls"
        else:
            matched.append(Shared(kind, tuple(members.tolist()), rows.reshape(len(members), -1)))
            continue
        left_out.setdefault(reason, {})[kind] = None
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
    if (third := len(ahead) // 3) < 10:  # a drift cannot be told from scatter
        return constant
    early, late = float(np.median(ahead[:third])), float(np.median(ahead[-third:]))
    span = float(np.median(reference_ns[-third:])) - float(np.median(reference_ns[:third]))
    drifting = Clock(constant.offset_ns, (late - early) / (span or 1.0), int(np.median(reference_ns)))
    # A line through scatter is no drift: it must explain most of what the constant does not.
    rest = [np.median(np.abs(ahead - one.ahead_ns(reference_ns))) for one in (constant, drifting)]
    return drifting if rest[1] < rest[0] / 2 else constant


# What made the last rank the last. Host: launches came late, or no operator ran; other: launched work had not
# started, transfers of other groups, or the rank's first recorded step began late.
CAUSES = ("data", "compute", "host", "copies", "other")
WAITS = tuple(f"wait_{cause}" for cause in CAUSES)  # parts of exposed_wait, which add up to it
_IN_WORDS = ("its data", "its kernels", "its host", "its copies", "something else")
BEHIND = dict(zip(WAITS, _IN_WORDS, strict=True))  # for meanings of columns
_OTHER = CAUSES.index("other")


@dataclass(frozen=True)
class Account:
    """What a rank had done since its recording began, ns, by :data:`CAUSES` and, last, communication."""

    entered: np.ndarray  # when what each collective sends was ready, shape (calls, causes + 1)
    left: np.ndarray  # when it ended, of the same shape
    begun: np.ndarray  # when each step began, shape (steps, causes + 1)
    step: np.ndarray  # the steps, and when they began on the rank's clock
    start_ns: np.ndarray

    def of_calls(self, kept: np.ndarray) -> "Account":
        """The same without the calls that are not kept."""
        return replace(self, entered=self.entered[kept], left=self.left[kept])


def account_of(
    kernels: dict[str, np.ndarray], calls: np.ndarray, activities: Activities, batches: dict[str, np.ndarray]
) -> Account:
    """The account of a rank; ``calls``: rows of its collectives in ``kernels``, in order."""
    end = kernels["start_ns"][calls] + kernels["duration_ns"][calls]
    times = [_ready(kernels, calls), end, batches["start_ns"]]
    until = np.concatenate(times)
    since = np.full(len(until), until.min(initial=EVER))
    parts = split((since, until), activities)
    host = parts.get("idle_host_bound", parts["idle"])
    known = (
        parts["exposed_loader"], parts["compute"], host, parts["exposed_copies"], parts["idle"] - host,
        parts["exposed_communication"],
    )  # fmt: skip
    done = np.stack(known, axis=1)
    entered, left, begun = np.split(done, np.cumsum([len(one) for one in times])[:-1])
    return Account(entered, left, begun, batches["batch_index"], batches["start_ns"])


def _ready(kernels: dict[str, np.ndarray], calls: np.ndarray) -> np.ndarray:
    """When each collective could have begun: it was launched, and the kernels launched before it had ended.

    A later one starts when that before it ends, however early its gradients were there.
    """
    start, launch, known = kernels["start_ns"], kernels["launch_ns"], launch_known(kernels)
    works = np.flatnonzero(known & ~of_class(kernels, "communication", "memcpy", "memset"))
    works = works[np.argsort(launch[works], kind="stable")]
    ends = np.maximum.accumulate(np.append(-EVER, start[works] + kernels["duration_ns"][works]))
    own = launch[calls]
    ready = np.maximum(ends[np.searchsorted(launch[works], own, side="right")], own)
    return np.where(known[calls], np.minimum(ready, start[calls]), start[calls])


def waits_by_cause(
    matched: Matched, accounts: Sequence[Account], exposed: Sequence[Intervals]
) -> tuple[np.ndarray, np.ndarray]:
    """The exposed wait of each of a run's collectives by :data:`CAUSES`, ns, shape (calls, causes).

    And what each rank made the others wait by coming last, ns of their mean in the steps that count, shape
    (ranks, causes). ``exposed``: when each rank's communication was exposed.
    """
    calls = matched.calls
    step, counted = calls["step"].to_numpy(), calls["counted"].to_numpy()
    came, own = calls["entered_ns"].to_numpy(), calls["start_ns"].to_numpy()
    entered, left = (np.concatenate([getattr(one, name) for one in accounts]) for name in ("entered", "left"))
    every = [(shared, rows) for shared in matched.shared for rows in shared.calls.T]
    arrived = np.concatenate([came[shared.calls].max(axis=0) for shared in matched.shared])
    until = own.copy()
    for shared in matched.shared:
        until[shared.calls] += came[shared.calls].max(axis=0) - came[shared.calls]
    wait_ns = np.zeros(len(calls))
    of_rank: Any = calls.groupby("place").indices
    for place, rows in of_rank.items():
        wait_ns[rows] = covered((own[rows], until[rows]), exposed[place])
    waited = np.zeros((len(calls), len(CAUSES)))
    paid, caused = np.zeros((2, len(accounts), len(CAUSES)))  # what each rank waited until now, and made wait
    # group's members -> its last collective: the step, the account when it was left, what had been waited
    latest: dict[tuple[int, ...], tuple[int, np.ndarray, np.ndarray]] = {}
    base: dict[tuple[int, ...], tuple[int, np.ndarray, np.ndarray]] = {}
    for number in np.argsort(arrived, kind="stable").tolist():
        shared, rows = every[number]
        members, now = list(shared.members), int(step[rows[0]])
        if base.get(shared.members, (None,))[0] != now:
            last = latest.get(shared.members)
            base[shared.members] = (now, *last[1:]) if last and last[0] == now - 1 else (
                now, _begun(now, members, accounts, matched), paid[members]
            )  # fmt: skip
        _, done, paid_before = base[shared.members]
        causes = _causes(entered[rows] - done, paid[members] - paid_before)
        last_one = int(came[rows].argmax())
        behind = np.maximum(causes[last_one] - causes, 0)
        behind[behind.sum(axis=1) == 0, _OTHER] = 1
        waited[rows] = wait_ns[rows, None] * behind / behind.sum(axis=1, keepdims=True)
        paid[members] += waited[rows]
        if counted[rows[0]]:
            caused[members[last_one]] += waited[rows].sum(axis=0) / max(len(members) - 1, 1)
        if shared.kind in TOGETHER:
            latest[shared.members] = now, left[rows], paid[members]
    return waited, caused


def _begun(step: int, members: Sequence[int], accounts: Sequence[Account], matched: Matched) -> np.ndarray:
    """The accounts of ranks when they began a step before which nothing was recorded.

    One that began it late was behind by that, for a reason that is not known.
    """
    rows = [(member, int(np.searchsorted(accounts[member].step, step))) for member in members]
    done = np.stack([accounts[member].begun[row] for member, row in rows])
    start = [matched.clocks[member].to_reference(accounts[member].start_ns[row]) for member, row in rows]
    done[:, _OTHER] -= np.array(start) - min(start)
    return done


def _causes(done: np.ndarray, paid: np.ndarray) -> np.ndarray:
    """What ranks did, by :data:`CAUSES`: of their communication what was waiting has the causes of the wait.

    ``done``: by causes and communication; ``paid``: what was waited in the same time, by causes.
    """
    communicated, waited = done[:, -1], paid.sum(axis=1)
    share = np.minimum(1.0, communicated / np.maximum(waited, 1.0))
    causes = done[:, :-1] + paid * share[:, None]
    causes[:, _OTHER] += communicated - waited * share
    return causes
