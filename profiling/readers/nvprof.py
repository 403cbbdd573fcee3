"""nvprof: databases, and what it prints."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from profiling.attribution.attribute import attribute_in_windows
from profiling.attribution.events import Builder, Trace
from profiling.attribution.nvtx import name_operators
from profiling.cost.classify import full_name
from profiling.cost.shapes import Inputs
from profiling.errors import UserError
from profiling.readers.chunks import read_head
from profiling.readers.gpu_records import (
    add_device,
    add_launches,
    add_ranges,
    call_names,
    coded,
    copy_name,
    memory_name,
    triples,
)
from profiling.readers.origin import UNKNOWN, Origin, rank_in
from profiling.readers.printed import (
    Activity,
    Launch,
    Launches,
    Metric,
    Spread,
    cells_of,
    number_and_unit,
    read_lines,
    size_bytes,
    stream_printed,
    time_ns,
)
from profiling.readers.sqlite import MAGIC, Database, open_database
from profiling.traced_job import TraceFacts
from profiling.wording import how_many, left_out

_EMPTY = "the capture is empty"
_NO_KERNEL = "no kernel was recorded"
_WHY = (
    "nothing ran on a GPU while nvprof recorded, or recording never started (--profile-from-start off "
    "needs cudaProfilerStart)"
)


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is nvprof's: a database with its tables, or text that it printed."""
    if head.startswith(MAGIC):
        with open_database(path) as database:
            return is_nvprof(database)
    return HEAD.search(head) is not None


def facts(path: Path) -> TraceFacts | None:
    """What a database says of its job; None: the file is text."""
    if read_head(path, len(MAGIC)) != MAGIC:
        return None
    return TraceFacts(rank=rank_in(path), shapes=False)


def stream(path: Path, findings: list[str], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """An nvprof file as pieces of tables: ``kernels`` and ``markers`` of a database; of a text
    ``intervals``, ``atomics`` and, of a trace, ``kernels``.
    """
    rank = origin.rank_of(path)
    if read_head(path, len(MAGIC)) == MAGIC:
        yield from _database(path, findings, rank, origin)
    else:
        yield from _text(path, findings, rank or 0)


def _database(
    path: Path, findings: list[str], rank: int | None, origin: Origin
) -> Iterator[tuple[str, pa.Table]]:
    with open_database(path) as database:
        trace = read_database(database)
    trace.world_size = origin.world_size
    if trace.is_empty:
        trace.findings.append(f"{_EMPTY}: {_WHY}")
    yield from attribute_in_windows(
        trace, findings, rank, origin.first_batch, path.name, name_operators, origin.batches,
        origin.batch_marker,
    )  # fmt: skip


def _text(path: Path, findings: list[str], rank: int) -> Iterator[tuple[str, pa.Table]]:
    printed = Printed()
    launches = read_printed(path, printed)
    any_printed = yield from stream_printed(launches, printed.activities, lambda: printed.metrics, rank)
    texts = list(printed.findings)
    if printed.nothing or not any_printed:
        texts.append(f"{_NO_KERNEL}: {_WHY}")
    if len(printed.processes) > 1:
        texts.append(f"{len(printed.processes)} processes wrote to it; their rows cannot be separated")
    findings += [f"{path.name}: {finding}" for finding in texts]


NAMES = "StringTable"
_KIND = "CUPTI_ACTIVITY_KIND_"
_KERNELS = (_KIND + "CONCURRENT_KERNEL", _KIND + "KERNEL", _KIND + "CDP_KERNEL")
_COPIES = (_KIND + "MEMCPY", _KIND + "MEMCPY2")
_CALLS = (_KIND + "RUNTIME", _KIND + "DRIVER")
_MARKER = _KIND + "MARKER"
_INSTANT, _START, _END = 1, 2, 4  # flags of a marker's row
_UNKNOWN = "(a kernel without a name)"
# What every activity of a device has, and what it is where the database does not say.
_ON_DEVICE = {"start": None, "end": None, "deviceId": 0, "streamId": -1, "correlationId": -1}


def is_nvprof(database: Database) -> bool:
    """Whether a database is nvprof's."""
    return database.has(NAMES, "_id_", "value") and any(name.startswith(_KIND) for name in database.tables)


def read_database(database: Database) -> Trace:
    """The events of a database; what is odd about them is among the findings.

    Raises:
        UserError: damaged, or of a release that is not known.
    """
    builder = Builder(lambda _: Inputs())
    texts = database.texts(NAMES, "_id_", "value")
    for table in _KERNELS:
        _add_kernels(builder, database, table, texts)
    for table in _COPIES:
        _add_copies(builder, database, table)
    _add_sets(builder, database)
    for table in _CALLS:
        if table in database.tables:
            columns = {"start": None, "end": 0, "threadId": 0, "correlationId": None, "cbid": 0}
            for rows in database.integers(table, columns):
                add_launches(
                    builder,
                    rows["start"],
                    rows["end"],
                    rows["threadId"] & 0xFFFFFFFF,
                    rows["correlationId"],
                    call_names(builder, rows["cbid"], table == _CALLS[0]),
                )
    findings = _add_markers(builder, database, texts)
    builder.malformed += database.malformed
    trace = builder.finish()
    trace.findings += findings
    return trace


def _when_and_where(rows: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Of activities of a device, what :data:`_ON_DEVICE` names."""
    return {
        "start_ns": rows["start"],
        "end_ns": rows["end"],
        "device": rows["deviceId"],
        "stream": rows["streamId"],
        "correlation": rows["correlationId"],
    }


def _add_kernels(builder: Builder, database: Database, table: str, texts: dict[int, str]) -> None:
    if table not in database.tables:
        return
    sizes = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
    for rows in database.integers(table, {**_ON_DEVICE, "name": None, **dict.fromkeys(sizes, 0)}):
        add_device(
            builder,
            name=coded(builder, rows["name"], lambda key: full_name(texts.get(key, _UNKNOWN))),
            **_when_and_where(rows),
            grid=triples(builder, *(rows[name] for name in sizes[:3])),
            block=triples(builder, *(rows[name] for name in sizes[3:])),
        )


def _add_copies(builder: Builder, database: Database, table: str) -> None:
    if table not in database.tables:
        return
    kinds = {"copyKind": 0, "srcKind": 0, "dstKind": 0}
    for rows in database.integers(table, {**_ON_DEVICE, "bytes": 0, **kinds}):
        kind = sum((rows[name] & 0xFF) << 8 * place for place, name in enumerate(kinds))
        add_device(
            builder,
            name=coded(
                builder,
                np.asarray(kind),
                lambda key: copy_name(
                    key & 0xFF, memory_name(key >> 8 & 0xFF), memory_name(key >> 16 & 0xFF)
                ),
            ),
            **_when_and_where(rows),
            size=rows["bytes"],
        )


def _add_sets(builder: Builder, database: Database) -> None:
    table = _KIND + "MEMSET"
    if table not in database.tables:
        return
    for rows in database.integers(table, {**_ON_DEVICE, "bytes": 0, "memoryKind": 0}):
        add_device(
            builder,
            name=coded(builder, rows["memoryKind"], lambda key: f"Memset ({memory_name(key)})"),
            **_when_and_where(rows),
            size=rows["bytes"],
        )


def _add_markers(builder: Builder, database: Database, texts: dict[int, str]) -> list[str]:
    """Add ranges and marks; a range is a row where it starts and a row of the same id where it ends."""
    if _MARKER not in database.tables:
        return []
    names = ("flags", "timestamp", "id", "name")
    chunks = list(database.integers(_MARKER, dict.fromkeys(names, None), texts=["objectId"]))
    if not chunks:
        return []
    rows = {name: np.concatenate([chunk[name] for chunk in chunks]) for name in (*names, "objectId")}
    if not len(rows["id"]):
        return []
    thread = np.fromiter(map(_thread_of, rows["objectId"]), np.int64, len(rows["id"]))
    place, partner, unended = _pair(rows)
    instant = rows["flags"][place] & _INSTANT > 0
    end_ns = np.where(partner >= 0, rows["timestamp"][partner], rows["timestamp"].max())
    end_ns = np.where(instant, rows["timestamp"][place], end_ns)
    range_texts = [texts.get(name, "") for name in rows["name"][place].tolist()]
    add_ranges(builder, range_texts, rows["timestamp"][place], end_ns, thread[place])
    return [f"{how_many(unended, 'range')} never ended; the end of the trace is used"] if unended else []


def _pair(rows: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, int]:
    """(rows that begin something, the row that ends each or -1, how many ranges have no end)."""
    # By id, in the order of the file: the end of a range is the row behind its start, if it has one.
    order = np.argsort(rows["id"], kind="stable")
    flags, number = rows["flags"][order], rows["id"][order]
    starts = flags & _START > 0
    follows = np.zeros(len(order), dtype=bool)
    follows[:-1] = starts[:-1] & (flags[1:] & _END > 0) & (number[1:] == number[:-1])
    partner = np.where(follows, np.roll(order, -1), -1)
    begins = starts | (flags & _INSTANT > 0)
    return order[begins], partner[begins], int((starts & ~follows).sum())


def _thread_of(owner: object) -> int:
    # CUpti_ActivityObjectKindId: the process's number, then the thread's, 4 bytes each.
    return int.from_bytes(owner[4:8], "little") if isinstance(owner, bytes) and len(owner) >= 8 else 0


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
