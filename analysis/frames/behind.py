"""Divide waits in collectives by cause: what made the last rank arrive last.

All ranks of a group leave a collective at the same moment. From there to the next collective, each rank's
time is divided into parts. The last rank's parts minus a waiting rank's explain the wait: its data came late,
its kernels took longer, or its host launched late. A wait within that time is replaced by its own causes, so
that a rank that was itself delayed by another is not blamed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.frames.divide import EVER, Activities, Intervals, covered, launch_known, split
from analysis.frames.matching import TOGETHER, Calls, Matched, Shared

# What made the last rank the last. Host: launches came late, or no operator ran; other: launched work had not
# started, transfers of other groups, or the rank's first recorded step began late.
CAUSES = ("data", "compute", "host", "copies", "other")
WAITS = tuple(f"wait_{cause}" for cause in CAUSES)  # parts of exposed_wait, which add up to it
_IN_WORDS = ("its data", "its kernels", "its host", "its copies", "something else")
BEHIND = dict(zip(WAITS, _IN_WORDS, strict=True))  # for meanings of columns
_OTHER = CAUSES.index("other")


@dataclass(frozen=True)
class Account:
    """What a rank had done since its recording began, ns, by :data:`CAUSES` and, last, communication.

    Attributes:
        entered: when what each collective sends was ready, shape (calls, causes + 1).
        left: when it ended, of the same shape.
        begun: when each step began, shape (steps, causes + 1).
        step, start_ns: the steps, and when they began on the rank's clock.
    """

    entered: np.ndarray
    left: np.ndarray
    begun: np.ndarray
    step: np.ndarray
    start_ns: np.ndarray


def account_of(
    kernels: dict[str, np.ndarray], calls: np.ndarray, activities: Activities, batches: dict[str, np.ndarray]
) -> Account:
    """The account of a rank.

    Args:
        calls: rows of the kernels that are its collectives, in order.
    """
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
    works = np.flatnonzero(known & ~np.isin(kernels["class"], ("communication", "memcpy", "memset")))
    works = works[np.argsort(launch[works], kind="stable")]
    ends = np.maximum.accumulate(np.append(-EVER, start[works] + kernels["duration_ns"][works]))
    own = launch[calls]
    ready = np.maximum(ends[np.searchsorted(launch[works], own, side="right")], own)
    return np.where(known[calls], np.minimum(ready, start[calls]), start[calls])


def waits_by_cause(
    calls: Sequence[Calls], matched: Matched, accounts: Sequence[Account], exposed: Sequence[Intervals]
) -> tuple[list[np.ndarray], np.ndarray]:
    """The exposed wait of each rank's collectives by :data:`CAUSES`, ns, shape (calls, causes) each.

    Args:
        exposed: when each rank's communication was exposed.

    Returns:
        These, and what each rank made the others wait by coming last, ns of their mean a step that counts,
        shape (ranks, causes).
    """
    waited = [np.zeros((len(one.kind), len(CAUSES))) for one in calls]
    paid, caused = np.zeros((2, len(calls), len(CAUSES)))  # what each rank waited until now, and made wait
    groups = [_Group(shared, calls, matched, accounts, exposed) for shared in matched.shared]
    # group's members -> its last collective: the step, the account when it was left, what had been waited
    latest: dict[tuple[int, ...], tuple[int, np.ndarray, np.ndarray]] = {}
    base: dict[tuple[int, ...], tuple[int, np.ndarray, np.ndarray]] = {}
    for group, place in _in_order(groups):
        members, step = list(group.members), int(group.step[place])
        if base.get(group.members, (None,))[0] != step:
            last = latest.get(group.members)
            follows = last is not None and last[0] == step - 1
            base[group.members] = (step, *last[1:]) if last and follows else (
                step, group.begun(step, accounts, matched), paid[members]
            )  # fmt: skip
        _, done, paid_before = base[group.members]
        causes = _causes(group.entered[:, place] - done, paid[members] - paid_before)
        behind = np.maximum(causes[group.last[place]] - causes, 0)
        behind[behind.sum(axis=1) == 0, _OTHER] = 1
        wait = group.wait_ns[:, place, None] * behind / behind.sum(axis=1, keepdims=True)
        paid[members] += wait
        if calls[members[0]].counted[group.calls[0, place]]:
            caused[members[group.last[place]]] += wait.sum(axis=0) / max(len(members) - 1, 1)
        for member, call, ns in zip(members, group.calls[:, place].tolist(), wait, strict=True):
            waited[member][call] = ns
        if group.together:
            latest[group.members] = step, group.left[:, place], paid[members]
    return waited, caused / max(*(one.counted_batches for one in calls), 1)


class _Group:
    """The collectives of one kind of a group: arrays (members, calls), accounts (members, calls, ...)."""

    def __init__(
        self, shared: Shared, calls: Sequence[Calls], matched: Matched, accounts: Sequence[Account],
        exposed: Sequence[Intervals],
    ) -> None:  # fmt: skip
        self.members, self.calls = shared.members, shared.calls
        self.together = shared.kind in TOGETHER
        self.step = calls[shared.members[0]].batch_index[shared.calls[0]]
        start = shared.of(matched.start_ns)
        self.last, self.arrived = start.argmax(axis=0), start.max(axis=0)
        own = shared.of([one.start_ns for one in calls])
        until = own + self.arrived - start
        self.wait_ns = np.stack(
            [covered((own[row], until[row]), exposed[member]) for row, member in enumerate(shared.members)]
        )
        self.entered = shared.of([one.entered for one in accounts])
        self.left = shared.of([one.left for one in accounts])

    def begun(self, step: int, accounts: Sequence[Account], matched: Matched) -> np.ndarray:
        """The members' accounts when they began a step before which nothing was recorded.

        One that began it late was behind by that, for a reason that is not known.
        """
        of_members = [accounts[member] for member in self.members]
        rows = [int(np.searchsorted(one.step, step)) for one in of_members]
        done = np.stack([one.begun[row] for one, row in zip(of_members, rows, strict=True)])
        start = np.concatenate([
            matched.clocks[member].to_reference(one.start_ns[row : row + 1])
            for member, one, row in zip(self.members, of_members, rows, strict=True)
        ])  # fmt: skip
        done[:, _OTHER] -= start - start.min()
        return done


def _in_order(groups: Sequence[_Group]) -> list[tuple[_Group, int]]:
    """Each collective, by the arrival of its last rank."""
    if not groups:
        return []
    group = np.repeat(np.arange(len(groups)), [len(one.step) for one in groups])
    place = np.concatenate([np.arange(len(one.step)) for one in groups])
    order = np.argsort(np.concatenate([one.arrived for one in groups]), kind="stable")
    return [(groups[one], at) for one, at in zip(group[order].tolist(), place[order].tolist(), strict=True)]


def _causes(done: np.ndarray, paid: np.ndarray) -> np.ndarray:
    """What ranks did, by :data:`CAUSES`: of their communication what was waiting has the causes of the wait.

    Args:
        done: by causes and communication; ``paid``: what was waited in the same time, by causes.
    """
    communicated, waited = done[:, -1], paid.sum(axis=1)
    share = np.minimum(1.0, communicated / np.maximum(waited, 1.0))
    causes = done[:, :-1] + paid * share[:, None]
    causes[:, _OTHER] += communicated - waited * share
    return causes
