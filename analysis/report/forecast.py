"""What is said of more ranks in a verdict: the change that would give most, if nothing speaks against it."""

from typing import Any

import numpy as np

from analysis.display.metrics import Rows
from analysis.display.numbers import digits
from analysis.prediction.configurations import CONFIGURATION
from analysis.prediction.simulate import DEFAULT_WHAT_IFS, UPPER_LIMITS
from analysis.prediction.traced_step import WIRE_BYTES
from analysis.report.sentences import Sentence, gain_in_words, number, range_in_words, ranks_in_words
from jobs.run_fields import own_names

# A change that would give less than this, by simulation, is not worth a sentence of its own.
WORTH_TRYING_PCT = 5.0

# What-if -> the field, and its value (by default the what-if's own), of runs that measure it.
MEASURED_AS = {
    "fp16-gradients": ("grad", "fp16"),
    "bucket-mb": ("bucket_mb", ""),
    "no-loader": ("loader", "synthetic"),
}


def _most_measured(row: dict[str, Any]) -> int:
    return int(str(row.get("measured_on") or 0).split()[-1])


def to_try(predicted: Rows, points: Rows) -> dict[str, Any] | None:
    """The change that gives most, on the fewest ranks that were predicted: they are the surest.

    Ranks that another configuration was measured on count only if nothing beyond is predicted, and a
    configuration that the methods contradict each other on, only if there is no other. What was measured in
    the same sweep needs no simulation: the results say what it gives.
    """
    tried = [
        row
        for row in predicted
        if row.get("what_if")
        and (row.get("gain_pct") or 0) >= WORTH_TRYING_PCT
        and row["world_size"] > _most_measured(row)
        and row.get("believed", True)
        and not was_measured(row, points)
    ]
    measured = max((point["world_size"] for point in points), default=0)
    ahead = [row for row in tried if row["world_size"] > measured] or tried
    nearest = [row for row in ahead if row["world_size"] == min(one["world_size"] for one in ahead)]
    agreed = [row for row in nearest if not disagreement(row, predicted)]
    return max(agreed or nearest, key=lambda row: row["gain_pct"], default=None)


def was_measured(predicted: dict[str, Any], points: Rows) -> bool:
    """Whether a row of several ranks has the change, and is otherwise of the same configuration."""
    name, _, value = predicted["what_if"].partition("=")
    field, measured = MEASURED_AS.get(name, ("", ""))
    if not field:
        return False
    names = (*CONFIGURATION, *own_names(predicted))
    changed = {one: str(predicted.get(one)) for one in names} | {field: measured or value}
    return any(
        point["world_size"] > 1 and all(_same(point.get(one), changed[one]) for one in changed)
        for point in points
    )


def _same(value: Any, text: str) -> bool:
    # A what-if says 50 where the field is 50.0.
    return str(value) == text or (isinstance(value, float) and f"{value:g}" == text)


def forecast(predicted: Rows, points: Rows) -> list[Sentence]:
    """The change that would give most; or that the methods contradict each other on it."""
    best = to_try(predicted, points)
    if best is None:
        return []
    which = f" ({best['name']})" if best.get("name") else ""
    if apart := disagreement(best, predicted):
        return [Sentence(f"No forecast{which}: {apart}.", "prediction")]
    limit = " (upper limit)" if best["what_if"] in UPPER_LIMITS else ""
    text = (
        f"Largest simulated gain on {ranks_in_words(best['world_size'])}{which}: {best['what_if']}"
        f"{limit}, {gain_in_words(best)}: {_rate(best, ' images/s')}{_unchanged(best, predicted)}."
    )
    if unknown := _not_simulated(best, predicted, points):
        names = ", ".join(unknown)
        text += f" Not simulated, so their gain is unknown: {names}."
    return [Sentence(text, "prediction")]


def _rate(row: dict[str, Any], unit: str = "") -> str:
    """``180 images/s (range 110 to 219)``: a gain of what is hardly known is no promise of a rate."""
    ends = range_in_words(row)
    return f"{digits(row['images_per_s'], 3)}{unit}{ends and f' ({ends})'}"


def _unchanged(best: dict[str, Any], predicted: Rows) -> str:
    """`` instead of 171 (range 106 to 205)``: what the same method predicts without the change."""
    without = [
        row
        for row in _of_its_ranks(best, predicted)
        if not row.get("what_if")
        and not row.get("backtest")
        and row.get("predicted_by") == best.get("predicted_by")
    ]
    return f" instead of {_rate(without[0])}" if without else ""


def _of_its_ranks(row: dict[str, Any], predicted: Rows) -> Rows:
    """What is predicted of the same configuration on as many ranks."""
    names = (*CONFIGURATION, *own_names(row), "world_size")
    return [one for one in predicted if all(str(one.get(name)) == str(row.get(name)) for name in names)]


def _not_simulated(best: dict[str, Any], predicted: Rows, points: Rows) -> list[str]:
    """The changes whose gain is unknown on the ranks of a row: neither simulated nor measured."""
    known = {row.get("what_if") for row in _of_its_ranks(best, predicted)}
    without = {"fp16-gradients"} if WIRE_BYTES.get(best["grad"]) == 2 else set()
    if best.get("buckets") == 1:  # then larger ones change nothing
        without |= {name for name in DEFAULT_WHAT_IFS if name.startswith("bucket-mb")}
    return [
        name
        for name in DEFAULT_WHAT_IFS
        if name not in known | without and not was_measured(best | {"what_if": name}, points)
    ]


def disagreement(row: dict[str, Any], predicted: Rows) -> str:
    """How the two methods contradict each other on the configuration and ranks of a row; empty: they do not.

    They do where their ranges, of the job as it is, do not overlap.
    """
    ranges = []
    for one in predicted:
        alike = all(
            str(one.get(name)) == str(row.get(name))
            for name in (*CONFIGURATION, *own_names(one, row), "world_size")
        )
        low, high = number(one, "images_per_s_low"), number(one, "images_per_s_high")
        if alike and not one.get("what_if") and not one.get("backtest") and np.isfinite([low, high]).all():
            ranges.append((low, high, one.get("predicted_by", "")))
    for low, high, method in ranges:
        for other_low, other_high, other in ranges:
            if high < other_low:
                ranges_in_words = f"{digits(low, 3)} to {digits(high, 3)} images/s, the {other}"
                return (
                    f"for {ranks_in_words(row['world_size'])} the {method} predicts {ranges_in_words} "
                    f"{digits(other_low, 3)} to {digits(other_high, 3)}"
                )
    return ""
