"""How do the tables that tools print (summaries, metrics, lists of launches) become ours?

A summary's row is a row of ``intervals``, on thread -1 where a device did the work. How long its calls took
is an event of ``atomics``, and so is each metric of each kernel: ``ipc : void kernel<float>(float*)``.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from profiling.classify import classify, short_name
from profiling.names import full_name
from profiling.tables import as_table

ON_DEVICE = -1  # the thread of work that a device did
DURATION = "Duration (ns)"


@dataclass
class Activity:
    """One row of a summary; durations in ns, NaN where not printed."""

    name: str
    calls: float
    total_ns: float
    mean_ns: float
    min_ns: float
    max_ns: float
    std_ns: float = float("nan")
    on_device: bool = True


@dataclass
class Metric:
    """A metric (or counted event) over the launches of a kernel, with the unit in its name."""

    name: str
    kernel: str
    count: float
    min: float
    max: float
    mean: float
    std: float = float("nan")


class Spread:
    """Count, smallest, largest, mean and standard deviation of values that come one by one."""

    def __init__(self) -> None:
        self.count, self.mean, self._squares = 0, 0.0, 0.0
        self.min, self.max = math.inf, -math.inf

    def add(self, value: float) -> None:
        """Count a value; NaN is none (Welford's method)."""
        if value == value:
            self.count += 1
            off = value - self.mean
            self.mean += off / self.count
            self._squares += off * (value - self.mean)
            self.min, self.max = min(self.min, value), max(self.max, value)

    def metric(self, name: str, kernel: str) -> Metric:
        """As a metric of a kernel."""
        std = math.sqrt(max(0.0, self._squares / self.count))
        return Metric(name, kernel, self.count, self.min, self.max, self.mean, std)


@dataclass
class Launches:
    """Launches one by one, as columns; what is not printed is NaN, -1 or empty."""

    name: list[str] = field(default_factory=list)
    start_ns: list[float] = field(default_factory=list)
    duration_ns: list[float] = field(default_factory=list)
    device: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    grid: list[str] = field(default_factory=list)
    block: list[str] = field(default_factory=list)
    bytes: list[float] = field(default_factory=list)
    flops: list[float] = field(default_factory=list)
    correlation: list[int] = field(default_factory=list)

    def add(
        self,
        name: str,
        start_ns: float = float("nan"),
        duration_ns: float = float("nan"),
        device: int = 0,
        stream: int = -1,
        grid: str = "",
        block: str = "",
        size: float = float("nan"),
        flops: float = float("nan"),
        correlation: int = -1,
    ) -> None:
        row = (name, start_ns, duration_ns, device, stream, grid, block, size, flops, correlation)
        columns = (
            self.name, self.start_ns, self.duration_ns, self.device, self.stream, self.grid, self.block,
            self.bytes, self.flops, self.correlation,
        )  # fmt: skip
        for column, value in zip(columns, row, strict=True):
            column.append(value)  # type: ignore[attr-defined]


def kernels_table(launches: Launches, rank: int) -> pa.Table:
    """Launches as table ``kernels``; batches, directions and operators are not known."""
    names = {name: full_name(name) for name in set(launches.name)}
    full = [names[name] for name in launches.name]
    count = len(full)
    columns = {
        "rank": np.full(count, rank, dtype=np.int32),
        "start_ns": _whole(launches.start_ns),
        "duration_ns": _whole(launches.duration_ns),
        "name": full,
        "short_name": [short_name(name) for name in full],
        "class": [classify(name) for name in full],
        "direction": ["none"] * count,
        "device": np.array(launches.device, dtype=np.int32),
        "stream": pa.array(launches.stream, pa.int64()),
        "flops": np.array(launches.flops, dtype=np.float64),
        "bytes": np.array(launches.bytes, dtype=np.float64),
        "grid": [grid or None for grid in launches.grid],
        "block": [block or None for block in launches.block],
        "correlation": pa.array([one if one >= 0 else None for one in launches.correlation], pa.int64()),
    }
    return as_table("kernels", columns)


def _whole(values: Sequence[float]) -> pa.Array:
    floats = np.array(values, dtype=np.float64)
    known = np.abs(floats) < 2**62
    return pa.array(np.rint(np.where(known, floats, 0)).astype(np.int64), mask=~known)


def intervals_table(activities: Sequence[Activity], rank: int) -> pa.Table:
    """A summary's rows as table ``intervals``."""
    total = [one.total_ns for one in activities]
    columns = {
        "rank": np.full(len(activities), rank, dtype=np.int32),
        "thread": [ON_DEVICE if one.on_device else 0 for one in activities],
        "function": [full_name(one.name) for one in activities],
        "calls": [one.calls for one in activities],
        "exclusive_ns": total,
        "inclusive_ns": total,
    }
    return as_table("intervals", columns)


def atomics_table(activities: Sequence[Activity], metrics: Sequence[Metric], rank: int) -> pa.Table:
    """How long a summary's calls took, and metrics, as table ``atomics``."""
    timed = [one for one in activities if one.min_ns == one.min_ns]
    threads = [ON_DEVICE if one.on_device else 0 for one in timed] + [ON_DEVICE] * len(metrics)
    columns = {
        "rank": np.full(len(threads), rank, dtype=np.int32),
        "thread": threads,
        "event": [f"{DURATION} : {full_name(one.name)}" for one in timed]
        + [f"{one.name} : {full_name(one.kernel)}" if one.kernel else one.name for one in metrics],
        "count": [one.calls for one in timed] + [one.count for one in metrics],
        "min": [one.min_ns for one in timed] + [one.min for one in metrics],
        "max": [one.max_ns for one in timed] + [one.max for one in metrics],
        "mean": [one.mean_ns for one in timed] + [one.mean for one in metrics],
        "std": [one.std_ns for one in timed] + [one.std for one in metrics],
    }
    return as_table("atomics", columns)
