"""Which intervals tell nothing, and how is that shown? ``[?]`` in a table, no bar in a chart."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

# An interval that reaches beyond so many times its value, or below that fraction of it, does not even tell
# the order of magnitude. Two runs of which one takes more than 1.5 times as long as the other have such an
# interval; of three runs the longest takes more than 5 times as long as the shortest.
WIDEST_FACTOR = 10.0
OPEN = (-math.inf, math.inf)  # the ends of an interval that is not usable, in a row that is shown


def with_open_ends(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """A row in which unusable intervals of figures (all above 0) have the ends :data:`OPEN`."""
    shown = dict(row)
    for name in names:
        if not is_usable(row, name):
            shown[f"{name}_low"], shown[f"{name}_high"] = OPEN
    return shown


def is_usable(row: Mapping[str, Any], name: str) -> bool:
    """Whether the interval of a figure tells its order of magnitude; also of a figure without one."""
    value, low, high = (row.get(f"{name}{end}") for end in ("", "_low", "_high"))
    if value is None or low is None or high is None or math.isnan(low) or math.isnan(high):
        return True
    return bool(high <= WIDEST_FACTOR * value and low >= value / WIDEST_FACTOR)


def has_open_interval(row: Mapping[str, Any]) -> bool:
    """Whether a row that is shown has an interval that is not usable."""
    return any(name.endswith("_high") and value == math.inf for name, value in row.items())
