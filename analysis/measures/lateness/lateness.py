"""By how much was each rank late in each batch, and did the others wait for it?

Two records tell. Where collectives were recorded: all ranks leave a collective of all together, so that the
one that was in it shortest came last, and for as long as it was in it shorter than the others they waited for
it; no clock is needed. Elsewhere the stages of the batches tables: a rank is late by what it needed longer
than the others from the end of one exchange of gradients to the end of its forward pass (or of its load
stage: the forward pass may begin with a broadcast), and the others waited as much of that as their time after
it was longer than its own. A backward pass that is itself slow is not seen there: that lateness is a lower
bound.

"The others" are the median of all other ranks (by a collective, of its process group), so that each rank of a
slow node is late too.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from analysis.measures.batches.series import Series
from analysis.results import matching
from analysis.results.counted_steps import in_steps
from analysis.results.matching import Calls, Matched, Shared

BY_COLLECTIVES, BY_STAGES = "collectives", "stages"
PARTS = ("update", "load", "forward")  # of a rank's own time before others can wait for it

# Late: the others waited for the rank for this share of a batch or more.
LATE_SHARE = 0.02


@dataclass(frozen=True)
class Lateness:
    """Arrays (ranks, batches) in ns, above 0 for late; the batches are those that tell.

    Attributes:
        told_by: :data:`BY_COLLECTIVES` or :data:`BY_STAGES`.
        batch_index: of each batch.
        late_ns: how long the others waited for the rank.
        behind_ns: how far it was behind the others, whether they waited or not; by collectives as the ranks'
            clocks have it.
        alone_ns: of the last rank of each batch, how long it alone held up all others; 0 elsewhere.
        parts_ns: of :data:`PARTS`, what the rank's took longer than the others'.
        batch_ns: median duration of a batch of the job; by stages of all steady ones, as in analysis.batches.
        residual_ns: of each rank, to within what nine of ten of its ends of collectives agree with the
            others' when clocks are aligned; 0 by stages, which need no clocks.
    """

    told_by: str
    batch_index: np.ndarray
    late_ns: np.ndarray
    behind_ns: np.ndarray
    alone_ns: np.ndarray
    parts_ns: dict[str, np.ndarray]
    batch_ns: float
    residual_ns: np.ndarray

    @cached_property
    def late(self) -> np.ndarray:
        """Which rank was late in which batch."""
        return self.late_ns >= LATE_SHARE * self.batch_ns

    @cached_property
    def last(self) -> np.ndarray:
        """Which rank came last in which batch: where several came together, none."""
        second = np.partition(self.late_ns, -2, axis=0)[-2]
        return self.late_ns > second


def over_others(values: np.ndarray) -> np.ndarray:
    """Each rank's value less the median of the other ranks'; the first axis is the ranks (two or more)."""
    ordered = np.sort(values, axis=0)
    # Sorted twice: the place of each value among the sorted ones. np.median of the others, rank by rank, is
    # the same and takes 14 times as long (64 ranks, 1,000 batches).
    place = np.argsort(np.argsort(values, axis=0, kind="stable"), axis=0, kind="stable")
    others = len(values) - 1

    def left(number: int) -> np.ndarray:
        # The number-th of the others: beyond the rank's own place they move up by one.
        return np.where(number < place, ordered[number], ordered[min(number + 1, others)])

    return values - (left((others - 1) // 2) + left(others // 2)) / 2


def _widest(arrival: np.ndarray) -> np.ndarray:
    """Of arrivals (ranks, points, batches) the point at which the last rank is latest, by batch."""
    return over_others(arrival).max(axis=0).argmax(axis=0)


def _alone(arrival: np.ndarray, late: np.ndarray) -> np.ndarray:
    """By how much the last rank of each batch came after the second last, as far as others waited for it."""
    order = np.argsort(arrival, axis=0, kind="stable")
    last, second = order[-1], order[-2]
    batches = np.arange(arrival.shape[1])
    ahead = np.minimum(arrival[last, batches] - arrival[second, batches], late[last, batches])
    alone = np.zeros(arrival.shape)
    alone[last, batches] = np.maximum(ahead, 0)
    return alone


def of_stages(series: Series) -> Lateness | None:
    """From a run's batches tables: its steady batches that follow another; None if there is none."""
    used = np.flatnonzero(series.steady)
    used = used[used > 0]
    if not len(used) or len(series.rank_ns) < 2 or np.isnan(series.rank_stages["backward"]).any():
        return None
    own = _own_parts(series, used)
    arrival = np.stack([own["update"] + own["load"], sum(own.values())], axis=1)
    whole = arrival[:, 1] + series.rank_stages["backward"][:, used]
    chosen = np.take_along_axis(arrival, _widest(arrival)[None, None, :], axis=1)[:, 0]
    behind = over_others(chosen)
    late = np.minimum(behind, -over_others(whole - chosen))
    parts = {name: over_others(values) for name, values in own.items()}
    batch_ns = float(np.median(series.steady_ns))  # also of a first batch, which has no lateness
    exact = np.zeros(len(late))
    return Lateness(BY_STAGES, used, late, behind, _alone(chosen, late), parts, batch_ns, exact)


def _own_parts(series: Series, batches: np.ndarray) -> dict[str, np.ndarray]:
    """The stages of each rank from the end of the exchange of gradients before; (ranks, batches), ns."""
    stages = series.rank_stages
    after = series.rank_ns - stages["load"] - stages["forward"] - stages["backward"]
    # Of the very first batch nothing came before.
    before = np.where(batches > 0, after[:, np.maximum(batches - 1, 0)], 0)
    return {"update": before, "load": stages["load"][:, batches], "forward": stages["forward"][:, batches]}


def of_collectives(ranks: Sequence[Calls], matched: Matched, series: Series) -> Lateness | None:
    """From the collectives of recorded batches that count; None if none is left by a group together.

    A batch is judged by the collective at which the last rank was latest: a rank late for several of them is
    late once. Ranks are compared within a process group only; of several groups that a rank is in, the one
    counts whose last rank was latest.

    Args:
        ranks: of a run, in order; ``matched`` is of the same.
    """
    every = matching.together(matched.shared)
    pools = [pool for one in every if (pool := _that_count(ranks, one, series.counted)).calls.size]
    if not pools:
        return None
    judged = [_of_group(ranks, matched, one) for one in pools]
    batches = np.unique(np.concatenate([one.batches for one in judged]))
    shape = (len(ranks), len(batches))
    late, behind, alone = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    widest = np.full(shape, -np.inf)
    for one, pool in zip(judged, pools, strict=True):
        cells = np.ix_(np.array(pool.members), np.searchsorted(batches, one.batches))
        counts = one.late_ns.max(axis=0) > widest[cells]
        widest[cells] = np.maximum(widest[cells], one.late_ns.max(axis=0))
        for of_all, own in ((late, one.late_ns), (behind, one.behind_ns), (alone, one.alone_ns)):
            of_all[cells] = np.where(counts, own, of_all[cells])
    parts = {name: over_others(values) for name, values in _own_parts(series, batches).items()}
    batch_ns = float(np.median(series.step_ns[batches]))
    return Lateness(
        BY_COLLECTIVES, batches, late, behind, alone, parts, batch_ns, _residual(matched, every, len(ranks))
    )


@dataclass(frozen=True)
class _Group:
    """What the collectives of one group say: arrays (members, batches), as those of :class:`Lateness`."""

    batches: np.ndarray
    late_ns: np.ndarray
    behind_ns: np.ndarray
    alone_ns: np.ndarray


def _that_count(ranks: Sequence[Calls], pool: Shared, steps: range | None) -> Shared:
    """The collectives of a pool in batches that count."""
    of_call = ranks[pool.members[0]].batch_index[pool.calls[0]]
    return replace(pool, calls=pool.calls[:, in_steps(of_call, steps)])


def _of_group(ranks: Sequence[Calls], matched: Matched, pool: Shared) -> _Group:
    lasted = pool.of([one.end_ns - one.start_ns for one in ranks]).astype(float)
    of_call = ranks[pool.members[0]].batch_index[pool.calls[0]].astype(int)
    order = np.argsort(of_call, kind="stable")
    batches, first = np.unique(of_call[order], return_index=True)
    chosen = [calls[_widest(-lasted[:, calls, None])[0]] for calls in np.split(order, first[1:])]
    late = over_others(-lasted[:, chosen])
    start = pool.of(matched.start_ns)[:, chosen]
    behind = over_others(start - start.min(axis=0))
    return _Group(batches, late, behind, _alone(-lasted[:, chosen], late))


def _residual(matched: Matched, pools: Sequence[Shared], ranks: int) -> np.ndarray:
    """Of each rank, to within what nine of ten of its ends agree with those of its groups, ns."""
    apart: list[list[np.ndarray]] = [[] for _ in range(ranks)]
    for pool in pools:
        ends = pool.of(matched.end_ns)
        for member, values in zip(pool.members, np.abs(ends - np.median(ends, axis=0)), strict=True):
            apart[member].append(values)
    return np.array([np.percentile(np.concatenate(one), 90) if one else 0.0 for one in apart])
