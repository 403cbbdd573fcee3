"""How much of ideal scaling does a job keep? The first sentences of the verdict, and how sure they are."""

from typing import Any

import numpy as np

from analysis.display.metrics import Rows
from analysis.display.numbers import digits
from analysis.measures.scaling.certainty import of_one_baseline, without_unusable_intervals
from analysis.measures.scaling.figures import above_ideal
from analysis.report.sentences import Sentence, number, ranks_in_words, with_ends
from profiling.wording import in_a_row


def share_of_ideal(best: dict[str, Any], worst: dict[str, Any], named: bool = False) -> Sentence:
    """The scaling efficiency of the best and the worst configuration on the most ranks, and the baseline.

    Args:
        named: there are others on fewer ranks.
    """
    values, bases = efficiency_of(best), _base_rate(best)
    if named and worst["called"] == best["called"]:
        values += f" with {best['called']}"
    if worst["called"] != best["called"]:
        values += f" with {best['called']}, {efficiency_of(worst)} with {worst['called']}"
    if "[" in values:
        values += " (in brackets: 95 % confidence interval)"
    if _base_rate(worst) != bases:
        bases = f"{bases} for {best['called']}, and {_base_rate(worst)} for {worst['called']}"
    per = "rank" if worst.get("device_name") == "cpu" else "GPU"
    kind = "Strong scaling (fixed global" if is_strong(worst) else f"Weak scaling (fixed per-{per}"
    text = (
        f"Scaling efficiency on {ranks_in_words(worst['world_size'])}: {values}. {kind} batch size), "
        f"relative to {bases}."
    )
    return Sentence(text, "scaling")


def of_other_baselines(scaled: Rows, best: dict[str, Any]) -> list[Sentence]:
    """Efficiencies on as many ranks as the best, whose baselines have more: they are not ranked with it."""
    largest = [
        row
        for row in scaled
        if row["world_size"] == best["world_size"] and row.get("kind_of_runs") == best.get("kind_of_runs")
    ]
    by_base: dict[int, Rows] = {}
    for row in sorted(of_one_baseline(largest)[1], key=lambda row: -row["scaling_efficiency_pct"]):
        by_base.setdefault(row["base_world_size"], []).append(row)
    if not by_base:
        return []
    texts = []
    for ranks, rows in sorted(by_base.items()):
        ends = rows if len(rows) == 1 else [rows[0], rows[-1]]
        values = in_a_row([f"{efficiency_of(row)} with {row['called']}" for row in ends])
        texts.append(f"{values}, relative to {ranks_in_words(ranks)}")
    relative_to = ranks_in_words(best["base_world_size"])
    text = f"Not comparable with efficiencies relative to {relative_to}: {'; '.join(texts)}."
    return [Sentence(text, "scaling")]


def unrepeated(*rows: dict[str, Any]) -> list[Sentence]:
    """Where efficiencies of the sentence before have no interval, that they have none, and why."""
    if all(np.isfinite(number(row, "scaling_efficiency_pct_low")) for row in rows):
        return []
    text = (
        "Configurations that ran only once have no confidence interval: the spread between identical runs is "
        "unknown. Repeat them (repetitions)."
    )
    return [Sentence(text, "scaling")]


def superlinear(scaled: Rows) -> list[Sentence]:
    """What it means that configurations scale better than ideal."""
    above = [row for row in scaled if above_ideal(row)]
    if not above:
        return []
    most = max(above, key=lambda row: row["scaling_efficiency_pct"])
    named = f" ({most['called']})" if len({row["called"] for row in scaled}) > 1 else ""
    caches = " Smaller batches per rank may also fit the device's caches better." if is_strong(most) else ""
    on = f"{ranks_in_words(most['world_size'])}{named}"
    text = (
        f"{most['scaling_efficiency_pct']:.0f} % on {on} is superlinear (better than ideal). Usually the "
        f"baseline ({most['base']}) ran too slowly: a busy machine, different clocks or threads, a cold file "
        f"cache.{caches} Repeat the baseline before relying on these efficiencies."
    )
    return [Sentence(text, "scaling")]


def _base_rate(row: dict[str, Any]) -> str:
    return f"{row['base']} ({digits(row['base_images_per_s'], 3)} images/s)"


def is_strong(row: dict[str, Any]) -> bool:
    """Whether a configuration's baseline has the same global batch size, and not the same per rank."""
    return row.get("scaling") == "strong"


def efficiency_of(row: dict[str, Any]) -> str:
    """A configuration's scaling efficiency with its interval, if that is usable."""
    return with_ends(without_unusable_intervals(row), "scaling_efficiency_pct", unit=" %")
