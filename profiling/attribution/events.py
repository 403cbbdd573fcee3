"""Events in columns: the form between a profiler's events and the attribution.

Whatever the events come from (a JSON file, a profiler in this process), they end here, so that one
attribution serves all. Texts are interned, each column is one NumPy array, times are integer nanoseconds.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from profiling.attribution.messages import NOT_RECORDED, Message
from profiling.attribution.spill import Columns, Table
from profiling.cost.shapes import Inputs
from profiling.findings import Finding

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
    "grid": np.int32,  # index of Events.names
    "block": np.int32,
    "blocks_per_sm": np.float32,
    "occupancy_pct": np.float32,
}
MEMORY_COLUMNS = {
    "time_ns": np.int64,
    "device": np.int32,
    "bytes": np.float64,
    "allocated_bytes": np.float64,
    "reserved_bytes": np.float64,
}
TIMES = ("start_ns", "end_ns", "time_ns")
OPERATOR, RANGE, LAYER = 0, 1, 2

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
        """The number of each value."""
        setdefault, index = self.index.setdefault, self.index
        return [setdefault(value, len(index)) for value in values]


class Builder:
    """Collects pieces of events from any source."""

    def __init__(self, parse_inputs: Callable[[Any], Inputs]) -> None:
        self.names, self.threads, self.inputs, self.messages = (Interner() for _ in range(4))
        self.host, self.launches = Table(HOST_COLUMNS), Table(LAUNCH_COLUMNS)
        self.device, self.memory = Table(DEVICE_COLUMNS), Table(MEMORY_COLUMNS)
        self.malformed = 0
        self._parse_inputs = parse_inputs

    def finish(self, rank: int | None = None, world_size: int = 1, shift_ns: int = 0) -> "Trace":
        """All that was collected; ``shift_ns`` is added to all times."""
        return Trace(
            names=list(self.names.index),
            threads=[_thread_number(thread, number) for (_, thread), number in self.threads.index.items()],
            inputs=[self._parse_inputs(key) for key in self.inputs.index],
            messages=list(self.messages.index),
            tables={
                "host": self.host, "launches": self.launches, "device": self.device, "memory": self.memory
            },
            same_thread=_same_threads(self.threads.index),
            rank=rank,
            world_size=world_size,
            shift_ns=shift_ns,
            malformed=self.malformed,
        )  # fmt: skip


@dataclass
class Trace:
    """A recording of one process, of any length; :mod:`profiling.attribution.windows` makes events of it.

    Attributes:
        tables: ``host``, ``launches``, ``device`` and ``memory``, as they came.
        same_thread: the number of each thread, one for all ways to write it.
        shift_ns: to be added to all times.
        group: the process group of collectives that do not say it.
        unread: whether a device's work was recorded in a form that is not read.
        may_have_shapes: whether the profiler records shapes where it is asked to.
    """

    names: list[str]
    threads: list[int]
    inputs: list[Inputs]
    messages: list[Message]
    tables: dict[str, Table]
    same_thread: np.ndarray
    rank: int | None = None
    world_size: int = 1
    shift_ns: int = 0
    malformed: int = 0  # events left out because a required field was absent or absurd
    findings: list[Finding] = field(default_factory=list)
    group: Message = NOT_RECORDED
    unread: bool = False
    may_have_shapes: bool = False

    @property
    def on_device(self) -> bool:
        """Whether anything ran on a device."""
        return self.unread or self.tables["device"].rows > 0

    @property
    def is_empty(self) -> bool:
        """Whether there is neither work on a device nor an event of the host."""
        return not self.on_device and not self.tables["host"].rows

    def whole(self) -> Events:
        """All of it as events."""
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
        return Events(list(self.names), self.threads, self.inputs, self.messages, **tables)


def _same_threads(threads: Iterable[tuple[Any, Any]]) -> np.ndarray:
    """The number of each (process, thread), one for all ways to write it: some versions quote only a few."""
    first: dict[tuple[str, str], int] = {}
    same = [first.setdefault((str(process), str(thread)), i) for i, (process, thread) in enumerate(threads)]
    return np.array(same, dtype=np.int32)


def _thread_number(thread: Any, number: int) -> int:
    try:
        value = int(thread)
    except (TypeError, ValueError, OverflowError):
        value = 1 << 62
    # A thread that is only a word gets a number below the -1 that means "none".
    return value if -(1 << 62) < value < 1 << 62 else -2 - number
