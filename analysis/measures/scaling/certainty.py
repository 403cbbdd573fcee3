"""How sure are the figures of analysis.scaled? Which intervals are usable, and are there enough runs?"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from analysis.display.metrics import CONFIDENCE, Rows
from analysis.display.naming import names_apart
from analysis.display.open_ends import OPEN, WIDEST_FACTOR, has_open_interval, is_usable, with_open_ends
from analysis.measures.scaling import figures, use
from analysis.measures.scaling.point import UNPROFILED
from jobs.run_fields import APART
from profiling.wording import noun, verb

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


# --- whether there are enough runs ------------------------------------------------------------------------


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


def too_few_runs(rows: Rows) -> str:
    """That there are too few runs for the figures which matter most; empty: there are enough.

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
        f"Not enough runs: identical runs differ so much that {_how_wide(widest)}"
        f"{_in_brackets(called[id(widest)])}{_others(scaled, widest, called)}. Was the machine busy? "
        "Repeat them (repetitions) with more steps (batches) on an otherwise idle machine."
    )


def _is_scaled(row: Mapping[str, Any]) -> bool:
    return row["world_size"] is not None and row["world_size"] != row["base_world_size"]


def _how_wide(row: Mapping[str, Any]) -> str:
    if not is_usable(row, _EFFICIENCY):
        return "there is no usable 95 % confidence interval"
    return f"a 95 % confidence interval spans {2 * half_width_pct(row):.0f} percentage points"


def _in_brackets(name: str) -> str:
    return f" ({name})" if name else ""


def _others(scaled: Rows, widest: Mapping[str, Any], called: Mapping[int, str]) -> str:
    """That other efficiencies mean as little, which sentences and charts show as well."""
    others = [row for row in scaled if row is not widest]
    unsure = sum(map(is_unsure, others))
    if not unsure:
        return ""
    alone = f"the other interval{_in_brackets(called[id(others[0])])}"
    which = alone if len(others) == 1 else f"{unsure} of the other {len(others)} intervals"
    return f"; {which} {verb(unsure, 'are')} wider than {WIDEST_INTERVAL_PCT:g} percentage points"
