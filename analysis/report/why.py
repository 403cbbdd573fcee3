"""Why does a configuration lose scaling efficiency? Its causes in sentences, the largest first.

Each sentence follows a rule with a threshold; a rule that has not enough data says so.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from analysis.display.metrics import Rows
from analysis.display.numbers import digits
from analysis.measures.scaling.certainty import (
    LEAST_PCT,
    LIMITING_SHARE,
    half_width_pct,
    is_unsure,
    least_pct,
    lost_pct,
)
from analysis.measures.scaling.figures import above_ideal
from analysis.measures.scaling.loss import UNATTRIBUTED_SHARE, other_steps
from analysis.measures.scaling.point import base_of, point_names
from analysis.report.advice import (
    CAUSES,
    FASTER,
    HALVED,
    LARGER,
    LIMITED_BY,
    SMALLER,
    against,
    held_up,
    key_of,
    name_of,
)
from analysis.report.causes import LATE_RANKS, Cause, Late, limit_of_transfer, lowest_of, of_loss
from analysis.report.forecast import was_measured
from analysis.report.ideal import is_strong
from analysis.report.measured import only_difference
from analysis.report.sentences import Sentence, number, ranks_in_words, which_of, with_ends

_TOO_FEW_STEPS = (
    " What it costs has no confidence interval, because too few steps were profiled (batches, "
    "attribute_from)."
)
_WITHIN = "within the profiled runs"
_LONG_MS = 10.0  # steps from which on milliseconds have no decimals

Answer = tuple[list[Sentence], list[Sentence]]
"""What comes first of all, before how it scales: the late ranks, if they are the cause; then all else."""


def why(
    called: Rows,
    among: Rows,
    row: dict[str, Any],
    late: Late | None,
    gained: Mapping[str, Any],
    doubted: bool = False,
) -> Answer:
    """What costs a configuration its scaling.

    Args:
        called: rows of ``analysis.scaled``, each with what it is ``called``.
        among: the same, and the baselines of all of them.
        row: the one of them that is explained.
        late: the ranks that are late in its runs.
        gained: of :func:`analysis.report.causes.gains`, of the same configuration.
        doubted: others may be late (:func:`analysis.report.causes.suspected`).
    """
    where = which_of(called, row)
    of_late = held_up(late, where)
    if is_unsure(row):
        return [], of_late  # said before all else
    if lost_pct(row) < least_pct(row):
        # A rank that is late in the baseline, too, costs the job much and its scaling nothing.
        first = of_late if late and late.share_pct >= least_pct(row) else []
        if above_ideal(row):  # said already; what a disturbed baseline hides may well limit it
            return first, [] if first else of_late
        return first, [Sentence(_too_little(row, where, bool(first)), "scaling"), *([] if first else of_late)]
    base, rest = _base_of(among, row), number(row, "loss_unattributed_pct")
    differ = other_steps(row)
    unknown = base is None or math.isnan(rest) or differ or abs(rest) > UNATTRIBUTED_SHARE * row["loss_pct"]
    if unknown and late and late.share_pct >= UNATTRIBUTED_SHARE * lost_pct(row):
        return of_late, []  # half of the loss is enough to call it the cause
    if base is None or math.isnan(rest):
        return [], [*_from_stages(base, row, where), *of_late]
    if unknown:
        reason = f", and profiled and unprofiled runs disagree by {abs(rest):.0f}"
        if differ:
            reason = f". Do not use their parts: {differ}"
        text = (
            f"Not enough data to say what limits scaling: {row['loss_pct']:.0f} percentage points are lost"
            f"{where}{reason}. Repeat the profiled runs of this configuration and of its baseline."
        )
        return [], [Sentence(text, "loss"), *of_late]
    # What was measured in the same sweep needs no simulation: the figures say what it gives.
    new = {name: one for name, one in gained.items() if not was_measured(one, called)}
    halved = any(point.get("grad", "fp32") != "fp32" and point["world_size"] > 1 for point in called)
    buckets = [one["bucket_mb"] for one in called if only_difference(row, one) == "bucket_mb"]
    own = number(row, "bucket_mb")
    unfit = ((HALVED, halved), (FASTER, row.get("nodes") == 1), (LARGER, any(one > own for one in buckets)),
             (SMALLER, any(one < own for one in buckets)))  # fmt: skip
    without = [words for words, is_unfit in unfit if is_unfit]
    return _from_parts(Loss(row, base, where, late, new, without, doubted))


def _too_little(row: dict[str, Any], where: str, late: bool) -> str:
    """That too little is lost to say why; that nothing limits scaling only where next to nothing is.

    Args:
        where: of :func:`which_of`.
        late: a late rank was said to hold up the job.
    """
    if lost_pct(row) < LEAST_PCT:
        answer = f"Nothing {'else ' if late else ''}limits scaling yet"
    else:
        answer = f"No {'other ' if late else ''}cause can be identified"
    repeated = math.isfinite(half_width_pct(row))
    lost = f"{lost_pct(row):.1f}" if lost_pct(row) > 0 else "no"
    return (
        f"{answer}: {lost} percentage points are lost{where}, and less than "
        f"{least_pct(row):.1f} cannot be resolved "
        f"{'given the spread between identical runs' if repeated else 'without repetitions'}."
    )


# --- by the parts of the loss ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Loss:
    """A loss whose parts are known.

    Attributes:
        row, base: the configuration's row, and its baseline's.
        where: which it is, of :func:`which_of`.
        late: the ranks that are late in its runs.
        gained: what-ifs that were simulated and not measured, as of :func:`why`.
        without: of the advice, what does not fit here (:func:`analysis.report.advice.against`).
        doubted: a rank that may be late is no straggler, nor is it known to be none.
    """

    row: dict[str, Any]
    base: dict[str, Any]
    where: str
    late: Late | None
    gained: Mapping[str, Any]
    without: Sequence[str]
    doubted: bool = False

    def named(self, cause: Cause) -> tuple[str, str]:
        """(a cause's key of :attr:`Sentence.cause`, what it is called)."""
        if cause.kind == LATE_RANKS and self.late:
            return key_of(self.late), f"waiting for {name_of(self.late)}"
        key, words = CAUSES[cause.kind]
        if key == "computing" and is_strong(self.row):
            return "small batch", "computation with fewer images per rank"
        if key == "waits" and self.doubted:
            return key, "waiting for other ranks"
        if key == "transfer":
            return limit_of_transfer(cause.cost_pct, self.gained) or key, words
        return key, words

    def points(self, cause: Cause) -> str:
        """What a cause costs, percentage points; with its interval where no late rank was taken off it.

        Other brackets of the opening hold differences between runs. These do not, and say so.
        """
        if self.late or cause.kind == LATE_RANKS:
            return f"{cause.cost_pct:.1f}"
        return with_ends(self.row, f"loss_{cause.kind}_pct", decimals=1).replace("]", f" {_WITHIN}]")


def _from_parts(loss: Loss) -> Answer:
    """The causes by the parts of the loss and the lateness of ranks: the first, and the next if large."""
    lost, of_late = loss.row["loss_pct"], held_up(loss.late)
    causes = of_loss(loss.row, loss.late)
    least = max(least_pct(loss.row), LIMITING_SHARE * lost)
    large = [cause for cause in causes if cause.cost_pct >= least]
    if not large:
        text = (
            f"No single part of the step limits scaling: of {lost:.0f} percentage points lost{loss.where}, "
            f"the largest part ({loss.named(causes[0])[1]}) costs {causes[0].cost_pct:.1f}."
        )
        return [], [Sentence(text, "loss"), *of_late]
    certain = [cause for cause in large if lowest_of(loss.row, cause) > 0][:2]
    uncertain = [cause for cause in large if cause not in certain]
    if not certain:
        text = f"{_longer(loss.base, loss.row)} {_uncertain(loss, uncertain)}"
        return [], [Sentence(text, "loss"), *of_late]
    sentences: list[Sentence] = []
    for cause in certain:
        key, words = loss.named(cause)
        # What may be none and may be more than this does not make this the largest.
        which = "certain cause" if uncertain and uncertain[0].cost_pct > cause.cost_pct else "cause"
        second = f"Second {which}: {words}, {loss.points(cause)} percentage points."
        sentences.append(Sentence(second if sentences else _largest(loss, cause, which), "loss", key))
        sentences += [] if cause.kind == LATE_RANKS else against(key, loss.gained, loss.without)
    if uncertain and large.index(uncertain[0]) < large.index(certain[-1]):
        sentences.append(Sentence(_uncertain(loss, uncertain[:1]), "loss"))
    return (of_late, sentences) if certain[0].kind == LATE_RANKS else ([], [*sentences, *of_late])


def _largest(loss: Loss, cause: Cause, which: str) -> str:
    """The cause that costs most, of those that it is the largest of; and what of the loss has none."""
    lost, rest = loss.row["loss_pct"], loss.row["loss_unattributed_pct"]
    key, words = loss.named(cause)
    unknown = f" Profiled runs leave {rest:.0f} points unexplained." if rest > cause.cost_pct else ""
    of_parts = cause.kind != LATE_RANKS  # those have an interval, where enough steps were recorded
    few = _TOO_FEW_STEPS if of_parts and math.isinf(lowest_of(loss.row, cause)) else ""
    return (
        f"{_longer(loss.base, loss.row)} Largest {which}: {words}, {loss.points(cause)} "
        f"{_of_all(cause.cost_pct, lost, rest)}{LIMITED_BY.get(key, '')}{unknown}{few}"
    )


def _of_all(cost_pct: float, lost_pct: float, rest_pct: float) -> str:
    """``of 37.5 percentage points lost.``; of a part that costs more than was lost in all, why."""
    if f"{cost_pct:.1f}" == f"{lost_pct:.1f}" or cost_pct < lost_pct:
        return f"of {lost_pct:.1f} percentage points lost."
    # Parts are of profiled batches, the loss is of unprofiled ones.
    grew = rest_pct < (lost_pct - cost_pct) / 2
    why = "steps grew more under the profiler than without it" if grew else "other parts shrank"
    return f"percentage points. That is more than the {lost_pct:.1f} lost in all, since {why}."


def _uncertain(loss: Loss, causes: Sequence[Cause]) -> str:
    """That parts of the loss may be none, since their intervals hold zero."""
    named = [f"{loss.named(cause)[1]}, {loss.points(cause)}" for cause in causes[:2]]
    return (
        f"Not distinguishable from zero (percentage points): {'; '.join(named)}. Record more steps (batches, "
        "attribute_from) or repeat the profiled runs."
    )


# --- without profiled runs of both points -------------------------------------------------------------------


def _from_stages(base: dict[str, Any] | None, row: dict[str, Any], where: str) -> list[Sentence]:
    """The cause without profiled runs of both: every rank's batches hold its wait for the loader."""
    lost_ms = row["step_ms"] - _ideal_ms(base, row, "step_ms") if base else math.nan
    grown_ms = number(row, "load_ms") - _ideal_ms(base, row, "load_ms") if base else math.nan
    in_long = base is not None and _in_long_steps(base, row)
    if base is not None and not in_long and grown_ms >= LIMITING_SHARE * lost_ms:
        text = (
            f"{_longer(base, row)} Data loading grew by {_ms(grown_ms, row)} ms; without profiled runs no "
            "other cause can be identified."
        )
        return [Sentence(text, "stages", "loader"), *against("loader", {})]
    reason = row.get("loss_note") or "its baseline is not among the results"
    also = "" if math.isnan(grown_ms) else " Data loading is not the main cause."
    if base is not None and in_long:
        also = f" {_longer(base, row)}"  # nor do medians of stages tell what the long ones waited for
    text = f"Not enough data to say what limits scaling{where}: {reason}.{also}"
    return [Sentence(text, "stages")]


def _longer(base: dict[str, Any], row: dict[str, Any]) -> str:
    """``A step takes 160 ms on 4 ranks (dali-cpu), 60 ms longer than on 1 rank (100 ms).``"""
    ideal_ms, than = _ideal_ms(base, row, "step_ms"), f"on {ranks_in_words(base['world_size'])}"
    if is_strong(row):
        than = f"with ideal scaling from {ranks_in_words(base['world_size'])}"
    took, on = _ms(row["step_ms"], row), f"on {ranks_in_words(row['world_size'])} ({row['called']})"
    ideal = _ms(ideal_ms, row)
    if _in_long_steps(base, row):
        return (
            f"The median step takes {took} ms {on}, and {ideal} ms {than}: most of the loss is in the steps "
            "that take longer than the median (p95_ms and max_ms of analysis.scaled)."
        )
    grown = _ms(row["step_ms"] - ideal_ms, row)
    return f"A step takes {took} ms {on}, {grown} ms longer than {than} ({ideal} ms)."


def _in_long_steps(base: dict[str, Any], row: dict[str, Any]) -> bool:
    """Whether the median step shows little of a loss, which is that of the mean step."""
    grown_ms = row["step_ms"] - _ideal_ms(base, row, "step_ms")
    return bool(grown_ms < LIMITING_SHARE * lost_pct(row) / 100 * row["step_ms"])


def _ms(milliseconds: float, row: dict[str, Any]) -> str:
    """A duration beside a configuration's step: whole milliseconds, more digits where steps are short."""
    return f"{milliseconds:.0f}" if row["step_ms"] >= _LONG_MS else digits(milliseconds, 3)


def _ideal_ms(base: dict[str, Any], row: dict[str, Any], name: str) -> float:
    """What the baseline's duration would be: where the global batch size is fixed, ranks share it."""
    share = base["world_size"] / row["world_size"] if is_strong(row) else 1.0
    return share * number(base, name)


def _base_of(among: Rows, row: dict[str, Any]) -> dict[str, Any] | None:
    """The row of the baseline; None: it is not among them."""
    names = point_names(*among)
    every = [{name: one.get(name) for name in names} for one in among]
    own = every.index({name: row.get(name) for name in names})
    base = among[base_of(own, every, row.get("scaling", "weak"))]
    return base if base["world_size"] == row["base_world_size"] else None
