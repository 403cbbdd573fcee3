"""What do the figures say, in words, and in which order? Why scaling is lost is the answer of why.py.

Each sentence follows a rule with a threshold, and names its evidence; a rule without enough data says so.
"""

import math
from collections.abc import Sequence
from typing import Any

from analysis.display.metrics import Rows
from analysis.display.numbers import digits, span
from analysis.measures.scaling.certainty import (
    leading,
    least_pct,
    lost_pct,
    uncertain,
    without_unusable_intervals,
)
from analysis.measures.scaling.point import NO_SAMPLES
from analysis.prediction.configurations import CONFIGURATION
from analysis.report.advice import held_up, perhaps
from analysis.report.causes import gains, late_ranks, suspected
from analysis.report.forecast import forecast
from analysis.report.ideal import efficiency_of, of_other_baselines, share_of_ideal, superlinear, unrepeated
from analysis.report.measured import measured_gain
from analysis.report.sentences import TRY, Sentence, number, ranks_in_words
from analysis.report.why import why
from jobs.run_fields import own_names


def verdict(
    points: Rows,
    names: Sequence[str],
    predicted: Rows | None = None,
    late: Rows | None = None,
    among: Rows | None = None,
) -> list[Sentence]:
    """How it scales, what limits it, who holds up the others, what to try.

    Args:
        points: rows of ``analysis.scaled`` for runs of our own, a configuration and world size each.
        names: what each is called, in the same order.
        predicted: rows of ``analysis.predict`` with what-ifs, where steps were simulated.
        late: rows of ``analysis.stragglers`` of the runs of most ranks, with their ``run`` and fields.
        among: rows with all baselines, where ``points`` are only some of them.
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
    gained, doubted = gains(judged, predicted or [], CONFIGURATION), suspected(of_runs)
    first, causes = why(called, among or points, judged, here, gained, bool(doubted[0]))
    if any(sentence.cause in ("waits", "communication") for sentence in causes):
        causes += perhaps(*doubted)
    others = [] if here else held_up(late_ranks(late or []))
    # Who reads one sentence has to know that the figure in the next one says little. It is of the table,
    # whose intervals show it: the section of scaling has the figure for its finding.
    unsure = ", ".join(map(str, uncertain(scaled)))
    return [
        *first,
        *([Sentence(unsure, "table")] if unsure else []),
        share_of_ideal(best, worst, named=len({row["called"] for row in scaled}) > 1),
        *of_other_baselines(scaled, best),
        *unrepeated(best, worst),
        *superlinear(scaled),
        *(_on_fewer(judged) if judged["world_size"] < worst["world_size"] else []),
        *_measured_first(causes, measured_gain(judged, called)),
        *others,
        *forecast(predicted or [], called),
    ]


def _measured_first(causes: Sequence[Sentence], measured: Sequence[Sentence]) -> list[Sentence]:
    """What runs show to be faster comes before what was only simulated, or only might help."""
    first = next((place for place, one in enumerate(causes) if one.question == TRY), len(causes))
    return [*causes[:first], *measured, *causes[first:]]


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
    if any(math.isnan(row["images_per_s"]) for row in points):
        return NO_SAMPLES
    if len({row["world_size"] for row in points}) == 1:
        return "there is only one world size"
    return "no configuration was measured at two world sizes with the same per-rank or global batch size"


def fastest(points: Rows) -> dict[str, Any] | None:
    """The configuration of most images/s; None where samples are unknown of all."""
    known = [row for row in points if not math.isnan(row["images_per_s"])]
    return max(known, key=lambda row: row["images_per_s"], default=None)


def _rate(called: Rows) -> list[Sentence]:
    best = fastest(called)
    if best is None:
        return []
    shown = without_unusable_intervals(best)
    low, high = number(shown, "images_per_s_low"), number(shown, "images_per_s_high")
    interval = ""
    if math.isfinite(high - low):
        # One is the fastest for certain where no other reaches its interval.
        others = [number(row, "images_per_s_high") for row in called if row is not best]
        as_fast = ", within that of others" if any(other >= low for other in others) else ""
        interval = f"; 95 % confidence interval {span(digits(low, 3), digits(high, 3))}{as_fast}"
    text = (
        f"Fastest configuration: {digits(best['images_per_s'], 3)} images/s on "
        f"{ranks_in_words(best['world_size'])} ({best['called']}{interval})."
    )
    return [Sentence(text, "table")]


def _on_fewer(row: dict[str, Any]) -> list[Sentence]:
    """What is lost on fewer ranks than the most, where these lose next to nothing."""
    if lost_pct(row) < least_pct(row):
        return []
    ranks = ranks_in_words(row["world_size"])
    text = f"The lowest scaling efficiency is on {ranks}: {efficiency_of(row)} ({row['called']})."
    return [Sentence(text, "scaling")]
