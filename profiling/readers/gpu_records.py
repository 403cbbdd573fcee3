"""Convert CUPTI records (from nvprof, Nsight Systems or CUPTI itself) to events.

All three record NVTX ranges on host threads, calls that launch work, and device activities with the
correlation id of their launch. Their columns are converted to :mod:`profiling.attribution.events`.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from profiling.attribution.coding import array_of
from profiling.attribution.events import LAUNCH_FACTS, RANGE, Builder
from profiling.attribution.nvtx import parse_text

# Columns of databases, and what stands where one does not say: of each activity of a device, and of kernels.
ON_DEVICE: dict[str, int | None] = {
    "start": None, "end": None, "deviceId": 0, "streamId": -1, "correlationId": -1,
}  # fmt: skip
SIZES = (
    "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
    "registersPerThread", "staticSharedMemory", "dynamicSharedMemory",
)  # fmt: skip
# As CUPTI numbers them, and as PyTorch prints them.
_COPY_KINDS = (
    "", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP",
    "HtoD", "DtoH", "DtoD",  # of managed memory, as Nsight Systems goes on
)  # fmt: skip
# Calls of the runtime that wait for a device, by CUPTI's numbers (cupti_runtime_cbid.h).
_WAITS = {131: "cudaStreamSynchronize", 137: "cudaEventSynchronize", 165: "cudaDeviceSynchronize"}
_MEMORY = dict(
    enumerate(("Unknown", "Pageable", "Pinned", "Device", "Array", "Managed", "Device", "Managed"))
)
UNNAMED = "(a kernel without a name)"


def coded(builder: Builder, keys: np.ndarray, text_of: Callable[[int], str]) -> np.ndarray:
    """Numbers of texts by keys, each distinct text made once."""
    return _interned(keys, lambda distinct: builder.names.of([text_of(key) for key in distinct]))


def _interned(keys: np.ndarray, numbers_of: Callable[[list[int]], list[int]]) -> np.ndarray:
    """The number of each key; each is asked for once, in order of first sight."""
    keys = np.ascontiguousarray(keys, dtype=np.int64)
    if len(keys) and (keys == keys[0]).all():  # of a thread, most often
        return np.broadcast_to(np.int32(numbers_of([int(keys[0])])[0]), len(keys))
    array = array_of(keys).dictionary_encode()  # without sorting
    # to_numpy would import pandas.
    which = np.frombuffer(array.indices.buffers()[1] or b"", dtype=np.int32, count=len(keys))
    return np.array(numbers_of(array.dictionary.to_pylist()), dtype=np.int32)[which]


def copy_names(
    builder: Builder, kind: np.ndarray, source: np.ndarray, target: np.ndarray, offset: int = 0
) -> np.ndarray:
    """Names as ``Memcpy HtoD (Pinned -> Device)``, numbered; ``offset``: to CUPTI's numbers of memory."""

    def text_of(key: int) -> str:
        way = _COPY_KINDS[key & 0xFF] if key & 0xFF < len(_COPY_KINDS) else ""
        source, target = (_MEMORY.get((key >> bits & 0xFF) + offset, "Unknown") for bits in (8, 16))
        return f"Memcpy {way or 'Unknown'} ({source} -> {target})"

    return coded(builder, kind & 0xFF | (source & 0xFF) << 8 | (target & 0xFF) << 16, text_of)


def set_names(builder: Builder, kind: np.ndarray, offset: int = 0) -> np.ndarray:
    return coded(builder, kind, lambda key: f"Memset ({_MEMORY.get(key + offset, 'Unknown')})")


def call_names(builder: Builder, call: np.ndarray, of_runtime: bool) -> np.ndarray:
    """The names of calls by CUPTI's numbers; of those that do not wait for the device, empty."""
    names = _WAITS if of_runtime else {}
    return coded(builder, call, lambda key: names.get(key, ""))


def _triples(builder: Builder, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Numbers of the texts ``x,y,z``; empty texts where a size is below 1."""

    def text_of(key: int) -> str:
        sizes = (key & 0x7FFFFFFF, key >> 31 & 0xFFFF, key >> 47 & 0xFFFF)
        return ",".join(map(str, sizes)) if all(sizes) else ""

    packed = np.clip(x, 0, 0x7FFFFFFF) | np.clip(y, 0, 0xFFFF) << 31 | np.clip(z, 0, 0xFFFF) << 47
    return coded(builder, packed, text_of)


def add_device(
    builder: Builder,
    name: np.ndarray,
    when_and_where: Iterable[np.ndarray],
    size: np.ndarray | None = None,
    sizes: Sequence[np.ndarray] = (),
) -> None:
    """Add what ran on devices; rows that end before they begin, or have no times, are left out and counted.

    Args:
        name: numbers of the builder's names.
        when_and_where: start and end in ns, device, stream, correlation.
        size: bytes of a copy or a set.
        sizes: of kernels: x, y and z of grid and block; registers (0: unknown), static and dynamic memory.
    """
    start_ns, end_ns, device, stream, correlation = when_and_where
    sound = (end_ns >= start_ns) & (end_ns > 0)  # CUPTI writes 0 where it does not know
    builder.malformed += int((~sound).sum())
    empty = builder.names.of([""])[0]
    columns = {
        "name": name,
        "start_ns": start_ns,
        "duration_ns": end_ns - start_ns,
        "device": device,
        "stream": stream,
        "correlation": correlation,
        "bytes": np.nan if size is None else size,
        "grid": _triples(builder, *sizes[:3]) if sizes else empty,
        "block": _triples(builder, *sizes[3:6]) if sizes else empty,
    }
    if len(sizes) > 6:
        columns["registers"] = np.where(sizes[6] > 0, sizes[6], np.nan)
        columns["shared_bytes"] = np.where(sizes[6] > 0, sizes[7] + sizes[8], np.nan)
    if not sound.all():
        columns = {key: column[sound] if np.ndim(column) else column for key, column in columns.items()}
    unknown = dict.fromkeys(LAUNCH_FACTS, np.nan) | {"external": -1, "message": -1}
    builder.device.add(unknown | columns)


def add_launches(
    builder: Builder,
    start_ns: np.ndarray,
    end_ns: np.ndarray,
    thread: np.ndarray,
    correlation: np.ndarray,
    name: np.ndarray | int = -1,
    process: int = 0,
) -> None:
    """Add calls of the host that launch work, and those that wait for it; ``name`` -1: not recorded."""
    columns = {
        "name": name,
        "start_ns": start_ns,
        "end_ns": np.maximum(start_ns, end_ns),
        "thread": _threads(builder, thread, process),
        "correlation": correlation,
        "external": -1,
    }
    builder.launches.add(columns)


def add_ranges(
    builder: Builder,
    texts: Sequence[str],
    start_ns: np.ndarray,
    end_ns: np.ndarray,
    thread: np.ndarray,
    process: int = 0,
) -> None:
    """Add ranges and marks of NVTX (a mark ends where it begins); what PyTorch wrote becomes operators."""
    ranges = [parse_text(text) for text in texts]
    usable = np.array([one.kind is not None for one in ranges], dtype=bool) & (end_ns >= start_ns)
    builder.malformed += int((end_ns < start_ns).sum())
    ranges = [ranges[place] for place in np.flatnonzero(usable)]
    columns = {
        "name": builder.names.of([one.name for one in ranges]),
        "start_ns": start_ns[usable],
        "end_ns": end_ns[usable],
        "thread": _threads(builder, thread[usable], process),
        "sequence": [one.sequence for one in ranges],
        "forward_thread": 0,
        "kind": [RANGE if one.kind is None else one.kind for one in ranges],
    }
    builder.host.add(columns | dict.fromkeys(("external", "inputs", "message"), -1))


def _threads(builder: Builder, thread: np.ndarray, process: int) -> np.ndarray:
    return _interned(thread, lambda distinct: builder.threads.of([(process, one) for one in distinct]))
