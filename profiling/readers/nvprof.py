"""nvprof: its databases, and the summaries, traces and metrics that it prints.

A database holds CUPTI's records as they were, a table a kind; names are numbers of ``StringTable``,
mangled. A text is blocks: a line that names the columns, perhaps one with their units (CSV), rows. Lines
that begin with ``==PID==`` are nvprof's own words; what the program printed in between is passed over.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from profiling.attribution.attribute import attribute_in_windows
from profiling.attribution.events import Builder, Trace
from profiling.attribution.nvtx import name_operators
from profiling.cost.classify import full_name
from profiling.cost.shapes import Inputs
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.readers import gpu_records as gpu
from profiling.readers.chunks import read_head, read_lines
from profiling.readers.origin import UNKNOWN, Origin, rank_in
from profiling.readers.printed import (
    Activity,
    Launch,
    Metric,
    Spread,
    cells_of,
    number_and_unit,
    size_bytes,
    stream_printed,
    time_ns,
    whole_number,
)
from profiling.readers.sqlite import MAGIC, Database, open_database
from profiling.traced_job import TraceFacts

_HEAD = re.compile(
    rb"^(?:\xef\xbb\xbf)?==\d+== (NVPROF is|Profiling (result|application)|Generated result file)"
    rb"|^======== (Warning|Error|Profiling result)"
    rb'|^(?:\xef\xbb\xbf)?[ "]*(Type[ ",]+)?'
    rb'Time\(%\)[ ",]+Time[ ",]+Calls[ ",]+Avg[ ",]+Min[ ",]+Max[ ",]+Name"?\s*$',
    re.MULTILINE,
)


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is nvprof's: a database with its tables, or text that it printed."""
    if head.startswith(MAGIC):
        with open_database(path) as database:
            kinds = any(name.startswith(_KIND) for name in database.tables)
            return kinds and database.has(_NAMES, "_id_", "value")
    return _HEAD.search(head) is not None


def facts(path: Path) -> TraceFacts | None:
    """What a database says of its job; None: the file is text."""
    if read_head(path, len(MAGIC)) != MAGIC:
        return None
    return TraceFacts(rank=rank_in(path), shapes=False)


def stream(path: Path, findings: list[Finding], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """An nvprof file as pieces of tables: ``kernels`` and ``markers`` of a database; of a text
    ``intervals``, ``atomics`` and, of a trace, ``kernels``.
    """
    rank = origin.rank_of(path)
    if read_head(path, len(MAGIC)) != MAGIC:
        reader = _Reader()
        printed = stream_printed(reader.launches(path), reader.activities, lambda: reader.metrics, rank or 0)
        anything = yield from printed
        findings += reader.findings
        if reader.nothing or not anything:
            findings.append(Finding("recording_empty"))
        if len(reader.processes) > 1:
            findings.append(Finding("processes_mixed", data={"n": len(reader.processes)}))
        return
    with open_database(path) as database:
        trace = read_database(database)
    trace.world_size = origin.world_size
    if trace.is_empty:
        trace.findings.append(Finding("recording_empty"))
    yield from attribute_in_windows(
        trace, findings, rank, origin.first_batch, name_operators, origin.batches, origin.batch_marker
    )


# --- databases ----------------------------------------------------------------------------------------

_NAMES = "StringTable"
_KIND = "CUPTI_ACTIVITY_KIND_"
_INSTANT, _START, _END = 1, 2, 4  # flags of a marker's row
# What every activity of a device has, and what it is where the database does not say.
_ON_DEVICE = {"start": None, "end": None, "deviceId": 0, "streamId": -1, "correlationId": -1}
_SIZES = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")


def read_database(database: Database) -> Trace:
    """The events of a database.

    Raises:
        UserError: damaged, or of a release that is not known.
    """
    builder = Builder(lambda _: Inputs())
    texts = database.texts(_NAMES, "_id_", "value")

    def rows_of(kind: str, columns: dict[str, int | None]) -> Iterator[dict[str, np.ndarray]]:
        return database.integers(_KIND + kind, columns) if _KIND + kind in database.tables else iter(())

    def add(rows: dict[str, np.ndarray], name: np.ndarray, **more: Any) -> None:
        gpu.add_device(builder, name, (rows[one] for one in _ON_DEVICE), **more)

    for kind in ("CONCURRENT_KERNEL", "KERNEL", "CDP_KERNEL"):
        for rows in rows_of(kind, {**_ON_DEVICE, "name": None, **dict.fromkeys(_SIZES, 0)}):
            name = gpu.coded(builder, rows["name"], lambda key: full_name(texts.get(key, gpu.UNNAMED)))
            add(rows, name, grid_and_block=[rows[size] for size in _SIZES])
    for kind in ("MEMCPY", "MEMCPY2"):
        for rows in rows_of(kind, {**_ON_DEVICE, "bytes": 0, "copyKind": 0, "srcKind": 0, "dstKind": 0}):
            name = gpu.copy_names(builder, rows["copyKind"], rows["srcKind"], rows["dstKind"])
            add(rows, name, size=rows["bytes"])
    for rows in rows_of("MEMSET", {**_ON_DEVICE, "bytes": 0, "memoryKind": 0}):
        add(rows, gpu.set_names(builder, rows["memoryKind"]), size=rows["bytes"])
    for kind in ("RUNTIME", "DRIVER"):
        for rows in rows_of(kind, {"start": None, "end": 0, "threadId": 0, "correlationId": None, "cbid": 0}):
            names = gpu.call_names(builder, rows["cbid"], kind == "RUNTIME")
            thread = rows["threadId"] & 0xFFFFFFFF
            gpu.add_launches(builder, rows["start"], rows["end"], thread, rows["correlationId"], names)
    unended = _add_markers(builder, database, texts)
    builder.malformed += database.malformed
    trace = builder.finish()
    if unended:
        trace.findings.append(Finding("ranges_unended", data={"n": unended}))
    return trace


def _add_markers(builder: Builder, database: Database, texts: dict[int, str]) -> int:
    """Add ranges and marks; how many ranges have no end, so that the trace's is taken.

    A range is a row where it starts and a row of the same id where it ends.
    """
    names = ("flags", "timestamp", "id", "name")
    table = _KIND + "MARKER"
    chunks = (
        list(database.integers(table, dict.fromkeys(names), texts=["objectId"]))
        if table in database.tables
        else []
    )
    if not any(len(chunk["id"]) for chunk in chunks):
        return 0
    rows = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in (*names, "objectId")}
    # CUpti_ActivityObjectKindId: the process's number, then the thread's, 4 bytes each.
    owners = (
        int.from_bytes(owner[4:8], "little") if isinstance(owner, bytes) and len(owner) >= 8 else 0
        for owner in rows["objectId"]
    )
    thread = np.fromiter(owners, np.int64, len(rows["id"]))
    # By id, in the order of the file: the end of a range is the row behind its start, if it has one.
    order = np.argsort(rows["id"], kind="stable")
    flags, number = rows["flags"][order], rows["id"][order]
    starts = flags & _START > 0
    follows = np.zeros(len(order), dtype=bool)
    follows[:-1] = starts[:-1] & (flags[1:] & _END > 0) & (number[1:] == number[:-1])
    begins = starts | (flags & _INSTANT > 0)
    place, partner = order[begins], np.where(follows, np.roll(order, -1), -1)[begins]
    start_ns = rows["timestamp"][place]
    end_ns = np.where(partner >= 0, rows["timestamp"][partner], rows["timestamp"].max())
    end_ns = np.where(rows["flags"][place] & _INSTANT > 0, start_ns, end_ns)
    range_texts = [texts.get(name, "") for name in rows["name"][place].tolist()]
    gpu.add_ranges(builder, range_texts, start_ns, end_ns, thread[place])
    return int((starts & ~follows).sum())


# --- what it prints -----------------------------------------------------------------------------------

_BANNER = re.compile(r"^==(\d+|====)== ?(.*)$")
_WORTH_SAYING = re.compile(r"^(Warning|Error|Internal|Some kernel|No events|Unable)")
_HARMLESS = re.compile(r"current version of nvcc compiler|Generated result file")
_NOTHING = re.compile(r"^No (kernels|API activities) were profiled")
_SUMMARY = re.compile(
    r"^\s*(?:([A-Za-z][^:%]*):)?\s*([\d.]+)%\s+(\S+)\s+(\d+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S.*?)\s*$"
)
_SUMMARY_COLUMNS = ("Type", "Time(%)", "Time", "Calls", "Avg", "Min", "Max", "Name")
_METRIC_COLUMN = re.compile(r"(?:Event|Metric) (?:Name|Description)|\S+")
_MEMORY = re.compile(r"^\s*(\d+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S.*?)\s*$")
_COUNT = re.compile(r"^Total (CPU .+?): (\d+)$")
_KERNEL = re.compile(r"^\s+Kernel: (.+?)\s*$")
_DEVICE = re.compile(r"\((\d{1,4})\)\s*$")
_DEVICE_TYPES = ("GPU activities", "")
_LAUNCH_COLUMNS = {
    "Start", "Duration", "Grid Size", "Block Size", "Grid X", "Grid Y", "Grid Z", "Block X", "Block Y",
    "Block Z", "Regs*", "SSMem*", "DSMem*", "Registers Per Thread", "Static SMem", "Dynamic SMem", "Size",
    "Throughput", "SrcMemType", "DstMemType", "Device", "Context", "Stream", "Unified Memory",
    "Virtual Address", "Name", "Kernel", "Correlation_ID", "Secondary Device",
}  # fmt: skip
_HEADERS = ("Type", "Time(%)", "Start", "Device", "Invocations", "Count")


class _Reader:
    """Takes the lines of a text one by one, and knows in which block it is.

    Attributes:
        nothing: nvprof says that it saw no kernel.
    """

    def __init__(self) -> None:
        self.activities: list[Activity] = []
        self.metrics: list[Metric] = []
        self.findings: list[Finding] = []
        self.processes: set[int] = set()
        self.nothing = False
        self._launches: list[Launch] = []
        self._blocks = self._unread = 0
        self._spoke = False  # a line is nvprof's own
        self._header: list[str] = []
        self._units: list[str] = []
        self._ends: list[int] = []  # of a plain trace's columns
        self._kind = self._group = self._kernel = ""
        self._in_ranges = False
        self._spreads: dict[tuple[str, str], Spread] = {}
        self._calls: dict[str, Spread] = {}

    def launches(self, path: Path) -> Iterator[Launch]:
        """Read a text; the launches of a trace.

        Raises:
            UserError: unreadable, or no text of nvprof.
        """
        for line in read_lines(path):
            self._take(line)
            yield from self._launches
            self._launches.clear()
        if not self._spoke and not self._blocks:
            raise UserError(f"{path} is not text printed by nvprof: it has no line that begins with ==PID==")
        self.metrics += [spread.metric(*key) for key, spread in self._spreads.items() if spread.count]
        self.activities += [spread.activity(name) for name, spread in self._calls.items() if spread.count]
        if self._unread:
            self.findings.append(Finding("records_damaged", data={"n": self._unread, "what": "lines"}))

    def _take(self, line: str) -> None:
        if banner := _BANNER.match(line):
            self._banner(banner[1], banner[2].strip())
        elif line.startswith('"') or (self._kind == "csv" and "," in line) or _begins_csv(line):
            self._csv(cells_of(line))
        elif not self._begins(line):
            self._row(line)

    def _banner(self, process: str, text: str) -> None:
        self._spoke = True
        if process.isdecimal():  # else the line is of no process: ======== Warning
            self.processes.add(int(process))
        self._kind, self._group = "", ""
        if text in ("NVTX result:", "Profiling result:"):  # a process's ranges come after all else of it
            self._in_ranges = text == "NVTX result:"
        if text.startswith("CPU profiling result"):
            self.findings.append(Finding("parts_unread", data={"what": "CPU samples"}))
        if text.startswith("API calls"):  # CUDA 8 and older: blocks of their own, without a column for it
            self._group = "API calls"
        if _WORTH_SAYING.match(text) and not _HARMLESS.search(text):
            self.findings.append(Finding("recorded", data={"text": text}))

    # --- plain tables

    def _begins(self, line: str) -> bool:
        words = line.split()
        if "Time(%)" in words and "Calls" in words and words[-1] == "Name":
            self._kind, self._group = "summary", self._group if "Type" not in words else ""
        elif words[:1] == ["Invocations"] and words[-1:] in (["Avg"], ["Total"]):
            self._kind, self._header = "metric", _METRIC_COLUMN.findall(line)
        elif words[:2] == ["Count", "Avg"]:
            self._kind = "memory"
        elif words[:2] == ["Start", "Duration"] and words[-1] == "Name":
            columns = list(re.finditer(r"\S+(?: \S+)*", line))
            self._kind, self._header = "trace", [column[0] for column in columns]
            self._ends = [column.end() for column in columns]
        else:
            return False
        self._blocks += 1
        return True

    def _row(self, line: str) -> None:
        if _NOTHING.match(line):
            self.nothing |= not self._in_ranges
        elif match := _COUNT.match(line):
            count = float(match[2])
            self.metrics.append(Metric(f"Unified memory {match[1]}", "", 1, count, count, count))
        elif not line.strip():
            self._kind = "" if self._kind == "trace" else self._kind
        elif self._kind == "summary" and (match := _SUMMARY.match(line)):
            row = dict(zip(_SUMMARY_COLUMNS, match.groups(default=""), strict=True))
            self._group = row["Type"] = (row["Type"] or self._group).strip()
            self._csv_row(row, {})
        elif self._kind == "summary":
            self._unread += 1
        elif self._kind == "metric":
            self._metric(line)
        elif self._kind == "memory":
            self._memory(line)
        elif self._kind == "trace":
            starts, ends = [0, *self._ends[:-2], self._ends[-2]], [*self._ends[:-1], len(line)]
            cells = [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]
            self._add_launch(dict(zip(self._header, cells, strict=True)), {})

    def _metric(self, line: str) -> None:
        if kernel := _KERNEL.match(line):
            self._kernel = kernel[1]
        elif not line.startswith("Device"):
            cells = re.split(r"\s{2,}", line.strip())
            # A number wider than its column leaves one space; what an event's row says has none within.
            cells = cells if len(cells) == len(self._header) else line.split()
            if len(cells) == len(self._header) and cells[0].isdecimal():
                self._add_metric(dict(zip(self._header, cells, strict=True)), self._kernel)
            else:
                self._unread += 1

    def _add_metric(self, row: dict[str, str], kernel: str) -> None:
        name = row.get("Metric Name") or row.get("Event Name", "")
        count = number_and_unit(row.get("Invocations", ""))[0]
        values = [number_and_unit(row.get(one, "")) for one in ("Min", "Max", "Avg")]
        unit = f" ({values[0][1]})" if values[0][1] not in ("", "level") else ""
        self.metrics.append(Metric(name + unit, kernel, count, *(value for value, _ in values)))

    def _memory(self, line: str) -> None:
        match = _MEMORY.match(line)
        if match is None:
            self._unread += not line.startswith("Device")
            return
        count, mean, low, high, _, total, name = match.groups()
        name, number = f"[Unified Memory {name}]", float(count)
        if low != "-":
            sizes = map(size_bytes, (low, high, mean))
            self.metrics.append(Metric("Size (B)", name, number, *sizes))
        if total != "-":
            spent, unknown = time_ns(total), float("nan")
            self.activities.append(Activity(name, number, spent, spent / max(number, 1), unknown, unknown))

    # --- CSV

    def _csv(self, cells: list[str]) -> None:
        if not cells:
            self._unread += 1
        elif _is_header(cells):
            self._kind, self._header, self._units = "csv", cells, []
            self._blocks += 1
        elif self._kind == "csv" and len(cells) != len(self._header):
            self._unread += 1
        elif self._kind == "csv" and not self._units and not any(map(_is_number, cells)):
            self._units = cells
        elif self._kind == "csv":
            units = dict(zip(self._header, self._units or [""] * len(cells), strict=True))
            self._csv_row(dict(zip(self._header, cells, strict=True)), units)

    def _csv_row(self, row: dict[str, str], units: dict[str, str]) -> None:
        if "Time(%)" in row and "Calls" in row:
            group = row.get("Type", self._group)
            if self._in_ranges and group != "Range":
                return  # work and calls again, by range: counted already
            total, mean, low, high = (
                time_ns(row.get(name, ""), units.get(name, "")) for name in ("Time", "Avg", "Min", "Max")
            )
            calls, on_device = number_and_unit(row.get("Calls", ""))[0], group in _DEVICE_TYPES
            activity = Activity(row["Name"], calls, total, mean, low, high, on_device=on_device)
            self.activities.append(activity)
        elif "Metric Name" in row or "Event Name" in row:
            self._add_metric(row, row.get("Kernel", ""))
        elif "Kernel" in row and "Start" not in row:
            self._add_launch({**row, "Name": row["Kernel"]}, units)
        elif "Start" in row and "Name" in row:
            self._add_launch(row, units)

    def _add_launch(self, row: dict[str, str], units: dict[str, str]) -> None:
        name = row.get("Name", "")
        if correlation := re.search(r" \[(\d+)\]$", name):  # of a plain trace
            name, row = name[: correlation.start()], {"Correlation_ID": correlation[1], **row}
        device = _DEVICE.search(row.get("Device", ""))
        duration = time_ns(row.get("Duration", ""), units.get("Duration", ""))
        if not name or (device is None and not row.get("Device", "").strip("- ")):
            if "Device" not in row and name:  # of a trace of calls; else a page fault on the host
                self._calls.setdefault(name.partition(" (")[0], Spread()).add(duration)
            return
        launch = Launch(
            name,
            time_ns(row.get("Start", ""), units.get("Start", "")),
            duration,
            int(device[1]) if device else 0,
            whole_number(row.get("Stream", "")),
            _sizes(row, "Grid"),
            _sizes(row, "Block"),
            size_bytes(row.get("Size", row.get("Unified Memory", "")), units.get("Size", "")),
            correlation=whole_number(row.get("Correlation_ID", "")),
        )
        self._launches.append(launch)
        for key in (one for one in row if one not in _LAUNCH_COLUMNS):
            value, unit = number_and_unit(row[key], units.get(key, ""))
            label = f"{key} ({unit})" if unit not in ("", "level") else key
            self._spreads.setdefault((label, name), Spread()).add(value)


def _is_header(cells: list[str]) -> bool:
    return cells[0] in _HEADERS and cells[-1] != "" and not any(map(_is_number, cells))


def _begins_csv(line: str) -> bool:
    """Whether a line is a head without quotes, as releases before CUDA 6 wrote it."""
    return line.startswith(tuple(f"{name}," for name in _HEADERS)) and _is_header(cells_of(line))


def _is_number(text: str) -> bool:
    return text.removeprefix("-")[:1].isdigit()


def _sizes(row: dict[str, str], of: str) -> str:
    sizes = re.findall(r"\d+", row.get(f"{of} Size", ""))
    sizes = sizes or [row[f"{of} {axis}"] for axis in "XYZ" if row.get(f"{of} {axis}", "").isdecimal()]
    return ",".join(sizes) if len(sizes) == 3 else ""
