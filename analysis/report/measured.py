"""Which option does the sweep itself show to be faster, at the same number of ranks?"""

from typing import Any

from analysis.display.metrics import Rows
from analysis.display.numbers import digits
from analysis.measures.scaling.point import point_names
from analysis.report.sentences import TRY, Sentence, number, ranks_in_words
from analysis.report.views import called

# Options that leave the training job what it is: the model, its data and its batch are the user's question.
OPTIONS = ("workers", "loader", "grad", "compute", "backend", "threads", "channels_last", "compile",
           "graph", "cudnn_benchmark", "hw_decoder_load", "bucket_mb", "network", "data_format")  # fmt: skip


def measured_gain(row: dict[str, Any], points: Rows) -> list[Sentence]:
    """The option that made this configuration fastest, where runs tell the two apart; nothing if none did.

    Their confidence intervals of images/s do not overlap: stricter than a test of the difference.

    Args:
        row: of ``analysis.scaled``; ``points``: all its rows, with what each is ``called``.
    """
    high = number(row, "images_per_s_high")
    faster = [
        (number(other, "images_per_s") / row["images_per_s"] - 1, other, option)
        for other in points
        if (option := only_difference(row, other)) and number(other, "images_per_s_low") > high
    ]
    if not faster:
        return []
    gain, best, option = max(faster, key=lambda one: one[0])
    apart, whole = called(best, [option]), str(best.get("called", "")).split(", ")
    others = [part for part in whole if part != apart] if apart in whole else []
    which = "".join(f", {part}" for part in others)
    text = (
        f"Measured on {ranks_in_words(row['world_size'])}: {apart} instead of "
        f"{called(row, [option])} gives {digits(best['images_per_s'], 3)} images/s "
        f"({100 * gain:+.0f} %{which})."
    )
    return [Sentence(text, "scaling", answers=TRY)]


def only_difference(row: dict[str, Any], other: dict[str, Any]) -> str:
    """The one option in which two rows differ; empty: in none, in more, or in what is no option."""
    differing = [name for name in point_names(row, other) if row.get(name) != other.get(name)]
    # Without a loader nothing is learnt: that is a bound of the others.
    if (
        len(differing) != 1
        or differing[0] not in OPTIONS
        or other.get("loader") == "synthetic" != row.get("loader")
    ):
        return ""
    return differing[0]
