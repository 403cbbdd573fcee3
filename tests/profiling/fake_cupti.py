"""What the package cupti-python is to us: its functions, and records with its records' attributes."""

import ctypes
import enum
import time
from types import SimpleNamespace

MANGLED = "_Z6kernelIfEvT_"
GEMM = "sm80_xmma_gemm_f32f32"

# Public attributes of the package's records (ActivityKernel10, Memcpy6, MemcpyPtoP4, Memset4, API) that
# every release from 12.8 on has.
ATTRIBUTES = {
    "CONCURRENT_KERNEL": (
        "block_x", "block_y", "block_z", "cache_config", "channel_id", "channel_type", "cluster_x",
        "cluster_y", "cluster_z", "completed", "context_id", "correlation_id", "device_id",
        "dynamic_shared_memory", "end",
        "graph_id", "graph_node_id", "grid_id", "grid_x", "grid_y", "grid_z", "kind", "launch_type", "name",
        "queued", "registers_per_thread", "start", "static_shared_memory", "stream_id", "submitted",
    ),
    "MEMCPY": (
        "bytes", "channel_id", "channel_type", "context_id", "copy_count", "copy_kind", "correlation_id",
        "device_id", "dst_kind", "end", "flags_", "graph_id", "graph_node_id", "kind",
        "runtime_correlation_id", "src_kind", "start", "stream_id",
    ),
    "MEMCPY2": (
        "bytes", "channel_id", "channel_type", "context_id", "copy_kind", "correlation_id", "device_id",
        "dst_context_id", "dst_device_id", "dst_kind", "end", "flags_", "graph_id", "graph_node_id", "kind",
        "src_context_id", "src_device_id", "src_kind", "start", "stream_id",
    ),
    "MEMSET": (
        "bytes", "channel_id", "channel_type", "context_id", "correlation_id", "device_id", "end", "flags_",
        "graph_id", "graph_node_id", "kind", "memory_kind", "start", "stream_id", "value",
    ),
    "RUNTIME": ("cbid", "correlation_id", "end", "kind", "process_id", "return_value", "start", "thread_id"),
    "DRIVER": ("cbid", "correlation_id", "end", "kind", "process_id", "return_value", "start", "thread_id"),
}  # fmt: skip
CLASSES = {
    "CONCURRENT_KERNEL": "ActivityKernel", "MEMCPY": "ActivityMemcpy", "MEMCPY2": "ActivityMemcpyPtoP",
    "MEMSET": "ActivityMemset", "RUNTIME": "ActivityAPI", "DRIVER": "ActivityAPI",
}  # fmt: skip


class ActivityKind(enum.IntEnum):
    MEMCPY = 1
    MEMSET = 2
    DRIVER = 4
    RUNTIME = 5
    CONCURRENT_KERNEL = 10
    OVERHEAD = 17
    MEMCPY2 = 22


class ActivityThreadIdType(enum.IntEnum):
    DEFAULT = 0
    SYSTEM = 1


class CuptiError(Exception):
    pass


def record(kind, **values):
    """A record of a kind, all of its attributes 0 but those given."""
    known = ATTRIBUTES[kind]
    assert set(values) <= set(known)
    return SimpleNamespace(**{**dict.fromkeys(known, 0), "kind": int(ActivityKind[kind]), **values})


class FakeCupti:
    """The package's module; records wait until they are flushed, and are cleared when they are handed over.

    Its clock is the monotonic one of the host: another than the epoch.
    """

    ActivityKind, ActivityThreadIdType, cuptiError = ActivityKind, ActivityThreadIdType, CuptiError

    def __init__(self, refuse=(), dropped=0):
        self.refuse, self.dropped = refuse, dropped
        self.enabled, self.pending, self.thread_ids = set(), [], None
        self._completed = None

    def _ask(self, name):
        if name in self.refuse:
            raise CuptiError(f"CUPTI_ERROR of {name}")

    def get_timestamp(self):
        return time.perf_counter_ns()

    def set_thread_id_type(self, kind):
        self.thread_ids = kind

    def activity_register_callbacks(self, requested, completed):
        size, most = requested()
        assert size > 0 and most == 0
        self._completed = completed

    def activity_enable(self, kind):
        self._ask("activity_enable")
        self.enabled.add(ActivityKind(kind))

    def activity_disable(self, kind):
        self.enabled.discard(ActivityKind(kind))

    def activity_flush_all(self, flag):
        self._ask("activity_flush_all")
        records, self.pending = self.pending, []
        if records:
            self._completed(records)
        for one in records:  # the buffer belongs to CUPTI again
            getattr(one, "__dict__", {}).clear()

    def activity_get_num_dropped_records(self, context, stream, address):
        self._ask("activity_get_num_dropped_records")
        ctypes.c_size_t.from_address(address).value = self.dropped

    # --- what a program does ---

    def run(self, kind, call="RUNTIME", thread=9, correlation=1, **values):
        """Work on the device, 1 microsecond after the call that launches it, if it is recorded."""
        now = self.get_timestamp()
        at = {"correlation_id": correlation}
        if ActivityKind[kind] in self.enabled:
            self.pending += [
                record(call, start=now, end=now + 500, thread_id=thread, process_id=7, cbid=211, **at),
                record(kind, start=now + 1000, end=now + 3000, stream_id=7, **at, **values),
                SimpleNamespace(kind=int(ActivityKind.OVERHEAD)),  # of a kind that nobody asked for
            ]
