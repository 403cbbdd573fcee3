"""Nsight Systems: exported databases, and the tables of nsys stats."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from profiling.attribution.attribute import attribute_in_windows
from profiling.attribution.checks import malformed_finding
from profiling.attribution.coding import distinct
from profiling.attribution.events import Builder, Trace
from profiling.attribution.nvtx import name_operators
from profiling.cost.classify import full_name
from profiling.cost.shapes import Inputs
from profiling.errors import UserError
from profiling.readers.chunks import read_head
from profiling.readers.gpu_records import add_device, add_launches, add_ranges, coded, copy_name, triples
from profiling.readers.origin import NSYS_REPORT, UNKNOWN, Origin, rank_in
from profiling.readers.printed import (
    Activity,
    Blocks,
    Launch,
    Launches,
    Metric,
    Row,
    Spread,
    is_known_unit,
    number_and_unit,
    size_bytes,
    stream_printed,
    time_ns,
)
from profiling.readers.sqlite import MAGIC, Columns, Database, open_database
from profiling.schemas import BACKWARD, END_OF_BATCH, FORWARD, UPDATE
from profiling.tables import as_table
from profiling.traced_job import TraceFacts
from profiling.wording import how_many, in_a_row, left_out, verb


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is of Nsight Systems, by what is in it."""
    if head.startswith(MAGIC):
        with open_database(path) as database:
            return is_nsys(database)
    return head.startswith(NSYS_REPORT) or is_stats(head)


def facts(path: Path) -> TraceFacts | None:
    """What the export of a report says of its job; None: the file is a table of ``nsys stats``."""
    if read_head(path, len(MAGIC)) != MAGIC:
        return None
    with open_database(path) as database:
        devices = _texts(database, "TARGET_INFO_GPU", "name")
        # The table holds the environment of the machine: of it only the host's name is taken.
        hosts = [
            str(value)
            for name, value in _rows(database, "TARGET_INFO_SYSTEM_ENV", "name", "value")
            if name == "Hostname"
        ]
        made_by = release(database)
    return TraceFacts(
        rank=rank_in(path),
        host=hosts[0] if hosts else "",
        device=in_a_row(list(dict.fromkeys(devices))) if devices else "",
        versions={"Nsight Systems": made_by} if made_by else {},
        shapes=False,
    )


def _texts(database: Database, table: str, column: str) -> list[str]:
    return [str(value) for (value,) in _rows(database, table, column) if value]


def _rows(database: Database, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return list(database.rows(table, *columns)) if database.has(table, *columns) else []


def stream(path: Path, findings: list[str], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """A file of Nsight Systems as pieces of tables: ``kernels`` and ``markers`` of a report's export; of the
    tables of ``nsys stats`` ``intervals``, ``atomics`` and, of a GPU trace, ``kernels``.

    A report may hold several processes; those with work on a GPU (else: with stages of batches, else: with
    any range) are taken for ranks.
    """
    rank = origin.rank_of(path)
    if read_head(path, len(MAGIC)) == MAGIC:
        yield from _database(path, findings, rank, origin)
    else:
        yield from _stats(path, findings, rank or 0)


def _database(
    path: Path, findings: list[str], rank: int | None, origin: Origin
) -> Iterator[tuple[str, pa.Table]]:
    with open_database(path) as database:
        reader = Reader(database)
        processes = reader.read()
    findings += [f"{path.name}: {finding}" for finding in reader.findings]
    for trace in processes.values():
        trace.world_size = origin.world_size
    yield from stream_ranks(path, processes, reader.names, findings, rank, origin)


def _stats(path: Path, findings: list[str], rank: int) -> Iterator[tuple[str, pa.Table]]:
    stats = Stats()
    if not (
        yield from stream_printed(read_stats(path, stats), stats.activities, lambda: stats.metrics, rank)
    ):
        findings.append(
            f"{path.name}: none of its tables is a summary or a GPU trace; for all data, convert the "
            "report's SQLite export (nsys export --type sqlite)"
        )
    findings += [f"{path.name}: {finding}" for finding in stats.findings]
    if stats.damaged:
        findings.append(f"{path.name}: {left_out(stats.damaged, 'damaged line')}")


_STAGES = {FORWARD, BACKWARD, UPDATE, END_OF_BATCH}
_MPI_RANK = re.compile(r"^MPI Rank (\d{1,9})$")


def stream_ranks(
    path: Path,
    processes: Mapping[int, Trace],
    names: Mapping[int, str],
    findings: list[str],
    rank: int | None = None,
    origin: Origin = UNKNOWN,
) -> Iterator[tuple[str, pa.Table]]:
    """Pieces of the tables of a report's ranks, one rank after the other.

    Args:
        processes: what each process recorded.
        names: what processes called themselves.
        findings: takes what was found on the way.
        rank: of the one process that is a rank; None: as its name says, or its place among them.
        origin: what else is known of the report.
    """
    ranks = _ranks(processes, names, rank)
    if not ranks:
        findings.append(f"{path.name}: the report is empty: it has no ranges and no GPU activity")
        yield from ((name, as_table(name, {})) for name in ("kernels", "markers"))
    if len(ranks) > 1:
        named = ", ".join(f"{number} as rank {rank}" for rank, number in ranks.items())
        findings.append(f"{path.name}: {len(ranks)} processes are used as ranks: process {named}")
        for number in ranks.values():
            processes[number].world_size = max(len(ranks), processes[number].world_size)
    for rank, number in ranks.items():
        subject = _subject(path, rank, ranks)
        yield from attribute_in_windows(
            processes[number], findings, rank, origin.first_batch, subject, name_operators, origin.batches,
            origin.batch_marker,
        )  # fmt: skip


def _subject(path: Path, rank: int, ranks: Mapping[int, int]) -> str:
    return path.name if len(ranks) == 1 else f"{path.name}, rank {rank}"


def _ranks(processes: Mapping[int, Trace], names: Mapping[int, str], rank: int | None) -> dict[int, int]:
    """rank -> process."""
    ours = [number for number, trace in processes.items() if trace.on_device]
    ours = ours or [number for number, trace in processes.items() if not _STAGES.isdisjoint(trace.names)]
    ours = ours or [number for number, trace in processes.items() if not trace.is_empty]
    matches = [_MPI_RANK.match(names.get(number, "")) for number in ours]
    if rank is None and all(matches) and len({match[0] for match in matches if match}) == len(ours):
        return dict(
            sorted((int(match[1]), number) for match, number in zip(matches, ours, strict=True) if match)
        )
    if len(ours) == 1:
        return {rank or 0: ours[0]}

    def order(number: int) -> tuple[int, int]:
        devices = [int(piece["device"].min()) for piece in processes[number].tables["device"].pieces()]
        return min(devices, default=1 << 30), number

    return dict(enumerate(sorted(ours, key=order)))


_KIND = "CUPTI_ACTIVITY_KIND_"
_KERNELS, _COPIES, _SETS = _KIND + "KERNEL", _KIND + "MEMCPY", _KIND + "MEMSET"
_GRAPHS, _CALLS, _RANGES = _KIND + "GRAPH_TRACE", _KIND + "RUNTIME", "NVTX_EVENTS"
_MPI = ("MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS")
_TEXTS, _START = "StringIds", "TARGET_INFO_SESSION_START_TIME"
_VERSION_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")
_MEMORY = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device", "Managed")
# Types of NVTX events.
_MARK, _THREAD_NAME, _PUSHED, _STARTED = 34, 39, 59, 60
_MANY = 0x7FFFFFFF
_UNKNOWN = "(a kernel without a name)"


def is_nsys(database: Database) -> bool:
    """Whether a database is an export of Nsight Systems."""
    ours = {_RANGES, _START, "ANALYSIS_DETAILS", *_VERSION_TABLES}
    return database.has(_TEXTS, "id", "value") and not ours.isdisjoint(database.tables)


class Reader:
    """Reads a database into one recording a process.

    Attributes:
        findings: what is odd about the database as a whole.
        names: what the processes called themselves (``MPI Rank 0``), by process.
    """

    def __init__(self, database: Database) -> None:
        self.database = database
        self.findings: list[str] = []
        self.names: dict[int, str] = {}
        self._builders: dict[int, Builder] = {}
        self._texts = database.texts(_TEXTS, "id", "value")

    def read(self) -> dict[int, Trace]:
        """What was recorded, by process number.

        Raises:
            UserError: damaged, or of a release that is not known.
        """
        self._add_kernels()
        self._add_copies()
        self._add_sets()
        self._add_graphs()
        columns = {"start": None, "end": 0, "globalTid": None, "correlationId": -1, "nameId": -1}
        for rows in self._rows(_CALLS, columns):
            for builder, process, mine in self._by_process(rows, "globalTid"):
                thread = mine["globalTid"] & 0xFFFFFF
                name = coded(builder, mine["nameId"], lambda key: self._texts.get(key, ""))
                add_launches(
                    builder, mine["start"], mine["end"], thread, mine["correlationId"], name, process
                )
        self._add_ranges()
        self._add_mpi()
        shift_ns = self._session_start_ns()
        if self.database.malformed and self._builders:
            next(iter(self._builders.values())).malformed += self.database.malformed
        elif self.database.malformed:
            self.findings.append(f"{malformed_finding(self.database.malformed)}, and no event remains")
        return {process: builder.finish(shift_ns=shift_ns) for process, builder in self._builders.items()}

    def _rows(self, table: str, columns: dict[str, int | None]) -> Iterator[Columns]:
        if table in self.database.tables:
            yield from self.database.integers(table, columns)

    def _by_process(self, rows: Columns, key: str) -> Iterator[tuple[Builder, int, Columns]]:
        """The rows of each process; its number stands in the upper bits of global numbers."""
        process = rows[key] >> 24
        if not process.all():  # some releases do not say whose a kernel is
            process = np.where(process == 0, self._only_process, process)
        alone = len(process) > 0 and bool((process == process[0]).all())
        for number in [int(process[0])] if alone else distinct(process).tolist():
            if number not in self._builders:
                self._builders[number] = Builder(lambda _: Inputs())
            mine = process == number
            own = rows if alone else {name: column[mine] for name, column in rows.items()}
            yield self._builders[number], number, own

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
        sizes = ("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ")
        texts = {"mangledName": 0, "demangledName": 0, "shortName": 0}
        for rows in self._rows(_KERNELS, {**_DEVICE, **texts, **dict.fromkeys(sizes, 0)}):
            for builder, _, mine in self._by_process(rows, "globalPid"):
                demangled = np.where(mine["demangledName"] > 0, mine["demangledName"], mine["shortName"])
                keys = (mine["mangledName"] & _MANY) << 31 | demangled & _MANY
                self._add(
                    builder,
                    mine,
                    coded(builder, keys, self._kernel_name),
                    grid=triples(builder, *(mine[name] for name in sizes[:3])),
                    block=triples(builder, *(mine[name] for name in sizes[3:])),
                )

    def _kernel_name(self, key: int) -> str:
        """The mangled name, demangled as every other tool's is; else as Nsight prints it."""
        mangled = self._texts.get(key >> 31, "")
        return full_name(mangled or self._texts.get(key & _MANY, _UNKNOWN))

    def _add_copies(self) -> None:
        columns = {**_DEVICE, "bytes": 0, "copyKind": 0, "srcKind": _MANY, "dstKind": _MANY}
        for rows in self._rows(_COPIES, columns):
            for builder, _, mine in self._by_process(rows, "globalPid"):
                keys = (
                    mine["copyKind"] & 0xFF | (mine["srcKind"] & 0xFF) << 8 | (mine["dstKind"] & 0xFF) << 16
                )
                name = coded(builder, keys, _copy_of)
                self._add(builder, mine, name, size=mine["bytes"])

    def _add_sets(self) -> None:
        for rows in self._rows(_SETS, {**_DEVICE, "bytes": 0, "memKind": _MANY}):
            for builder, _, mine in self._by_process(rows, "globalPid"):
                name = coded(builder, mine["memKind"], lambda key: f"Memset ({_memory(key)})")
                self._add(builder, mine, name, size=mine["bytes"])

    def _add_graphs(self) -> None:
        """CUDA graphs that were recorded as a whole, not kernel by kernel."""
        for rows in self._rows(_GRAPHS, {**_DEVICE, "graphId": 0}):
            for builder, _, mine in self._by_process(rows, "globalPid"):
                self._add(builder, mine, coded(builder, mine["graphId"], lambda key: f"CUDA graph {key}"))

    def _add(
        self,
        builder: Builder,
        rows: Columns,
        name: np.ndarray,
        size: np.ndarray | None = None,
        grid: np.ndarray | None = None,
        block: np.ndarray | None = None,
    ) -> None:
        device, stream, correlation = rows["deviceId"], rows["streamId"], rows["correlationId"]
        add_device(builder, name, rows["start"], rows["end"], device, stream, correlation, size, grid, block)

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
            wanted = np.isin(rows["eventType"], (_MARK, _PUSHED, _STARTED)) & (rows["globalTid"] >= 0)
            is_mark = rows["eventType"] == _MARK
            open_ended = wanted & ~is_mark & (rows["end"] < 0)
            unended += int(open_ended.sum())
            rows["end"] = np.where(is_mark, rows["start"], rows["end"])
            closed = {name: column[wanted & ~open_ended] for name, column in rows.items()}
            for builder, process, mine in self._by_process(closed, "globalTid"):
                thread = mine["globalTid"] & 0xFFFFFF
                add_ranges(builder, mine["text"].tolist(), mine["start"], mine["end"], thread, process)
        if unended:
            self.findings.append(
                f"{how_many(unended, 'range')} {verb(unended, 'were')} open when the recording ended: left "
                "out"
            )

    def _add_mpi(self) -> None:
        for table in _MPI:
            for rows in self._rows(table, {"start": None, "end": None, "globalTid": None, "textId": -1}):
                for builder, process, mine in self._by_process(rows, "globalTid"):
                    texts = [self._texts.get(number, "MPI") for number in mine["textId"].tolist()]
                    thread = mine["globalTid"] & 0xFFFFFF
                    add_ranges(builder, texts, mine["start"], mine["end"], thread, process)

    def _session_start_ns(self) -> int:
        if self.database.has(_START, "utcEpochNs"):
            for (start,) in self.database.rows(_START, "utcEpochNs"):
                if isinstance(start, int) and 0 <= start < 1 << 61:
                    return start
        self.findings.append("the session's date is not recorded: times count from its start, not the epoch")
        return 0


_DEVICE: dict[str, int | None] = {
    "start": None, "end": None, "deviceId": 0, "streamId": -1, "correlationId": -1, "globalPid": 0,
}  # fmt: skip


def _memory(kind: int) -> str:
    return _MEMORY[kind] if 0 <= kind < len(_MEMORY) else "Unknown"


def _copy_of(key: int) -> str:
    return copy_name(key & 0xFF, _memory(key >> 8 & 0xFF), _memory(key >> 16 & 0xFF))


def release(database: Database) -> str:
    """The release of Nsight Systems that exported a database; empty if it does not say."""
    for table in _VERSION_TABLES:
        if database.has(table, "name", "value"):
            properties = dict(database.rows(table, "name", "value"))
            return str(properties.get("EXPORT_PRODUCT_VERSION") or "")
    return ""


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
