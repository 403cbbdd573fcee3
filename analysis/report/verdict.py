"""What do the figures say, in words? Each sentence follows a rule with a threshold, and names its evidence.

A rule that has not enough data says so; none guesses. What costs scaling is the answer of causes.py.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.display.metrics import Rows
from analysis.display.numbers import digits
from analysis.measures.scaling.certainty import (
    LEAST_PCT,
    LIMITING_SHARE,
    half_width_pct,
    is_unsure,
    leading,
    least_pct,
    lost_pct,
    too_few_runs,
)
from analysis.measures.scaling.figures import above_ideal
from analysis.measures.scaling.loss import UNATTRIBUTED_SHARE, other_steps
from analysis.measures.scaling.points import NO_SAMPLES, point_names
from analysis.prediction.configurations import CONFIGURATION
from analysis.report.advice import (
    CAUSES,
    FASTER,
    HALVED,
    LIMITED_BY,
    against,
    held_up,
    key_of,
    name_of,
    perhaps,
)
from analysis.report.causes import (
    LATE_RANKS,
    Cause,
    Late,
    gains,
    late_ranks,
    limit_of_transfer,
    lowest_of,
    of_loss,
    suspected,
)
from analysis.report.forecast import forecast, was_measured
from analysis.report.ideal import efficiency_of, is_strong, share_of_ideal, superlinear, unrepeated
from analysis.report.measured import measured_gain
from analysis.report.sentences import Sentence, number, ranks_in_words, with_ends
from jobs.run_fields import own_names


def verdict(
    points: Rows,
    names: Sequence[str],
    predicted: Rows | None = None,
    late: Rows | None = None,
) -> list[Sentence]:
    """How it scales, what limits it, who holds up the others, what to try.

    Args:
        points: rows of ``analysis.scaled`` for runs of our own, a configuration and world size each.
        names: what each is called, in the same order.
        predicted: rows of ``analysis.predict`` with what-ifs, where steps were simulated.
        late: rows of ``analysis.stragglers`` of the runs of most ranks, with their run's ``id`` and fields.
    """
    called = [{**row, "called": name} for row, name in zip(points, names, strict=True)]
    if not called:
        return [Sentence("Not enough data to say how training scales: no run can be used.", "left-out")]
    if not has_scaled(called):
        return [
            *_rate(called),
            Sentence(f"Not enough data to say how training scales: {unscaled(called)}.", "table"),
            *held_up(late_ranks(late or [])),
        ]
    scaled = [row for row in called if row["world_size"] != row["base_world_size"]]
    best, worst, judged = leading(scaled)
    of_runs = _of_point(late or [], judged)
    here = late_ranks(of_runs)
    first, why = _why(called, judged, here, gains(judged, predicted or [], CONFIGURATION))
    if any(sentence.cause in ("waits", "communication") for sentence in why):
        why += perhaps(*suspected(of_runs))
    others = [] if here else held_up(late_ranks(late or []))
    # Who reads one sentence has to know that the figure in the next one says little.
    unsure = too_few_runs(scaled)
    return [
        *first,
        *([Sentence(unsure, "scaling")] if unsure else []),
        share_of_ideal(best, worst),
        *unrepeated(best, worst),
        *superlinear(scaled),
        *(_on_fewer(judged) if judged is not worst else []),
        *why,
        *others,
        *measured_gain(judged, called),
        *forecast(predicted or [], called),
    ]


def _too_little(row: dict[str, Any], late: bool) -> str:
    """That too little is lost to say why; that nothing limits scaling only where next to nothing is.

    Args:
        late: a late rank was said to hold up the job.
    """
    if lost_pct(row) < LEAST_PCT:
        answer = f"Nothing {'else ' if late else ''}limits scaling yet"
    else:
        answer = f"No {'other ' if late else ''}cause can be identified"
    repeated = np.isfinite(half_width_pct(row))
    return (
        f"{answer}: {max(lost_pct(row), 0):.1f} percentage points are lost, and less than "
        f"{least_pct(row):.1f} cannot be resolved "
        f"{'given the spread between identical runs' if repeated else 'without repetitions'}."
    )


def _of_point(late: Rows, row: dict[str, Any]) -> Rows:
    """The rows of the runs of a point."""
    names = (*CONFIGURATION, *own_names(row), "nodes", "gpus_per_node")
    return [
        one for one in late if all(str(one.get(name, row.get(name))) == str(row.get(name)) for name in names)
    ]


def has_scaled(points: Rows) -> bool:
    """Whether a point is compared with one of fewer ranks."""
    return any(row["world_size"] != row["base_world_size"] for row in points)


def unscaled(points: Rows) -> str:
    """Why no configuration has a baseline, in words."""
    if any(np.isnan(row["images_per_s"]) for row in points):
        return NO_SAMPLES
    if len({row["world_size"] for row in points}) == 1:
        return "only one world size was measured"
    return "no configuration was measured at two world sizes with the same per-rank or global batch size"


def fastest(points: Rows) -> dict[str, Any] | None:
    """The configuration of most images/s; None where samples are unknown of all."""
    known = [row for row in points if not np.isnan(row["images_per_s"])]
    return max(known, key=lambda row: row["images_per_s"], default=None)


def _rate(called: Rows) -> list[Sentence]:
    best = fastest(called)
    if best is None:
        return []
    rate = digits(best["images_per_s"], 3)
    text = (
        f"Fastest configuration: {rate} images/s on {ranks_in_words(best['world_size'])} ({best['called']})."
    )
    return [Sentence(text, "table")]


def _on_fewer(row: dict[str, Any]) -> list[Sentence]:
    """What is lost on fewer ranks than the most, where these lose next to nothing."""
    if lost_pct(row) < least_pct(row):
        return []
    ranks = ranks_in_words(row["world_size"])
    text = f"The lowest scaling efficiency is on {ranks}: {efficiency_of(row)} ({row['called']})."
    return [Sentence(text, "scaling")]


# --- why ------------------------------------------------------------------------------------------------


def _why(
    called: Rows, row: dict[str, Any], late: Late | None, gained: dict[str, Any]
) -> tuple[list[Sentence], list[Sentence]]:
    """(what comes first of all: the late ranks, if they are the cause; what else is said of causes)."""
    of_late = held_up(late)
    if is_unsure(row):
        return [], of_late  # said before all else
    if lost_pct(row) < least_pct(row):
        # A rank that is late in the baseline, too, costs the job much and its scaling nothing.
        first = of_late if late and late.share_pct >= least_pct(row) else []
        if above_ideal(row):  # said already; what a disturbed baseline hides may well limit it
            return first, [] if first else of_late
        return first, [Sentence(_too_little(row, bool(first)), "scaling"), *([] if first else of_late)]
    base, rest = _base_of(called, row), number(row, "loss_unattributed_pct")
    differ = other_steps(row)
    unknown = base is None or np.isnan(rest) or differ or abs(rest) > UNATTRIBUTED_SHARE * row["loss_pct"]
    if unknown and late and late.share_pct >= UNATTRIBUTED_SHARE * lost_pct(row):
        return of_late, []  # half of the loss is enough to call it the cause
    if base is None or np.isnan(rest):
        return [], [*_from_stages(base, row), *of_late]
    if unknown:
        why = f", and profiled and unprofiled runs disagree by {abs(rest):.0f}"
        if differ:
            why = f". Do not use their parts: {differ}"
        text = (
            f"Not enough data to say what limits scaling: {row['loss_pct']:.0f} percentage points are lost"
            f"{why}. Repeat the profiled runs of this configuration and of its baseline."
        )
        return [], [Sentence(text, "loss"), *of_late]
    # What was measured in the same sweep needs no simulation: the figures say what it gives.
    new = {name: one for name, one in gained.items() if not was_measured(one, called)}
    halved = any(point.get("grad", "fp32") != "fp32" and point["world_size"] > 1 for point in called)
    without = [*([HALVED] if halved else []), *([FASTER] if row.get("nodes") == 1 else [])]
    return _from_parts(base, row, late, new, without)


def _from_parts(
    base: dict[str, Any],
    row: dict[str, Any],
    late: Late | None,
    gained: dict[str, Any],
    without: Sequence[str],
) -> tuple[list[Sentence], list[Sentence]]:
    """The causes by the parts of the loss and the lateness of ranks: the first, and the next if large."""
    lost, rest, of_late = row["loss_pct"], row["loss_unattributed_pct"], held_up(late)
    causes = of_loss(row, late)
    least = max(least_pct(row), LIMITING_SHARE * lost)
    large = [cause for cause in causes if cause.cost_pct >= least]
    certain = [cause for cause in large if lowest_of(row, cause) > 0][:2]
    if not large:
        words = _words(causes[0], row, late, gained)[1]
        text = (
            f"No single part of the step limits scaling: of {lost:.0f} percentage points lost, the largest "
            f"part ({words}) costs {causes[0].cost_pct:.1f}."
        )
        return [], [Sentence(text, "loss"), *of_late]
    uncertain = [cause for cause in large if cause not in certain]
    if not certain:
        return [], [
            Sentence(f"{_longer(base, row)} {_uncertain(uncertain, row, late, gained)}", "loss"),
            *of_late,
        ]
    unknown = f" Profiled runs leave {rest:.0f} points unexplained." if rest > certain[0].cost_pct else ""
    sentences: list[Sentence] = []
    for cause in certain:
        key, words = _words(cause, row, late, gained)
        points = _points(row, cause, late)
        text = f"Second cause: {words}, {points} percentage points."
        if not sentences:
            more = _why_more(cause.cost_pct - lost, rest)
            text = (
                f"{_longer(base, row)} Largest cause: {words}, {points} of {lost:.1f} percentage points "
                f"lost{more}.{LIMITED_BY.get(key, '')}{unknown}"
            )
        sentences.append(Sentence(text, "loss", key))
        sentences += [] if cause.kind == LATE_RANKS else against(key, gained, without)
    if uncertain and large.index(uncertain[0]) < large.index(certain[-1]):
        sentences.append(Sentence(_uncertain(uncertain[:1], row, late, gained), "loss"))
    return (of_late, sentences) if certain[0].kind == LATE_RANKS else ([], [*sentences, *of_late])


def _uncertain(
    causes: Sequence[Cause], row: dict[str, Any], late: Late | None, gained: dict[str, Any]
) -> str:
    """That parts of the loss may be none, since their intervals hold zero."""
    named = [f"{_words(cause, row, late, gained)[1]}, {_points(row, cause, late)}" for cause in causes[:2]]
    return (
        f"Not distinguishable from zero (percentage points): {'; '.join(named)}. Record more steps (batches, "
        "attribute_from) or repeat the profiled runs."
    )


def _why_more(over_pct: float, rest_pct: float) -> str:
    """Why a part costs more than all that was lost, by so many points; empty: it does not."""
    if over_pct <= 0:
        return ""
    # Parts are of profiled batches, the loss is of unprofiled ones.
    grew = rest_pct < -over_pct / 2
    return f" ({'steps grew more under the profiler than without it' if grew else 'other parts shrank'})"


def _points(row: dict[str, Any], cause: Cause, late: Late | None) -> str:
    """What a cause costs, with the interval of its part where nothing was taken off it."""
    if late or cause.kind == LATE_RANKS:
        return f"{cause.cost_pct:.1f}"
    return with_ends(row, f"loss_{cause.kind}_pct", decimals=1)


def _words(cause: Cause, row: dict[str, Any], late: Late | None, gained: dict[str, Any]) -> tuple[str, str]:
    """(a cause's key, what it is called)."""
    if cause.kind == LATE_RANKS and late:
        return key_of(late), f"waiting for {name_of(late)}"
    key, words = CAUSES[cause.kind]
    if key == "computing" and is_strong(row):
        return "small batch", "computation with fewer images per rank"
    if key == "transfer":
        return limit_of_transfer(cause.cost_pct, gained) or key, words
    return key, words


# --- without profiled runs of both points -------------------------------------------------------------------


def _from_stages(base: dict[str, Any] | None, row: dict[str, Any]) -> list[Sentence]:
    """The cause without profiled runs of both: every rank's batches hold its wait for the loader."""
    lost_ms = row["batch_ms"] - _ideal_ms(base, row, "batch_ms") if base else 0.0
    grown_ms = number(row, "load_ms") - _ideal_ms(base, row, "load_ms") if base else 0.0
    if base is None or not grown_ms >= LIMITING_SHARE * lost_ms:
        why = row.get("loss_note") or "its baseline is not among the results"
        text = f"Not enough data to say what limits scaling: {why}. Data loading is not the main cause."
        return [Sentence(text, "stages")]
    text = (
        f"{_longer(base, row)} Data loading grew by {grown_ms:.0f} ms; without profiled runs no other cause "
        "can be identified."
    )
    return [Sentence(text, "stages", "loader"), *against("loader", {})]


def _longer(base: dict[str, Any], row: dict[str, Any]) -> str:
    """``A batch takes 160 ms on 4 ranks (dali-cpu), 60 ms longer than on 1 rank (100 ms).``"""
    ideal_ms, than = _ideal_ms(base, row, "batch_ms"), f"on {ranks_in_words(base['world_size'])}"
    if is_strong(row):
        than = f"with ideal scaling from {ranks_in_words(base['world_size'])}"
    return (
        f"A step takes {row['batch_ms']:.0f} ms on {ranks_in_words(row['world_size'])} ({row['called']}), "
        f"{row['batch_ms'] - ideal_ms:.0f} ms longer than {than} ({ideal_ms:.0f} ms)."
    )


def _ideal_ms(base: dict[str, Any], row: dict[str, Any], name: str) -> float:
    """What the baseline's duration would be: where the global batch size is fixed, ranks share it."""
    share = base["world_size"] / row["world_size"] if is_strong(row) else 1.0
    return share * number(base, name)


def _base_of(called: Rows, row: dict[str, Any]) -> dict[str, Any] | None:
    """The baseline's row; the precision of gradients does not matter there if it is one rank."""
    # The batch of a rank, or the job's.
    batch = {"batch"} if is_strong(row) else set()
    alike = [name for name in point_names(row) if name not in {"nodes", "gpus_per_node", "grad"} | batch]
    bases = [
        other
        for other in called
        if other["world_size"] == row["base_world_size"]
        and all(other.get(name) == row.get(name) for name in alike)
        and all(other[name] * other["world_size"] == row[name] * row["world_size"] for name in batch)
    ]
    return min(bases, key=lambda other: other["grad"] != row["grad"], default=None)
