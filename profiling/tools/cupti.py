"""Record this process with CUPTI (``cupti-python``), on GPUs that nvprof no longer supports.

A rank records its own kernels, copies, memory sets and the calls that launch them through CUPTI, and the
stages of steps through markers on CUPTI's clock. CUPTI delivers records in large buffers, most of them when
the recording ends; they are attributed after training.
"""

import ctypes
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import metadata
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from profiling import markers
from profiling.attribution.attribute import attribute
from profiling.attribution.events import Builder
from profiling.cost.classify import full_name
from profiling.cost.operators import Inputs
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.identity import read_identity
from profiling.readers import gpu_records as gpu
from profiling.tables import write
from profiling.tools import Capture, Presence, Profiler, is_importable

if TYPE_CHECKING:
    from torch.nn import Module

_BUFFER_BYTES = 32 << 20  # about 100,000 records: few are handed over while batches run
_FORCED = 1  # of a flush: also buffers that are not full
# The columns of each activity, by the package's name of it.
COLUMNS = {
    "CONCURRENT_KERNEL": (*gpu.KERNEL, "name"), "MEMCPY": (*gpu.COPY,), "MEMCPY2": (*gpu.COPY,),
    "MEMSET": (*gpu.SET,), "RUNTIME": (*gpu.CALL,), "DRIVER": (*gpu.CALL,),
}  # fmt: skip
_ONLY_DRIVERS = re.compile(r"only (CUDA [\d.]+ or later) driver is supported")  # the package's words


def fields_of(kind: str) -> list[str]:
    """The package's names of the columns: deviceId is device_id."""
    return [re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", column) for column in COLUMNS[kind]]


class Reading(NamedTuple):
    """By how much the epoch is ahead of CUPTI's clock, and how far that may be off, in ns."""

    shift_ns: int
    error_ns: int


def load_api() -> Any:
    """The package's module of CUPTI's functions; UserError: the package or a driver for it is not there."""
    try:
        from cupti import cupti
    except ImportError as error:
        raise UserError(f"profile cupti needs the package cupti-python ({Cupti.install}): {error}") from None
    try:
        cupti.get_timestamp()
    except (RuntimeError, OSError, cupti.cuptiError) as error:
        raise UserError(
            "profile cupti needs an NVIDIA GPU and its driver: "
            + _ONLY_DRIVERS.sub(r"cupti-python supports only drivers for \1", str(error))
        ) from None
    return cupti


class Ranges:
    """The stages of batches as ranges on CUPTI's clock; see :class:`profiling.markers.Emitter`."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self.running = False
        self.rows: list[tuple[int, int, int, str]] = []  # start and end in ns, thread, name
        self._open: list[int | None] = []

    def push(self, name: str) -> None:
        # What was pushed is popped, also when the recording begins or ends between.
        self._open.append(self._now_ns() if self.running else None)

    def pop(self, name: str) -> None:
        start = self._open.pop()
        if start is not None:
            self.rows.append((start, self._now_ns(), threading.get_native_id(), name))

    def mark(self, name: str) -> None:
        if self.running:
            now = self._now_ns()
            self.rows.append((now, now, threading.get_native_id(), name))


class CuptiCapture(Capture):
    """Records a rank by CUPTI's activities; ``synchronize`` waits for the device."""

    def __init__(self, directory: Path, rank: int, api: Any, synchronize: Callable[[], None]) -> None:
        self.directory, self.rank = directory, rank
        self._api, self._synchronize = api, synchronize
        self._kinds = {int(getattr(api.ActivityKind, name)): name for name in COLUMNS}
        self._builder = Builder(lambda _: Inputs())
        self._lock = threading.Lock()  # CUPTI hands records over in threads of its own
        self._clocks: list[Reading] = []
        self._first_batch = 0
        self._problems: list[str] = []
        self._running = False
        self._ranges = Ranges(api.get_timestamp)
        markers.COLLECTORS.append(self._ranges)

    def start(self, model: "Module | None" = None, first_batch: int = 0) -> None:
        """Begin to record at batch ``first_batch``; UserError where CUPTI refuses."""
        self._first_batch = first_batch
        self._clocks.append(self._clock())
        api = self._api
        try:
            api.set_thread_id_type(api.ActivityThreadIdType.SYSTEM)  # as our own ranges number them
            api.activity_register_callbacks(lambda: (_BUFFER_BYTES, 0), self._take)
            for name in COLUMNS:
                api.activity_enable(getattr(api.ActivityKind, name))
        except (RuntimeError, api.cuptiError) as error:
            raise UserError(
                f"CUPTI does not record this process ({error}): another profiler may be active, or the "
                "driver restricts profiling to administrators"
            ) from None
        self._running = self._ranges.running = True

    def stop(self) -> None:
        if not self._running:
            return
        self._running = self._ranges.running = False
        self._synchronize()  # the records of what still runs would be incomplete
        api = self._api
        try:
            api.activity_flush_all(_FORCED)
            for name in COLUMNS:
                api.activity_disable(getattr(api.ActivityKind, name))
            api.activity_flush_all(_FORCED)
        except (RuntimeError, api.cuptiError) as error:
            self._problems.append(f"records not delivered ({error})")

    def write(self) -> list[Finding]:
        self.stop()
        markers.COLLECTORS.remove(self._ranges)
        if not self._clocks:
            return [Finding("recording_empty")]
        self._clocks.append(self._clock())
        if self._ranges.rows:
            *times, names = zip(*self._ranges.rows, strict=True)
            start, end, thread = map(np.array, times)
            gpu.add_ranges(self._builder, names, start, end, thread)
        shifts = [clock.shift_ns for clock in self._clocks]
        size = read_identity(os.environ).size
        trace = self._builder.finish(self.rank, size, shift_ns=sum(shifts) // len(shifts))
        residual = (max(shifts) - min(shifts)) // 2 + max(clock.error_ns for clock in self._clocks)
        if dropped := self._dropped():
            lost = {"what": "records dropped by the profiler", "n": dropped}
            trace.findings.append(Finding("records_damaged", data=lost))
        trace.findings += [Finding("recorded", data={"text": text}) for text in self._problems]
        trace.findings.append(Finding("clock_aligned", data={"tool": "CUPTI", "residual_ns": residual}))
        if not trace.on_device:
            trace.findings.append(Finding("recording_empty"))
        converted = attribute(trace, self.rank, self._first_batch)
        for name, table in converted.tables.items():
            write(table, self.directory, name)
        return converted.findings

    def _take(self, records: Sequence[Any]) -> None:
        """CUPTI hands over records; they are gone when this returns. It runs in a thread of CUPTI's."""
        of_kind: dict[str, list[Any]] = {}
        try:
            for record in records:
                if (kind := self._kinds.get(int(record.kind))) is not None:
                    of_kind.setdefault(kind, []).append(record)
            with self._lock:
                for kind, some in of_kind.items():
                    self._add(kind, zip(*map(attrgetter(*fields_of(kind)), some), strict=True))
        except (AttributeError, TypeError, ValueError, OverflowError, UserError) as error:
            # An error would be lost in CUPTI's thread; a full disk must not end the training.
            self._problems.append(f"{len(records)} records not kept ({error})")

    def _add(self, kind: str, values: Iterable[tuple[Any, ...]]) -> None:
        builder, rows = self._builder, dict(zip(COLUMNS[kind], values, strict=True))
        texts = [full_name(name or "") or gpu.UNNAMED for name in rows.pop("name", ())]
        columns = {name: np.array(column, np.int64) for name, column in rows.items()}
        if kind in ("RUNTIME", "DRIVER"):
            told = columns["end"] > 0  # CUPTI writes 0 where it does not know
            builder.malformed += int((~told).sum())
            columns = {name: column[told] for name, column in columns.items()}
            gpu.add_calls(builder, columns, kind == "RUNTIME")
        else:
            gpu.add_device(builder, columns, np.array(builder.names.of(texts)) if texts else None)

    def _clock(self) -> Reading:
        """CUPTI's clock beside the epoch's: the closest of a few readings."""
        readings = []
        for _ in range(5):
            before = time.time_ns()
            cupti_ns = int(self._api.get_timestamp())
            after = time.time_ns()
            readings.append(Reading((before + after) // 2 - cupti_ns, max(0, after - before) // 2))
        return min(readings, key=lambda reading: reading.error_ns)

    def _dropped(self) -> int:
        count = ctypes.c_size_t(0)
        try:
            self._api.activity_get_num_dropped_records(0, 0, ctypes.addressof(count))
        except (RuntimeError, self._api.cuptiError) as error:
            self._problems.append(f"dropped records not counted ({error})")
        return count.value


class Cupti(Profiler):
    install = "pip install -e '.[cupti]'"
    gpu_only = True

    def presence(self) -> Presence:
        if not is_importable("cupti"):
            return Presence("cupti", False, "cupti-python is not installed", self.install)
        try:
            load_api()
        except UserError as error:
            remedy = "run this on a GPU node, with a driver for CUDA 13"
            return Presence("cupti", False, str(error).removeprefix("profile cupti "), remedy)
        return Presence("cupti", True, f"cupti-python {metadata.version('cupti-python')}")

    def open_capture(
        self, directory: Path, rank: int, keep_raw: bool, mode: str, all_threads: bool
    ) -> CuptiCapture:
        api = load_api()
        import torch

        return CuptiCapture(directory, rank, api, torch.cuda.synchronize)
