"""What do the figures say, in words? Each sentence follows a rule with a threshold, and names its evidence.

A rule that has not enough data says so; none guesses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.scaling import POINT_FIELDS
from analysis.terminal import Rows, digits

# A loss of scaling below this is not worth a sentence about its cause.
NEAR_IDEAL_PCT = 95.0
# A part of the batch that makes up less than this share of what was lost is not what limits it.
LIMITING_SHARE = 0.25
# A scaling efficiency whose 95 % interval is wider than this (percentage points) explains nothing yet.
WIDEST_INTERVAL_PCT = 40.0

ADVICE = {
    "communication": "gradients in fp16 (grad), larger buckets (bucket_mb), a larger batch, a faster network",
    "loading data": "more workers, a faster loader, or TFRecord; the synthetic loader shows the bound",
    "computing": "the same cores, clocks and memory bandwidth for every rank: each had less of them than the "
    "base point's rank (threads, pinning, other jobs)",
}


@dataclass(frozen=True)
class Sentence:
    """A sentence, and the id of the report's section whose figure backs it."""

    text: str
    figure: str = ""


def verdict(points: Rows, names: Sequence[str]) -> list[Sentence]:
    """How it scales, what limits it, what to try.

    Args:
        points: rows of ``analysis.scaled`` for runs of our own, a configuration and world size each.
        names: what each is called, in the same order.
    """
    called = [{**row, "called": name} for row, name in zip(points, names, strict=True)]
    if not called:
        return [Sentence("No run can be compared: not enough data to say how this job scales.", "left-out")]
    scaled = [row for row in called if row["world_size"] != row["base_world_size"]]
    if not scaled:
        return [
            _rate(called),
            Sentence("Not enough data to say how it scales: one world size was measured.", "table"),
        ]
    largest = max(row["world_size"] for row in scaled)
    widest = [row for row in scaled if row["world_size"] == largest]
    best = max(widest, key=lambda row: row["scaling_efficiency_pct"])
    worst = min(widest, key=lambda row: row["scaling_efficiency_pct"])
    return [_how(best, worst), *_why(called, worst)]


def _rate(called: Rows) -> Sentence:
    best = max(called, key=lambda row: row["images_per_s"])
    rate = digits(best["images_per_s"], 3)
    return Sentence(
        f"The fastest configuration ({best['called']}) trains {rate} images/s "
        f"on {_ranks(best['world_size'])}.",
        "table",
    )


def _how(best: dict[str, Any], worst: dict[str, Any]) -> Sentence:
    text = f"On {_ranks(worst['world_size'])} the job keeps {_interval(best)} of ideal scaling"
    if worst["called"] != best["called"]:
        text += f" with {best['called']}, and {_interval(worst)} with {worst['called']}"
    rate = digits(worst["base_images_per_s"], 3)
    return Sentence(
        f"{text}; ideal is {_ranks(worst['world_size'])} at the rate of {worst['base']} ({rate} images/s).",
        "scaling",
    )


def _why(called: Rows, row: dict[str, Any]) -> list[Sentence]:
    width = _number(row, "scaling_efficiency_pct_high") - _number(row, "scaling_efficiency_pct_low")
    if width > WIDEST_INTERVAL_PCT:
        text = (
            "Not enough data to say what limits it: equal runs differ too much. Repeat them (repetitions), "
            "with more batches, on a machine that does nothing else."
        )
        return [Sentence(text, "scaling")]
    if row["scaling_efficiency_pct"] >= NEAR_IDEAL_PCT:
        text = f"Nothing limits it yet: every configuration keeps {NEAR_IDEAL_PCT:g} % or more."
        return [Sentence(text, "scaling")]
    base = _base_of(called, row)
    lost_ms = row["batch_ms"] - base["batch_ms"] if base else 0.0
    growth = growth_ms(base, row) if base else {}
    part = max(growth, key=lambda name: growth[name], default="")
    if base is None or not part or growth[part] < LIMITING_SHARE * lost_ms:
        text = "Not enough data to say what limits it: no part of the batch is known to have grown enough."
        return [Sentence(text, "stages")]
    return [
        Sentence(
            f"A batch with {row['called']} takes {lost_ms:.0f} ms more than on {_ranks(base['world_size'])} "
            f"({row['batch_ms']:.0f} against {base['batch_ms']:.0f} ms); of what is known to have grown, "
            f"{part} is the largest part (by {growth[part]:.0f} ms).",
            "stages",
        ),
        Sentence(f"What to try: {ADVICE[part]}.", "table"),
    ]


def growth_ms(base: dict[str, Any], row: dict[str, Any]) -> dict[str, float]:
    """By how many ms a batch each part grew from the base point to ``row``; unknown parts are absent.

    The loader's part is the wait for the next batch. Communication is known where a profiled run says how
    much of it was exposed; computing is then what else the three stages grew by.
    """
    parts = {"loading data": _number(row, "load_ms") - _number(base, "load_ms")}
    before = _number(base, "exposed_communication_ms") if base["world_size"] > 1 else 0.0
    exposed = _number(row, "exposed_communication_ms") - before
    if np.isfinite(exposed):
        stages = sum(_number(row, s) - _number(base, s) for s in ("forward_ms", "backward_ms", "update_ms"))
        # The profiled run's communication can exceed what its unprofiled twin grew by.
        parts |= {"communication": exposed, "computing": max(stages - exposed, 0.0)}
    return {name: value for name, value in parts.items() if np.isfinite(value)}


def _base_of(called: Rows, row: dict[str, Any]) -> dict[str, Any] | None:
    """The base point's row; the precision of gradients does not matter there if it is one rank."""
    alike = [name for name in POINT_FIELDS if name not in ("nodes", "gpus_per_node", "grad")]
    found = [
        other
        for other in called
        if other["world_size"] == row["base_world_size"] and all(other[name] == row[name] for name in alike)
    ]
    return min(found, key=lambda other: other["grad"] != row["grad"], default=None)


def _number(row: dict[str, Any], name: str) -> float:
    value = row.get(name)
    return float("nan") if value is None else float(value)


def _interval(row: dict[str, Any]) -> str:
    low, high = _number(row, "scaling_efficiency_pct_low"), _number(row, "scaling_efficiency_pct_high")
    text = f"{row['scaling_efficiency_pct']:.0f} %"
    return f"{text} [{low:.0f}, {high:.0f}]" if np.isfinite(low) and np.isfinite(high) else text


def _ranks(count: int) -> str:
    return f"{int(count)} rank{'s' if count > 1 else ''}"
