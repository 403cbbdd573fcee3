"""What does a text say that nvprof printed: summaries, traces, metrics, plain or as CSV?

A text is blocks: a line that names the columns, perhaps one with their units (CSV), rows. Lines that begin
with ``==PID==`` are nvprof's own words; what the program printed in between is passed over.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from profiling.errors import UserError
from profiling.readers.csv_blocks import cells_of, read_lines
from profiling.readers.printed import number_and_unit, size_bytes, time_ns
from profiling.readers.printed_tables import Activity, Launch, Launches, Metric, Spread
from profiling.wording import left_out

HEAD = re.compile(
    rb"^(?:\xef\xbb\xbf)?==\d+== (NVPROF is|Profiling (result|application)|Generated result file)"
    rb"|^======== (Warning|Error|Profiling result)"
    rb'|^(?:\xef\xbb\xbf)?[ "]*(Type[ ",]+)?'
    rb'Time\(%\)[ ",]+Time[ ",]+Calls[ ",]+Avg[ ",]+Min[ ",]+Max[ ",]+Name"?\s*$',
    re.MULTILINE,
)
_BANNER = re.compile(r"^==(\d+|====)== ?(.*)$")
_WORTH_SAYING = re.compile(r"^(Warning|Error|Internal|Some kernel|No events|Unable)")
_HARMLESS = re.compile(r"current version of nvcc compiler|Generated result file")
_NOTHING = re.compile(r"^No (kernels|API activities) were profiled")
_SUMMARY = re.compile(
    r"^\s*(?:([A-Za-z][^:%]*):)?\s*([\d.]+)%\s+(\S+)\s+(\d+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S.*?)\s*$"
)
_METRIC_COLUMN = re.compile(r"(?:Event|Metric) (?:Name|Description)|\S+")
_MEMORY = re.compile(r"^\s*(\d+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S.*?)\s*$")
_COUNT = re.compile(r"^Total (CPU .+?): (\d+)$")
_KERNEL = re.compile(r"^\s+Kernel: (.+?)\s*$")
_DEVICE = re.compile(r"\((\d{1,4})\)\s*$")
_OF_THE_CPU = "its CPU samples (--cpu-profiling) are not read; use another profiler for them"
_ROWS = 1 << 16
_DEVICE_TYPES = ("GPU activities", "")


@dataclass
class Printed:
    """All that a text says."""

    activities: list[Activity] = field(default_factory=list)
    metrics: list[Metric] = field(default_factory=list)
    launches: Launches = field(default_factory=Launches)
    findings: list[str] = field(default_factory=list)
    processes: set[int] = field(default_factory=set)
    nothing: bool = False  # nvprof says that it saw no kernel
    blocks: int = 0
    spoke: bool = False  # a line is nvprof's own


def read_printed(path: Path, printed: Printed) -> Iterator[Launches]:
    """Read a text into ``printed``; launches are handed out some thousand at a time.

    Raises:
        UserError: unreadable, or no text of nvprof.
    """
    reader = _Reader(printed)
    for line in read_lines(path):
        reader.take(line)
        if len(printed.launches) >= _ROWS:
            yield printed.launches
            printed.launches = Launches()
    reader.close()
    if not printed.spoke and not printed.blocks:
        raise UserError(f"{path} is not text printed by nvprof: it has no line that begins with ==PID==")
    if len(printed.launches):
        yield printed.launches


class _Reader:
    """Takes lines one by one, and knows in which block it is."""

    def __init__(self, printed: Printed) -> None:
        self.printed = printed
        self.header: list[str] = []
        self.units: list[str] = []
        self.ends: list[int] = []  # of a plain trace's columns
        self.kind = self.group = self.kernel = ""
        self.unread = 0
        self.in_ranges = False
        self.spreads: dict[tuple[str, str], Spread] = {}
        self.calls: dict[str, Spread] = {}

    def take(self, line: str) -> None:
        if banner := _BANNER.match(line):
            self._banner(banner[1], banner[2].strip())
        elif line.startswith('"') or (self.kind == "csv" and "," in line) or _begins_csv(line):
            self._csv(cells_of(line))
        elif not self._begins(line):
            self._row(line)

    def close(self) -> None:
        spreads = self.spreads.items()
        self.printed.metrics += [spread.metric(*key) for key, spread in spreads if spread.count]
        calls = self.calls.items()
        self.printed.activities += [spread.activity(name) for name, spread in calls if spread.count]
        if self.unread:
            self.printed.findings.append(left_out(self.unread, "damaged line"))

    def _banner(self, process: str, text: str) -> None:
        self.printed.spoke = True
        if process.isdecimal():  # else the line is of no process: ======== Warning
            self.printed.processes.add(int(process))
        self.kind, self.group = "", ""
        if text in ("NVTX result:", "Profiling result:"):  # a process's ranges come after all else of it
            self.in_ranges = text == "NVTX result:"
        if text.startswith("CPU profiling result"):
            self.printed.findings.append(_OF_THE_CPU)
        if text.startswith("API calls"):  # CUDA 8 and older: blocks of their own, without a column for it
            self.group = "API calls"
        if _WORTH_SAYING.match(text) and not _HARMLESS.search(text):
            self.printed.findings.append(f"nvprof says: {text}")

    # --- plain tables ---------------------------------------------------------------------------------

    def _begins(self, line: str) -> bool:
        words = line.split()
        if "Time(%)" in words and "Calls" in words and words[-1] == "Name":
            self.kind, self.group = "summary", self.group if "Type" not in words else ""
        elif words[:1] == ["Invocations"] and words[-1:] in (["Avg"], ["Total"]):
            self.kind, self.header = "metric", _METRIC_COLUMN.findall(line)
        elif words[:2] == ["Count", "Avg"]:
            self.kind = "memory"
        elif words[:2] == ["Start", "Duration"] and words[-1] == "Name":
            self.kind = "trace"
            columns = list(re.finditer(r"\S+(?: \S+)*", line))
            self.header = [column[0] for column in columns]
            self.ends = [column.end() for column in columns]
        else:
            return False
        self.printed.blocks += 1
        return True

    def _row(self, line: str) -> None:
        if _NOTHING.match(line):
            self.printed.nothing |= not self.in_ranges
        elif match := _COUNT.match(line):
            count = float(match[2])
            self.printed.metrics.append(Metric(f"Unified memory {match[1]}", "", 1, count, count, count))
        elif not line.strip():
            self.kind = "" if self.kind == "trace" else self.kind
        elif self.kind == "summary":
            self._summary(line)
        elif self.kind == "metric":
            self._metric(line)
        elif self.kind == "memory":
            self._memory(line)
        elif self.kind == "trace":
            self._trace(line)

    def _summary(self, line: str) -> None:
        match = _SUMMARY.match(line)
        if match is None:
            self.unread += 1
            return
        self.group = (match[1] or self.group).strip()
        total, mean, low, high = map(time_ns, (match[3], match[5], match[6], match[7]))
        self._add_activity(self.group, Activity(match[8], float(match[4]), total, mean, low, high))

    def _add_activity(self, group: str, activity: Activity) -> None:
        if self.in_ranges and group != "Range":
            return  # work and calls again, by range: counted already
        activity.on_device = group in _DEVICE_TYPES
        self.printed.activities.append(activity)

    def _metric(self, line: str) -> None:
        if kernel := _KERNEL.match(line):
            self.kernel = kernel[1]
        elif not line.startswith("Device"):
            cells = re.split(r"\s{2,}", line.strip())
            # A number wider than its column leaves one space; what an event's row says has none within.
            cells = cells if len(cells) == len(self.header) else line.split()
            if len(cells) == len(self.header) and cells[0].isdecimal():
                self._add_metric(dict(zip(self.header, cells, strict=True)), self.kernel)
            else:
                self.unread += 1

    def _add_metric(self, row: dict[str, str], kernel: str) -> None:
        name = row.get("Metric Name") or row.get("Event Name", "")
        count = _float(row.get("Invocations", ""))
        values = [number_and_unit(row.get(one, "")) for one in ("Min", "Max", "Avg")]
        unit = f" ({values[0][1]})" if values[0][1] not in ("", "level") else ""
        self.printed.metrics.append(Metric(name + unit, kernel, count, *(value for value, _ in values)))

    def _memory(self, line: str) -> None:
        match = _MEMORY.match(line)
        if match is None:
            self.unread += not line.startswith("Device")
            return
        count, mean, low, high, _, total, name = match.groups()
        name, number = f"{_UNIFIED} {name}]", float(count)
        if low != "-":
            self.printed.metrics.append(
                Metric("Size (B)", name, number, size_bytes(low), size_bytes(high), size_bytes(mean))
            )
        if total != "-":
            spent = time_ns(total)
            self.printed.activities.append(
                Activity(name, number, spent, spent / max(number, 1), float("nan"), float("nan"))
            )

    def _trace(self, line: str) -> None:
        starts = [0, *self.ends[:-2], self.ends[-2]]
        ends = [*self.ends[:-1], len(line)]
        cells = [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]
        self._add_launch(dict(zip(self.header, cells, strict=True)), {})

    # --- CSV ------------------------------------------------------------------------------------------

    def _csv(self, cells: list[str]) -> None:
        if not cells:
            self.unread += 1
        elif _is_header(cells):
            self.header, self.units = cells, []
            self.kind = "csv"
            self.printed.blocks += 1
        elif self.kind == "csv" and len(cells) != len(self.header):
            self.unread += 1
        elif self.kind == "csv" and not self.units and not any(map(_is_number, cells)):
            self.units = cells
        elif self.kind == "csv":
            units = dict(zip(self.header, self.units or [""] * len(cells), strict=True))
            self._csv_row(dict(zip(self.header, cells, strict=True)), units)

    def _csv_row(self, row: dict[str, str], units: dict[str, str]) -> None:
        if "Time(%)" in row and "Calls" in row:
            total, mean, low, high = (
                time_ns(row.get(name, ""), units.get(name, "")) for name in ("Time", "Avg", "Min", "Max")
            )
            activity = Activity(row["Name"], _float(row.get("Calls", "")), total, mean, low, high)
            self._add_activity(row.get("Type", self.group), activity)
        elif "Metric Name" in row or "Event Name" in row:
            self._add_metric(row, row.get("Kernel", ""))
        elif "Kernel" in row and "Start" not in row:
            self._add_launch({**row, "Name": row["Kernel"]}, units)
        elif "Start" in row and "Name" in row:
            self._add_launch(row, units)

    def _add_launch(self, row: dict[str, str], units: dict[str, str]) -> None:
        name = row.get("Name", "")
        correlation = re.search(r" \[(\d+)\]$", name)  # of a plain trace
        name = name[: correlation.start()] if correlation else name
        device = _DEVICE.search(row.get("Device", ""))
        duration = time_ns(row.get("Duration", ""), units.get("Duration", ""))
        counted = [key for key in row if key not in _LAUNCH_COLUMNS]
        if not name or (device is None and not row.get("Device", "").strip("- ")):
            if "Device" not in row and name:  # of a trace of calls; else a page fault on the host
                call = name.partition(" (")[0]
                self.calls.setdefault(call, Spread()).add(duration)
            return
        launch = Launch(
            name,
            time_ns(row.get("Start", ""), units.get("Start", "")),
            duration,
            int(device[1]) if device else 0,
            _int(row.get("Stream", "")),
            _sizes(row, "Grid"),
            _sizes(row, "Block"),
            size_bytes(row.get("Size", row.get("Unified Memory", "")), units.get("Size", "")),
            correlation=_int(row.get("Correlation_ID", "") or (correlation[1] if correlation else "")),
        )
        self.printed.launches.add(launch)
        for key in counted:
            value, unit = number_and_unit(row[key], units.get(key, ""))
            label = f"{key} ({unit})" if unit not in ("", "level") else key
            self.spreads.setdefault((label, name), Spread()).add(value)


_UNIFIED = "[Unified Memory"
_LAUNCH_COLUMNS = {
    "Start", "Duration", "Grid Size", "Block Size", "Grid X", "Grid Y", "Grid Z", "Block X", "Block Y",
    "Block Z", "Regs*", "SSMem*", "DSMem*", "Registers Per Thread", "Static SMem", "Dynamic SMem", "Size",
    "Throughput", "SrcMemType", "DstMemType", "Device", "Context", "Stream", "Unified Memory",
    "Virtual Address", "Name", "Kernel", "Correlation_ID", "Secondary Device",
}  # fmt: skip
_HEADERS = ("Type", "Time(%)", "Start", "Device", "Invocations", "Count")


def _is_header(cells: list[str]) -> bool:
    return cells[0] in _HEADERS and cells[-1] not in ("",) and not any(map(_is_number, cells))


def _begins_csv(line: str) -> bool:
    """Whether a line is a head without quotes, as releases before CUDA 6 wrote it."""
    return line.startswith(tuple(f"{name}," for name in _HEADERS)) and _is_header(cells_of(line))


def _is_number(text: str) -> bool:
    return text[:1].isdigit() or (text[:1] == "-" and text[1:2].isdigit())


def _float(text: str) -> float:
    return number_and_unit(text)[0]


def _int(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 19 else -1


def _sizes(row: dict[str, str], of: str) -> str:
    sizes = re.findall(r"\d+", row.get(f"{of} Size", ""))
    sizes = sizes or [row[f"{of} {axis}"] for axis in "XYZ" if row.get(f"{of} {axis}", "").isdecimal()]
    return ",".join(sizes) if len(sizes) == 3 else ""
