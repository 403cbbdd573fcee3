"""How is a value printed? With as many digits as one reads; a dash where nothing is known."""

import math
from collections.abc import Callable, Sequence
from typing import Any


def sortable(key: Sequence[Any]) -> tuple:
    """A sort key for fields: numbers by value, what is not known last."""
    return tuple((value is None, isinstance(value, str), value if value is not None else 0) for value in key)


def plain(value: Any) -> Any:
    """A value that CSV and JSON know; what is not a number is empty."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def shown(value: Any) -> str:
    value = plain(value)
    if value is None or value == "":
        return "-"
    return digits(value) if isinstance(value, float) else str(value)


_LEAST = 0.5e-8  # what is less is 0, up to rounding
_SMALL = 1e-4  # below it nobody counts the zeros


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
    before = math.floor(math.log10(abs(value))) + 1
    places = significant - max(before, 1) if before > 0 else significant - before
    return f"{value:z.{max(0, places)}f}"


def change(value: float, significant: int = 3) -> str:
    """A difference in a sentence: :func:`digits` with its sign: ``+857``, ``-0.0900``, ``0``."""
    printed = digits(value, significant)
    return f"+{printed}" if value >= _LEAST else printed


def figure(value: float | None, significant: int = 4) -> str:
    """A figure of a table: :func:`digits`, but of what is hardly anything that it is: ``<0.0001``."""
    if value is None or not _LEAST <= abs(value) < _SMALL:
        return digits(value, significant)
    return f"<{_SMALL}" if value > 0 else f">-{_SMALL}"


def with_places(value: float | None, places: int) -> str:
    """A figure with a fixed number of decimals, 0 without a sign; a dash for none."""
    return "-" if value is None or not math.isfinite(value) else f"{value:z.{places}f}"


def span(low: str, high: str) -> str:
    """``14.7 to 15.2``; ``14.7`` where both are printed alike."""
    return low if low == high else f"{low} to {high}"


def probability(value: float) -> str:
    """A p value with three decimals: ``0.032``, ``< 0.001``."""
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def signed(places: int) -> Callable[[float], str]:
    """How a change is printed: ``+1.3``, ``-0.5``; what rounds to 0 has no sign: ``0.0``."""

    def text(value: float) -> str:
        printed = f"{value:+z.{places}f}"
        return printed if float(printed) else printed.removeprefix("+")

    return text


def shortened(text: str, most: int = 40) -> str:
    """A long name, its middle left out: ``ampere_sgemm_128x...nn_align1_stages_3``."""
    return text if len(text) <= most else f"{text[: most // 2 - 3]}...{text[-most // 2 :]}"


def with_interval(
    value: float | None, low: float | None, high: float | None, places: int | None = None
) -> str:
    """``12.3 [12.1, 12.6]``, ``12.3 [12.1, -]`` without an upper limit, ``12.3`` without both.

    ``12.3 [?]``: both ends are infinite, so there is an interval and it says nothing.
    """
    if value is None or not math.isfinite(value):
        return "-"
    if (low, high) == (-math.inf, math.inf):
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
