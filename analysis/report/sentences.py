"""What is a sentence of the verdict? And figures as sentences have them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Sentence:
    """A sentence, and the id of the report's section whose figure backs it.

    Attributes:
        cause: what it names as a cause, in a word or two, for programs; empty: it names none.
    """

    text: str
    figure: str = ""
    cause: str = ""


def number(row: Mapping[str, Any], name: str) -> float:
    """A row's figure; NaN where it has none."""
    value = row.get(name)
    return float("nan") if value is None else float(value)


def with_ends(row: Mapping[str, Any], name: str, decimals: int = 0, unit: str = "") -> str:
    """``62 % [60, 64]``, of columns ``name``, ``name_low`` and ``name_high``."""
    low, high = number(row, f"{name}_low"), number(row, f"{name}_high")
    text = f"{row[name]:.{decimals}f}{unit}"
    return f"{text} [{low:.{decimals}f}, {high:.{decimals}f}]" if np.isfinite([low, high]).all() else text


def ranks_in_words(count: int) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{int(count)} rank{'s' if count > 1 else ''}"
