"""Read nvprof's databases, and the summaries, traces and metrics that it prints.

A database contains CUPTI's records unchanged, one table per kind; names are mangled, and stored in
``StringTable``. Printed output consists of blocks: a line with the column names, possibly a line with units
(CSV), and rows. Lines that begin with ``==PID==`` are nvprof's messages; output of the program in between is
skipped.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import astuple
from pathlib import Path

import numpy as np
import pyarrow as pa

from profiling.attribution.attribute import attribute_in_windows
from profiling.attribution.events import Builder, Trace
from profiling.cost.classify import full_name
from profiling.cost.operators import Inputs
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.readers import gpu_records as gpu
from profiling.readers import printed
from profiling.readers.files import UNKNOWN, Origin, rank_in, read_head, read_lines
from profiling.readers.gpu_records import name_operators
from profiling.readers.sqlite import MAGIC, Database, open_database
from profiling.traced_job import TraceFacts

_HEAD = re.compile(
    rb"^==\d+== (NVPROF is|Profiling (result|application)|Generated result file)"
    rb"|^======== (Warning|Error|Profiling result)"
    rb'|^[ "]*(Type[ ",]+)?'
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
    return TraceFacts(rank=rank_in(path))


def stream(path: Path, findings: list[Finding], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """An nvprof file as pieces of tables: ``kernels`` and ``markers`` of a database; of a text
    ``intervals``, ``atomics`` and, of a trace, ``kernels``.
    """
    rank = origin.rank_of(path)
    if read_head(path, len(MAGIC)) != MAGIC:
        reader = _Reader()
        launches, metrics = reader.launches(path), lambda: reader.metrics
        anything = yield from printed.stream_printed(launches, reader.activities, metrics, rank or 0)
        findings += reader.findings
        if reader.saw_no_kernel or not anything:
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


def read_database(database: Database) -> Trace:
    """The events of a database; UserError: damaged, or of a release that is not known."""
    builder = Builder(lambda _: Inputs())
    texts = database.texts(_NAMES, "_id_", "value")

    def rows_of(kind: str, columns: dict[str, int | None]) -> Iterator[dict[str, np.ndarray]]:
        return database.integers(_KIND + kind, columns) if _KIND + kind in database.tables else iter(())

    for kind in ("CONCURRENT_KERNEL", "KERNEL", "CDP_KERNEL"):
        for rows in rows_of(kind, {**gpu.KERNEL, "name": None}):
            name = gpu.coded(builder, rows["name"], lambda key: full_name(texts.get(key, gpu.UNNAMED)))
            gpu.add_device(builder, rows, name)
    for kind, columns in (("MEMCPY", gpu.COPY), ("MEMCPY2", gpu.COPY), ("MEMSET", gpu.SET)):
        for rows in rows_of(kind, columns):
            gpu.add_device(builder, rows)
    for kind in ("RUNTIME", "DRIVER"):
        for rows in rows_of(kind, gpu.CALL):
            gpu.add_calls(builder, rows, kind == "RUNTIME")
    unended = _add_markers(builder, database, texts)
    builder.malformed += database.malformed
    trace = builder.finish()
    if unended:
        trace.findings.append(Finding("not_recorded", data={"n": unended, "what": "ends of ranges"}))
    return trace


def _add_markers(builder: Builder, database: Database, texts: dict[int, str]) -> int:
    """Add ranges (a row at each end, of one id) and marks; how many ranges have no end but the trace's."""
    names = ("flags", "timestamp", "id", "name")
    if _KIND + "MARKER" not in database.tables:
        return 0
    chunks = list(database.integers(_KIND + "MARKER", dict.fromkeys(names), texts=["objectId"]))
    if not any(len(chunk["id"]) for chunk in chunks):
        return 0
    rows = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in (*names, "objectId")}
    # CUpti_ActivityObjectKindId: the process's number, then the thread's, 4 bytes each.
    owners = (int.from_bytes(owner[4:8], "little") if len(owner) >= 8 else 0 for owner in rows["objectId"])
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
_MESSAGE = re.compile(r"^(Warning|Error|Internal|Some kernel|No events|Unable)")
_HARMLESS = re.compile(r"current version of nvcc compiler|Generated result file")
_NOTHING = re.compile(r"^No (kernels|API activities) were profiled")
_SUMMARY = re.compile(
    r"^\s*(?:([A-Za-z][^:%]*):)?\s*([\d.]+)%\s+(\S+)\s+(\d+)\s+(\S+)\s+(\S+)\s+(\S+)\s+(\S.*?)\s*$"
)
_SUMMARY_COLUMNS = ("Type", "Time(%)", "Time", "Calls", "Avg", "Min", "Max", "Name")
_METRIC_COLUMN = re.compile(r"(?:Event|Metric) (?:Name|Description)|\S+")
_KERNEL = re.compile(r"^\s+Kernel: (.+?)\s*$")
_DEVICE = re.compile(r"\((\d{1,4})\)\s*$")
_DEVICE_TYPES = ("GPU activities", "")
_LAUNCH_COLUMNS = {
    "Start", "Duration", "Grid Size", "Block Size", "Grid X", "Grid Y", "Grid Z", "Block X", "Block Y",
    "Block Z", "Regs*", "SSMem*", "DSMem*", "Registers Per Thread", "Static SMem", "Dynamic SMem", "Size",
    "Throughput", "SrcMemType", "DstMemType", "Device", "Context", "Stream", "Unified Memory",
    "Virtual Address", "Name", "Kernel", "Correlation_ID", "Secondary Device",
}  # fmt: skip
_SHARED = ("SSMem*", "DSMem*", "Static SMem", "Dynamic SMem")
_HEADERS = ("Type", "Time(%)", "Start", "Device", "Invocations", "Count")


class _Reader:
    """Takes the lines of a text one by one, and knows in which block it is."""

    def __init__(self) -> None:
        self.activities: list[printed.Activity] = []
        self.metrics: list[printed.Metric] = []
        self.findings: list[Finding] = []
        self.processes: set[int] = set()
        self.saw_no_kernel = False
        self._launches: list[printed.Launch] = []
        self._unread = 0
        self._is_nvprof = False  # a line is nvprof's own
        self._header: list[str] = []
        self._units: list[str] = []
        self._ends: list[int] = []  # of a plain trace's columns
        self._kind = self._group = self._kernel = ""
        self._in_ranges = False
        self._spreads, self._calls = printed.Spreads(), printed.Spreads()
        self._shares: dict[int, list[tuple[float, float]]] = {}  # of a process's GPU activities, %, and ns

    def launches(self, path: Path) -> Iterator[printed.Launch]:
        """Read a text; the launches of a trace; UserError: unreadable, or no text of nvprof."""
        for line in read_lines(path):
            if banner := _BANNER.match(line):
                self._add_banner(banner[1], banner[2].strip())
            elif line.startswith('"') or (self._kind == "csv" and "," in line) or _begins_csv(line):
                self._add_csv(printed.cells_of(line))
            elif not self._begins_table(line):
                self._add_plain(line)
            yield from self._launches
            self._launches.clear()
        if not self._is_nvprof:
            raise UserError(f"{path} is not text printed by nvprof: it has no line that begins with ==PID==")
        self.metrics += self._spreads.metrics()
        for name, _, count, low, high, mean, std in map(astuple, self._calls.metrics()):
            self.activities.append(printed.Activity(name, count, count * mean, mean, low, high, std, False))
        for shares in self._shares.values():  # of a summary that was cut, the rest is an activity, too
            missing, (largest, total_ns) = 100 - sum(share for share, _ in shares), max(shares)
            if largest and missing > 0.05 + 0.01 * len(shares):  # else the shares are rounded
                self.activities.append(printed.Activity("(not printed)", 0, total_ns * missing / largest))
        if self._unread:
            self.findings.append(Finding("records_damaged", data={"n": self._unread, "what": "lines"}))

    def _add_banner(self, process: str, text: str) -> None:
        self._is_nvprof = True
        if process.isdecimal():  # else the line is of no process: ======== Warning
            self.processes.add(int(process))
        # CUDA 8 and older: calls are blocks of their own, without a column for it.
        self._kind, self._group = "", "API calls" if text.startswith("API calls") else ""
        if text in ("NVTX result:", "Profiling result:"):  # a process's ranges come after all else of it
            self._in_ranges = text == "NVTX result:"
        if text.startswith("CPU profiling result"):
            self.findings.append(Finding("parts_unread", data={"what": "CPU samples"}))
        if _MESSAGE.match(text) and not _HARMLESS.search(text):
            self.findings.append(Finding("recorded", data={"text": text}))

    # --- plain tables

    def _begins_table(self, line: str) -> bool:
        words = line.split()
        if "Time(%)" in words and "Calls" in words and words[-1] == "Name":
            self._kind, self._group = "summary", self._group if "Type" not in words else ""
        elif words[:1] == ["Invocations"] and words[-1:] in (["Avg"], ["Total"]):
            self._kind, self._header = "metric", _METRIC_COLUMN.findall(line)
        elif words[:2] == ["Start", "Duration"] and words[-1] == "Name":
            columns = list(re.finditer(r"\S+(?: \S+)*", line))
            self._kind, self._header = "trace", [column[0] for column in columns]
            self._ends = [column.end() for column in columns]
        else:
            return False
        self._is_nvprof = True
        return True

    def _add_plain(self, line: str) -> None:
        if _NOTHING.match(line):
            self.saw_no_kernel |= not self._in_ranges
        elif not line.strip():
            self._kind = "" if self._kind == "trace" else self._kind
        elif self._kind == "summary" and (match := _SUMMARY.match(line)):
            row = dict(zip(_SUMMARY_COLUMNS, match.groups(default=""), strict=True))
            self._group = row["Type"] = (row["Type"] or self._group).strip()
            self._add_row(row, {})
        elif self._kind == "summary":
            self._unread += 1
        elif self._kind == "metric" and (kernel := _KERNEL.match(line)):
            self._kernel = kernel[1]
        elif self._kind == "metric" and not line.startswith("Device"):
            cells = re.split(r"\s{2,}", line.strip())
            # A number wider than its column leaves one space; an event's row has none within a cell.
            cells = cells if len(cells) == len(self._header) else line.split()
            if len(cells) == len(self._header) and cells[0].isdecimal():
                self._add_metric(dict(zip(self._header, cells, strict=True)), self._kernel)
            else:
                self._unread += 1
        elif self._kind == "trace":
            starts, ends = [0, *self._ends[:-2], self._ends[-2]], [*self._ends[:-1], len(line)]
            cells = [line[start:end].strip() for start, end in zip(starts, ends, strict=True)]
            self._add_launch(dict(zip(self._header, cells, strict=True)), {})

    # --- CSV

    def _add_csv(self, cells: list[str]) -> None:
        if cells and _is_header(cells):
            self._kind, self._header, self._units = "csv", cells, []
            self._is_nvprof = True
        elif not cells or (self._kind == "csv" and len(cells) != len(self._header)):
            self._unread += 1
        elif self._kind == "csv" and not self._units and not any(map(_is_number, cells)):
            self._units = cells
        elif self._kind == "csv":
            units = dict(zip(self._header, self._units or [""] * len(cells), strict=True))
            self._add_row(dict(zip(self._header, cells, strict=True)), units)

    def _add_row(self, row: dict[str, str], units: dict[str, str]) -> None:
        if row.keys() >= {"Time(%)", "Calls", "Name"}:
            group = row.get("Type", self._group)
            if self._in_ranges and group != "Range":
                return  # work and calls again, by range: counted already
            columns = ("Time", "Avg", "Min", "Max")
            times = (printed.time_ns(row.get(one, ""), units.get(one, "")) for one in columns)
            total, mean, low, high = times
            calls = printed.number_and_unit(row.get("Calls", ""))[0]
            activity = printed.Activity(row["Name"], calls, total, mean, low, high)
            activity.on_device = group in _DEVICE_TYPES
            self.activities.append(activity)
            if activity.on_device:
                share = (printed.number_and_unit(row["Time(%)"])[0], total)
                self._shares.setdefault(len(self.processes), []).append(share)
        elif "Metric Name" in row or "Event Name" in row:
            self._add_metric(row, row.get("Kernel", ""))
        elif "Kernel" in row and "Start" not in row:
            self._add_launch({**row, "Name": row["Kernel"]}, units)
        elif "Start" in row and "Name" in row:
            self._add_launch(row, units)

    def _add_metric(self, row: dict[str, str], kernel: str) -> None:
        name = row.get("Metric Name") or row.get("Event Name", "")
        count = printed.number_and_unit(row.get("Invocations", ""))[0]
        values = [printed.number_and_unit(row.get(one, "")) for one in ("Min", "Max", "Avg")]
        unit = f" ({values[0][1]})" if values[0][1] not in ("", "level") else ""
        self.metrics.append(printed.Metric(name + unit, kernel, count, *(value for value, _ in values)))

    def _add_launch(self, row: dict[str, str], units: dict[str, str]) -> None:
        name = row.get("Name", "")
        if correlation := re.search(r" \[(\d+)\]$", name):  # of a plain trace
            name, row = name[: correlation.start()], {"Correlation_ID": correlation[1], **row}
        device = _DEVICE.search(row.get("Device", ""))
        duration = printed.time_ns(row.get("Duration", ""), units.get("Duration", ""))
        if not name or (device is None and not row.get("Device", "").strip("- ")):
            if "Device" not in row and name:  # of a trace of calls; else a page fault on the host
                self._calls.add(name.partition(" (")[0], "", duration)
            return
        shared = [printed.size_bytes(row[one], units.get(one, "")) for one in _SHARED if one in row]
        launch = printed.Launch(
            name,
            printed.time_ns(row.get("Start", ""), units.get("Start", "")),
            duration,
            int(device[1]) if device else 0,
            printed.whole_number(row.get("Stream", "")),
            _sizes(row, "Grid"),
            _sizes(row, "Block"),
            printed.size_bytes(row.get("Size", row.get("Unified Memory", "")), units.get("Size", "")),
            correlation=printed.whole_number(row.get("Correlation_ID", "")),
            registers=printed.number_and_unit(row.get("Regs*", row.get("Registers Per Thread", "")))[0],
            shared_bytes=sum(shared) if shared else math.nan,
        )
        self._launches.append(launch)
        for key in (one for one in row if one not in _LAUNCH_COLUMNS):
            value, unit = printed.number_and_unit(row[key], units.get(key, ""))
            label = f"{key} ({unit})" if unit not in ("", "level") else key
            self._spreads.add(label, name, value)


def _is_header(cells: list[str]) -> bool:
    return cells[0] in _HEADERS and cells[-1] != "" and not any(map(_is_number, cells))


def _begins_csv(line: str) -> bool:
    """Whether a line is a head without quotes, as releases before CUDA 6 wrote it."""
    return line.startswith(tuple(f"{name}," for name in _HEADERS)) and _is_header(printed.cells_of(line))


def _is_number(text: str) -> bool:
    return text.removeprefix("-")[:1].isdigit()


def _sizes(row: dict[str, str], dimension: str) -> str:
    sizes = re.findall(r"\d+", row.get(f"{dimension} Size", ""))
    axes = [row.get(f"{dimension} {axis}", "") for axis in "XYZ"]
    sizes = sizes or [size for size in axes if size.isdecimal()]
    return ",".join(sizes) if len(sizes) == 3 else ""
