"""What do the figures say, in words? Each sentence follows a rule with a threshold, and names its evidence.

A rule that has not enough data says so; none guesses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from analysis.extrapolate import CONFIGURATION
from analysis.late_verdicts import STRAGGLER
from analysis.scaling import POINT_FIELDS
from analysis.simulate import in_words
from analysis.terminal import Rows, digits

# A loss of scaling below this is not worth a sentence about its cause.
NEAR_IDEAL_PCT = 95.0
# A part of the batch that makes up less than this share of what was lost is not what limits it.
LIMITING_SHARE = 0.25
# Profiled runs that leave more than this share of the loss without a part do not tell its cause.
UNATTRIBUTED_SHARE = 0.5
# A change that would give less than this, by simulation, is not worth a sentence.
WORTH_TRYING_PCT = 5.0
# A rank that is named in no more than this share of the runs is not what slows the job.
LATE_RUNS_SHARE = 0.5
# A scaling efficiency whose 95 % interval is wider than this (percentage points) explains nothing yet.
WIDEST_INTERVAL_PCT = 40.0

# What-if -> the field, and its value (by default the what-if's own), of runs that measure it.
MEASURED_AS = {
    "fp16-gradients": ("grad", "fp16"),
    "bucket-mb": ("bucket_mb", ""),
    "no-loader": ("loader", "synthetic"),
}

# Part of the loss (a column loss_<part>_pct) -> what it is called.
CAUSES = {
    "exposed_communication": "communication", "exposed_loader": "loading data", "compute": "computing",
    "exposed_copies": "copies", "idle_host_bound": "late launches", "idle_other": "waiting of the device",
    "idle": "idle time",
}  # fmt: skip
PLURAL = ("copies", "late launches")
ADVICE = {
    "communication": "gradients in fp16 (grad), larger buckets (bucket_mb), a larger batch, a faster network",
    "loading data": "more workers, a faster loader, or TFRecord; the synthetic loader shows the bound",
    "computing": "the same cores, clocks and memory bandwidth for every rank: each had less of them than the "
    "base point's rank (threads, pinning, other jobs)",
    "copies": "fewer ranks on one bus, and buffers that need no copy; a timeline (profile: nsys) shows which",
    "late launches": "a core of its own for the thread that launches (threads, workers, pinning), a larger "
    "batch, fewer synchronisations",
    "waiting of the device": "a timeline of the profiled run (profile: nsys), which shows what each kernel "
    "waits for",
    "idle time": "a timeline of the profiled run, which shows what the ranks wait for",
}


@dataclass(frozen=True)
class Sentence:
    """A sentence, and the id of the report's section whose figure backs it."""

    text: str
    figure: str = ""


def verdict(
    points: Rows, names: Sequence[str], predicted: Rows | None = None, late: Rows | None = None
) -> list[Sentence]:
    """How it scales, what limits it, who holds up the others, what to try.

    Args:
        points: rows of ``analysis.scaled`` for runs of our own, a configuration and world size each.
        names: what each is called, in the same order.
        predicted: rows of ``analysis.predict`` with what-ifs, where steps were simulated.
        late: rows of ``analysis.stragglers`` of the runs of most ranks, each with its run's ``id``.
    """
    called = [{**row, "called": name} for row, name in zip(points, names, strict=True)]
    if not called:
        return [Sentence("No run can be compared: not enough data to say how this job scales.", "left-out")]
    if not has_scaled(called):
        return [
            _rate(called),
            Sentence(f"Not enough data to say how it scales: {unscaled(called)}.", "table"),
            *_who_is_late(late or []),
        ]
    scaled = [row for row in called if row["world_size"] != row["base_world_size"]]
    largest = max(row["world_size"] for row in scaled)
    widest = [row for row in scaled if row["world_size"] == largest]
    best = max(widest, key=lambda row: row["scaling_efficiency_pct"])
    worst = min(widest, key=lambda row: row["scaling_efficiency_pct"])
    lowest = min(scaled, key=lambda row: row["scaling_efficiency_pct"])
    # The most ranks matter most; what is lost on fewer only is still lost.
    judged = worst if worst["scaling_efficiency_pct"] < NEAR_IDEAL_PCT else lowest
    return [
        _how(best, worst),
        *(_on_fewer(judged) if judged is not worst else []),
        *_why(called, judged),
        *_who_is_late(late or []),
        *_worth_trying(predicted or [], called),
    ]


def has_scaled(points: Rows) -> bool:
    """Whether a point is compared with one of fewer ranks."""
    return any(row["world_size"] != row["base_world_size"] for row in points)


def unscaled(points: Rows) -> str:
    """Why no point has a base point, in words."""
    if len({row["world_size"] for row in points}) == 1:
        return "one world size was measured"
    return "no configuration was measured at two world sizes, by a constant batch of a rank or of the job"


def _rate(called: Rows) -> Sentence:
    best = max(called, key=lambda row: row["images_per_s"])
    rate = digits(best["images_per_s"], 3)
    return Sentence(
        f"The fastest configuration ({best['called']}) trains {rate} images/s "
        f"on {_ranks(best['world_size'])}.",
        "table",
    )


def _how(best: dict[str, Any], worst: dict[str, Any]) -> Sentence:
    ranks = _ranks(worst["world_size"])
    scaling = "strong scaling (the batch of the job is constant)" if _is_strong(worst) else "scaling"
    text = f"On {ranks} the job keeps {_interval(best)} of ideal {scaling}"
    if worst["called"] == best["called"]:
        return Sentence(f"{text}; ideal is {ranks} at the rate of {_base_rate(worst)}.", "scaling")
    text += f" with {best['called']}, and {_interval(worst)} with {worst['called']}"
    rates = f"at the rate of {_base_rate(best)}"
    if _base_rate(worst) != _base_rate(best):
        rates += f" with the one, of {_base_rate(worst)} with the other"
    return Sentence(f"{text}; ideal is {ranks} {rates}.", "scaling")


def _base_rate(row: dict[str, Any]) -> str:
    return f"{row['base']} ({digits(row['base_images_per_s'], 3)} images/s)"


def _on_fewer(row: dict[str, Any]) -> list[Sentence]:
    """What is lost on fewer ranks than the most, where these lose next to nothing."""
    if row["scaling_efficiency_pct"] >= NEAR_IDEAL_PCT:
        return []
    text = f"Less is kept on {_ranks(row['world_size'])} with {row['called']}: {_interval(row)}."
    return [Sentence(text, "scaling")]


def _why(called: Rows, row: dict[str, Any]) -> list[Sentence]:
    width = _number(row, "scaling_efficiency_pct_high") - _number(row, "scaling_efficiency_pct_low")
    if width > WIDEST_INTERVAL_PCT:
        text = (
            "Not enough data to say what limits it: equal runs differ too much. Repeat them (repetitions), "
            "with more batches, on a machine that does nothing else."
        )
        return [Sentence(text, "scaling")]
    if row["scaling_efficiency_pct"] >= NEAR_IDEAL_PCT:
        text = f"Nothing limits it yet: every measured point keeps {NEAR_IDEAL_PCT:g} % or more."
        return [Sentence(text, "scaling")]
    base = _base_of(called, row)
    if base is None or np.isnan(_number(row, "loss_unattributed_pct")):
        return _from_stages(base, row)
    return _from_parts(base, row)


def _from_parts(base: dict[str, Any], row: dict[str, Any]) -> list[Sentence]:
    """The cause by the parts of the loss."""
    lost, rest = row["loss_pct"], row["loss_unattributed_pct"]
    if abs(rest) > UNATTRIBUTED_SHARE * lost:
        text = (
            f"Not enough data to say what limits it: what profiled runs grew by misses the {lost:.0f} "
            f"percentage points lost by {abs(rest):.0f}. Repeat the profiled runs of both points."
        )
        return [Sentence(text, "loss")]
    known = {name: _number(row, f"loss_{name}_pct") for name in CAUSES}
    if np.isfinite(known["idle_other"]):
        del known["idle"]
    parts = {name: value for name, value in known.items() if np.isfinite(value)}
    part = max(parts, key=lambda name: parts[name])
    if parts[part] < LIMITING_SHARE * lost:
        text = (
            f"No part of the batch alone limits it: of {lost:.0f} percentage points lost the largest, "
            f"{CAUSES[part]}, {_cost(part)} {parts[part]:.0f}."
        )
        return [Sentence(text, "loss")]
    unknown = f"; {rest:.0f} no profiled run explains" if rest > parts[part] else ""
    return [
        Sentence(
            f"{_longer(base, row)}: of {lost:.0f} percentage points lost, {CAUSES[part]} {_cost(part)} most "
            f"({_with_ends(row, f'loss_{part}_pct', decimals=1)}){unknown}.",
            "loss",
        ),
        Sentence(f"What to try: {ADVICE[CAUSES[part]]}.", "table"),
    ]


def _cost(part: str) -> str:
    return "cost" if CAUSES[part] in PLURAL else "costs"


def _who_is_late(late: Rows) -> list[Sentence]:
    """The rank for which the others wait longest, of those that are named again and again."""
    runs = {row["id"] for row in late}
    named: dict[int, Rows] = {}
    for row in late:
        if row["verdict"] == STRAGGLER:
            named.setdefault(row["rank"], []).append(row)
    often = {rank: rows for rank, rows in named.items() if len(rows) > LATE_RUNS_SHARE * len(runs)}
    if not often:
        return []

    def share_pct(rows: Rows) -> float:
        return float(np.median([100 * row["mean_lateness_ms"] / row["batch_ms"] for row in rows]))

    rank = max(often, key=lambda one: share_pct(often[one]))
    rows = often[rank]
    causes = [row["cause"] for row in rows]
    nodes = {row["node"] for row in rows}
    who = f"Rank {rank} ({nodes.pop()})" if len(nodes) == 1 else f"Rank {rank}"
    who += f", and {len(often) - 1} more, make" if len(often) > 1 else " makes"
    text = (
        f"{who} the others wait, for "
        f"{digits(float(np.median([row['mean_lateness_ms'] for row in rows])), 3)} ms a batch "
        f"({share_pct(rows):.0f} %) in {len(rows)} of {len(runs)} runs; likely cause: "
        f"{max(causes, key=causes.count)}."
    )
    return [Sentence(text, "stragglers")]


def to_try(predicted: Rows, points: Rows) -> dict[str, Any] | None:
    """The change that gives most, on the fewest ranks that were predicted: they are the surest.

    What was measured in the same sweep needs no simulation: the figures say what it gives.
    """
    tried = [
        row
        for row in predicted
        if row["what_if"] and row["gain_pct"] >= WORTH_TRYING_PCT and not _was_measured(row, points)
    ]
    nearest = [row for row in tried if row["ranks"] == min(one["ranks"] for one in tried)]
    return max(nearest, key=lambda row: row["gain_pct"], default=None)


def _was_measured(predicted: dict[str, Any], points: Rows) -> bool:
    """Whether a point of several ranks has the change, and is otherwise of the same configuration."""
    name, _, value = predicted["what_if"].partition("=")
    field, measured = MEASURED_AS.get(name, ("", ""))
    if not field:
        return False
    changed = {one: str(predicted.get(one)) for one in CONFIGURATION} | {field: measured or value}
    return any(
        point["world_size"] > 1 and all(_same(point.get(one), changed[one]) for one in changed)
        for point in points
    )


def _same(value: Any, text: str) -> bool:
    # A what-if says 50 where the field is 50.0.
    return str(value) == text or (isinstance(value, float) and f"{value:g}" == text)


def _worth_trying(predicted: Rows, points: Rows) -> list[Sentence]:
    best = to_try(predicted, points)
    if best is None:
        return []
    which = f" ({best['name']})" if best.get("name") else ""
    text = (
        f"Of what was simulated and not measured, for {_ranks(best['ranks'])}{which}, "
        f"{in_words(best['what_if'])} would give most: "
        f"{digits(best['images_per_s'], 3)} images/s, {best['gain_pct']:.0f} % more than as it is."
    )
    return [Sentence(text, "prediction")]


def _from_stages(base: dict[str, Any] | None, row: dict[str, Any]) -> list[Sentence]:
    """The cause without profiled runs of both points: every rank's batches tell the wait for the loader."""
    lost_ms = row["batch_ms"] - _ideal_ms(base, row, "batch_ms") if base else 0.0
    grown_ms = _number(row, "load_ms") - _ideal_ms(base, row, "load_ms") if base else 0.0
    if base is None or not grown_ms >= LIMITING_SHARE * lost_ms:
        why = row.get("loss_note") or "its base point is not among the results"
        text = f"Not enough data to say what limits it: {why}, and the wait for data is not what grew."
        return [Sentence(text, "stages")]
    cause = "loading data"
    return [
        Sentence(
            f"{_longer(base, row)}; of what is known to have grown, {cause} is the largest part (by "
            f"{grown_ms:.0f} ms).",
            "stages",
        ),
        Sentence(f"What to try: {ADVICE[cause]}.", "table"),
    ]


def _longer(base: dict[str, Any], row: dict[str, Any]) -> str:
    ideal_ms, than = _ideal_ms(base, row, "batch_ms"), f"on {_ranks(base['world_size'])}"
    if _is_strong(row):
        than = f"its share of that {than} would"
    return (
        f"A batch with {row['called']} on {_ranks(row['world_size'])} takes "
        f"{row['batch_ms'] - ideal_ms:.0f} ms more than {than} "
        f"({row['batch_ms']:.0f} against {ideal_ms:.0f} ms)"
    )


def _is_strong(row: dict[str, Any]) -> bool:
    return row.get("scaling") == "strong"


def _ideal_ms(base: dict[str, Any], row: dict[str, Any], name: str) -> float:
    """What the base point's duration would be: where the batch of the job is constant, ranks share it."""
    share = base["world_size"] / row["world_size"] if _is_strong(row) else 1.0
    return share * _number(base, name)


def _base_of(called: Rows, row: dict[str, Any]) -> dict[str, Any] | None:
    """The base point's row; the precision of gradients does not matter there if it is one rank."""
    # The batch of a rank, or the job's.
    batch = {"batch"} if _is_strong(row) else set()
    alike = [name for name in POINT_FIELDS if name not in {"nodes", "gpus_per_node", "grad"} | batch]
    found = [
        other
        for other in called
        if other["world_size"] == row["base_world_size"]
        and all(other[name] == row[name] for name in alike)
        and all(other[name] * other["world_size"] == row[name] * row["world_size"] for name in batch)
    ]
    return min(found, key=lambda other: other["grad"] != row["grad"], default=None)


def _number(row: dict[str, Any], name: str) -> float:
    value = row.get(name)
    return float("nan") if value is None else float(value)


def _interval(row: dict[str, Any]) -> str:
    return _with_ends(row, "scaling_efficiency_pct", unit=" %")


def _with_ends(row: dict[str, Any], name: str, decimals: int = 0, unit: str = "") -> str:
    low, high = _number(row, f"{name}_low"), _number(row, f"{name}_high")
    text = f"{row[name]:.{decimals}f}{unit}"
    return f"{text} [{low:.{decimals}f}, {high:.{decimals}f}]" if np.isfinite([low, high]).all() else text


def _ranks(count: int) -> str:
    return f"{int(count)} rank{'s' if count > 1 else ''}"
