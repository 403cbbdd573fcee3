"""Parse what tools print (CSV among other lines, numbers with units) into tables.

A row of a summary becomes a row of ``intervals``, with thread -1 for device work. The durations of its calls
become an event of ``atomics``, as does each metric of each kernel: ``ipc : void kernel<float>(float*)``.
Numbers have units (``92.639ms``, ``4.0000KB``) and may be in the user's locale: ``1.234,56``, ``1 234,56`` or
``1'234.56`` for 1,234.56.
"""

import csv
import math
import re
from array import array
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from profiling.attribution.batch_rows import CONFIDENCE_KEY, SOURCE_KEY
from profiling.attribution.batch_times import WHOLE
from profiling.cost.classify import classify, full_name, short_name
from profiling.readers.files import read_lines
from profiling.tables import as_table

_LINES_OF_A_ROW = 64  # a quoted text has fewer; beyond that its end is missing


def cells_of(line: str, delimiter: str = ",") -> list[str]:
    """The cells of a line; none if it is no CSV."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:  # a line end within, or a cell longer than any is
        return []


class Blocks:
    """The rows of all tables in a text: (columns, cells), columns the same list for all rows of a table.

    Other lines are passed over.
    ``is_header``: whether cells name the columns of a table; ``damaged``: rows with more or fewer cells.
    """

    def __init__(self, path: Path, is_header: Callable[[list[str]], bool], delimiter: str = ",") -> None:
        self._path, self._is_header, self._delimiter = path, is_header, delimiter
        self.damaged = 0

    def __iter__(self) -> Iterator[tuple[list[str], list[str]]]:
        header: list[str] = []
        lines, ahead = read_lines(self._path), deque[str]()
        while (line := ahead.popleft() if ahead else next(lines, None)) is not None:
            if not line.strip() or line.startswith("=="):
                header = header if line.startswith("==") else []
                continue
            cells = cells_of(line, self._delimiter)
            if self._is_header(cells):
                header = [cell.strip() for cell in cells]
                continue
            if header and line.count('"') % 2:  # a quoted text goes on over the next lines, or the row is cut
                ahead.extend(islice(lines, _LINES_OF_A_ROW - len(ahead)))
                count = next((n for n, more in enumerate(ahead, 1) if more.count('"') % 2), 0)
                joined = cells_of("\n".join([line, *islice(ahead, count)]), self._delimiter)
                if len(joined) == len(header):
                    cells, ahead = joined, deque(islice(ahead, count, None))
            if header and len(cells) == len(header):
                yield header, cells
            elif header:
                self.damaged += 1


_TIMES = {
    "ns": 1.0, "nsec": 1.0, "nsecond": 1.0, "nanosecond": 1.0, "nanoseconds": 1.0, "us": 1e3, "usec": 1e3,
    "usecond": 1e3, "microsecond": 1e3, "microseconds": 1e3, "\u00b5s": 1e3, "\u03bcs": 1e3, "ms": 1e6,
    "msec": 1e6, "msecond": 1e6, "millisecond": 1e6, "milliseconds": 1e6, "s": 1e9, "sec": 1e9, "second": 1e9,
    "seconds": 1e9, "m": 60e9, "min": 60e9, "h": 3600e9,
}  # fmt: skip
_PREFIXES = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"K": 1024.0, "M": 1024.0**2, "G": 1024.0**3, "T": 1024.0**4}
_BETWEEN = "['\u2019\u00a0\u202f\u2009 ]"  # groups of digits, where neither point nor comma does it
_NUMBER = re.compile(
    rf"^\s*([-+]?(?:[1-9]\d{{0,2}}(?:(?:,|{_BETWEEN})\d{{3}})+(?!\d)|\d+)?(?:\.\d+|\.)?(?:[eE][-+]?\d+)?)"
    r"\s*([^\s\d.,'\u2019].*?)?\s*$"
)
_SWAP = str.maketrans(".,", ",.")
# 12,5 or 1.234,56 or 1.234.567, with a unit or without, can mean nothing else.
_DECIMAL_COMMA = re.compile(
    rf"[-+]?(?:0,\d+|\d+,(?:\d{{1,2}}|\d{{4,}})|\d{{1,3}}(?:(?:\.|{_BETWEEN})\d{{3}})+,\d+|\d{{1,3}}(?:\.\d{{3}}){{2,}})"
    r"\s*(?:%|[A-Za-z\u00b5\u03bc]{1,12}(?:/[A-Za-z]{1,12})?)?"
)
_LEVEL = re.compile(r"\((\d+)\)$")  # of Low (3), as nvprof prints utilizations: 0 to 10
_BYTES = re.compile(r"^([KkMGTP]?)(?:byte|bytes|B)(?:/block)?(/s|/second)?$")


def has_decimal_commas(cells: Iterable[str]) -> bool:
    """Whether one of these cells is a number with a decimal comma."""
    return any(_DECIMAL_COMMA.fullmatch(cell.strip()) for cell in cells)


def number_and_unit(text: str, unit: str = "", decimal_comma: bool = False) -> tuple[float, str]:
    """A printed value in its unit without a prefix (ns, B, B/s, %, "" for counts); NaN if it is no number.

    ``unit``: of the column, where the value has none; ``decimal_comma``: ``1,234`` is a little more than one.
    """
    if level := _LEVEL.search(text):
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


def whole_number(text: str, digits: int = 18) -> int:
    """A number without sign and fraction, of at most so many digits; -1 if it is none."""
    return int(text) if text.isdecimal() and len(text) <= digits else -1


def _split(text: str, decimal_comma: bool = False) -> tuple[float, str]:
    """A number and what stands behind it; NaN if the text does not begin with one."""
    swapped = decimal_comma or _DECIMAL_COMMA.fullmatch(text.strip())
    match = _NUMBER.match(text.translate(_SWAP) if swapped else text)
    try:
        return (float(re.sub(r"[^\d.eE+-]", "", match[1])), match[2] or "") if match else (math.nan, "")
    except ValueError:
        return math.nan, ""


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


_ROWS = 1 << 16
ON_DEVICE = -1  # the thread of work that a device did
DURATION = "Duration (ns)"


@dataclass
class Activity:
    """One row of a summary; durations in ns, NaN where not printed."""

    name: str
    calls: float
    total_ns: float
    mean_ns: float = math.nan
    min_ns: float = math.nan
    max_ns: float = math.nan
    std_ns: float = math.nan
    on_device: bool = True

    def add(self, duration_ns: float) -> None:
        """Count a call."""
        self.calls, self.total_ns = self.calls + 1, self.total_ns + duration_ns


@dataclass
class Metric:
    """A metric (or counted event) over the launches of a kernel, with the unit in its name."""

    name: str
    kernel: str
    count: float
    min: float
    max: float
    mean: float
    std: float = math.nan


class Spreads:
    """Values that come one by one, of which count, extremes, mean and deviation (of the whole) are wanted."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], array[float]] = {}

    def add(self, name: str, kernel: str, value: float) -> None:
        """Count a value; NaN is none."""
        if value == value:
            self._values.setdefault((name, kernel), array("d")).append(value)

    def metrics(self) -> list[Metric]:
        with np.errstate(over="ignore", invalid="ignore"):
            return [
                Metric(*key, len(some), min(some), max(some), float(np.mean(some)), float(np.std(some)))
                for key, some in self._values.items()
            ]


class Launch(NamedTuple):
    """A launch as printed; what is not known is NaN, -1 or empty."""

    name: str
    start_ns: float = math.nan
    duration_ns: float = math.nan
    device: int = 0
    stream: int = -1
    grid: str = ""
    block: str = ""
    bytes: float = math.nan
    flops: float = math.nan
    correlation: int = -1
    operator: str = ""
    direction: str = "none"
    registers: float = math.nan
    shared_bytes: float = math.nan


def stream_printed(
    launches: Iterator[Launch],
    activities: Sequence[Activity],
    metrics: Callable[[], Sequence[Metric]],
    rank: int,
    one_batch: bool = False,
) -> Generator[tuple[str, pa.Table], None, bool]:
    """What a tool printed as pieces of tables; returns whether anything was.

    Args:
        launches: while they are read, ``activities`` grow.
        metrics: what is known of them when all has been read.
        one_batch: all launches are of one batch, of which no time is known; else their batches are not.
    """
    launched = False
    while chunk := list(islice(launches, _ROWS)):
        launched = True
        yield "kernels", _kernels_table(chunk, rank, one_batch)
    if launched and one_batch:
        batch = as_table("batches", {"rank": [rank], "batch_index": [0], "attributed": [True]})
        yield "batches", batch.replace_schema_metadata({SOURCE_KEY: WHOLE, CONFIDENCE_KEY: "1"})
    counters = metrics()
    if activities:
        yield "intervals", summary_intervals(activities, rank)
    if activities or counters:
        yield "atomics", summary_atomics(activities, counters, rank)
    return launched or bool(activities or counters)


def _kernels_table(launches: Sequence[Launch], rank: int, one_batch: bool) -> pa.Table:
    given = dict(zip(Launch._fields, zip(*launches, strict=True), strict=True))
    full = [full_name(name) for name in given["name"]]
    columns = {
        **({"batch_index": np.zeros(len(full), np.int32)} if one_batch else {}),
        "rank": np.full(len(full), rank, dtype=np.int32),
        "start_ns": _as_integers(given["start_ns"]),
        "duration_ns": _as_integers([took if took >= 0 else math.nan for took in given["duration_ns"]]),
        "name": full,
        "short_name": [short_name(name) for name in full],
        "class": [classify(name) for name in full],
        "direction": given["direction"],
        **{name: [text or None for text in given[name]] for name in ("operator", "grid", "block")},
        "device": np.array(given["device"], dtype=np.int32),
        "stream": pa.array(given["stream"], pa.int64()),
        **{
            name: np.array(given[name], np.float64)
            for name in ("flops", "bytes", "registers", "shared_bytes")
        },
        "correlation": pa.array([one if one >= 0 else None for one in given["correlation"]], pa.int64()),
    }
    return as_table("kernels", columns)


def _as_integers(values: Sequence[float]) -> pa.Array:
    floats = np.array(values, dtype=np.float64)
    in_range = np.abs(floats) < 2**62
    return pa.array(np.rint(np.where(in_range, floats, 0)).astype(np.int64), mask=~in_range)


def summary_intervals(activities: Sequence[Activity], rank: int) -> pa.Table:
    """A summary's rows as table ``intervals``."""
    total = [one.total_ns for one in activities]
    columns = {
        "rank": np.full(len(activities), rank, dtype=np.int32),
        "thread": [ON_DEVICE if one.on_device else 0 for one in activities],
        "function": [full_name(one.name) for one in activities],
        "calls": [one.calls for one in activities],
        "exclusive_ns": total,
        "inclusive_ns": total,
    }
    return as_table("intervals", columns)


def summary_atomics(activities: Sequence[Activity], metrics: Sequence[Metric], rank: int) -> pa.Table:
    """How long a summary's calls took, and metrics, as table ``atomics``."""
    timed = [one for one in activities if not math.isnan(one.min_ns)]
    rows = [Metric(DURATION, a.name, a.calls, a.min_ns, a.max_ns, a.mean_ns, a.std_ns) for a in timed]
    rows += metrics
    columns: dict[str, Any] = {
        name: [getattr(row, name) for row in rows] for name in ("count", "min", "max", "mean", "std")
    }
    columns["event"] = [f"{row.name} : {full_name(row.kernel)}" if row.kernel else row.name for row in rows]
    columns["rank"] = np.full(len(rows), rank, dtype=np.int32)
    columns["thread"] = [ON_DEVICE if a.on_device else 0 for a in timed] + [ON_DEVICE] * len(metrics)
    return as_table("atomics", columns)
