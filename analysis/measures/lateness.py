"""Lateness of each rank in each step, and whether it is more than chance.

All ranks leave a collective at the same moment, so the last rank to enter spends the least time in it, and
the others (the median of all other ranks of its group) waited for the difference; clocks need not be aligned.
Without recorded collectives, stages give a lower bound: a rank is late by the extra time that it needed from
one exchange of gradients to the end of its forward pass (or of its load stage: a forward pass may begin with
a broadcast), but by no more than the others then waited. A slow backward pass is not detected.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pandas as pd

from analysis import estimates
from analysis.frames import matching
from analysis.frames.matching import WAITS, Matched, Shared
from analysis.frames.steps import ALL, Series, in_steps

BY_COLLECTIVES, BY_STAGES = "collectives", "stages"
# Of a rank's own time before others can wait for it; other: of the step before, as its update.
PARTS = ("update", "other", "load", "forward")

# Late: the others waited for the rank for this share of a step or more.
LATE_SHARE = 0.02


@dataclass(frozen=True)
class Lateness:
    """Arrays (ranks, steps) in ns, positive for late, of the steps whose lateness is known."""

    measured_from: str  # BY_COLLECTIVES or BY_STAGES
    steps: np.ndarray  # index of each step
    late_ns: np.ndarray  # how long the others waited for the rank
    # How far it was behind the others, whether they waited or not; from collectives by the ranks' clocks.
    behind_ns: np.ndarray
    parts_ns: dict[str, np.ndarray]  # of PARTS, what the rank's took longer than the others'
    step_ns: float  # median step of the job; from stages of all steady ones, as in analysis.batches
    # Shape (ranks,): nine of ten of a rank's ends of collectives agree with the others' to within this when
    # clocks are aligned; 0 from stages, which need no clocks.
    residual_ns: np.ndarray

    @cached_property
    def late(self) -> np.ndarray:
        """Which rank was late in which step."""
        return self.late_ns >= LATE_SHARE * self.step_ns


def over_others(values: np.ndarray) -> np.ndarray:
    """Each rank's value less the median of the other ranks'; the first axis is the ranks (two or more)."""
    # np.median of the others, rank by rank, is the same and takes 14 times as long (64 ranks, 1,000 steps).
    ordered = np.sort(values, axis=0)
    place = np.argsort(np.argsort(values, axis=0, kind="stable"), axis=0, kind="stable")
    others = len(values) - 1

    def other(number: int) -> np.ndarray:
        # The number-th of the others: beyond the rank's own place they move up by one.
        return np.where(number < place, ordered[number], ordered[min(number + 1, others)])

    return values - (other((others - 1) // 2) + other(others // 2)) / 2


class _Arrivals(NamedTuple):
    """When ranks come to the exchange of gradients, since they left the one before; (ranks, steps), ns."""

    steps: np.ndarray  # their indices: the steady ones that follow another
    before: dict[str, np.ndarray]  # PARTS of each rank
    arrival: np.ndarray  # at the end of its load stage or of its forward pass, where the last rank is latest
    after_forward: np.ndarray  # of each step, which of the two
    rest: np.ndarray  # from there to the end of the backward pass


def _arrivals(series: Series) -> _Arrivals | None:
    """From a run's batches tables; None if no steady step follows another."""
    used = np.flatnonzero(series.steady)
    used = used[used > 0]
    if not len(used) or len(series.rank_ns) < 2 or np.isnan(series.rank_stages["backward"]).any():
        return None
    before = _parts_before_exchange(series, used)
    loaded = sum(before[name] for name in PARTS[:-1])
    arrivals = np.stack([loaded, loaded + before["forward"]])
    after_forward = over_others(arrivals[1]).max(axis=0) > over_others(arrivals[0]).max(axis=0)
    arrival = np.where(after_forward, arrivals[1], arrivals[0])
    rest = arrivals[1] + series.rank_stages["backward"][:, used] - arrival
    return _Arrivals(used, before, arrival, after_forward, rest)


def of_stages(series: Series) -> Lateness | None:
    """From a run's batches tables: its steady steps that follow another; None if there is none."""
    found = _arrivals(series)
    if found is None:
        return None
    behind = over_others(found.arrival)
    late = np.minimum(behind, -over_others(found.rest))
    parts = {name: over_others(values) for name, values in found.before.items()}
    step_ns = float(np.median(series.steady_ns))  # also of a first step, which has no lateness
    return Lateness(BY_STAGES, found.steps, late, behind, parts, step_ns, np.zeros(len(late)))


def parts_of_stages(series: Series) -> dict[str, float]:
    """What the mean steady step of the job is made of, ns, from stages alone; the parts add up.

    :data:`~analysis.frames.steps.STAGES`, mean over ranks, without waiting for the last rank to come to the
    exchange; and that, by what the last rank took longer for (:data:`~analysis.frames.matching.WAITS`). Of a
    longer forward pass or update it is not known whether kernels or the host made it so: other.
    """
    stages = {name: float(ns[:, series.steady].mean()) for name, ns in series.rank_stages.items()}
    waits = dict.fromkeys(WAITS, 0.0)
    # The job's time is that of the rank that took longest for all steps.
    waits["wait_other"] = float(series.pace_ns.mean()) - sum(stages.values())
    found = _arrivals(series)
    if found is None:
        return stages | waits
    last = found.arrival.argmax(axis=0)[None]

    def longer(of_ranks: np.ndarray) -> np.ndarray:
        """By how much the last rank's is longer than each rank's."""
        return np.maximum(np.take_along_axis(of_ranks, last, axis=0) - of_ranks, 0)

    wait = np.minimum(longer(found.arrival), longer(-found.rest))
    behind = {name: longer(ns) for name, ns in found.before.items()}
    behind["forward"] = np.where(found.after_forward, behind["forward"], 0)
    every = np.maximum(sum(behind.values()), 1.0)
    waits["wait_data"] = float((wait * behind["load"] / every).mean())
    waits["wait_host"] = float((wait * behind["other"] / every).mean())
    waits["wait_other"] += float(wait.mean()) - waits["wait_data"] - waits["wait_host"]
    # A rank waits in its forward pass where that begins with an exchange, as a broadcast.
    in_forward = np.where(found.after_forward, 0, np.minimum(wait, longer(-found.before["forward"])))
    stages["forward"] -= float(in_forward.mean())
    stages["backward"] -= float((wait - in_forward).mean())
    return stages | waits


def _parts_before_exchange(series: Series, steps: np.ndarray) -> dict[str, np.ndarray]:
    """:data:`PARTS` of each rank since the previous exchange of gradients; (ranks, steps), ns."""
    stages = series.rank_stages
    # What a clock's rounding takes from the whole is the update's.
    update = series.rank_ns - sum(stages[name] for name in ("other", "load", "forward", "backward"))
    # Nothing came before the very first step.
    before = {name: np.where(steps > 0, ns[:, np.maximum(steps - 1, 0)], 0)
              for name, ns in (("update", update), ("other", stages["other"]))}  # fmt: skip
    return before | {name: stages[name][:, steps] for name in ("load", "forward")}


def of_collectives(matched: Matched, series: Series | None) -> Lateness | None:
    """From the collectives of recorded steps that count; None if no group left one together.

    A step is judged by the collective at which the last rank was latest. Of several groups of a rank, the one
    whose last rank was latest counts. Without ``series`` no steps are known, and each collective stands for
    one.
    """
    if series is None:
        matched = replace(matched, calls=matched.calls.assign(step=matched.calls.groupby("place").cumcount()))
    together = matching.together(matched.shared)
    step = matched.calls["step"].to_numpy()
    found = []
    for group in together:
        counts = in_steps(step[group.calls[0]], series.counted if series else ALL.steps)
        if counts.any():
            found.append(_of_group(matched.calls, replace(group, calls=group.calls[:, counts])))
    if not found:
        return None
    every = pd.concat(found).sort_values("latest", ascending=False, kind="stable")
    widest = every.drop_duplicates(["place", "step"]).pivot(index="place", columns="step")
    widest = widest.reindex(range(len(matched.clocks))).fillna(0.0)
    late, behind = (widest[name].to_numpy() for name in ("late", "behind"))
    steps = widest["late"].columns.to_numpy()
    if series is None:
        parts = dict.fromkeys(PARTS, np.full(late.shape, np.nan))
        # The middle half of the time: a job may start slowly.
        span_ns = np.subtract(*np.percentile(matched.calls["left_ns"], [75, 25]))
        step_ns = 2 * float(span_ns) / len(steps)
    else:
        parts = {name: over_others(of) for name, of in _parts_before_exchange(series, steps).items()}
        step_ns = float(np.median(series.step_ns[steps]))
    # To within what nine of ten of a rank's ends agree with those of its groups.
    left, distance = matched.calls["left_ns"].to_numpy(), matched.calls["left_ns"] * np.nan
    for group in together:
        ends = left[group.calls]
        distance[group.calls.ravel()] = np.abs(ends - np.median(ends, axis=0)).ravel()
    within = distance.groupby(matched.calls["place"]).quantile(0.9)
    residual = within.reindex(range(len(matched.clocks))).fillna(0.0).to_numpy()
    return Lateness(BY_COLLECTIVES, steps, late, behind, parts, step_ns, residual)


def _of_group(calls: pd.DataFrame, group: Shared) -> pd.DataFrame:
    """A row a member and step of a group: by how much it was ``late`` and ``behind``, ns.

    Of each step by the collective whose last rank came latest, by ``latest``.
    """
    lasted = (calls["end_ns"] - calls["start_ns"]).to_numpy()[group.calls].astype(float)
    late = over_others(-lasted)
    chosen = pd.Series(late.max(axis=0)).groupby(calls["step"].to_numpy()[group.calls[0]]).idxmax()
    late = late[:, chosen]
    start = calls["entered_ns"].to_numpy()[group.calls[:, chosen]]
    return pd.DataFrame({
        "place": np.repeat(group.members, len(chosen)), "step": np.tile(chosen.index, len(group.members)),
        "late": late.ravel(), "behind": over_others(start - start.min(axis=0)).ravel(),
        "latest": np.tile(late.max(axis=0), len(group.members)),
    })  # fmt: skip


# --- chance -------------------------------------------------------------------------------------------

STRAGGLER, CHANCE, TOO_FEW, SHORT_WAIT, CLOCK, NO = (
    "straggler", "may be chance", "too few steps", "short wait", "clock", "no",
)  # fmt: skip

SIGNIFICANCE = 0.05  # for all ranks of a run together
FEWEST_STRETCHES = 4  # of independent steps: fewer show no repetition
DRAWS = 2000
_CORRELATION_TIMES = 3.0  # a stretch lasts
_LONGEST_PERIOD = 16  # steps: as many workers have few loaders
_PERIODIC = 3.0  # standard errors of a correlation, from which on late steps come at equal distances
_NEAR = 0.8  # of the largest correlation: a shorter period with this is the period
_MOST_DRAWN = 4_000_000  # elements of one portion of draws: bounds memory


def judge(lateness: Lateness, nodes: Sequence[str] = ()) -> tuple[np.ndarray, np.ndarray]:
    """Each rank's verdict, and its p-value (NaN where none was needed)."""
    of_nodes = list(pd.Series(nodes, dtype=object).groupby(np.array(nodes, object)).indices.values())
    by_node = len(of_nodes) > 1 and min(map(len, of_nodes)) > 1
    level = SIGNIFICANCE / (2 if by_node else 1)
    limit, late_ns = LATE_SHARE * lateness.step_ns, lateness.late_ns
    mean, behind, residual = late_ns.mean(axis=1), lateness.behind_ns.mean(axis=1), lateness.residual_ns
    p_values, late = _p_values(late_ns, limit, level), mean >= limit
    ranks, steps = late_ns.shape
    enough = _enough(ranks, steps, round(steps ** (1 / 3)), level)
    verdicts = np.select(
        [
            late & (residual >= mean),
            late & np.isnan(p_values),
            late & (p_values <= level),
            late,
            # A rank that waited for the others is not late, however badly its clock agrees with theirs.
            (behind < limit) & ((mean < 0) | (residual < limit)),
            # The ends of collectives show both: what only the clock shows is the clock's.
            (behind < limit) | ((lateness.measured_from == BY_COLLECTIVES) & (mean < behind / 2)),
        ],
        [CLOCK, TOO_FEW, STRAGGLER, CHANCE, NO if enough else TOO_FEW, CLOCK],
        SHORT_WAIT,
    )
    p_values[verdicts == CLOCK] = np.nan
    if by_node:
        each = _p_values(np.stack([late_ns[of_node].min(axis=0) for of_node in of_nodes]), limit, level)
        for of_node, p_value in zip(of_nodes, each, strict=True):
            if p_value <= level and not (verdicts[of_node] == CLOCK).any():
                verdicts[of_node], p_values[of_node] = STRAGGLER, p_value
    return verdicts, p_values


def _p_values(late_ns: np.ndarray, limit: float, level: float) -> np.ndarray:
    """Those of ranks, or nodes, that are late on average (units, steps); NaN: not late, or too few steps."""
    late = late_ns.mean(axis=1) >= limit
    if late.any():
        # One length for all that are tested: who is late more often must not be the one that may be chance.
        # The others do not count: the longest of 64 noisy estimates leaves too few stretches.
        length = int(stretches(late_ns)[late].max())
        if _enough(len(late), late_ns.shape[1], length, level):
            return np.where(late, chance(late_ns >= limit, length), np.nan)
    return np.full(len(late), np.nan)


def stretches(late_ns: np.ndarray) -> np.ndarray:
    """The number of steps over which each rank's lateness (ranks, steps) is correlated.

    Some correlation times: the ranks' mean, or the rank's if longer (short series show too little); at least
    n^(1/3). Where late steps come at equal distances, the time is that of sums from one to the next.
    """
    cycle = _period(late_ns)
    cycles = late_ns[:, : late_ns.shape[1] // cycle * cycle].reshape(len(late_ns), -1, cycle).sum(axis=2)
    of_ranks = cycle * np.array([estimates.correlation_time(values) for values in cycles])
    times = np.maximum(of_ranks, of_ranks.mean())
    return np.rint(np.maximum(_CORRELATION_TIMES * times, late_ns.shape[1] ** (1 / 3))).astype(int)


def _period(late_ns: np.ndarray) -> int:
    """Steps from one late step to the next where these come at equal distances; 1: they do not.

    Batches of a loader with four workers may come late each fourth step, on a rank by the same worker.
    """
    steps = late_ns.shape[1]
    longest = min(_LONGEST_PERIOD, steps // FEWEST_STRETCHES)
    if longest < 2:
        return 1
    order = np.argsort(np.argsort(late_ns.max(axis=0), kind="stable"), kind="stable") - (steps - 1) / 2
    alike = np.correlate(order, order, "full")[steps - 1 : steps + longest]
    most = alike[1:].max()
    first = int(np.argmax(alike[1:] >= _NEAR * most)) + 1
    return first if most > _PERIODIC / np.sqrt(steps) * alike[0] else 1


def _enough(units: int, steps: int, length: int, level: float) -> bool:
    """Whether so many steps can show that something repeats, in stretches of ``length``."""
    count = -(-steps // length)
    return count >= FEWEST_STRETCHES and units ** (1.0 - count) <= level


def chance(late: np.ndarray, length: int) -> np.ndarray:
    """The probability that *some* of equally fast ranks is ``late`` (ranks, steps) as often as each rank is.

    Equally fast ranks may exchange their names from one stretch of ``length`` steps to the next. Names are
    drawn anew in each draw, and the largest count of all ranks is compared (Westfall and Young,
    *Resampling-Based Multiple Testing*, 1993: the family of ranks errs at the level). At least 1 /
    (:data:`DRAWS` + 1).
    """
    count = late.sum(axis=1)
    blocks = np.add.reduceat(late, np.arange(0, late.shape[1], length), axis=1, dtype=np.int32).T
    blocks = blocks[blocks.any(axis=1)]
    if not len(blocks):
        return np.ones(len(late))
    generator = np.random.default_rng(estimates.SEED)
    largest = []
    portion = max(1, _MOST_DRAWN // blocks.size)
    for first in range(0, DRAWS, portion):
        drawn = np.broadcast_to(blocks, (min(portion, DRAWS - first), *blocks.shape))
        largest.append(generator.permuted(drawn, axis=2).sum(axis=1).max(axis=1))
    as_often = (np.concatenate(largest)[None, :] >= count[:, None]).sum(axis=1)
    return (1 + as_often) / (1 + DRAWS)
