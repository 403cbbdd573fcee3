"""How sure are the figures of analysis.scaled? Which intervals are usable, and do runs differ too much?"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from analysis.display.metrics import CONFIDENCE, Rows
from analysis.display.naming import names_apart
from analysis.display.open_ends import OPEN, WIDEST_FACTOR, has_open_interval, is_usable, with_open_ends
from analysis.measures.scaling import figures, use
from analysis.measures.scaling.point import UNPROFILED
from jobs.run_fields import APART
from profiling.wording import noun

# A scaling efficiency whose interval is wider than this (percentage points) explains nothing yet.
WIDEST_INTERVAL_PCT = 40.0
# What costs less than this of a batch (percentage points) is not worth a sentence ...
LEAST_PCT = 2.5
# ... or than this where points ran once, so that nobody knows how much runs differ.
LEAST_UNREPEATED_PCT = 5.0
# What makes up less than this share of what is lost is not what limits scaling.
LIMITING_SHARE = 0.25

_Row = TypeVar("_Row", bound=Mapping[str, Any])
_EFFICIENCY, _LOSS = "scaling_efficiency_pct", "loss_pct"
# All are above 0 but what is lost, which is as sure as the efficiency that it is the rest of.
_POSITIVE = tuple(
    metric.name
    for metric in (*figures.METRICS, *use.METRICS)
    if metric.interval == CONFIDENCE and metric.name != _LOSS
)


# --- intervals that are shown ---------------------------------------------------------------------------


def without_unusable_intervals(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of analysis.scaled as tables, charts and sentences show it; data keep the row itself.

    The ends of an interval that is not usable are :data:`OPEN`.
    """
    shown = with_open_ends(row, _POSITIVE)
    if not is_usable(row, _EFFICIENCY) and _LOSS in row:
        shown[f"{_LOSS}_low"], shown[f"{_LOSS}_high"] = OPEN
    return shown


def open_intervals(shown: Rows) -> list[str]:
    """The line that explains ``[?]`` below a table; nothing where no row has it.

    Args:
        shown: of :func:`without_unusable_intervals`.
    """
    rows = [row for row in shown if has_open_interval(row)]
    if not rows:
        return []
    counts = sorted({int(row["runs"]) for row in rows if row.get("runs")})
    runs = f" ({' or '.join(map(str, counts))} {noun(counts[-1], 'run')})" if counts else ""
    return [
        f"[?]: no usable interval{runs}. Runs differ so much that the true value may be "
        f"{WIDEST_FACTOR:g} times as high or as low: repeat the runs."
    ]


# --- whether runs differ too much ------------------------------------------------------------------------


def lost_pct(row: Mapping[str, Any]) -> float:
    """Percentage points that are lost to scaling."""
    return 100 - float(row[_EFFICIENCY])


def half_width_pct(row: Mapping[str, Any]) -> float:
    """Of the interval of the scaling efficiency, percentage points; NaN without one."""
    low, high = row.get(f"{_EFFICIENCY}_low"), row.get(f"{_EFFICIENCY}_high")
    return math.nan if low is None or high is None else (float(high) - float(low)) / 2


def least_pct(row: Mapping[str, Any]) -> float:
    """Percentage points from which on a loss, or a part of it, exceeds the spread between identical runs."""
    half = half_width_pct(row)
    return LEAST_UNREPEATED_PCT if math.isnan(half) else max(LEAST_PCT, half)


def leading(scaled: Rows) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """(the best and the worst configuration on the most ranks, the one whose loss is to be explained).

    The most ranks matter most; what is lost on fewer only is still lost. What a profiler slowed down is not
    compared with what it did not, where there are unprofiled runs of as many ranks. Best and worst have
    baselines of as many ranks, the fewest (:func:`of_one_baseline`).

    Args:
        scaled: one or more rows of configurations that are compared with one of fewer ranks.
    """
    largest = max(row["world_size"] for row in scaled)
    unprofiled = [row for row in scaled if row.get("kind_of_runs") == UNPROFILED]
    if any(row["world_size"] == largest for row in unprofiled):
        scaled = unprofiled
    widest = sorted((row for row in scaled if row["world_size"] == largest), key=lost_pct)
    comparable, _ = of_one_baseline(widest)
    most_lost, lowest = widest[-1], max(scaled, key=lost_pct)
    enough = max(least_pct(most_lost), LIMITING_SHARE * lost_pct(lowest))
    return comparable[0], comparable[-1], most_lost if lost_pct(most_lost) >= enough else lowest


def of_one_baseline(rows: Sequence[_Row]) -> tuple[list[_Row], list[_Row]]:
    """The rows whose baselines have the fewest ranks, and the others.

    90 % of what 4 ranks give may be less than 85 % of what one does: the two are not compared.
    """
    fewest = min(row["base_world_size"] for row in rows)
    return (
        [row for row in rows if row["base_world_size"] == fewest],
        [row for row in rows if row["base_world_size"] != fewest],
    )


def is_unsure(row: Mapping[str, Any]) -> bool:
    """Whether identical runs differ too much for the efficiency of a row to mean anything."""
    return 2 * half_width_pct(row) > WIDEST_INTERVAL_PCT


def differ_too_much(rows: Rows) -> str:
    """That runs differ too much for the figures which matter most; empty: they do not.

    Report and terminal begin with it.

    Args:
        rows: of analysis.scaled.
    """
    scaled = [row for row in rows if row.get("base_world_size") and _is_scaled(row)]
    unsure = [row for row in leading(scaled) if is_unsure(row)] if scaled else []
    if not unsure:
        return ""
    called = dict(zip(map(id, scaled), names_apart(scaled, APART), strict=True))
    widest = max(unsure, key=lambda row: (not is_usable(row, _EFFICIENCY), half_width_pct(row)))
    return (
        f"Runs differ too much: {_how_wide(widest, called[id(widest)])}.{_how_many_as_wide(scaled)} Was the "
        "machine busy? Repeat the runs (repetitions), with more steps (batches), on an idle machine."
    )


def _is_scaled(row: Mapping[str, Any]) -> bool:
    return row["world_size"] is not None and row["world_size"] != row["base_world_size"]


def _how_wide(row: Mapping[str, Any], name: str) -> str:
    of = f" ({name})" if name else ""
    if not is_usable(row, _EFFICIENCY):
        return f"the scaling efficiency{of} has no usable 95 % confidence interval"
    points = f"{2 * half_width_pct(row):.0f} percentage points"
    return f"the 95 % confidence interval of the scaling efficiency{of} is {points} wide"


def _how_many_as_wide(scaled: Rows) -> str:
    """That other efficiencies mean as little, which sentences and charts show as well."""
    unsure = sum(map(is_unsure, scaled))
    if unsure < 2:
        return ""
    of_all = "Both intervals" if len(scaled) == 2 else f"{unsure} of {len(scaled)} intervals"
    return f" {of_all} are wider than {WIDEST_INTERVAL_PCT:g} percentage points."
