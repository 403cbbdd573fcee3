"""Clocks: take the times of a training loop, and align a tool's recording with the clock of the rank's steps.

On a GPU, CUDA events are recorded into the stream and read later, so the loop does not wait. On a CPU the
clock is read directly.

What belongs to a stage must lie within that stage's times in ``batches.parquet``: the tool's stage markers on
a CPU, the kernels of the forward and backward pass on a GPU (where the device times the stages). Each such
pair bounds the shift between the clocks from both sides; half of the remaining interval is the residual.
"""

import math
import time
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profiling.findings import Finding
from profiling.schemas import STAGES, TIMES_OF_BATCHES, is_model
from profiling.tables import as_table, read, table_path, write

# Between the clocks of a device and its host; what differs by more was not read when it was meant to be.
MOST_DRIFT = 5e-4


class HostClock:
    """The host's monotonic clock, for stages that run on the host."""

    def __init__(self) -> None:
        self._ticks = array("q")
        self._add = self._ticks.append
        self._epoch_ns = 0

    def start(self) -> None:
        """Batches are to follow: tie the clock to the epoch."""
        # Set against the epoch once: the wall clock may be adjusted while the loop runs.
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()

    def tick(self) -> None:
        """An instant is now."""
        self._add(time.perf_counter_ns())

    def settle(self) -> None:
        """Read some instants that are over, so that a long loop does not keep an event for each."""

    def instants_ns(self) -> np.ndarray:
        """All instants in ns since the epoch, shape (ticks,)."""
        return np.asarray(self._ticks, dtype=np.int64) + self._epoch_ns


class DeviceClock:
    """Events in the device's stream; nothing waits for them until the loop has ended.

    ``make_event``: as ``torch.cuda.Event(enable_timing=True)``; ``synchronize``: waits for the device;
    ``now_ns``: the host's monotonic clock.

    A device's oscillator is off from the host's by some 30 ppm: 1.8 ms in a minute. So both are read at the
    end again, and what lies between is stretched.
    """

    # Events that are not read yet, while the device is behind; what is read at a time, or twice what came.
    _PENDING, _AT_ONCE = 512, 32

    def __init__(
        self,
        make_event: Callable[[], Any],
        synchronize: Callable[[], None],
        now_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._make_event, self._synchronize, self._now_ns = make_event, synchronize, now_ns
        self._steps_ms = array("d")  # between neighbours that were read
        self._events: list[Any] = []  # the last that was read, and those that were not
        self._spare: list[Any] = []
        self._ticks = self._settled = 0  # all, and those before the last settle()
        self._epoch_ns = self._start_ns = 0

    def start(self) -> None:
        # The one synchronisation: it ties the first event, and so the device's time, to the host's.
        self._start_ns = self._tie()
        self._epoch_ns = time.time_ns()

    def _tie(self) -> int:
        """An event that is over now, by the host's clock."""
        self._synchronize()
        self.tick()
        self._synchronize()
        return self._now_ns()

    def tick(self) -> None:
        event = self._spare.pop() if self._spare else self._make_event()
        event.record()
        self._events.append(event)
        self._ticks += 1

    def settle(self) -> None:
        came, self._settled = self._ticks - self._settled, self._ticks
        over = len(self._events) - self._PENDING
        if over > 0:
            self._read(min(over, max(self._AT_ONCE, 2 * came)), lambda event: event.query())

    def _read(self, most: int, is_over: Callable[[Any], bool] = lambda event: True) -> None:
        events, count = self._events, 0
        while count < most and is_over(events[count + 1]):
            # Elapsed times come as 32-bit milliseconds: between neighbours they keep their half microsecond;
            # from the first event they would lose it within seconds.
            self._steps_ms.append(events[count].elapsed_time(events[count + 1]))
            count += 1
        self._spare += events[:count]
        del events[:count]

    def instants_ns(self) -> np.ndarray:
        on_host_ns = self._tie() - self._start_ns
        self._read(len(self._events) - 1)
        steps_ns = np.rint(np.asarray([0.0, *self._steps_ms]) * 1e6).astype(np.int64)
        elapsed_ns = np.cumsum(steps_ns)
        late_ns = on_host_ns - int(elapsed_ns[-1])
        if abs(late_ns) <= MOST_DRIFT * elapsed_ns[-1]:
            elapsed_ns += np.rint(elapsed_ns * (late_ns / max(1, elapsed_ns[-1]))).astype(np.int64)
        return (elapsed_ns + self._epoch_ns)[1:-1]


Clock = HostClock | DeviceClock


def open_clock(device_type: str, index: int | None = None) -> Clock:
    """The clock on which stages of a device run; ``index``: of the GPU, if it need not be the current one."""
    if device_type == "cpu":
        return HostClock()
    import torch

    if index is None:
        return DeviceClock(lambda: torch.cuda.Event(enable_timing=True), torch.cuda.synchronize)

    class Event(torch.cuda.Event):
        # In the current stream of one GPU, whichever GPU is the current one.
        def record(self, stream: Any = None) -> None:
            super().record(stream or torch.cuda.current_stream(index))

    return DeviceClock(lambda: Event(enable_timing=True), lambda: torch.cuda.synchronize(index))


AGREE_NS = 100_000  # clocks that differ by less are one: a mark itself takes some microseconds
_OUTLIERS = 0.1  # of the bounds on either side: a batch in which something odd happened
_PASSES = ("fprop", "bprop")  # the directions whose kernels lie in one stage alone, the first two

Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Alignment:
    shift_ns: int  # to be added to the tool's times; 0 where the clocks agree already
    residual_ns: int  # how far off they may still be


@dataclass(frozen=True)
class _Placed:
    """What must lie in which stage of which batch: row of ``batches``, stage, start and end in ns."""

    batch: np.ndarray
    stage: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray


def align(batches: Columns, markers: Columns, kernels: Columns) -> Alignment | None:
    """How a tool's clock stands to that of a rank's batches, by columns of tables; None if nothing tells."""
    placed = _by_kernels(batches, kernels) or _by_marks(batches, markers)
    if placed is None:
        return None
    # When forward, backward and update of each batch begin, and when the update ends; (batches, 4).
    lasted = np.stack([batches[name] for name in ("load_ns", "forward_ns", "backward_ns", "update_ns")])
    edges = batches["start_ns"][:, None] + np.cumsum(lasted, axis=0).T
    begin = edges[placed.batch, placed.stage] - placed.start_ns
    end = edges[placed.batch, placed.stage + 1] - placed.end_ns
    low, high = np.quantile(begin, 1 - _OUTLIERS), np.quantile(end, _OUTLIERS)
    middle, residual = round((low + high) / 2), math.ceil(abs(high - low) / 2)
    fits = min(low, high) - AGREE_NS <= 0 <= max(low, high) + AGREE_NS
    return Alignment(0 if fits else middle, residual)


def _by_kernels(batches: Columns, kernels: Columns) -> _Placed | None:
    """The model's kernels on a device; of each batch and pass as one."""
    direction, numbers = kernels["direction"], batches["batch_index"]  # which rise
    if not len(numbers):
        return None
    row = np.minimum(np.searchsorted(numbers, kernels["batch_index"]), len(numbers) - 1)
    chosen = (
        (kernels["device"] >= 0)
        & np.isin(direction, _PASSES)
        & is_model(kernels["class"], direction)
        & (numbers[row] == kernels["batch_index"])
    )
    if not chosen.any():
        return None
    # From the first start to the last end of each pass of each batch.
    passes = row[chosen] * len(STAGES) + (direction[chosen] == _PASSES[1])
    distinct, which = np.unique(passes, return_inverse=True)
    first, last = np.full(len(distinct), np.iinfo(np.int64).max), np.zeros(len(distinct), np.int64)
    np.minimum.at(first, which, kernels["start_ns"][chosen])
    np.maximum.at(last, which, (kernels["start_ns"] + kernels["duration_ns"])[chosen])
    return _Placed(distinct // len(STAGES), distinct % len(STAGES), first, last)


def _by_marks(batches: Columns, markers: Columns) -> _Placed | None:
    """The stages as the tool saw them marked, if it saw those of every attributed batch."""
    attributed, start_ns = np.flatnonzero(batches["attributed"]), markers["start_ns"]
    marks = [np.flatnonzero(markers["name"] == name) for name in STAGES]
    if not len(attributed) or any(len(some) != len(attributed) for some in marks):
        return None
    place = np.concatenate([some[np.argsort(start_ns[some], kind="stable")] for some in marks])
    stage = np.repeat(np.arange(len(STAGES)), len(attributed))
    return _Placed(np.tile(attributed, len(STAGES)), stage, start_ns[place], markers["end_ns"][place])


_MARKERS = ["name", "start_ns", "end_ns"]
_KERNELS = ["batch_index", "start_ns", "duration_ns", "class", "direction", "device"]
_TIMES = {
    "kernels": ("start_ns", "launch_ns", "launch_end_ns"),
    "markers": ("start_ns", "end_ns"),
    "synchronizations": ("start_ns", "end_ns"),
}
_UNKNOWN = {"batch_index": -1, "device": -1, "class": "", "direction": "", "name": ""}


def set_clock(directory: Path, tool: str) -> list[Finding]:
    """Put what a tool wrote of a rank on the clock of its batches, and kernels without a batch into one."""
    recorded = any(table_path(directory, name).exists() for name in ("kernels", "markers"))
    if not recorded or not table_path(directory, "batches").exists():
        return []
    batches = _columns(directory, "batches", TIMES_OF_BATCHES)
    kernels, markers = _columns(directory, "kernels", _KERNELS), _columns(directory, "markers", _MARKERS)
    placement = align(batches, markers, kernels) or Alignment(0, 0)
    for name, times in _TIMES.items() if placement.shift_ns else ():
        if table_path(directory, name).exists():
            table = read(directory, name)
            for column in times:
                place = table.column_names.index(column)
                table = table.set_column(place, column, pc.add(table[column], placement.shift_ns))
            write(table, directory, name)
    if len(kernels["start_ns"]) and (kernels["batch_index"] < 0).all():  # the batch in which each began
        table = read(directory, "kernels")
        began_ns = table["start_ns"].fill_null(-1).to_numpy()
        row = np.searchsorted(batches["start_ns"], began_ns, side="right") - 1
        inside = (row >= 0) & (began_ns < batches["end_ns"][row])
        index = pa.array(batches["batch_index"][row], pa.int32(), mask=~inside)
        place = table.column_names.index("batch_index")
        write(table.set_column(place, "batch_index", index), directory, "kernels")
    data = {"tool": tool, "residual_ns": placement.residual_ns}
    return [Finding("clock_aligned", data=data)] if placement.shift_ns else []


def _columns(directory: Path, name: str, columns: list[str]) -> dict[str, np.ndarray]:
    exists = table_path(directory, name).exists()
    table = read(directory, name, columns) if exists else as_table(name, {}).select(columns)
    if name == "kernels":
        table = table.filter(pc.and_(pc.is_valid(table["start_ns"]), pc.is_valid(table["duration_ns"])))
    arrays = {}
    for column in columns:
        values = table[column]
        values = values.cast(pa.string()) if pa.types.is_dictionary(values.type) else values
        if column in _UNKNOWN:
            values = values.fill_null(_UNKNOWN[column])
        arrays[column] = values.to_numpy()
    return arrays
