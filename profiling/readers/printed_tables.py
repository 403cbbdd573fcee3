"""How do the tables that tools print (summaries, metrics, lists of launches) become ours?

A summary's row is a row of ``intervals``, on thread -1 where a device did the work. How long its calls took
is an event of ``atomics``, and so is each metric of each kernel: ``ipc : void kernel<float>(float*)``.
"""

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from profiling.attribution.batch_rows import CONFIDENCE, SOURCE
from profiling.attribution.batch_times import WHOLE
from profiling.cost.classify import classify, short_name
from profiling.cost.names import full_name
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

    @property
    def std(self) -> float:
        """Of the whole, not of a sample."""
        return math.sqrt(max(0.0, self._squares / self.count))

    def metric(self, name: str, kernel: str) -> Metric:
        """As a metric of a kernel."""
        return Metric(name, kernel, self.count, self.min, self.max, self.mean, self.std)

    def activity(self, name: str) -> Activity:
        """As the durations, in ns, of calls on the host."""
        total = self.count * self.mean
        return Activity(name, self.count, total, self.mean, self.min, self.max, self.std, on_device=False)


@dataclass
class Launch:
    """A launch as printed; what is not said is NaN, -1 or empty."""

    name: str
    start_ns: float = math.nan
    duration_ns: float = math.nan
    device: int = 0
    stream: int = -1
    grid: str = ""
    block: str = ""
    bytes: float = math.nan
    flops: float = math.nan
    correlation: int = -1
    operator: str = ""
    direction: str = "none"


class Launches:
    """Launches as columns; each text is kept once."""

    def __init__(self) -> None:
        self.columns: dict[str, list[Any]] = {name: [] for name in Launch.__dataclass_fields__}
        self._texts: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self.columns["name"])

    def add(self, launch: Launch) -> None:
        """Append a launch."""
        for name, column in self.columns.items():
            value = getattr(launch, name)
            column.append(self._texts.setdefault(value, value) if isinstance(value, str) else value)


def stream_printed(
    launches: Iterable["Launches"],
    activities: Sequence["Activity"],
    metrics: Callable[[], Sequence["Metric"]],
    rank: int,
) -> Generator[tuple[str, pa.Table], None, bool]:
    """What a tool printed as pieces of tables.

    Args:
        launches: some at a time; while they are read, ``activities`` grow.
        metrics: what is known of them when all has been read.

    Returns:
        Whether anything was printed.
    """
    launched = 0
    for some in launches:
        launched += len(some)
        yield "kernels", kernels_table(some, rank)
    counters = metrics()
    if activities:
        yield "intervals", intervals_table(activities, rank)
    if activities or counters:
        yield "atomics", atomics_table(activities, counters, rank)
    return bool(launched or activities or counters)


def in_one_batch(
    pieces: Generator[tuple[str, pa.Table], None, bool], rank: int
) -> Generator[tuple[str, pa.Table], None, bool]:
    """The pieces of a tool that tells no times: all launches are of one batch, of which no time is known."""
    launched = False
    try:
        while True:
            name, piece = next(pieces)
            if name == "kernels":
                launched = True
                place = piece.column_names.index("batch_index")
                piece = piece.set_column(place, "batch_index", pa.array(np.zeros(len(piece), np.int32)))
            yield name, piece
    except StopIteration as done:
        if launched:
            batch = as_table("batches", {"rank": [rank], "batch_index": [0], "attributed": [True]})
            yield "batches", batch.replace_schema_metadata({SOURCE: WHOLE, CONFIDENCE: "1"})
        return bool(done.value)


def kernels_table(launches: Launches, rank: int) -> pa.Table:
    """Launches as table ``kernels``; their batches are not known."""
    given = launches.columns
    names = {name: full_name(name) for name in set(given["name"])}
    full = [names[name] for name in given["name"]]
    columns = {
        "rank": np.full(len(full), rank, dtype=np.int32),
        "start_ns": _whole(given["start_ns"]),
        "duration_ns": _whole([took if took >= 0 else math.nan for took in given["duration_ns"]]),
        "name": full,
        "short_name": [short_name(name) for name in full],
        "class": [classify(name) for name in full],
        "direction": given["direction"],
        "operator": [operator or None for operator in given["operator"]],
        "device": np.array(given["device"], dtype=np.int32),
        "stream": pa.array(given["stream"], pa.int64()),
        "flops": np.array(given["flops"], dtype=np.float64),
        "bytes": np.array(given["bytes"], dtype=np.float64),
        "grid": [grid or None for grid in given["grid"]],
        "block": [block or None for block in given["block"]],
        "correlation": pa.array([one if one >= 0 else None for one in given["correlation"]], pa.int64()),
    }
    return as_table("kernels", columns)


def _whole(values: Sequence[float]) -> pa.Array:
    floats = np.array(values, dtype=np.float64)
    in_range = np.abs(floats) < 2**62
    return pa.array(np.rint(np.where(in_range, floats, 0)).astype(np.int64), mask=~in_range)


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
