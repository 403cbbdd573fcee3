"""Record this process with CUPTI (``cupti-python``), on GPUs that nvprof no longer supports.

A rank records its own kernels, copies, memory sets and the calls that launch them through CUPTI, and the
stages of steps through markers on CUPTI's clock. CUPTI delivers records in large buffers, most of them when
the recording ends; each is written immediately to the rank's file (:mod:`profiling.readers.cupti`), which is
converted to tables after training.
"""

import ctypes
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from profiling import markers
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.identity import read_identity
from profiling.presence import Presence, is_importable
from profiling.readers.cupti import GROUPS, Reading, RecordsWriter, converted
from profiling.tables import write
from profiling.tools.base import Capture, Profiler

if TYPE_CHECKING:
    from torch.nn import Module

_FILE = "cupti.jsonl"
_BUFFER_BYTES = 32 << 20  # about 100,000 records: few are handed over while batches run
_FORCED = 1  # of a flush: also buffers that are not full
# What the package calls an activity -> its group of records; the names of CUPTI's fields stand where they
# differ from our columns'.
KINDS = {
    "CONCURRENT_KERNEL": "kernel", "MEMCPY": "memcpy", "MEMCPY2": "memcpy", "MEMSET": "memset",
    "RUNTIME": "runtime", "DRIVER": "driver",
}  # fmt: skip
_FIELDS = {
    "device": "device_id", "stream": "stream_id", "correlation": "correlation_id", "thread": "thread_id",
    "call": "cbid",
}  # fmt: skip


_ONLY_DRIVERS = re.compile(r"only (CUDA [\d.]+ or later) driver is supported")  # the package's words


def fields_of(group: str) -> list[str]:
    return [_FIELDS.get(name, name) for name in GROUPS[group]]


def load_api() -> Any:
    """The package's module of CUPTI's functions; UserError: the package or a driver for it is not there."""
    try:
        from cupti import cupti
    except ImportError as error:
        raise UserError(f"profile cupti needs the package cupti-python ({Cupti.install}): {error}") from None
    try:
        cupti.get_timestamp()
    except (RuntimeError, OSError, cupti.cuptiError) as error:
        why = _ONLY_DRIVERS.sub(r"cupti-python supports only drivers for \1", str(error))
        raise UserError(f"profile cupti needs an NVIDIA GPU and its driver: {why}") from None
    return cupti


class Ranges:
    """The stages of batches as ranges on CUPTI's clock; see :class:`profiling.markers.Emitter`."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self.running = False
        self.rows: list[tuple[int, int, int, str]] = []  # of cupti_records.GROUPS["range"]
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

    def __init__(
        self, directory: Path, rank: int, keep_raw: bool, api: Any, synchronize: Callable[[], None]
    ) -> None:
        self.directory, self.rank, self.keep_raw = directory, rank, keep_raw
        self._api, self._synchronize = api, synchronize
        self._kinds = [getattr(api.ActivityKind, name) for name in KINDS]
        self._getters = {
            int(kind): (group, attrgetter("kind", *fields_of(group)))
            for kind, group in zip(self._kinds, KINDS.values(), strict=True)
        }
        self._file: BinaryIO | None = None
        self._writer: RecordsWriter | None = None
        self._problems: list[str] = []
        self._running = False
        self._ranges = Ranges(api.get_timestamp)
        markers.COLLECTORS.append(self._ranges)

    @property
    def path(self) -> Path:
        return self.directory / "raw" / _FILE

    def start(self, model: "Module | None" = None, first_batch: int = 0) -> None:
        """Begin to record at batch ``first_batch``; UserError where CUPTI refuses."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("wb")
        ranks = read_identity(os.environ).size
        self._writer = RecordsWriter(self._file, self.rank, first_batch, self._clock(), ranks)
        api = self._api
        try:
            api.set_thread_id_type(api.ActivityThreadIdType.SYSTEM)  # as our own ranges number them
            api.activity_register_callbacks(lambda: (_BUFFER_BYTES, 0), self._take)
            for kind in self._kinds:
                api.activity_enable(kind)
        except (RuntimeError, api.cuptiError) as error:
            self._close()
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
            for kind in self._kinds:
                api.activity_disable(kind)
            api.activity_flush_all(_FORCED)
        except (RuntimeError, api.cuptiError) as error:
            self._problems.append(f"records not delivered ({error})")

    def write(self) -> list[Finding]:
        self.stop()
        markers.COLLECTORS.remove(self._ranges)
        if self._writer is None:
            return [Finding("recording_empty")]
        if self._ranges.rows:
            columns = zip(*self._ranges.rows, strict=True)
            self._writer.add("range", dict(zip(GROUPS["range"], columns, strict=True)))
        self._writer.end(self._clock(), self._dropped(), self._problems)
        self._close()
        output = converted(self.path, self.rank)
        for name, table in output.tables.items():
            write(table, self.directory, name)
        if not self.keep_raw:
            shutil.rmtree(self.path.parent)
        return output.findings

    def _take(self, records: Sequence[Any]) -> None:
        """CUPTI hands over records; they are gone when this returns. It runs in a thread of CUPTI's."""
        if self._writer is None:
            return
        of_kind: dict[int, list[Any]] = {}
        try:
            for record in records:
                of_kind.setdefault(int(record.kind), []).append(record)
            for kind, some in of_kind.items():
                if kind in self._getters:
                    group, values_of = self._getters[kind]
                    _, *values = zip(*map(values_of, some), strict=True)
                    columns: dict[str, Any] = dict(zip(GROUPS[group], values, strict=True))
                    if "name" in columns:
                        columns["name"] = [name or "" for name in columns["name"]]
                    self._writer.add(group, columns)
        except (AttributeError, TypeError, ValueError, OSError) as error:
            # An error would be lost in CUPTI's thread; a full disk must not end the training.
            self._problems.append(f"{len(records)} records not written ({error})")

    def _clock(self) -> Reading:
        """CUPTI's clock beside the epoch's: the closest of a few readings."""
        readings = []
        for _ in range(5):
            before = time.time_ns()
            cupti_ns = int(self._api.get_timestamp())
            after = time.time_ns()
            readings.append(Reading(cupti_ns, (before + after) // 2, max(0, after - before) // 2))
        return min(readings, key=lambda reading: reading.error_ns)

    def _dropped(self) -> int:
        count = ctypes.c_size_t(0)
        try:
            self._api.activity_get_num_dropped_records(0, 0, ctypes.addressof(count))
        except (RuntimeError, self._api.cuptiError) as error:
            self._problems.append(f"dropped records not counted ({error})")
        return count.value

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._file = self._writer = None


class Cupti(Profiler):
    install = "pip install -e '.[cupti]'"
    gpu_only = True
    reader = "profiling.readers.cupti"

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

        return CuptiCapture(directory, rank, keep_raw, api, torch.cuda.synchronize)
