"""What number does a tool mean that prints it with a unit: ``92.639ms``, ``4.0000KB``, ``62.94%``?

Some tools print as the user's language has it: ``1.234,56``, ``1 234,56`` or ``1'234.56`` for 1,234.56.
"""

import math
import re
from collections.abc import Iterable

_TIMES = {
    "ns": 1.0, "nsec": 1.0, "nsecond": 1.0, "nanosecond": 1.0, "nanoseconds": 1.0, "us": 1e3, "usec": 1e3,
    "usecond": 1e3, "microsecond": 1e3, "microseconds": 1e3, "\u00b5s": 1e3, "\u03bcs": 1e3, "ms": 1e6,
    "msec": 1e6, "msecond": 1e6, "millisecond": 1e6, "milliseconds": 1e6, "s": 1e9, "sec": 1e9, "second": 1e9,
    "seconds": 1e9, "m": 60e9, "min": 60e9, "h": 3600e9,
}  # fmt: skip
_PREFIXES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"K": 1024.0, "M": 1024.0**2, "G": 1024.0**3, "T": 1024.0**4}
_BETWEEN = "['\u2019\u00a0\u202f\u2009 ]"  # groups of digits, where neither point nor comma does it
_PLAIN = re.compile(r"^\s*([-+]?\d*\.?\d+(?:[eE][-+]?\d+)?)\s*(?:([^\s\d.,'\u2019][^\d]*?(?:/.*)?)\s*)?$")
_GROUPED = re.compile(
    rf"^\s*([-+]?\d[\d.,]*(?:{_BETWEEN}\d{{3}})*(?:[.,]\d+)?(?:[eE][-+]?\d+)?)\s*([^\s\d].*?)?\s*$"
)
_GROUPS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+$")
_SPACES = re.compile(rf"(?<=\d){_BETWEEN}(?=\d{{3}})")
_DECIMAL_COMMA = re.compile(
    rf"[-+]?(?:0,\d+|\d+,(?:\d{{1,2}}|\d{{4,}})|\d{{1,3}}(?:(?:\.|{_BETWEEN})\d{{3}})+,\d+)"
    r"\s*(?:%|[A-Za-z\u00b5\u03bc]{1,12}(?:/[A-Za-z]{1,12})?)?"  # a unit
)
_LEVEL = re.compile(r"\((\d+)\)$")  # of Low (3), as nvprof prints utilizations: 0 to 10
_BYTES = re.compile(r"^([KkMGTP]?)(?:byte|bytes|B)(/s|/second)?$")


def has_decimal_commas(cells: Iterable[str]) -> bool:
    """Whether numbers are written as ``12,5``: one among these cells can mean nothing else."""
    return any(_DECIMAL_COMMA.fullmatch(cell.strip()) for cell in cells)


def is_known_unit(unit: str) -> bool:
    """Whether a column's unit is one of time, or of bytes."""
    return unit in _TIMES or _BYTES.match(unit) is not None


def number_and_unit(text: str, unit: str = "", decimal_comma: bool = False) -> tuple[float, str]:
    """A printed value in its unit without a prefix (ns, B, B/s, %, "" for counts); NaN if it is no number.

    Args:
        unit: what stands in the column's head or unit row, where the value has none.
        decimal_comma: ``1,234`` is a little more than one, and ``1.234`` a thousand.
    """
    level = _LEVEL.search(text)
    if level:
        return float(level[1]), "level"
    value, own = _split(text, decimal_comma)
    own = (own or unit).strip("() ")
    if own in _TIMES:
        return value * _TIMES[own], "ns"
    if math.isnan(value):
        return value, ""
    if match := _BYTES.match(own):
        return value * _PREFIXES[match[1]], "B/s" if match[2] else "B"
    return value, own


def _split(text: str, decimal_comma: bool = False) -> tuple[float, str]:
    """A number and what stands behind it; NaN if the text does not begin with one."""
    match = _PLAIN.match(text)
    if match is not None and not decimal_comma:
        return float(match[1]), match[2] or ""
    match = _GROUPED.match(text)
    if match is None:
        return math.nan, ""
    return _grouped(_SPACES.sub("", match[1]), decimal_comma), match[2] or ""


def _grouped(digits: str, decimal_comma: bool) -> float:
    """Digits with points and commas as a number; NaN if they make none.

    The last of two signs is the decimal one; of one sign that comes once three digits may follow either
    way: then ``decimal_comma`` decides, but no group of thousands is 0.
    """
    point = "," if digits.rfind(",") > digits.rfind(".") else "."
    other = "." if point == "," else ","
    if other not in digits:
        whole, *parts = digits.split(point)
        undecided = len(parts) == 1 and len(parts[0]) == 3 and re.fullmatch(r"[-+]?[1-9]\d{0,2}", whole)
        if len(parts) > 1 or (undecided and (point == ",") != decimal_comma):
            point, other = other, point
    before, _, after = digits.partition(point)
    if other in after or (other in before and not _GROUPS.match(before.replace(other, ","))):
        return math.nan
    try:
        return float(f"{before.replace(other, '')}.{after}")
    except ValueError:
        return math.nan


def time_ns(text: str, unit: str = "") -> float:
    """A printed duration in ns; NaN if it is none."""
    value, unit_in_text = number_and_unit(text, unit)
    return value if unit_in_text == "ns" else math.nan


def size_bytes(text: str, unit: str = "") -> float:
    """A printed size in bytes, as nvprof means it (a KB is 1,024); NaN if it is none."""
    value, own = _split(text)
    match = _BYTES.match((own or unit).strip("() "))
    if match is None or match[2]:
        return math.nan
    return value * _BINARY.get(match[1].upper(), 1.0)
