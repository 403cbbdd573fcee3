"""How much of ideal scaling does a job keep? The first sentences of the verdict, and how sure they are."""

from typing import Any

import numpy as np

from analysis.display.metrics import Rows
from analysis.display.numbers import digits
from analysis.measures.scaling.figures import above_ideal
from analysis.report.sentences import Sentence, number, ranks_in_words, with_ends


def share_of_ideal(best: dict[str, Any], worst: dict[str, Any]) -> Sentence:
    """How much of ideal scaling the best and the worst configuration of the most ranks keep."""
    ranks = ranks_in_words(worst["world_size"])
    scaling = "strong scaling (the batch of the job is constant)" if is_strong(worst) else "scaling"
    keeps = "reaches" if above_ideal(best) else "keeps"
    text = f"On {ranks} the job {keeps} {efficiency_of(best)} of ideal {scaling}"
    if worst["called"] == best["called"]:
        return Sentence(f"{text}; ideal is {ranks} at the rate of {_base_rate(worst)}.", "scaling")
    text += f" with {best['called']}, and {efficiency_of(worst)} with {worst['called']}"
    rates = f"at the rate of {_base_rate(best)}"
    if _base_rate(worst) != _base_rate(best):
        rates += f" with the one, of {_base_rate(worst)} with the other"
    return Sentence(f"{text}; ideal is {ranks} {rates}.", "scaling")


def unrepeated(*rows: dict[str, Any]) -> list[Sentence]:
    """Where efficiencies of the sentence before have no interval, that they have none, and why."""
    if all(np.isfinite(number(row, "scaling_efficiency_pct_low")) for row in rows):
        return []
    text = (
        "Points ran once, so how much equal runs differ is not known, and such a figure has no interval: "
        "repeat them (repetitions)."
    )
    return [Sentence(text, "scaling")]


def superlinear(scaled: Rows) -> list[Sentence]:
    """What it means that points scale better than ideal."""
    above = [row for row in scaled if above_ideal(row)]
    if not above:
        return []
    most = max(above, key=lambda row: row["scaling_efficiency_pct"])
    caches = ", or fewer images per rank suit the device's caches better" if is_strong(most) else ""
    text = (
        f"{most['scaling_efficiency_pct']:.0f} % on {ranks_in_words(most['world_size'])} is superlinear, "
        f"better than ideal. Mostly that is a baseline ({most['base']}) that was disturbed (a busy machine, "
        f"other clocks or threads, data that no cache held yet){caches}: repeat the baseline before you rely "
        "on these efficiencies."
    )
    return [Sentence(text, "scaling")]


def _base_rate(row: dict[str, Any]) -> str:
    return f"{row['base']} ({digits(row['base_images_per_s'], 3)} images/s)"


def is_strong(row: dict[str, Any]) -> bool:
    """Whether a point's base has the same batch of the job, and not of a rank."""
    return row.get("scaling") == "strong"


def efficiency_of(row: dict[str, Any]) -> str:
    """A point's scaling efficiency with its interval."""
    return with_ends(row, "scaling_efficiency_pct", unit=" %")
