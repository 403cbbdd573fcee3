"""Format values with a readable number of digits, intervals, and labels of configurations."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from jobs.run_fields import FACTOR, ROLES, as_text

if TYPE_CHECKING:
    import pandas as pd

_LEAST = 0.5e-8  # what is less is 0, up to rounding
_SMALL = 1e-4  # below it nobody counts the zeros


def in_order(frame: "pd.DataFrame", names: Iterable[str]) -> "pd.DataFrame":
    """The rows in the order of these columns, if they are there: numbers by value, unknown ones last."""
    rows = frame[[name for name in names if name in frame]]
    rows = rows.astype(object).where(rows.notna(), None)
    keys = [
        [(value is None, isinstance(value, str), 0 if value is None else value) for value in row]
        for row in rows.itertuples(index=False, name=None)
    ]
    return frame.iloc[sorted(range(len(frame)), key=keys.__getitem__)].reset_index(drop=True)


def plain(value: Any) -> Any:
    """A value that CSV and JSON know; what is not a number is empty.

    Of 12 digits: sums over many launches are made in parallel, so that their last ones differ between calls.
    """
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.12g}") if math.isfinite(value) else None
    return value


# What a spreadsheet takes for a formula and is no number (OWASP: CSV injection).
_FORMULA = re.compile(r"[=+@\t\r-](?![\d.,]*(?:[eE][-+]?\d+)?$)")


def cell(value: Any) -> Any:
    """A value as CSV holds it: an apostrophe stands before a text that spreadsheets would compute."""
    return f"'{value}" if isinstance(value, str) and _FORMULA.match(value) else value


def shown(value: Any) -> str:
    value = plain(value)
    if value is None or value == "":
        return "-"
    return digits(value) if isinstance(value, float) else str(value)


def digits(value: float | None, significant: int = 4) -> str:
    """A figure with as many digits as one reads: ``12.34``, ``1234``, ``0.01234``; a dash for none.

    Of what is hardly anything only its order of magnitude matters: ``-6.10e-06``.
    """
    if value is None or not math.isfinite(value):
        return "-"
    if abs(value) < _LEAST:
        return "0"
    if abs(value) < _SMALL:
        return f"{value:.{max(0, significant - 2)}e}"
    before = int(f"{abs(value):.{significant - 1}e}".partition("e")[2]) + 1  # once it is rounded
    places = significant - max(before, 1) if before > 0 else significant - before
    return f"{value:z.{max(0, places)}f}"


def figure(value: float | None, significant: int = 4) -> str:
    """A figure of a table: :func:`digits`, but of what is hardly anything that it is: ``<0.0001``."""
    if value is None or not _LEAST <= abs(value) < _SMALL:
        return digits(value, significant)
    return f"<{_SMALL}" if value > 0 else f">-{_SMALL}"


def with_places(value: float | None, places: int) -> str:
    """A figure with a fixed number of decimals, 0 without a sign; a dash for none."""
    return "-" if value is None or not math.isfinite(value) else f"{value:z.{places}f}"


def probability(value: float) -> str:
    """A p value with three decimals: ``0.032``, ``< 0.001``."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def signed(places: int) -> Callable[[float], str]:
    """How a change is printed: ``+1.3``, ``-0.5``; what rounds to 0 has no sign: ``0.0``."""

    def text(value: float) -> str:
        printed = f"{value:+z.{places}f}"
        return printed if float(printed) else printed.removeprefix("+")

    return text


def distinct(names: Iterable[str], most: int) -> dict[str, str]:
    """Long names by short ones, as far as these differ: ``sm80_xmma_ge...tilesize64x64_stage5``."""
    every = list(dict.fromkeys(names))
    head, tail = most // 3, most - most // 3 - 3
    short = [one if len(one) <= most else f"{one[:head]}...{one[-tail:]}" for one in every]
    taken = Counter(short)
    return {one: text if taken[text] == 1 else one for one, text in zip(every, short, strict=True)}


def label_of(row: Mapping[str, Any], fields: Iterable[str]) -> str:
    """A configuration by its values of these fields: ``dali-cpu, fp16 gradients``; empty: none is known."""
    templates = {name: role.label for name, role in ROLES.items()}
    templates |= {"repetition": "repetition {}", "global_batch": "global batch {:.0f}"}
    parts = []
    for name in fields:
        value = row.get(name)
        if value is None:
            continue
        if isinstance(value, bool) and name in templates:
            parts.append(name if value else f"no {name}")
        elif name.startswith(FACTOR):
            parts.append(f"{name.removeprefix(FACTOR)} {as_text(value)}")
        elif name == "world_size":
            parts.append(f"{int(value)} rank{'s' if value != 1 else ''}")
        else:
            parts.append(templates.get(name, "{}").format(value))
    return ", ".join(parts)


# An interval that reaches beyond so many times its value, or below that fraction of it, does not even tell
# the order of magnitude. Two runs of which one takes more than 1.5 times as long as the other have such an
# interval; of three runs the longest takes more than 5 times as long as the shortest.
WIDEST_FACTOR = 10.0
OPEN = (-math.inf, math.inf)  # the ends of an interval that is not usable: ``[?]`` in a table, no error bar


def is_unusable(value: Any, low: Any, high: Any) -> Any:
    """Whether an interval does not tell a figure's order of magnitude; of numbers or Series."""
    return (high > WIDEST_FACTOR * value) | (low < value / WIDEST_FACTOR)


def with_interval(
    value: float | None, low: float | None, high: float | None, places: int | None = None
) -> str:
    """``12.3 [12.1, 12.6]``, ``12.3 [12.1, -]`` without an upper limit, ``12.3`` without both.

    ``12.3 [?]``: both ends are infinite, so there is an interval and it says nothing.
    """
    if value is None or not math.isfinite(value):
        return "-"
    if (low, high) == OPEN:
        return f"{with_interval(value, None, None, places)} [?]"
    ends = [end for end in (low, high) if end is not None and math.isfinite(end)]
    if not ends:
        return figure(value) if places is None else with_places(value, places)
    if places is None:
        largest = max(abs(one) for one in (value, *ends))
        if 0 < largest < _SMALL:
            return figure(value)
        before = math.floor(math.log10(largest)) + 1 if largest else 3
        places = max(0, 4 - before) if before > 0 else 3 - before
    return f"{value:z.{places}f} [{with_places(low, places)}, {with_places(high, places)}]"
