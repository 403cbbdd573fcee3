"""What is a sentence of the verdict? And figures as sentences have them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis.display.numbers import digits, span
from profiling.wording import how_many, noun

# What the opening answers, in this order; a sentence of no question comes last.
SCALES, LOST, TRY = "How does it scale?", "What is lost, and why?", "What to try?"
CHANGED, GREW = "Better or worse?", "What grew, what shrank?"  # of two results
QUESTIONS = (CHANGED, GREW, SCALES, LOST, TRY)
_ANSWERED_BY = {
    "scaling": SCALES, "published-scaling": SCALES, "traced-scaling": SCALES, "table": SCALES,
    "loss": LOST, "stages": LOST, "anatomy": LOST, "communication": LOST, "stragglers": LOST, "kernels": LOST,
    "prediction": TRY, "change": CHANGED, "changed-scaling": CHANGED, "changed-parts": GREW,
    "changed-stages": GREW, "changed-kernels": GREW,
}  # fmt: skip


@dataclass(frozen=True)
class Sentence:
    """A sentence, and the id of the report's section whose figure backs it.

    Attributes:
        cause: what it names as a cause, in a word or two, for programs; empty: it names none.
        answers: the opening's question; by default that which its section answers.
        of_all: it is said of all configurations, whatever filters are set.
    """

    text: str
    figure: str = ""
    cause: str = ""
    answers: str = ""
    of_all: bool = False

    @property
    def question(self) -> str:
        """What it answers; empty: none of the opening's questions."""
        return self.answers or _ANSWERED_BY.get(self.figure, "")

    @property
    def alone(self) -> str:
        """The sentence where its question does not stand above it."""
        return f"{TRY} {self.text}" if self.question == TRY else self.text


def first_sentence(text: str) -> str:
    """A text up to the first full stop that ends a sentence."""
    return re.split(r"(?<=\.)\s+(?=[A-Z])", text, maxsplit=1)[0]


def number(row: Mapping[str, Any], name: str) -> float:
    """A row's figure; NaN where it has none."""
    value = row.get(name)
    return float("nan") if value is None else float(value)


def with_ends(row: Mapping[str, Any], name: str, decimals: int = 0, unit: str = "") -> str:
    """``62 % [60, 64]``, of columns ``name``, ``name_low`` and ``name_high``."""
    low, high = number(row, f"{name}_low"), number(row, f"{name}_high")
    text = f"{row[name]:.{decimals}f}{unit}"
    return f"{text} [{low:.{decimals}f}, {high:.{decimals}f}]" if np.isfinite([low, high]).all() else text


def gain_in_words(row: Mapping[str, Any]) -> str:
    """``+12 %``, ``+5.7 %``, with the sign: of a what-if's row."""
    return f"{row['gain_pct']:+.{0 if abs(row['gain_pct']) >= 9.95 else 1}f} %"


def range_in_words(row: Mapping[str, Any], name: str = "images_per_s") -> str:
    """``range 148 to 360`` of what is possible, which is no confidence interval; empty: it is not known."""
    low, high = number(row, f"{name}_low"), number(row, f"{name}_high")
    if np.isnan(low):
        return ""
    return f"range {digits(low, 3)} {f'to {digits(high, 3)}' if np.isfinite(high) else 'or more'}"


def least_and_most(values: Iterable[tuple[float, str]], form: str, unit: str) -> str:
    """``5.86 (a) to 13.2 ms (b)``: the ends of figures, each with whose it is; ``5.86 ms (a)`` of one,
    ``5.86 ms`` where both are printed alike.

    Args:
        values: one or more figures, each with a name, which is empty where all are of one.
        form: of a figure, as ``format`` has it.
    """
    ordered = sorted(values)
    (low, of_low), (high, of_high) = (
        (format(value, form), f" ({name})" if name else "") for value, name in (ordered[0], ordered[-1])
    )
    if low == high:
        return f"{low}{unit}{of_low if of_low == of_high else ''}"
    return f"{span(low + of_low, high)}{unit}{of_high}"


def runs_in_words(rows: Iterable[Mapping[Any, Any]]) -> str:
    """``3 runs per configuration``, of rows of configurations; empty where they do not say."""
    counts = {int(count) for row in rows if pd.notna(count := row.get("runs"))}
    if not counts:
        return ""
    least, most = min(counts), max(counts)
    return f"{span(str(least), str(most))} {noun(most, 'run')} per configuration"


def ranks_in_words(count: int) -> str:
    """``1 rank``, ``2 ranks``."""
    return how_many(int(count), "rank")


def which_of(called: Iterable[Mapping[str, Any]], row: Mapping[str, Any]) -> str:
    """`` on 4 ranks (dali-cpu)``: which of several configurations and numbers of ranks a sentence is of.

    Args:
        called: rows of ``analysis.scaled``, each with what it is ``called``.
    """
    scaled = [one for one in called if one["world_size"] != one["base_world_size"]]
    sizes, names = ({one[name] for one in scaled} for name in ("world_size", "called"))
    ranks = f" on {ranks_in_words(row['world_size'])}" if len(sizes) > 1 or len(names) > 1 else ""
    return ranks + (f" ({row['called']})" if len(names) > 1 else "")
