"""Nsight Systems: exported databases, and the tables of ``nsys stats``.

Releases differ: in an export texts stand in the row or in ``StringIds``, tables are absent where nothing
was recorded, and columns come and go. Times count from the start of the session, whose date is a table of
its own.

In the tables of ``nsys stats`` a range's projection is the time from the first to the last work on a GPU
that was launched within the range: ``Forward Pass (on the GPU)``. A kernel within a range is ``Forward Pass
=> kernel``, once for each range that is around it. Neither is work of its own: both stand beside the
ranges, not among the work of a device.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from profiling.attribution.attribute import attribute_in_windows
from profiling.attribution.coding import distinct
from profiling.attribution.events import Builder, Trace
from profiling.attribution.nvtx import name_operators
from profiling.cost.classify import full_name
from profiling.cost.shapes import Inputs
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.readers import gpu_records as gpu
from profiling.readers import printed
from profiling.readers.chunks import read_head
from profiling.readers.origin import NSYS_REPORT, UNKNOWN, Origin, rank_in
from profiling.readers.sqlite import MAGIC, Columns, Database, open_database
from profiling.schemas import BACKWARD, END_OF_BATCH, FORWARD, UPDATE
from profiling.tables import as_table
from profiling.traced_job import TraceFacts


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is of Nsight Systems: also a table of ``nsys stats`` that is no CSV, hence not read."""
    if head.startswith(MAGIC):
        with open_database(path) as database:
            ours = {_RANGES, _START, "ANALYSIS_DETAILS", *_VERSION_TABLES}
            return database.has(_TEXTS, "id", "value") and not ours.isdisjoint(database.tables)
    text = head.decode("utf-8-sig", "replace").replace('"', "")
    return head.startswith(NSYS_REPORT) or any(one.search(text) for one in (_HEAD, _OTHER_HEAD))


def facts(path: Path) -> TraceFacts | None:
    """What the export of a report says of its job; None: the file is a table of ``nsys stats``."""
    if read_head(path, len(MAGIC)) != MAGIC:
        return None

    def rows(table: str, *columns: str) -> list[tuple[Any, ...]]:
        return list(database.rows(table, *columns)) if database.has(table, *columns) else []

    with open_database(path) as database:
        devices = [str(name) for (name,) in rows("TARGET_INFO_GPU", "name") if name]
        # The table holds the environment of the machine: of it only the host's name is taken.
        environment = rows("TARGET_INFO_SYSTEM_ENV", "name", "value")
        hosts = [str(value) for name, value in environment if name == "Hostname"]
        exports = [dict(found) for one in _VERSION_TABLES if (found := rows(one, "name", "value"))]
        release = str(exports[0].get("EXPORT_PRODUCT_VERSION") or "") if exports else ""
    return TraceFacts(
        rank=rank_in(path),
        host=hosts[0] if hosts else "",
        device=", ".join(dict.fromkeys(devices)),
        versions={"Nsight Systems": release} if release else {},
        shapes=False,
    )


def stream(path: Path, findings: list[Finding], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """A file of Nsight Systems as pieces of tables: ``kernels`` and ``markers`` of a report's export; of the
    tables of ``nsys stats`` ``intervals``, ``atomics`` and, of a GPU trace, ``kernels``.

    A report may hold several processes; those with work on a GPU (else: with stages of batches, else: with
    any range) are taken for ranks, one after the other.
    """
    if read_head(path, len(MAGIC)) != MAGIC:
        stats = _Stats(path)
        pieces = printed.stream_printed(
            stats.launches(), stats.activities, lambda: stats.metrics, origin.rank_of(path) or 0
        )
        if not (yield from pieces):
            findings.append(Finding("parts_unread", data={"what": "unknown tables"}))
        if stats.unknown:
            findings.append(Finding("parts_unread", data={"what": list(stats.unknown)}))
        if stats.blocks.damaged:
            findings.append(Finding("records_damaged", data={"n": stats.blocks.damaged, "what": "lines"}))
        return
    with open_database(path) as database:
        reader = _Reader(database)
        processes = reader.read()
    findings += reader.findings
    ranks = _ranks(processes, reader.names, origin.rank_of(path))
    if not ranks:
        findings.append(Finding("recording_empty"))
        yield from ((name, as_table(name, {})) for name in ("kernels", "markers"))
    for rank, number in ranks.items():
        processes[number].world_size = max(len(ranks), origin.world_size)
        of_rank: list[Finding] = []
        yield from attribute_in_windows(
            processes[number], of_rank, rank, origin.first_batch, name_operators, origin.batches,
            origin.batch_marker,
        )  # fmt: skip
        findings += [one.of(rank=rank) for one in of_rank] if len(ranks) > 1 else of_rank


_STAGES = {FORWARD, BACKWARD, UPDATE, END_OF_BATCH}
_MPI_RANK = re.compile(r"^MPI Rank (\d{1,9})$")


def _ranks(processes: Mapping[int, Trace], names: Mapping[int, str], rank: int | None) -> dict[int, int]:
    """rank -> process: of one process the rank that is known; of several as their names say, or by device."""
    ours = [number for number, trace in processes.items() if trace.on_device]
    ours = ours or [number for number, trace in processes.items() if not _STAGES.isdisjoint(trace.names)]
    ours = ours or [number for number, trace in processes.items() if not trace.is_empty]
    matches = [match for number in ours if (match := _MPI_RANK.match(names.get(number, "")))]
    if rank is None and len({match[0] for match in matches}) == len(ours) == len(matches):
        return dict(sorted((int(match[1]), number) for match, number in zip(matches, ours, strict=True)))
    if len(ours) == 1:
        return {rank or 0: ours[0]}

    def order(number: int) -> tuple[int, int]:
        devices = [int(piece["device"].min()) for piece in processes[number].tables["device"].pieces()]
        return min(devices, default=1 << 30), number

    return dict(enumerate(sorted(ours, key=order)))


# --- exports ------------------------------------------------------------------------------------------

_KIND = "CUPTI_ACTIVITY_KIND_"
_CALLS, _RANGES = _KIND + "RUNTIME", "NVTX_EVENTS"
_MPI = ("MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS")
_TEXTS, _START = "StringIds", "TARGET_INFO_SESSION_START_TIME"
_VERSION_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")
_MEMORY_OFFSET = 1  # of CUPTI's numbers of memory
# Types of NVTX events.
_MARK, _THREAD_NAME, _PUSHED, _STARTED = 34, 39, 59, 60
_MANY = 0x7FFFFFFF
_ON_DEVICE: dict[str, int | None] = {
    "start": None, "end": None, "deviceId": 0, "streamId": -1, "correlationId": -1,
}  # fmt: skip
_SIZES = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")


class _Reader:
    """Reads a database into one recording a process.

    Attributes:
        names: by process, what it called itself (``MPI Rank 0``).
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.findings: list[Finding] = []
        self.names: dict[int, str] = {}
        self._builders: dict[int, Builder] = {}
        self._texts = database.texts(_TEXTS, "id", "value")

    def read(self) -> dict[int, Trace]:
        """What was recorded, by process number.

        Raises:
            UserError: damaged, or of a release that is not known.
        """
        self._add_kernels()
        for builder, _, rows in self._activities("MEMCPY", bytes=0, copyKind=0, srcKind=_MANY, dstKind=_MANY):
            kinds = rows["copyKind"], rows["srcKind"], rows["dstKind"]
            self._add(builder, rows, gpu.copy_names(builder, *kinds, _MEMORY_OFFSET), size=rows["bytes"])
        for builder, _, rows in self._activities("MEMSET", bytes=0, memKind=_MANY):
            name = gpu.set_names(builder, rows["memKind"], _MEMORY_OFFSET)
            self._add(builder, rows, name, size=rows["bytes"])
        # CUDA graphs that were recorded as a whole, not kernel by kernel.
        for builder, _, rows in self._activities("GRAPH_TRACE", graphId=0):
            self._add(builder, rows, gpu.coded(builder, rows["graphId"], lambda key: f"CUDA graph {key}"))
        columns = {"start": None, "end": 0, "globalTid": None, "correlationId": -1, "nameId": -1}
        for builder, process, rows in self._by_process(_CALLS, columns, "globalTid"):
            name = gpu.coded(builder, rows["nameId"], lambda key: self._texts.get(key, ""))
            thread = rows["globalTid"] & 0xFFFFFF
            gpu.add_launches(
                builder, rows["start"], rows["end"], thread, rows["correlationId"], name, process
            )
        self._add_ranges()
        columns = {"start": None, "end": None, "globalTid": None, "textId": -1}
        of_mpi = (one for table in _MPI for one in self._by_process(table, columns, "globalTid"))
        for builder, process, rows in of_mpi:
            texts = [self._texts.get(number, "MPI") for number in rows["textId"].tolist()]
            gpu.add_ranges(builder, texts, rows["start"], rows["end"], rows["globalTid"] & 0xFFFFFF, process)
        shift_ns = self._session_start_ns()
        if malformed := self.database.malformed:
            self.findings.append(Finding("records_damaged", data={"n": malformed, "what": "events"}))
        return {process: builder.finish(shift_ns=shift_ns) for process, builder in self._builders.items()}

    def _activities(self, kind: str, **columns: int) -> Iterator[tuple[Builder, int, Columns]]:
        return self._by_process(_KIND + kind, {**_ON_DEVICE, "globalPid": 0, **columns}, "globalPid")

    def _by_process(
        self, table: str, columns: Mapping[str, int | None], key: str
    ) -> Iterator[tuple[Builder, int, Columns]]:
        if table in self.database.tables:
            for rows in self.database.integers(table, columns):
                yield from self._split(rows, key)

    def _split(self, rows: Columns, key: str) -> Iterator[tuple[Builder, int, Columns]]:
        process = rows[key] >> 24
        if not process.all():  # some releases do not say whose a kernel is
            process = np.where(process == 0, self._only_process, process)
        alone = len(process) > 0 and bool((process == process[0]).all())
        for number in [int(process[0])] if alone else distinct(process).tolist():
            builder = self._builders.setdefault(number, Builder(lambda _: Inputs()))
            mine = process == number
            yield builder, number, rows if alone else {name: column[mine] for name, column in rows.items()}

    @cached_property
    def _only_process(self) -> int:
        """The number of the one process that called CUDA or opened ranges; 0 if it is not one."""
        processes: set[int] = set()
        for table in (_CALLS, _RANGES):
            if self.database.has(table, "globalTid"):
                for rows in self.database.integers(table, {"globalTid": 0}):
                    processes.update(distinct(rows["globalTid"] >> 24).tolist())
        processes.discard(0)
        return processes.pop() if len(processes) == 1 else 0

    def _add_kernels(self) -> None:
        names = dict.fromkeys(("mangledName", "demangledName", "shortName", *_SIZES), 0)

        def name_of(key: int) -> str:
            # The mangled name, demangled as every other tool's is; else as Nsight prints it.
            mangled = self._texts.get(key >> 31, "")
            return full_name(mangled or self._texts.get(key & _MANY, gpu.UNNAMED))

        for builder, _, rows in self._activities("KERNEL", **names):
            demangled = np.where(rows["demangledName"] > 0, rows["demangledName"], rows["shortName"])
            name = gpu.coded(builder, (rows["mangledName"] & _MANY) << 31 | demangled & _MANY, name_of)
            self._add(builder, rows, name, grid_and_block=[rows[size] for size in _SIZES])

    def _add(self, builder: Builder, rows: Columns, name: np.ndarray, **more: Any) -> None:
        gpu.add_device(builder, name, (rows[one] for one in _ON_DEVICE), **more)

    def _add_ranges(self) -> None:
        """Add NVTX's ranges and marks; texts stand in the row, or are numbered, or both."""
        if _RANGES not in self.database.tables:
            return
        self.database.need(_RANGES, "start", "end", "eventType", "globalTid")
        columns = {"start": None, "end": -1, "eventType": None, "globalTid": -1, "textId": -1}
        unended = 0
        for rows in self.database.integers(_RANGES, columns, texts=["text"]):
            pairs = zip(rows["text"], rows["textId"].tolist(), strict=True)
            rows["text"] = np.array(
                [str(text) if text else self._texts.get(number, "") for text, number in pairs], dtype=object
            )
            named = rows["eventType"] == _THREAD_NAME
            for owner, text in zip(rows["globalTid"][named] >> 24, rows["text"][named], strict=True):
                self.names.setdefault(int(owner), str(text))
            is_range = np.isin(rows["eventType"], (_MARK, _PUSHED, _STARTED)) & (rows["globalTid"] >= 0)
            is_mark = rows["eventType"] == _MARK
            open_ended = is_range & ~is_mark & (rows["end"] < 0)
            unended += int(open_ended.sum())
            rows["end"] = np.where(is_mark, rows["start"], rows["end"])
            closed = {name: column[is_range & ~open_ended] for name, column in rows.items()}
            for builder, process, mine in self._split(closed, "globalTid"):
                thread = mine["globalTid"] & 0xFFFFFF
                gpu.add_ranges(builder, mine["text"].tolist(), mine["start"], mine["end"], thread, process)
        if unended:
            self.findings.append(Finding("ranges_unended", data={"n": unended}))

    def _session_start_ns(self) -> int:
        if self.database.has(_START, "utcEpochNs"):
            for (start,) in self.database.rows(_START, "utcEpochNs"):
                if isinstance(start, int) and 0 <= start < 1 << 61:
                    return start
        self.findings.append(Finding("not_recorded", data={"what": "start time"}))
        return 0


# --- nsys stats ---------------------------------------------------------------------------------------

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


@dataclass
class _Row:
    cells: dict[str, str]
    units: dict[str, str]

    def text(self, name: str) -> str:
        return self.cells.get(name, "")

    def time_ns(self, name: str) -> float:
        # Releases before 2021 print nanoseconds and say no unit.
        return printed.time_ns(self.text(name), self.units.get(name) or "ns")

    def number(self, name: str) -> float:
        return printed.number_and_unit(self.text(name), self.units.get(name, ""))[0]

    def launch(self, name: str) -> printed.Launch:
        sizes = [",".join(self.text(of + axis) for axis in "XYZ") for of in ("Grd", "Blk")]
        grid, block = (text if re.fullmatch(r"\d+,\d+,\d+", text) else "" for text in sizes)
        device = re.search(r"\((\d{1,4})\)\s*$", self.text("Device"))
        number = int(device[1]) if device else max(printed.whole_number(self.text("Device")), 0)
        times, stream = (
            (self.time_ns("Start"), self.time_ns("Duration")),
            printed.whole_number(self.text("Strm")),
        )
        correlation = printed.whole_number(self.text("CorrId"))
        return printed.Launch(
            name, *times, number, stream, grid, block, self.number("Bytes"), correlation=correlation
        )


class _Stats:
    """The tables of a text.

    Attributes:
        unknown: columns in units that are not known.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.blocks = printed.Blocks(path, lambda cells: bool(_HEAD.match(",".join(cells))))
        self.activities: list[printed.Activity] = []
        self.metrics: list[printed.Metric] = []
        self.unknown: dict[str, None] = {}
        self._projected: dict[str, printed.Spread] = {}  # of a trace of ranges, by name

    def launches(self) -> Iterator[printed.Launch]:
        """Read the text; the launches of a GPU trace.

        Raises:
            UserError: unreadable, or no table of ``nsys stats``.
        """
        header: list[str] = []
        for line in self.blocks:
            if line.header is not header:
                header, names, units = line.header, [], {}
                for written in header:
                    match = _UNIT.match(written)
                    name = match[1] if match else written
                    names.append(_COLUMNS.get(name, name))
                    units[names[-1]] = unit = match[2] if match else ""
                    if unit and names[-1] in _MEASURED and not printed.is_known_unit(unit):
                        self.unknown[f"{names[-1]} in {unit}"] = None
            # Of columns of one name the first.
            row = _Row(dict(zip(reversed(names), reversed(line.cells), strict=True)), units)
            name = row.text(next((one for one in _NAMES if one in row.cells), ""))
            if "Total" in row.cells:
                self._add_summary(row, name.removeprefix(":"))
            elif "Projected Duration" in row.cells:
                spread = self._projected.setdefault(name.removeprefix(":"), printed.Spread())
                spread.add(row.time_ns("Projected Duration"))
            elif "Start" in row.cells and {"Strm", "Device"} <= row.cells.keys():
                yield row.launch(name)
        self.activities += [one.activity(f"{name} (on the GPU)") for name, one in self._projected.items()]
        if not header:
            raise UserError(
                f"{self._path} holds no table of nsys stats in CSV; write it again (nsys stats --format csv)"
            )

    def _add_summary(self, row: _Row, name: str) -> None:
        count = row.number(next((one for one in _COUNTS if one in row.cells), ""))
        if row.units.get("Total") in ("B", "KB", "MB", "GB"):  # sizes of copies
            sizes = [row.number(one) for one in ("Min", "Max", "Avg", "StdDev")]
            self.metrics.append(printed.Metric("Size (B)", name, count, *sizes))
            return
        if "Operations" in row.cells and "Time" not in row.cells:  # likewise before 2021, in KiB
            sizes = [printed.size_bytes(row.text(one), "KB") for one in ("Min", "Max", "Avg")]
            self.metrics.append(printed.Metric("Size (B)", name, count, *sizes))
            return
        total, mean, low, high, std = map(row.time_ns, ("Total", "Avg", "Min", "Max", "StdDev"))
        if "NVTX Range" in row.cells:
            name = f"{row.text('NVTX Range').removeprefix(':')} => {name}"
        elif "Range Instances" in row.cells:
            name = f"{name} (on the GPU)"
        of_kernels = "Instances" in row.cells and "Name" in row.cells
        of_operations = "Operation" in row.cells and row.text("Category") != "CUDA_API"
        on_device = of_kernels or of_operations
        self.activities.append(printed.Activity(name, count, total, mean, low, high, std, on_device))
