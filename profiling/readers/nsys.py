"""Read exported databases of Nsight Systems, and the summaries that ``nsys stats`` prints as CSV.

Releases differ: strings are in the row or in ``StringIds``, tables are absent where nothing was recorded, and
columns vary. Times count from the start of the session, which is in a separate table.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from profiling.attribution.attribute import attribute_in_windows
from profiling.attribution.events import Builder, Trace, distinct
from profiling.cost.classify import full_name
from profiling.cost.operators import Inputs
from profiling.findings import Finding
from profiling.readers import gpu_records as gpu
from profiling.readers import printed
from profiling.readers.files import NSYS_REPORT, UNKNOWN, Origin, rank_in, read_head
from profiling.readers.gpu_records import name_operators
from profiling.readers.sqlite import MAGIC, Columns, Database, open_database
from profiling.schemas import BACKWARD, END_OF_BATCH, FORWARD, UPDATE
from profiling.tables import as_table
from profiling.traced_job import TraceFacts


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is a report of Nsight Systems, its export, or a summary of it."""
    if head.startswith(MAGIC):
        with open_database(path) as database:
            ours = {_RANGES, _START, "ANALYSIS_DETAILS", *_VERSION_TABLES}
            return database.has(_TEXTS, "id", "value") and not ours.isdisjoint(database.tables)
    return head.startswith(NSYS_REPORT) or bool(_SUMMARY.search(head.decode("utf-8", "replace")))


def facts(path: Path) -> TraceFacts | None:
    """What the export of a report says of its job; None of a report not exported yet, and of a summary."""
    if read_head(path, len(MAGIC)) != MAGIC:
        return None

    def rows(table: str, *columns: str) -> list[Any]:
        return list(database.rows(table, *columns)) if database.has(table, *columns) else []

    with open_database(path) as database:
        devices = [name for (name,) in rows("TARGET_INFO_GPU", "name") if name]
        # The table holds the environment of the machine: of it only the host's name is taken.
        environment = rows("TARGET_INFO_SYSTEM_ENV", "name", "value")
        hosts = [value for name, value in environment if name == "Hostname"]
        exports: list[Any] = [rows(one, "name", "value") for one in _VERSION_TABLES]
        release = next((dict(one).get("EXPORT_PRODUCT_VERSION", "") for one in exports if one), "")
    return TraceFacts(
        rank=rank_in(path),
        host=hosts[0] if hosts else "",
        device=", ".join(dict.fromkeys(devices)),
        versions={"Nsight Systems": release} if release else {},
    )


def stream(path: Path, findings: list[Finding], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """The export of a report as pieces of tables ``kernels`` and ``markers``.

    A report may hold several processes; those with work on a GPU (else: with stages of batches, else: with
    any range) are taken for ranks, one after the other. Summaries become ``intervals`` and ``atomics``.
    """
    if read_head(path, len(MAGIC)) != MAGIC:
        yield from _stream_summaries(path, findings, origin.rank_of(path) or 0)
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
    tests = (
        lambda trace: trace.on_device,
        lambda trace: not _STAGES.isdisjoint(trace.names),
        lambda trace: not trace.is_empty,
    )
    found = ([number for number, trace in processes.items() if test(trace)] for test in tests)
    numbers = next(filter(None, found), [])
    matches = [match for number in numbers if (match := _MPI_RANK.match(names.get(number, "")))]
    if rank is None and len({match[0] for match in matches}) == len(numbers) == len(matches):
        return dict(sorted((int(match[1]), number) for match, number in zip(matches, numbers, strict=True)))
    if len(numbers) == 1:
        return {rank or 0: numbers[0]}

    def order(number: int) -> tuple[int, int]:
        devices = [int(piece["device"].min()) for piece in processes[number].tables["device"].pieces()]
        return min(devices, default=1 << 30), number

    return dict(enumerate(sorted(numbers, key=order)))


_KIND = "CUPTI_ACTIVITY_KIND_"
_CALLS, _RANGES = _KIND + "RUNTIME", "NVTX_EVENTS"
_MPI = ("MPI_COLLECTIVES_EVENTS", "MPI_P2P_EVENTS", "MPI_START_WAIT_EVENTS", "MPI_OTHER_EVENTS")
_TEXTS, _START = "StringIds", "TARGET_INFO_SESSION_START_TIME"
_VERSION_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")
_MEMORY_OFFSET = 1  # of CUPTI's numbers of memory
# Types of NVTX events.
_MARK, _THREAD_NAME, _PUSHED, _STARTED = 34, 39, 59, 60
_MANY = 0x7FFFFFFF


class _Reader:
    """Reads a database into one recording a process, with the processes' names (``MPI Rank 0``)."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.findings: list[Finding] = []
        self.names: dict[int, str] = {}
        self._builders: dict[int, Builder] = {}
        self._texts = database.texts(_TEXTS, "id", "value")

    def read(self) -> dict[int, Trace]:
        """What was recorded, by process number; UserError: damaged, or of a release that is not known."""

        def kernel_name(key: int) -> str:
            # The mangled name, demangled as every other tool's is; else as Nsight prints it.
            return full_name(self._texts.get(key >> 31, "") or self._texts.get(key & _MANY, gpu.UNNAMED))

        names = dict.fromkeys(("mangledName", "demangledName", "shortName"), 0)
        for builder, _, rows in self._activities("KERNEL", gpu.KERNEL | names):
            demangled = np.where(rows["demangledName"] > 0, rows["demangledName"], rows["shortName"])
            keys = (rows["mangledName"] & _MANY) << 31 | demangled & _MANY
            gpu.add_device(builder, rows, gpu.coded(builder, keys, kernel_name))
        for builder, _, rows in self._activities("MEMCPY", gpu.COPY | {"srcKind": _MANY, "dstKind": _MANY}):
            gpu.add_device(builder, rows, offset=_MEMORY_OFFSET)
        for builder, _, rows in self._activities("MEMSET", gpu.SET | {"memKind": _MANY}):
            gpu.add_device(builder, rows | {"memoryKind": rows["memKind"]}, offset=_MEMORY_OFFSET)
        # CUDA graphs that were recorded as a whole, not kernel by kernel.
        for builder, _, rows in self._activities("GRAPH_TRACE", gpu.ON_DEVICE | {"graphId": 0}):
            name = gpu.coded(builder, rows["graphId"], lambda key: f"CUDA graph {key}")
            gpu.add_device(builder, rows, name)
        calls = {"start": None, "end": 0, "globalTid": None, "correlationId": -1, "nameId": -1}
        for builder, process, rows in self._by_process(_CALLS, calls, "globalTid"):
            name = gpu.coded(builder, rows["nameId"], lambda key: self._texts.get(key, ""))
            where = rows["globalTid"] & 0xFFFFFF, rows["correlationId"]
            gpu.add_launches(builder, rows["start"], rows["end"], *where, name, process)
        self._add_ranges()
        events = {"start": None, "end": None, "globalTid": None, "textId": -1}
        for table in _MPI:
            for builder, process, rows in self._by_process(table, events, "globalTid"):
                texts = [self._texts.get(number, "MPI") for number in rows["textId"].tolist()]
                thread = rows["globalTid"] & 0xFFFFFF
                gpu.add_ranges(builder, texts, rows["start"], rows["end"], thread, process)
        database = self.database
        starts = database.rows(_START, "utcEpochNs") if database.has(_START, "utcEpochNs") else ()
        known = (int(start) for (start,) in starts if start.isdecimal())
        shift_ns = next((start for start in known if start < 1 << 61), None)
        if shift_ns is None:
            self.findings.append(Finding("not_recorded", data={"what": "start time"}))
        if database.malformed:
            self.findings.append(Finding("records_damaged", data={"n": database.malformed, "what": "events"}))
        return {
            process: builder.finish(shift_ns=shift_ns or 0) for process, builder in self._builders.items()
        }

    def _activities(
        self, kind: str, columns: Mapping[str, int | None]
    ) -> Iterator[tuple[Builder, int, Columns]]:
        return self._by_process(_KIND + kind, {**columns, "globalPid": 0}, "globalPid")

    def _by_process(
        self, table: str, columns: Mapping[str, int | None], key: str
    ) -> Iterator[tuple[Builder, int, Columns]]:
        versions = filter(re.compile(rf"{table}(_V\d+)?$").match, self.database.tables)
        for name in sorted(versions)[:1]:  # the plain one, if it is there
            for rows in self.database.integers(name, columns):
                yield from self._split(rows, key)

    def _split(self, rows: Columns, key: str) -> Iterator[tuple[Builder, int, Columns]]:
        process = rows[key] >> 24
        alone = len(process) > 0 and bool((process == process[0]).all())
        for number in [int(process[0])] if alone else distinct(process).tolist():
            builder = self._builders.setdefault(number, Builder(lambda _: Inputs()))
            mask = process == number
            yield builder, number, rows if alone else {name: column[mask] for name, column in rows.items()}

    def _add_ranges(self) -> None:
        """Add NVTX's ranges and marks; texts stand in the row, or are numbered, or both."""
        if _RANGES not in self.database.tables:
            return
        self.database.need(_RANGES, "start", "end", "eventType", "globalTid")
        columns = {"start": None, "end": -1, "eventType": None, "globalTid": -1, "textId": -1}
        unended = 0
        for rows in self.database.integers(_RANGES, columns, texts=["text"]):
            texts = (text.decode("utf-8", "replace") for text in rows["text"])
            pairs = zip(texts, rows["textId"].tolist(), strict=True)
            rows["text"] = np.array([text or self._texts.get(number, "") for text, number in pairs], object)
            named = rows["eventType"] == _THREAD_NAME
            for owner, text in zip(rows["globalTid"][named] >> 24, rows["text"][named], strict=True):
                self.names.setdefault(int(owner), str(text))
            is_range = np.isin(rows["eventType"], (_MARK, _PUSHED, _STARTED)) & (rows["globalTid"] >= 0)
            is_mark = rows["eventType"] == _MARK
            open_ended = is_range & ~is_mark & (rows["end"] < 0)
            unended += int(open_ended.sum())
            rows["end"] = np.where(is_mark, rows["start"], rows["end"])
            closed = {name: column[is_range & ~open_ended] for name, column in rows.items()}
            for builder, process, part in self._split(closed, "globalTid"):
                thread = part["globalTid"] & 0xFFFFFF
                gpu.add_ranges(builder, part["text"].tolist(), part["start"], part["end"], thread, process)
        if unended:
            self.findings.append(Finding("not_recorded", data={"n": unended, "what": "ends of ranges"}))


_SUMMARY = re.compile(r'^"?Time ?\(%\)"?,"?Total Time', re.MULTILINE)
_TIMES = ("Total Time", "Avg", "Min", "Max", "StdDev")
# Our words for columns, which releases name otherwise.
_COLUMNS = {"Average": "Avg", "Minimum": "Min", "Maximum": "Max", "Num Calls": "Calls", "Instances": "Calls",
            "Count": "Calls", "Operations": "Calls", "Operation": "Name", "Range": "Name"}  # fmt: skip


def _stream_summaries(path: Path, findings: list[Finding], rank: int) -> Iterator[tuple[str, pa.Table]]:
    blocks = printed.Blocks(path, lambda cells: bool(_SUMMARY.match(",".join(cells))))
    activities = []
    for header, values in blocks:
        heads = [column.rstrip(")").partition("(") for column in header]
        columns = [_COLUMNS.get(name.strip(), name.strip()) for name, _, _ in heads]
        cells = dict(zip(columns, values, strict=True))
        units = {column: unit or "ns" for column, (*_, unit) in zip(columns, heads, strict=True)}
        times = (printed.time_ns(cells.get(one, ""), units.get(one, "")) for one in _TIMES)
        total, mean, low, high, std = times
        calls, _ = printed.number_and_unit(cells.get("Calls", ""))
        on_device = "Operation" in header or {"Instances", "Name"} <= {*header}
        name = cells.get("Name", "").removeprefix(":")
        activities.append(printed.Activity(name, calls, total, mean, low, high, std, on_device))
    yield "intervals", printed.summary_intervals(activities, rank)
    yield "atomics", printed.summary_atomics(activities, [], rank)
    if blocks.damaged:
        findings.append(Finding("records_damaged", data={"n": blocks.damaged, "what": "lines"}))
