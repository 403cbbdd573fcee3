"""Divide waits in collectives by cause: what made the last rank arrive last.

All ranks of a group leave a collective at the same moment. From there to the next collective, each rank's
time is divided into parts. The last rank's parts minus a waiting rank's explain the wait: its data came late,
its kernels took longer, or its host launched late. A wait within that time is replaced by its own causes, so
that a rank that was itself delayed by another is not blamed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.frames.divide import EVER, Activities, Intervals, covered, launch_known, of_class, split
from analysis.frames.matching import TOGETHER, Matched

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
        kernels: of :func:`analysis.frames.anatomy.arrays_of`.
        calls: rows of those that are its collectives, in order.
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

    Args:
        exposed: when each rank's communication was exposed.

    Returns:
        These, and what each rank made the others wait by coming last, ns of their mean in the steps that
        count, shape (ranks, causes).
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
    start = np.array(
        [matched.clocks[member].to_reference(accounts[member].start_ns[row]) for member, row in rows]
    )
    done[:, _OTHER] -= start - start.min()
    return done


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
