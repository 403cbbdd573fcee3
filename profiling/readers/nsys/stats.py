"""What do the tables of ``nsys stats`` say: summaries and traces of kernels, copies, calls and ranges?

A range's projection is the time from the first to the last work on a GPU that was launched within the range:
``Forward Pass (on the GPU)``. A kernel within a range is ``Forward Pass => kernel``, once for each range that
is around it. Neither is work of its own: both stand beside the ranges, not among the work of a device.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from profiling.errors import UserError
from profiling.readers.csv_blocks import Blocks, Row
from profiling.readers.printed import is_known_unit, number_and_unit, size_bytes, time_ns
from profiling.readers.printed_tables import Activity, Launch, Launches, Metric, Spread

_ROWS = 1 << 16
_HEAD = re.compile(
    r"^(Time ?\(%\),Total Time|Start ?\(?\w*\)?,|Total \(\w+\),Count|Total,Operations,Average|"
    r"NVTX Range,Style,|Range,Style,Total Proj Time|Name,Projected Start)",
    re.MULTILINE,
)
# The head of a summary or a trace as nsys stats prints it in its other formats: aligned, tsv, JSON.
_OTHER_HEAD = re.compile(
    r"Time ?\(%\)(:\s{0,9}[\d.]{1,9},\s{0,40}|[^\w,]{1,40})Total Time"
    r"|Start ?\(\w{1,9}\)(:\s{0,9}\d{1,19},\s{0,40}|[^\w,]{1,40})Duration"
)
_UNIT = re.compile(r"^(.*?)\s*\((\w+(?:/\w+)?|%)\)$")
_NAMES = ("Name", "Operation", "Range", "Kernel Name")
_COUNTS = ("Instances", "Num Calls", "Count", "Operations", "Calls", "Kern Inst", "Range Instances")
_MEASURED = {"Start", "Duration", "Projected Duration", "Total", "Avg", "Min", "Max", "StdDev"}
_COLUMNS = {
    "Average": "Avg", "Minimum": "Min", "Maximum": "Max", "StDev": "StdDev", "Total Time": "Total",
    "GridX": "GrdX", "GridY": "GrdY", "GridZ": "GrdZ", "BlockX": "BlkX", "BlockY": "BlkY", "BlockZ": "BlkZ",
    "Stream": "Strm", "Total Proj Time": "Total", "Proj Avg": "Avg", "Proj Min": "Min", "Proj Max": "Max",
    "Proj StdDev": "StdDev",
}  # fmt: skip


def is_stats(head: bytes) -> bool:
    """Whether a text holds a table of ``nsys stats``, if only one that is not CSV, and so not read."""
    text = head.decode("utf-8-sig", "replace").replace('"', "")
    return _HEAD.search(text) is not None or _OTHER_HEAD.search(text) is not None


@dataclass
class Stats:
    """All that a text says."""

    activities: list[Activity] = field(default_factory=list)
    metrics: list[Metric] = field(default_factory=list)
    damaged: int = 0
    findings: list[str] = field(default_factory=list)
    projected: dict[str, Spread] = field(default_factory=dict)  # of a trace of ranges, by name


@dataclass
class _Columns:
    """A table's columns by their names in any release, with their units."""

    place: dict[str, int]
    unit: dict[str, str]

    def text(self, row: Row, name: str) -> str:
        return row.cells[self.place[name]] if name in self.place else ""

    def time_ns(self, row: Row, name: str) -> float:
        # Releases before 2021 print nanoseconds and say no unit.
        return time_ns(self.text(row, name), self.unit.get(name) or "ns")

    def number(self, row: Row, name: str) -> float:
        return number_and_unit(self.text(row, name), self.unit.get(name, ""))[0]

    def whole(self, row: Row, name: str) -> int:
        text = self.text(row, name)
        return int(text) if text.isdecimal() and len(text) < 19 else -1


def read_stats(path: Path, stats: Stats) -> Iterator[Launches]:
    """Read a text into ``stats``; launches of a GPU trace are handed out some thousand at a time.

    Raises:
        UserError: unreadable, or no table of ``nsys stats``.
    """
    blocks = Blocks(path, lambda cells: bool(_HEAD.match(",".join(cells))))
    header: list[str] = []
    launches = Launches()
    for row in blocks:
        if row.header is not header:
            header, columns = row.header, _columns(row.header)
            unknown = (one for one in _unknown_units(columns) if one not in stats.findings)
            stats.findings += unknown
        name = next((columns.text(row, one) for one in _NAMES if one in columns.place), "")
        if "Total" in columns.place:
            _add_summary(stats, columns, row, name.removeprefix(":"))
        elif "Projected Duration" in columns.place:
            spread = stats.projected.setdefault(name.removeprefix(":"), Spread())
            spread.add(columns.time_ns(row, "Projected Duration"))
        elif "Start" in columns.place and {"Strm", "Device"} <= columns.place.keys():
            _add_launch(launches, columns, row, name)
            if len(launches) >= _ROWS:
                yield launches
                launches = Launches()
    stats.activities += [one.activity(_projected(name)) for name, one in stats.projected.items()]
    stats.damaged = blocks.damaged
    if not header:
        raise UserError(
            f"{path} holds no table of nsys stats in CSV; write it again (nsys stats --format csv)"
        )
    if len(launches):
        yield launches


def _columns(header: list[str]) -> _Columns:
    place: dict[str, int] = {}
    unit: dict[str, str] = {}
    for at, written in enumerate(header):
        match = _UNIT.match(written)
        name = match[1] if match else written
        name = _COLUMNS.get(name, name)
        place.setdefault(name, at)
        unit[name] = match[2] if match else ""
    return _Columns(place, unit)


def _unknown_units(columns: _Columns) -> list[str]:
    """What is to be said of columns of times and sizes whose units say nothing here."""
    return [
        f"column {name} has the unknown unit {unit} and is left out; write the table again with another "
        "(nsys stats --timeunit nsec; sizes in MB)"
        for name, unit in columns.unit.items()
        if name in _MEASURED and unit and not is_known_unit(unit)
    ]


def _add_summary(stats: Stats, columns: _Columns, row: Row, name: str) -> None:
    count = next((columns.number(row, one) for one in _COUNTS if one in columns.place), float("nan"))
    if columns.unit.get("Total") in ("B", "KB", "MB", "GB"):  # sizes of copies
        sizes = [columns.number(row, one) for one in ("Min", "Max", "Avg", "StdDev")]
        stats.metrics.append(Metric("Size (B)", name, count, *sizes))
        return
    if "Operations" in columns.place and "Time" not in columns.place:  # likewise before 2021, in KiB
        sizes = [size_bytes(columns.text(row, one), "KB") for one in ("Min", "Max", "Avg")]
        stats.metrics.append(Metric("Size (B)", name, count, *sizes))
        return
    total, mean, low, high, std = (
        columns.time_ns(row, one) for one in ("Total", "Avg", "Min", "Max", "StdDev")
    )
    if "NVTX Range" in columns.place:
        name = f"{columns.text(row, 'NVTX Range').removeprefix(':')} => {name}"
    elif "Range Instances" in columns.place:
        name = _projected(name)
    of_kernels = "Instances" in columns.place and "Name" in columns.place
    of_operations = "Operation" in columns.place and columns.text(row, "Category") != "CUDA_API"
    stats.activities.append(
        Activity(name, count, total, mean, low, high, std, on_device=of_kernels or of_operations)
    )


def _projected(name: str) -> str:
    return f"{name} (on the GPU)"


def _add_launch(launches: Launches, columns: _Columns, row: Row, name: str) -> None:
    sizes = [",".join(columns.text(row, of + axis) for axis in "XYZ") for of in ("Grd", "Blk")]
    grid, block = (text if re.fullmatch(r"\d+,\d+,\d+", text) else "" for text in sizes)
    device = re.search(r"\((\d{1,4})\)\s*$", columns.text(row, "Device"))
    size = columns.number(row, "Bytes")
    launches.add(
        Launch(
            name,
            columns.time_ns(row, "Start"),
            columns.time_ns(row, "Duration"),
            int(device[1]) if device else max(columns.whole(row, "Device"), 0),
            columns.whole(row, "Strm"),
            grid,
            block,
            size,
            correlation=columns.whole(row, "CorrId"),
        )
    )
