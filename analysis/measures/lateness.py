"""Lateness of each rank in each step, by collectives or stages, and whether it is more than chance.

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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from analysis.display.numbers import digits, span
from analysis.frames import matching
from analysis.frames.kernel_sums import kept_sums, query_arrays
from analysis.frames.matching import Calls, Matched, Shared
from analysis.frames.steps import Series, attributed_that_count, in_steps
from analysis.frames.study import Source, Study
from analysis.measures.points import point_fields
from analysis.statistics import estimates
from profiling.schemas import IS_MODEL

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
    pools = []
    for one in every:
        among = in_steps(ranks[one.members[0]].batch_index[one.calls[0]], series.counted)
        pools += [replace(one, calls=one.calls[:, among])] if among.any() else []
    if not pools:
        return None
    judged = [_of_group(ranks, matched, one) for one in pools]
    batches = np.unique(np.concatenate([of_group for of_group, _ in judged]))
    shape = (len(ranks), len(batches))
    late, behind, alone = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    widest = np.full(shape, -np.inf)
    for (of_group, figures), pool in zip(judged, pools, strict=True):
        cells = np.ix_(np.array(pool.members), np.searchsorted(batches, of_group))
        latest = figures[0].max(axis=0)
        counts = latest > widest[cells]
        widest[cells] = np.maximum(widest[cells], latest)
        for of_all, own in zip((late, behind, alone), figures, strict=True):
            of_all[cells] = np.where(counts, own, of_all[cells])
    parts = {name: over_others(values) for name, values in _own_parts(series, batches).items()}
    batch_ns = float(np.median(series.step_ns[batches]))
    return Lateness(
        BY_COLLECTIVES, batches, late, behind, alone, parts, batch_ns, _residual(matched, every, len(ranks))
    )


def _of_group(
    ranks: Sequence[Calls], matched: Matched, pool: Shared
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The batches of a group, and what :class:`Lateness` says of its members: late, behind and alone."""
    lasted = pool.of([one.end_ns - one.start_ns for one in ranks]).astype(float)
    of_call = ranks[pool.members[0]].batch_index[pool.calls[0]].astype(int)
    order = np.argsort(of_call, kind="stable")
    batches, first = np.unique(of_call[order], return_index=True)
    chosen = [calls[_widest(-lasted[:, calls, None])[0]] for calls in np.split(order, first[1:])]
    late = over_others(-lasted[:, chosen])
    start = pool.of(matched.start_ns)[:, chosen]
    behind = over_others(start - start.min(axis=0))
    return batches, (late, behind, _alone(-lasted[:, chosen], late))


def _residual(matched: Matched, pools: Sequence[Shared], ranks: int) -> np.ndarray:
    """Of each rank, to within what nine of ten of its ends agree with those of its groups, ns."""
    apart: list[list[np.ndarray]] = [[] for _ in range(ranks)]
    for pool in pools:
        ends = pool.of(matched.end_ns)
        for member, values in zip(pool.members, np.abs(ends - np.median(ends, axis=0)), strict=True):
            apart[member].append(values)
    return np.array([np.percentile(np.concatenate(one), 90) if one else 0.0 for one in apart])


STRAGGLER, CHANCE, TOO_FEW, SHORT_WAIT, CLOCK, NO = (
    "straggler", "may be chance", "too few steps", "short wait", "clock", "no",
)  # fmt: skip

SIGNIFICANCE = 0.05  # for all ranks of a run together
FEWEST_STRETCHES = 4  # of batches that do not hang together: less is no repetition
DRAWS = 2000
_CORRELATION_TIMES = 3.0  # a stretch lasts
_MOST_DRAWN = 4_000_000  # elements of one portion of draws: bounds memory


def judge(lateness: Lateness, nodes: Sequence[str] = ()) -> list[tuple[str, float | None]]:
    """Each rank's verdict, and the chance behind it where it was needed.

    Args:
        nodes: the node of each rank.
    """
    groups = [[rank for rank, node in enumerate(nodes) if node == name] for name in dict.fromkeys(nodes)]
    by_node = len(groups) > 1 and min(len(group) for group in groups) > 1
    level = SIGNIFICANCE / (2 if by_node else 1)
    worth = LATE_SHARE * lateness.batch_ns
    verdicts = _verdicts(lateness.late_ns, worth, level)
    ranks, steps = lateness.late_ns.shape
    not_late = NO if enough(ranks, steps, round(_shortest(steps)), level) else TOO_FEW
    for rank, mean in enumerate(lateness.late_ns.mean(axis=1)):
        if mean < worth:
            verdicts[rank] = (_behind_but_not_late(lateness, rank, worth) or not_late, None)
        elif lateness.residual_ns[rank] >= mean:
            verdicts[rank] = (CLOCK, None)
    if by_node:
        of_nodes = np.stack([lateness.late_ns[group].min(axis=0) for group in groups])
        for group, of_node in zip(groups, _verdicts(of_nodes, worth, level), strict=True):
            if of_node[0] == STRAGGLER and not any(verdicts[rank][0] == CLOCK for rank in group):
                verdicts = [of_node if rank in group else verdict for rank, verdict in enumerate(verdicts)]
    return verdicts


def _verdicts(late_ns: np.ndarray, worth: float, level: float) -> list[tuple[str, float | None]]:
    """The verdicts on any units (units, batches), ranks or nodes, by their lateness alone."""
    units, batches = late_ns.shape
    late = late_ns.mean(axis=1) >= worth
    if not late.any():
        return [(NO, None)] * units
    # One length for all that are tested: with its own, a unit that is late more often than another could be
    # the one that may be chance. Those that are not late have no say: the longest of 64 noisy estimates
    # leaves too few stretches to find anything.
    length = int(stretches(late_ns)[late].max())
    if not enough(units, batches, length, level):
        return [(TOO_FEW if one else NO, None) for one in late]
    chances = chance(late_ns >= worth, length).tolist()
    return [
        (STRAGGLER if probability <= level else CHANCE, probability) if one else (NO, None)
        for one, probability in zip(late, chances, strict=True)
    ]


def _behind_but_not_late(lateness: Lateness, rank: int, worth: float) -> str:
    """The verdict on a rank for which the others waited for less; empty: it was not behind them either."""
    behind, waited = lateness.behind_ns[rank].mean(), lateness.late_ns[rank].mean()
    if behind < worth:
        # A rank that waited for the others is not late, however badly its clock agrees with theirs.
        return "" if waited < 0 or lateness.residual_ns[rank] < worth else CLOCK
    # The ends of collectives show both: what only the clock shows is the clock's.
    by_clock = lateness.told_by == BY_COLLECTIVES and waited < behind / 2
    return CLOCK if by_clock else SHORT_WAIT


def stretches(late_ns: np.ndarray) -> np.ndarray:
    """Over how many batches each rank's lateness (ranks, batches) hangs together, in batches.

    Some correlation times of the ranks' mean, or of the rank's own if that is longer; single estimates from
    short series are too low. n^(1/3) at least, as for other block bootstraps.
    """
    own = np.array([estimates.correlation_time(values) for values in late_ns])
    wanted = np.maximum(_CORRELATION_TIMES * np.maximum(own, own.mean()), _shortest(late_ns.shape[1]))
    return np.rint(wanted).astype(int)


def _shortest(batches: int) -> float:
    """The least length of a stretch."""
    return float(batches ** (1 / 3))


def enough(units: int, batches: int, length: int, level: float = SIGNIFICANCE) -> bool:
    """Whether so many batches can show that something repeats, in stretches of ``length``."""
    count = -(-batches // length)
    return count >= FEWEST_STRETCHES and units ** (1.0 - count) <= level


def chance(late: np.ndarray, length: int, seed: int = estimates.SEED) -> np.ndarray:
    """How probable it is that *some* rank is late as often as each one is, if all ranks are alike.

    Ranks that are alike may exchange their names from one stretch of batches to the next. The names are drawn
    anew in each of many draws, and the largest count of all ranks is compared (Westfall and Young,
    *Resampling-Based Multiple Testing*, 1993: the family of ranks errs at the level, however they depend on
    each other).

    Args:
        late: which rank was late in which batch (ranks, batches).
        length: of a stretch, in batches (:func:`stretches`).

    Returns:
        Of each rank, corrected for there being several; at least 1 / (:data:`DRAWS` + 1).
    """
    count = late.sum(axis=1)
    blocks = np.add.reduceat(late, np.arange(0, late.shape[1], length), axis=1, dtype=np.int32).T
    blocks = blocks[blocks.any(axis=1)]
    if not len(blocks):
        return np.ones(len(late))
    generator = np.random.default_rng(seed)
    largest = []
    portion = max(1, _MOST_DRAWN // blocks.size)
    for first in range(0, DRAWS, portion):
        drawn = np.broadcast_to(blocks, (min(portion, DRAWS - first), *blocks.shape))
        largest.append(generator.permuted(drawn, axis=2).sum(axis=1).max(axis=1))
    as_often = (np.concatenate(largest)[None, :] >= count[:, None]).sum(axis=1)
    return (1 + as_often) / (1 + DRAWS)


# Kernels that take as long as on the other ranks, to within this share, speak against the device.
AS_LONG = 0.05
# A part is the cause if it makes up this share of the lateness or more.
MOST = 0.5

_KERNELS = f"""
select rank, batch_index, direction || ' ' || short_name as name, sum(calls)::bigint as calls,
    sum(ns)::double as ns
from {{sums}} semi join {{attributed}} using (rank, batch_index)
where {IS_MODEL} and calls > 0
group by all
"""


@dataclass(frozen=True)
class KernelTimes:
    """Of the kernels that all ranks launched equally often, by rank and batch: (ranks, batches).

    Attributes:
        batch_index: of the batches.
        own_ns: how long they take; over_ns: how much longer than on the others.
        borrowed: from another run of the point, whose late batches are others.
    """

    batch_index: np.ndarray
    own_ns: np.ndarray
    over_ns: np.ndarray
    borrowed: bool

    def of(self, place: int, batches: np.ndarray) -> tuple[float, float]:
        """What a rank's take longer than the others', ns a batch, and how many times as long they take.

        Args:
            batches: indices of those that count; of another run all do.
        """
        which = np.full(len(self.batch_index), True) if self.borrowed else np.isin(self.batch_index, batches)
        if not which.any():
            return 0.0, 1.0
        own, over = self.own_ns[place, which].mean(), self.over_ns[place, which].mean()
        return float(over), float(own / (own - over))


def kernel_times(study: Study, source: Source) -> KernelTimes | None:
    """How a run's ranks compare in the same kernels; None if no run of its point recorded them."""
    if source.fields["profile"] != "none" and (own := _times_of(study, source)) is not None:
        return own
    others = [
        other
        for other in study.of_kind("run")
        if other is not source
        and other.fields["profile"] != "none"
        and source.kind == "run"
        and point_fields(other.fields) == point_fields(source.fields)
    ]
    each = study.each(others, lambda other: _times_of(study, other, borrowed=True))
    return next((times for _, times in each), None)


def _times_of(study: Study, source: Source, borrowed: bool = False) -> KernelTimes | None:
    kernels, batches, ranks = source.tables("kernels"), source.tables("batches"), source.world_size or 1
    if len(kernels) != ranks or len(batches) != ranks:
        return None
    of = {"sums": kept_sums(study, source), "attributed": attributed_that_count(study, source)}
    return compare(query_arrays(study, source, _KERNELS.format(**of), batches=batches), ranks, borrowed)


def compare(rows: Mapping[str, np.ndarray], ranks: int, borrowed: bool = False) -> KernelTimes | None:
    """Ranks compared in the kernels that all launched equally often; None if there are none.

    Args:
        rows: ``rank, batch_index, name, calls, ns``, a row a kernel in a batch of a rank.
    """
    if not len(rows["rank"]):
        return None
    names, name = np.unique(rows["name"].astype(str), return_inverse=True)
    batches, batch = np.unique(rows["batch_index"], return_inverse=True)
    calls = np.zeros((ranks, len(names)), dtype=np.int64)
    np.add.at(calls, (rows["rank"], name), rows["calls"])
    same = (calls == calls[0]).all(axis=0)[name]
    own = np.zeros((ranks, len(batches)))
    np.add.at(own, (rows["rank"][same], batch[same]), rows["ns"][same])
    whole = own.all(axis=0)  # of a batch that a rank did not record nothing can be said
    if not whole.any():
        return None
    return KernelTimes(batches[whole], own[:, whole], over_others(own[:, whole]), borrowed)


def cause_of(
    place: int,
    lateness: Lateness,
    kernels: KernelTimes | None,
    device: str,
    node: Sequence[int],
    node_name: str,
) -> tuple[str, str]:
    """The likely cause of a rank's lateness, and the figures that support it.

    Args:
        place: the rank's, in the arrays of ``lateness``.
        device: the rank's; ``cpu`` has a processor for a GPU.
        node: the places of all late ranks of its node, if those are all the ranks of the node and there are
            several, on several nodes; else empty.
    """
    cause, evidence = _of_rank(place, lateness, kernels, "processor" if device == "cpu" else "GPU")
    if not node:
        return cause, evidence
    each = sorted(_mean_late(lateness, one) for one in node)
    return "node", f"all {len(node)} ranks of {node_name}: {span(_ms(each[0]), _ms(each[-1]))} ms; {evidence}"


def _of_rank(place: int, lateness: Lateness, kernels: KernelTimes | None, device: str) -> tuple[str, str]:
    late = _mean_late(lateness, place)
    when = lateness.late[place]
    parts = {name: float(over[place, when].mean()) for name, over in lateness.parts_ns.items()}
    if parts["load"] >= MOST * late:
        return "loader", f"load +{_ms(parts['load'])} ms"
    longest = max(parts, key=lambda name: parts[name])
    stage = f"{longest} +{_ms(parts[longest])} ms"
    if kernels is None:
        return f"{device} or host", stage
    # A rank that is late at times is slow at these times; which those are in another run is not known.
    over_ns, ratio = kernels.of(place, lateness.batch_index[when])
    behind = float(lateness.late_ns[place].mean()) if kernels.borrowed else late
    same = f"{'profiled run: ' if kernels.borrowed else ''}kernels {ratio:.2f} x"
    if over_ns >= MOST * behind:
        return device, f"{same}, +{_ms(over_ns)} ms"
    # Only what supports it: kernels that are faster than elsewhere, or somewhat slower, do not.
    supports = [stage] if parts[longest] >= MOST * late else []
    return "host", "; ".join([*supports, *([same] if abs(ratio - 1) <= AS_LONG else [])])


def _mean_late(lateness: Lateness, place: int) -> float:
    return float(lateness.late_ns[place, lateness.late[place]].mean())


def _ms(nanoseconds: float) -> str:
    return digits(nanoseconds / 1e6, 3)
