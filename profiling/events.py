"""What happened, in columns: the form between a profiler's events and the attribution.

Whatever the events come from (a JSON file, a profiler in this process), they end here, so that one
attribution serves all. Texts are interned, each column is one NumPy array, times are integer nanoseconds.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from profiling.shapes import Inputs

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
    "message_bytes": np.float64,  # of a collective
}
LAUNCH_COLUMNS = {
    "start_ns": np.int64,
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
    "message_bytes": np.float64,
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
OPERATOR, RANGE, LAYER = 0, 1, 2

# Ranges that training loops and PyTorch itself open; old traces file them among the operators.
_RANGE_NAME = re.compile(
    r"^(ProfilerStep#|Optimizer\.|enumerate\(|## |Forward Pass$|Backward Pass$|Model Update$|End of Batch$"
    r"|Layer: |DistributedDataParallel\.|nccl:|gloo:|mpi:|ucc:)"
)
_OPERATOR_NAME = re.compile(r"::|Backward\w*$|^[a-z_]+$")

Columns = dict[str, np.ndarray]


@dataclass
class Events:
    """All events of one process that matter here; host events are in no particular order."""

    names: list[str]
    threads: list[int]
    inputs: list[Inputs]
    host: Columns
    launches: Columns
    device: Columns
    memory: Columns
    rank: int | None = None
    world_size: int = 1
    malformed: int = 0  # events left out because a required field was absent or absurd
    findings: list[str] = field(default_factory=list)


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
    found = np.flatnonzero((host["kind"] == RANGE) & name_flags(names, test)[host["name"]])
    return found[np.argsort(host["start_ns"][found], kind="stable")]


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


class Table:
    """Columns that grow a piece at a time, each piece an array, so that no event outlives its piece."""

    def __init__(self, types: dict[str, Any]) -> None:
        self.types = types
        self.pieces: dict[str, list[np.ndarray]] = {name: [] for name in types}

    def add(self, columns: dict[str, Any]) -> None:
        """Append one piece; the columns are of equal length."""
        arrays = {name: np.asarray(columns[name], dtype=kind) for name, kind in self.types.items()}
        for name, array in arrays.items():
            self.pieces[name].append(array)

    def columns(self) -> Columns:
        """All pieces as one array a column; the table is empty afterwards, so that none is held twice."""
        joined = {}
        for name, kind in self.types.items():
            pieces, self.pieces[name] = self.pieces[name], []
            joined[name] = np.concatenate(pieces) if pieces else np.empty(0, kind)
            del pieces
        return joined


class Builder:
    """Collects pieces of events from any source."""

    def __init__(self, parse_inputs: Callable[[Any], Inputs]) -> None:
        self.names, self.threads, self.inputs = Interner(), Interner(), Interner()
        self.host, self.launches = Table(HOST_COLUMNS), Table(LAUNCH_COLUMNS)
        self.device, self.memory = Table(DEVICE_COLUMNS), Table(MEMORY_COLUMNS)
        self.malformed = 0
        self._parse_inputs = parse_inputs

    def finish(self, rank: int | None = None, world_size: int = 1, shift_ns: int = 0) -> Events:
        """The events; ``shift_ns`` is added to all times."""
        host, launches, device = self.host.columns(), self.launches.columns(), self.device.columns()
        memory = self.memory.columns()
        # Copies stand behind all kernels; sorted here, the rows need not be moved again when they are tables.
        start_ns = device["start_ns"]
        if (start_ns[1:] < start_ns[:-1]).any():
            order = np.argsort(start_ns, kind="stable")
            device = {name: column[order] for name, column in device.items()}
        same = _same_threads(self.threads.index)
        for columns in (host, launches):
            columns["thread"] = same[columns["thread"]]
        for times in (host["start_ns"], host["end_ns"], launches["start_ns"], device["start_ns"]):
            times += shift_ns
        memory["time_ns"] += shift_ns
        return Events(
            names=list(self.names.index),
            threads=[_thread_number(thread, number) for (_, thread), number in self.threads.index.items()],
            inputs=[self._parse_inputs(key) for key in self.inputs.index],
            host=host,
            launches=launches,
            device=device,
            memory=memory,
            rank=rank,
            world_size=world_size,
            malformed=self.malformed,
        )


def _same_threads(threads: Iterable[tuple[Any, Any]]) -> np.ndarray:
    """The number of each (process, thread), one for all ways to write it: some versions quote only a few."""
    first: dict[tuple[str, str], int] = {}
    same = [first.setdefault((str(process), str(thread)), i) for i, (process, thread) in enumerate(threads)]
    return np.array(same, dtype=np.int32)


def _thread_number(thread: Any, number: int) -> int:
    try:
        said = int(thread)
    except (TypeError, ValueError, OverflowError):
        said = 1 << 62
    # A thread that is only a word gets a number below the -1 that means "none".
    return said if -(1 << 62) < said < 1 << 62 else -2 - number
