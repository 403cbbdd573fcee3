"""How is a line of an explanation written? Its number in docs/methods.md, the correction, what it moved."""

from collections.abc import Sequence

import numpy as np

Lines = list[str]
BY_LAUNCH = "compute efficiency by launch, not by name"


def line(number: str, what: str, moved: str) -> str:
    """One line: ``number`` as in docs/methods.md."""
    return f"  {number:>4} {what}: {moved}"


def span(values: Sequence[float], form: str = "{:.1f}", unit: str = "") -> str:
    """``lowest to highest`` of values, or the one."""
    ends = list(dict.fromkeys(form.format(value) for value in (min(values), max(values))))
    return " to ".join(ends) + unit


def moves(before: Sequence[float], after: Sequence[float], form: str = "{:.1f}", unit: str = "") -> str:
    """``median before -> median after`` over configurations."""
    text = f"{form.format(float(np.median(before)))}{unit} -> {form.format(float(np.median(after)))}{unit}"
    return text + (f" (medians of {len(before)})" if len(before) > 1 else "")
