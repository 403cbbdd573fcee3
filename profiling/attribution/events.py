"""Events in columns: the common form of all profilers' events, and the input of attribution.

Strings are interned, each column is a NumPy array, times are integer nanoseconds.
"""

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

from profiling.attribution.messages import NOT_RECORDED, Message
from profiling.cost.classify import classify, short_name
from profiling.cost.operators import Inputs
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.schemas import CLASSES
from profiling.tables import array_of

KEPT_ROWS = 1 << 18  # in memory; beyond, all rows go to the file

Columns = dict[str, np.ndarray]
_Place = tuple[int, int, bool]  # of a column: where it begins, its rows, whether one value stands for all
_Piece = list[_Place]


class Store:
    """Pieces of columns in a file; ``types``: the columns' NumPy types by name."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        self.types = {name: np.dtype(kind) for name, kind in types.items()}
        self._file: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  (it outlives this call)
        self._size = 0

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def put(self, columns: Columns) -> _Piece:
        """Write a piece; what is returned finds it again; UserError: the file system is full."""
        return [self._put(columns[name]) for name in self.types]

    def _put(self, column: np.ndarray) -> _Place:
        constant = len(column) > 1 and column.strides == (0,)
        values = np.ascontiguousarray(column[:1] if constant else column)
        place = (self._size, len(column), constant)
        self._file.seek(self._size)
        try:
            values.tofile(self._file)
        except OSError as error:
            raise UserError(
                f"cannot write temporary rows to {tempfile.gettempdir()}: {error.strerror or error}; free "
                "some space there, or set TMPDIR to another folder"
            ) from None
        self._size += values.nbytes
        return place

    def get(self, pieces: Sequence[_Piece]) -> Columns:
        return {name: self._get(name, [piece[at] for piece in pieces]) for at, name in enumerate(self.types)}

    def column(self, piece: _Piece, name: str) -> np.ndarray:
        return self._get(name, [piece[list(self.types).index(name)]])

    def _get(self, name: str, places: Sequence[_Place]) -> np.ndarray:
        parts = []
        for start, length, constant in places:
            self._file.seek(start)
            parts.append(np.fromfile(self._file, self.types[name], 1 if constant else length))
        if parts and all(constant for _, _, constant in places):
            values = np.concatenate(parts)
            if (values == values[0]).all() or (values != values).all():  # or all are NaN
                return np.broadcast_to(values[0], sum(length for _, length, _ in places))
        whole = [np.broadcast_to(part, place[1]) for part, place in zip(parts, places, strict=True)]
        return np.concatenate(whole) if whole else np.empty(0, self.types[name])


class Table:
    """Columns that grow a piece at a time, each an array; ``spilled``: they are in a file."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        self.types = dict(types)
        self.rows = 0
        self._kept: list[Columns] = []
        self._store: Store | None = None
        self._written: list[_Piece] = []

    @property
    def spilled(self) -> bool:
        return self._store is not None

    def add(self, columns: Mapping[str, Any]) -> None:
        """Append one piece; the columns are of equal length, or one number that stands in every row."""
        rows = max((len(column) for column in columns.values() if hasattr(column, "__len__")), default=0)
        if rows == 0:
            return
        arrays = {name: np.asarray(columns[name], dtype=kind) for name, kind in self.types.items()}
        piece = {
            name: array if array.ndim else np.broadcast_to(array, rows) for name, array in arrays.items()
        }
        self.rows += rows
        if self._store is None and self.rows <= KEPT_ROWS:
            self._kept.append(piece)
            return
        if self._store is None:
            self._spill()
        assert self._store is not None
        self._written.append(self._store.put(piece))

    def pieces(self) -> Iterator[Columns]:
        yield from self._kept
        if self._store is not None:
            yield from (self._store.get([piece]) for piece in self._written)

    def columns(self) -> Columns:
        return joined(self.types, list(self.pieces()))

    def split(self, key: str, number_of: Callable[[np.ndarray], np.ndarray], windows: int) -> "Split":
        """The same rows by window; ``key``: the column that tells the window; ``number_of`` its values."""
        if self._store is None:
            self._spill()
        assert self._store is not None
        split = Split(self._store, windows)
        for piece in self._written:
            number = number_of(self._store.column(piece, key))
            if number.min() == number.max():  # most pieces are of one window: they need not be moved
                split.refer(piece, int(number[0]))
            else:
                split.add(self._store.get([piece]), number)
        return split

    def _spill(self) -> None:
        self._store = Store(self.types)
        self._written = [self._store.put(one) for one in self._kept]
        self._kept = []


class Split:
    """The rows of a table by window, in the order in which they came; pieces of two windows are copied."""

    def __init__(self, store: Store, windows: int) -> None:
        self._store = store
        self._written: list[list[_Piece]] = [[] for _ in range(windows)]

    def refer(self, piece: _Piece, window: int) -> None:
        self._written[window].append(piece)

    def add(self, piece: Columns, number: np.ndarray) -> None:
        """Append rows to the windows whose numbers they have; below 0: to none."""
        for window in distinct(number[number >= 0]).tolist():
            mask = number == window
            rows = {
                name: np.broadcast_to(column[0], int(mask.sum())) if column.strides == (0,) else column[mask]
                for name, column in piece.items()
            }
            self._written[window].append(self._store.put(rows))

    def column(self, number: int, name: str) -> np.ndarray:
        pieces = [self._store.column(piece, name) for piece in self._written[number]]
        return np.concatenate(pieces) if pieces else np.empty(0, self._store.types[name])

    def window(self, number: int) -> Columns:
        return self._store.get(self._written[number])


def joined(types: Mapping[str, Any], pieces: list[Columns]) -> Columns:
    return {
        name: np.concatenate([piece[name] for piece in pieces]) if pieces else np.empty(0, kind)
        for name, kind in types.items()
    }


# The columns of each group of events; -1 stands for "not recorded" in integers, NaN in floats.
HOST_COLUMNS = {
    "name": np.int32,  # index of Events.names
    "start_ns": np.int64,
    "end_ns": np.int64,
    "thread": np.int32,  # index of Events.threads
    "sequence": np.int64,  # of autograd: forward and backward of one operator share it
    "forward_thread": np.int64,  # above 0: this is the backward of what that thread ran forward
    "external": np.int64,
    "inputs": np.int32,  # index of Events.inputs
    "kind": np.int8,  # OPERATOR, RANGE or LAYER
    "message": np.int32,  # of a collective: index of Events.messages
}
LAUNCH_COLUMNS = {
    "name": np.int32,  # of a call that may wait for the device; -1: nobody asks
    "start_ns": np.int64,
    "end_ns": np.int64,  # start_ns: not recorded
    "thread": np.int32,
    "correlation": np.int64,
    "external": np.int64,
}
DEVICE_COLUMNS = {
    "name": np.int32,
    "start_ns": np.int64,
    "duration_ns": np.int64,
    "device": np.int32,
    "stream": np.int64,
    "correlation": np.int64,
    "external": np.int64,
    "bytes": np.float64,  # of a copy or a set
    "message": np.int32,
    "sequence": np.int64,  # of a collective: the same on all ranks of its group
    "grid": np.int32,  # index of Events.names
    "block": np.int32,
    "blocks_per_sm": np.float32,
    "occupancy_pct": np.float32,
    "registers": np.float32,
    "shared_bytes": np.float32,
}
LAUNCH_FACTS = ("blocks_per_sm", "occupancy_pct", "registers", "shared_bytes")  # NaN: not recorded
MEMORY_COLUMNS = {
    "time_ns": np.int64,
    "device": np.int32,
    "bytes": np.float64,
    "allocated_bytes": np.float64,
    "reserved_bytes": np.float64,
}
TIMES = ("start_ns", "end_ns", "time_ns")
OPERATOR, RANGE, LAYER = 0, 1, 2
_ROUNDED_NS = 10_000  # times on a device may be off by so much

# Ranges that training loops and PyTorch itself open; old traces file them among the operators.
_RANGE_NAME = re.compile(
    r"^(ProfilerStep#|Optimizer\.|enumerate\(|## |Forward Pass$|Backward Pass$|Model Update$|End of Batch$"
    r"|Layer: |DistributedDataParallel\.|nccl:|gloo:|mpi:|ucc:)"
)
_OPERATOR_NAME = re.compile(r"::|Backward\w*$|^[a-z_]+$")


@dataclass
class Events:
    """Events of one process that matter here, all or some batches'; the host's in no particular order."""

    names: list[str]
    threads: list[int]
    inputs: list[Inputs]
    messages: list[Message]
    host: Columns
    launches: Columns
    device: Columns
    memory: Columns


def is_range(name: str, old_schema: bool) -> bool:
    """Whether an event filed as an operator is a range that someone opened."""
    if _RANGE_NAME.match(name):
        return True
    return old_schema and not _OPERATOR_NAME.search(name)


def name_flags(names: list[str], test: Callable[[str], bool]) -> np.ndarray:
    """``test`` of each distinct name."""
    return np.fromiter((test(name) for name in names), dtype=bool, count=len(names))


def find_ranges(names: list[str], host: Columns, test: Callable[[str], bool]) -> np.ndarray:
    """Indices of the ranges whose name passes ``test``, by their start."""
    ranges = np.flatnonzero((host["kind"] == RANGE) & name_flags(names, test)[host["name"]])
    return ranges[np.argsort(host["start_ns"][ranges], kind="stable")]


def contained(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Whether each range (sorted by start) lies in one before it."""
    reach = np.maximum.accumulate(end) if len(end) else end
    return np.concatenate([[False], end[1:] <= reach[:-1]]) if len(end) else np.zeros(0, dtype=bool)


def pick(values: np.ndarray, index: np.ndarray, absent: Any = -1) -> np.ndarray:
    """``values[index]``, with ``absent`` where the index is -1; there may be no values at all."""
    if not len(values):
        return np.full(len(index), absent)
    return np.where(index >= 0, values[index], absent)


class Interner:
    """Distinct values as small numbers, in order of first sight."""

    def __init__(self) -> None:
        self.index: dict[Any, int] = {}

    def of(self, values: Sequence[Any]) -> list[int]:
        setdefault, index = self.index.setdefault, self.index
        return [setdefault(value, len(index)) for value in values]


class Builder:
    def __init__(self, parse_inputs: Callable[[Any], Inputs]) -> None:
        self.names, self.threads, self.inputs, self.messages = (Interner() for _ in range(4))
        self.host, self.launches = Table(HOST_COLUMNS), Table(LAUNCH_COLUMNS)
        self.device, self.memory = Table(DEVICE_COLUMNS), Table(MEMORY_COLUMNS)
        self.malformed = 0
        self._parse_inputs = parse_inputs

    def finish(self, rank: int | None = None, world_size: int = 1, shift_ns: int = 0) -> "Trace":
        """The recording; ``shift_ns`` is added to all times."""
        # One number for all ways to write a thread: some versions quote only a few.
        first: dict[tuple[str, str], int] = {}
        same = [first.setdefault((str(p), str(t)), i) for i, (p, t) in enumerate(self.threads.index)]
        tables = {"host": self.host, "launches": self.launches, "device": self.device, "memory": self.memory}
        return Trace(
            names=list(self.names.index),
            threads=[_thread_number(thread, number) for (_, thread), number in self.threads.index.items()],
            inputs=[self._parse_inputs(key) for key in self.inputs.index],
            messages=list(self.messages.index),
            tables=tables,
            same_thread=np.array(same, dtype=np.int32),
            rank=rank,
            world_size=world_size,
            shift_ns=shift_ns,
            malformed=self.malformed,
        )


@dataclass
class Trace:
    """A recording of one process, of any length; :mod:`profiling.attribution.windows` makes events of it."""

    names: list[str]
    threads: list[int]
    inputs: list[Inputs]
    messages: list[Message]
    tables: dict[str, Table]  # ``host``, ``launches``, ``device`` and ``memory``, as they came
    same_thread: np.ndarray  # the number of each thread, one for all ways to write it
    rank: int | None = None
    world_size: int = 1
    shift_ns: int = 0  # to be added to all times
    malformed: int = 0  # events left out because a required field was absent or absurd
    overruns: int = 0  # kernels that were cut at the next one on their stream
    findings: list[Finding] = field(default_factory=list)
    group: Message = NOT_RECORDED  # the process group of collectives that do not say it
    groups: Mapping[int, Message] = field(default_factory=dict)  # and of those on threads of a group's own
    unread: bool = False  # whether a device's work was recorded in a form that is not read
    path: Path | None = None  # of its file
    may_have_shapes: bool = False  # whether the profiler records shapes where it is asked to

    @property
    def on_device(self) -> bool:
        return self.unread or self.tables["device"].rows > 0

    @property
    def is_empty(self) -> bool:
        return not self.on_device and not self.tables["host"].rows

    def whole(self) -> Events:
        return self.events({name: table.columns() for name, table in self.tables.items()})

    def events(self, groups: dict[str, Columns]) -> Events:
        """Rows of the tables as events, their times and threads put right; device events by their start."""
        tables = {name: dict(columns) for name, columns in groups.items()}
        for name in ("host", "launches"):
            tables[name]["thread"] = self.same_thread[tables[name]["thread"]]
        if self.shift_ns:
            for columns in tables.values():
                columns |= {name: columns[name] + self.shift_ns for name in TIMES if name in columns}
        # Copies stand behind all kernels; sorted here, the rows need not be moved again when they are tables.
        start_ns = tables["device"]["start_ns"]
        if (start_ns[1:] < start_ns[:-1]).any():
            order = np.argsort(start_ns, kind="stable")
            tables["device"] = {name: column[order] for name, column in tables["device"].items()}
        self.overruns += _cut_overruns(tables["device"])
        return Events(list(self.names), self.threads, self.inputs, self.messages, **tables)


def _cut_overruns(device: Columns) -> int:
    """End kernels that outlast all of the next on their stream where that begins; how many there were.

    Kernels of a stream are serial, but for branches of a CUDA graph, which share the number of their launch.
    """
    order = np.lexsort((device["start_ns"], device["stream"], device["device"]))
    order = order[np.isnan(device["bytes"][order])]  # else a copy
    start_ns = device["start_ns"][order]
    end_ns = start_ns + device["duration_ns"][order]
    this, after = order[:-1], order[1:]
    serial = (device["stream"][this] >= 0) & (device["correlation"][this] != device["correlation"][after])
    for name in ("stream", "device"):
        serial &= device[name][this] == device[name][after]
    over = np.flatnonzero(serial & (start_ns[1:] < end_ns[1:]) & (end_ns[:-1] > end_ns[1:] + _ROUNDED_NS))
    if len(over):
        device["duration_ns"] = device["duration_ns"].copy()
        device["duration_ns"][order[over]] = start_ns[over + 1] - start_ns[over]
    return len(over)


def _thread_number(thread: Any, number: int) -> int:
    try:
        value = int(thread)
    except (TypeError, ValueError, OverflowError):
        value = 1 << 62
    # A thread that is only a word gets a number below the -1 that means "none".
    return value if -(1 << 62) < value < 1 << 62 else -2 - number


CLASS = {name: number for number, name in enumerate(CLASSES)}
COMMUNICATION, MEMCPY, MEMSET = (CLASS[name] for name in ("communication", "memcpy", "memset"))


def classes_of(names: Sequence[str]) -> np.ndarray:
    """The class of each name, as a number of :data:`profiling.schemas.CLASSES`."""
    return np.array([CLASS[classify(name)] for name in names], dtype=np.int64)


def short_names(names: Sequence[str], used: np.ndarray) -> list[str]:
    """The short name of each name whose number is in ``used``; empty for the others."""
    is_used = np.zeros(len(names), dtype=bool)
    is_used[used] = True
    return [short_name(name) if needed else "" for name, needed in zip(names, is_used.tolist(), strict=True)]


def text_array(texts: Iterable[str]) -> pa.Array:
    """Texts as Arrow's; see :func:`array_of`."""
    encoded = [text.encode("utf-8", "replace") for text in texts]
    borders = np.cumsum([0, *map(len, encoded)]).astype(np.int32)
    buffers = [None, pa.py_buffer(borders), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def distinct(values: np.ndarray) -> np.ndarray:
    """Each of some integers once, rising. Plain ``np.unique`` imports numpy.ma, in every process anew."""
    values = np.sort(values)
    return values[np.append(True, values[1:] != values[:-1])[: len(values)]]


def or_null(values: np.ndarray, kind: pa.DataType) -> pa.Array:
    """Numbers with null in place of what is below 0."""
    return array_of(values, values >= 0).cast(kind)


def coded(codes: np.ndarray, values: Sequence[str]) -> pa.DictionaryArray:
    """Texts by their number (-1: null), with only the used ones in the dictionary, each once."""
    codes = codes.astype(np.intp)  # once, not at every look-up
    used = np.zeros(len(values) + 1, dtype=bool)
    used[codes] = True  # -1 is the last one
    distinct: dict[str, int] = {}
    place = np.full(len(values) + 1, -1, dtype=np.int32)
    for code in np.flatnonzero(used[:-1]).tolist():
        place[code] = distinct.setdefault(values[code], len(distinct))
    indices = array_of(place[codes], codes >= 0 if used[-1] else None)
    return pa.DictionaryArray.from_arrays(indices, text_array(distinct))
