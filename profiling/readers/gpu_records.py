"""Convert CUPTI records (from nvprof, Nsight Systems or CUPTI itself) to events.

All three record NVTX ranges on host threads, calls that launch work, and device activities with the
correlation id of their launch. Their columns are converted to :mod:`profiling.attribution.events`.

Operators and directions come from the texts of NVTX ranges. ``emit_nvtx`` writes an operator's name followed
by ``, seq = 65`` or ``, op_id = 7``. PyProf wrapped PyTorch's functions in ranges whose text is a dict of
module, operator and arguments. All other texts are the user's ranges. As in PyProf, a forward kernel
belongs to the outermost such range. A backward kernel belongs to the forward operator with its sequence
number, if that launched anything; otherwise it is named after its node of the backward graph.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from profiling.attribution.context import BPROP, FPROP, NONE, UPDATING, Context
from profiling.attribution.events import (
    LAUNCH_FACTS,
    OPERATOR,
    RANGE,
    Builder,
    Columns,
    Events,
    array_of,
    distinct,
    name_flags,
    pick,
)

# Columns of CUPTI's records as nvprof's databases name them, and what stands where one does not say: of each
# activity of a device, of kernels, copies and sets of memory, and of calls.
ON_DEVICE: dict[str, int | None] = {
    "start": None, "end": None, "deviceId": 0, "streamId": -1, "correlationId": -1,
}  # fmt: skip
KERNEL = ON_DEVICE | dict.fromkeys((
    "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
    "registersPerThread", "staticSharedMemory", "dynamicSharedMemory",
), 0)  # fmt: skip
COPY = ON_DEVICE | dict.fromkeys(("bytes", "copyKind", "srcKind", "dstKind"), 0)
SET = ON_DEVICE | {"bytes": 0, "memoryKind": 0}
CALL: dict[str, int | None] = {"start": None, "end": 0, "threadId": 0, "correlationId": None, "cbid": 0}
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


def _copy_names(builder: Builder, rows: Columns, offset: int) -> np.ndarray:
    """Names as ``Memcpy HtoD (Pinned -> Device)``, numbered."""

    def text_of(key: int) -> str:
        way = _COPY_KINDS[key & 0xFF] if key & 0xFF < len(_COPY_KINDS) else ""
        source, target = (_MEMORY.get((key >> bits & 0xFF) + offset, "Unknown") for bits in (8, 16))
        return f"Memcpy {way or 'Unknown'} ({source} -> {target})"

    kind, source, target = (rows[name] & 0xFF for name in ("copyKind", "srcKind", "dstKind"))
    return coded(builder, kind | source << 8 | target << 16, text_of)


def _triples(builder: Builder, rows: Columns, of: str) -> np.ndarray:
    """Numbers of the texts ``x,y,z`` of a grid or block; empty texts where a size is below 1."""

    def text_of(key: int) -> str:
        sizes = (key & 0x7FFFFFFF, key >> 31 & 0xFFFF, key >> 47 & 0xFFFF)
        return ",".join(map(str, sizes)) if all(sizes) else ""

    x, y, z = (rows[of + axis] for axis in "XYZ")
    packed = np.clip(x, 0, 0x7FFFFFFF) | np.clip(y, 0, 0xFFFF) << 31 | np.clip(z, 0, 0xFFFF) << 47
    return coded(builder, packed, text_of)


def add_device(builder: Builder, rows: Columns, name: np.ndarray | None = None, offset: int = 0) -> None:
    """Add what ran on devices; rows that end before they begin, or have no times, are left out and counted.

    ``rows``: of :data:`KERNEL`, :data:`COPY` or :data:`SET`; ``name``: numbers of the builder's names, None:
    of copies and sets by their kinds; ``offset``: to CUPTI's numbers of memory.
    """
    if name is None and "copyKind" in rows:
        name = _copy_names(builder, rows, offset)
    elif name is None:
        texts = {key: f"Memset ({kind})" for key, kind in _MEMORY.items()}
        name = coded(builder, rows["memoryKind"], lambda key: texts.get(key + offset, "Memset (Unknown)"))
    sound = (rows["end"] >= rows["start"]) & (rows["end"] > 0)  # CUPTI writes 0 where it does not know
    builder.malformed += int((~sound).sum())
    empty, is_kernel = builder.names.of([""])[0], "gridX" in rows
    columns: dict[str, Any] = {
        "name": name,
        "start_ns": rows["start"],
        "duration_ns": rows["end"] - rows["start"],
        "device": rows["deviceId"],
        "stream": rows["streamId"],
        "correlation": rows["correlationId"],
        "bytes": rows.get("bytes", np.nan),
        "grid": _triples(builder, rows, "grid") if is_kernel else empty,
        "block": _triples(builder, rows, "block") if is_kernel else empty,
    }
    if is_kernel:
        known = rows["registersPerThread"] > 0
        shared = rows["staticSharedMemory"] + rows["dynamicSharedMemory"]
        columns["registers"] = np.where(known, rows["registersPerThread"], np.nan)
        columns["shared_bytes"] = np.where(known, shared, np.nan)
    if not sound.all():
        columns = {key: column[sound] if np.ndim(column) else column for key, column in columns.items()}
    unknown = dict.fromkeys(LAUNCH_FACTS, np.nan) | dict.fromkeys(("external", "message", "sequence"), -1)
    builder.device.add(unknown | columns)


def add_calls(builder: Builder, rows: Columns, of_runtime: bool) -> None:
    """Add calls, the columns of :data:`CALL`; only those that wait for the device have names."""
    names = _WAITS if of_runtime else {}
    name = coded(builder, rows["cbid"], lambda key: names.get(key, ""))
    thread = rows["threadId"] & 0xFFFFFFFF
    add_launches(builder, rows["start"], rows["end"], thread, rows["correlationId"], name)


def add_launches(
    builder: Builder,
    start_ns: np.ndarray,
    end_ns: np.ndarray,
    thread: np.ndarray,
    correlation: np.ndarray,
    name: np.ndarray,
    process: int = 0,
) -> None:
    """Add calls of the host that launch work, and those that wait for it."""
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


PYPROF = "pyprof::"  # before an operator that PyProf named, so that it meets none of PyTorch's
_TORCH = re.compile(r"^(.*?), (?:seq|op_id) = (-?\d+)(.*)$", re.DOTALL)
_SEQUENCE = re.compile(r"seq = (\d{1,17})\b")
_OPERATOR = re.compile(r"^(aten|torch::autograd|autograd::engine|prims|quantized)::")
_NAME = re.compile(r"\w+(::\w+)*(\.\w+)?")  # an operator's; record_function's texts are free
_PYPROF = re.compile(r"^\{'mod': '([^']*)', 'op': '([^']*)'")
_CAPTURE = "scaleprof capture"  # our own, which switches a profiler on
_TRACE = "{'traceMarker':"  # where in the program a call stands


@dataclass(frozen=True)
class RangeName:
    """What a range's text says."""

    name: str  # without what was appended
    kind: int | None  # of :mod:`profiling.attribution.events`; None: nothing that the tables hold
    sequence: int = -1  # of autograd; -1: none


@lru_cache(maxsize=1 << 12)
def parse_text(text: str) -> RangeName:
    if match := _PYPROF.match(text):
        return RangeName(PYPROF + match[2], OPERATOR)
    if text == _CAPTURE or text.startswith(_TRACE):
        return RangeName(text, None)
    match = _TORCH.match(text)
    name = match[1] if match else text
    kind = OPERATOR if _OPERATOR.match(name) or (match and _NAME.fullmatch(name)) else RANGE
    number = _SEQUENCE.search(text, match.end(1)) if match else None
    # What autograd itself calls has no number of its own: old versions write 0.
    return RangeName(name, kind, int(number[1]) or -1 if number else -1)


def name_operators(events: Events, context: Context) -> Context:
    """``context`` with PyProf's operators and directions where it marked any; names lose their prefix."""
    ours = name_flags(events.names, lambda name: name.startswith(PYPROF))
    if not ours.any():
        return context
    nest, host = context.nest, context.nest.host
    index = np.arange(len(host["name"]))
    named = nest.outermost(np.where(ours[host["name"]], index, -1))
    # Forward operators whose sequence number launched work on a device.
    of_device = np.isin(events.launches["correlation"], events.device["correlation"])
    place = nest.innermost(events.launches["thread"][of_device], events.launches["start_ns"][of_device])
    inside_node = nest.nearest(np.where(context.node, index, -1)) >= 0
    launching = place[place >= 0]
    numbers = distinct(context.sequence[launching[~inside_node[launching]]])
    launched = np.isin(host["sequence"], numbers[numbers >= 0])
    forward = np.where(pick(launched, context.forward, False), context.forward, -1)
    of_forward = pick(named, forward)
    node = nest.nearest(np.where(context.node & (host["sequence"] >= 0), index, -1))
    operator = np.select(
        [named >= 0, of_forward >= 0, node >= 0], [named, of_forward, node], context.operator
    )
    direction = _directions(events, context, named)
    bias = _biases(events, context, named)
    operator = np.where(bias >= 0, bias, operator)
    for number, name in enumerate(events.names):
        if name.startswith(PYPROF):
            events.names[number] = name.removeprefix(PYPROF)
        elif "Backward" in name and "::" not in name:
            events.names[number] = name.partition("Backward")[0]
    return replace(context, operator=operator, direction=direction)


def _biases(events: Events, context: Context, named: np.ndarray) -> np.ndarray:
    """The event that adds the bias of a linear layer, which PyProf calls ``bias``; else -1."""
    host = context.nest.host
    index = np.arange(len(host["name"]))
    adds = name_flags(events.names, lambda name: name == PYPROF + "__iadd__")[host["name"]]
    linear = name_flags(events.names, lambda name: name == PYPROF + "linear")[host["name"]]
    own = adds & pick(linear, named, False)
    host["name"][own] = len(events.names)
    events.names.append("bias")
    return context.nest.nearest(np.where(own, index, -1))


def _directions(events: Events, context: Context, named: np.ndarray) -> np.ndarray:
    """What stages do not tell: after the backward pass operators update, before it they run forward."""
    host = context.nest.host
    direction = context.direction.copy()
    starts_backward = name_flags(events.names, lambda name: name == PYPROF + "backward")[host["name"]]
    inside = context.nest.nearest(np.where(starts_backward, np.arange(len(direction)), -1)) >= 0
    direction[inside & (direction == NONE)] = BPROP
    sources = np.flatnonzero((host["kind"] == OPERATOR) & np.isin(direction, (FPROP, BPROP)))
    sources = sources[np.argsort(host["start_ns"][sources], kind="stable")]
    targets = np.flatnonzero((named >= 0) & (direction == NONE))
    place = np.searchsorted(host["start_ns"][sources], host["start_ns"][targets], side="right") - 1
    before = pick(direction[sources], place, FPROP)
    direction[targets] = np.where(before == BPROP, UPDATING, FPROP)
    return direction
