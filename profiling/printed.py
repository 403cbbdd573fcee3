"""What number does a tool mean that prints it with a unit: ``92.639ms``, ``4.0000KB``, ``62.94%``?"""

import math
import re

_TIMES = {
    "ns": 1.0, "nsecond": 1.0, "nanosecond": 1.0, "us": 1e3, "usecond": 1e3, "microsecond": 1e3, "ms": 1e6,
    "msecond": 1e6, "millisecond": 1e6, "s": 1e9, "sec": 1e9, "second": 1e9, "m": 60e9, "min": 60e9,
    "h": 3600e9,
}  # fmt: skip
_PREFIXES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"K": 1024.0, "M": 1024.0**2, "G": 1024.0**3, "T": 1024.0**4}
_NUMBER = re.compile(r"^\s*([-+]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?)\s*([^\s\d].*?)?\s*$")
_LEVEL = re.compile(r"\((\d+)\)$")  # of Low (3), as nvprof prints utilizations: 0 to 10
_BYTES = re.compile(r"^([KkMGTP]?)(?:byte|bytes|B)(/s|/second)?$")


def number_and_unit(text: str, unit: str = "") -> tuple[float, str]:
    """A printed value in its unit without a prefix (ns, B, B/s, %, "" for counts); NaN if it is no number.

    Args:
        unit: what stands in the column's head or unit row, where the value has none.
    """
    level = _LEVEL.search(text)
    if level:
        return float(level[1]), "level"
    found = _NUMBER.match(text)
    if found is None:
        return math.nan, ""
    value, own = float(found[1].replace(",", "")), found[2] or unit
    own = own.strip("() ")
    if own in _TIMES:
        return value * _TIMES[own], "ns"
    if match := _BYTES.match(own):
        return value * _PREFIXES[match[1]], "B/s" if match[2] else "B"
    return value, own


def time_ns(text: str, unit: str = "") -> float:
    """A printed duration in ns; NaN if it is none."""
    value, found = number_and_unit(text, unit)
    return value if found == "ns" else math.nan


def size_bytes(text: str, unit: str = "") -> float:
    """A printed size in bytes, as nvprof means it (a KB is 1,024); NaN if it is none."""
    found = _NUMBER.match(text)
    match = _BYTES.match((found[2] or unit).strip("() ")) if found else None
    if found is None or match is None or match[2]:
        return math.nan
    return float(found[1].replace(",", "")) * _BINARY.get(match[1].upper(), 1.0)
