"""What does an SQLite export of Nsight Systems hold, as events of each process?

Releases differ: texts stand in the row or in ``StringIds``, tables are absent where nothing was recorded, and
columns come and go. Times count from the start of the session, whose date is a table of its own.
"""

from collections.abc import Iterator
from functools import cached_property

import numpy as np

from profiling.attribution.checks import malformed_finding
from profiling.attribution.coding import distinct
from profiling.attribution.events import Builder, Trace
from profiling.cost.names import full_name
from profiling.cost.shapes import Inputs
from profiling.readers.gpu_records import add_device, add_launches, add_ranges, coded, copy_name, triples
from profiling.readers.sqlite import Columns, Database
from profiling.wording import how_many, verb

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
