"""Read traces of PyTorch's profiler (Kineto JSON): facts, events and tables.

A file is read, decompressed and parsed a few megabytes at a time, so that a large trace is never in memory as
Python objects. Both schemas are supported: that of PyTorch before 1.11 (``Operator``, ``Kernel``,
``Runtime``, ``Input dims``) and the later one (``cpu_op``, ``kernel``, ``cuda_runtime``, ``Input Dims``).
"""

import gc
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from profiling.attribution.attribute import attribute_in_windows
from profiling.attribution.events import LAYER, OPERATOR, RANGE, Builder, Trace, is_range, name_flags
from profiling.attribution.messages import of_arguments, of_process
from profiling.cost.operators import parse_inputs
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.readers.files import UNKNOWN, Origin, read_chunks, read_facts
from profiling.traced_job import ProcessGroup, TraceFacts

_PROPERTIES = re.compile(rb'"(device|compute)Properties"')
_CATEGORY = re.compile(
    rb'"cat"\s*:\s*"'
    rb'(cpu_op|Operator|user_annotation|python_function|gpu_mem(cpy|set)|[kK]ernel|cuda_runtime|Runtime)"'
)


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is a trace of PyTorch's profiler, by its first bytes (decompressed)."""
    start = head.lstrip()[:1]
    if start == b"{" and b'"schemaVersion"' in head and _PROPERTIES.search(head):
        return True  # also if it ends before its events
    is_list = start == b"[" or (start == b"{" and b'"traceEvents"' in head)
    return is_list and _CATEGORY.search(head) is not None


def stream(path: Path, findings: list[Finding], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """A Kineto trace as pieces of tables ``kernels``, ``markers`` and, of allocations, ``memory``.

    The rank is what the trace says (``distributedInfo``), where it is not known otherwise.
    """
    trace = read_trace(path)
    rank = origin.rank if trace.rank is not None else origin.rank_of(path)
    yield from attribute_in_windows(
        trace, findings, rank, batches=origin.batches, batch_marker=origin.batch_marker
    )


# --- facts --------------------------------------------------------------------------------------------

# As torch.profiler.tensorboard_trace_handler names files: host_pid.time.pt.trace.json.
_HANDLER = re.compile(r"^(?P<host>.+)_\d+\.\d+\.pt\.trace\.json(\.gz)?$")
_VERSIONS = {
    "cuda_runtime_version": "CUDA", "cuda_driver_version": "CUDA driver", "cupti_version": "CUPTI",
    "hip_runtime_version": "HIP", "hip_driver_version": "HIP driver", "roctracer_version": "roctracer",
    "pytorch_version": "PyTorch", "torch_version": "PyTorch",
}  # fmt: skip
_COMPARED = ("cuda:", "hip:", "xpu:")  # of a backend's configuration: cpu:gloo,cuda:nccl
_MOST_RANKS = 1 << 20  # more are a damaged number


def facts(path: Path) -> TraceFacts:
    """What the fields before a trace's events, and its file's name, say of its job."""
    fields = read_facts(path)
    distributed = _dict(fields.get("distributedInfo"))
    name = _HANDLER.match(path.name)
    versions = {
        title: str(fields[key])
        for key, title in _VERSIONS.items()
        if isinstance(fields.get(key), int | float | str)
    }
    if isinstance(distributed.get("nccl_version"), str):
        versions["NCCL"] = distributed["nccl_version"]
    devices = _dicts(fields.get("deviceProperties"))
    names = sorted({str(one["name"]) for one in devices if one.get("name")})
    return TraceFacts(
        rank=_rank_or_count(distributed.get("rank")),
        world_size=_rank_or_count(distributed.get("world_size")) or None,
        host=str(fields.get("host_name") or (name["host"] if name else "")),
        device="cpu" if fields.get("deviceProperties") == [] else ", ".join(names),
        backend=str(distributed.get("backend") or ""),
        groups=[_group(one) for one in _dicts(distributed.get("pg_config"))],
        versions=versions,
    )


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dicts(listed: Any) -> list[dict[str, Any]]:
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _group(fields: Mapping[str, Any]) -> ProcessGroup:
    ranks = fields.get("ranks")
    members = ranks if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks) else []
    backend = str(fields.get("backend_config") or fields.get("backend_name") or "")  # cpu:gloo,cuda:nccl
    compared = next((prefix for prefix in _COMPARED if prefix in backend), None)
    return ProcessGroup(
        name=str(fields.get("pg_name", "")),
        backend=backend.split(compared)[1].split(",")[0] if compared else backend.rpartition(":")[2],
        ranks=members,
        size=_rank_or_count(fields.get("pg_size")) or len(members),
        description=str(fields.get("pg_desc", "")),
    )


def _rank_or_count(value: Any) -> int | None:
    number = _integer(value)
    return number if 0 <= number < _MOST_RANKS else None


# --- events -------------------------------------------------------------------------------------------

_OPERATORS, _RANGES, _OLD, _LAYERS = "operator", "range", "old", "layer"
_LAUNCHES, _DEVICE, _MEMORY = "launch", "device", "memory"
_CATEGORIES = {
    "cpu_op": _OPERATORS, "Operator": _OLD, "user_annotation": _RANGES, "python_function": _LAYERS,
    "cuda_runtime": _LAUNCHES, "cuda_driver": _LAUNCHES, "hip_runtime": _LAUNCHES, "Runtime": _LAUNCHES,
    "xpu_runtime": _LAUNCHES, "privateuse1_runtime": _LAUNCHES,
    "kernel": _DEVICE, "Kernel": _DEVICE, "gpu_memcpy": _DEVICE, "Memcpy": _DEVICE, "gpu_memset": _DEVICE,
    "Memset": _DEVICE, "cpu_instant_event": _MEMORY,
}  # fmt: skip
_ALLOCATION = "[memory]"
_LAYER_PREFIX = "nn.Module: "
# In microseconds; with both, an event's end in nanoseconds fits 63 bits beside a base of 4e18.
_LATEST, _LONGEST = 4e15, 4e14
# They hold no work of their own: links, ranges that others hold too, waits, what the profiler itself took.
_NO_WORK = frozenset((
    "gpu_user_annotation", "ac2g", "fwdbwd", "async_gpu", "async_cpu_to_gpu", "external_correlation", "Trace",
    "overhead", "cuda_sync", "cuda_event", "collective_comm", "gpu_pm_counter",
))  # fmt: skip
# Counters of kernels. Their times are made up: Kineto divides the recording evenly among them.
_COUNTERS = "cuda_profiler_range"
_NO_CATEGORY = "events without a category"
_LETTERS = 40  # of a category or process: a damaged file may hold anything in its place

Unread = Counter[tuple[str, str]]  # events by category and process


def read_trace(path: Path) -> Trace:
    """The events of a trace, plain or gzip; UserError: unreadable, truncated, foreign or empty."""
    builder = Builder(lambda key: parse_inputs(*orjson.loads(key)))
    facts: dict[str, Any] = {}
    unread = Unread()
    # Parsing makes millions of objects and no cycles: searching for cycles takes half of the time.
    collects = gc.isenabled()
    gc.disable()
    try:
        for chunk in read_chunks(path, facts):
            _add_chunk(builder, chunk, unread)
    finally:
        if collects:
            gc.enable()
    distributed = _dict(facts.get("distributedInfo"))
    rank = _integer(distributed.get("rank"))
    world_size = _rank_or_count(distributed.get("world_size")) or 1
    base_ns = _integer(facts.get("baseTimeNanoseconds"), 0)
    trace = builder.finish(rank if 0 <= rank < 1 << 31 else None, world_size, base_ns)
    trace.path, trace.may_have_shapes = path, True
    trace.group = of_process(distributed)
    hosts = {str(process) for process, _ in builder.threads.index}
    for kind in [(category, process) for category, process in unread if category == _NO_CATEGORY]:
        trace.malformed += unread.pop(kind) if kind[1] in hosts or not hosts else 0
    if unread:
        kinds = sorted({category[:_LETTERS] for category, _ in unread})
        trace.findings.append(Finding("parts_unread", data={"what": kinds, "n": unread.total()}))
        # A new kind of device writes its work under categories of its own (mtia_ccp_events), or under none
        # (Ascend), in a process without operators. Else the trace would seem one of a CPU, and the host's
        # operators the work.
        trace.unread = any(category == _COUNTERS or process not in hosts for category, process in unread)
    if trace.is_empty:
        extra = f" ({trace.malformed} damaged)" if trace.malformed else ""
        raise UserError(f"{path} holds no events of PyTorch's profiler{extra}; is it the right file?")
    if processes := _same_step(trace, list(builder.threads.index)):
        raise UserError(
            f"{path} holds several ranks ({', '.join(processes)}); convert the trace of each rank"
        )
    return trace


def _same_step(trace: Trace, threads: Sequence[tuple[Any, Any]]) -> list[str]:
    """Processes that did the same step of the profiler at once, which are of merged traces; [] if none."""
    first: dict[int, tuple[str, int, int]] = {}  # of each step: process, start and end
    is_step = name_flags(trace.names, lambda name: name.startswith("ProfilerStep#"))
    for piece in trace.tables["host"].pieces():
        rows = np.flatnonzero((piece["kind"] == RANGE) & is_step[piece["name"]])
        columns = (piece[name][rows].tolist() for name in ("name", "thread", "start_ns", "end_ns"))
        for name, thread, start, end in zip(*columns, strict=True):
            process = str(threads[thread][0])
            other, begun, ended = first.setdefault(name, (process, start, end))
            if process != other and start < ended and begun < end:
                return [other[:_LETTERS], process[:_LETTERS]]
    return []


def _integer(value: Any, default: int = -1) -> int:
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return default
    return number if -(1 << 62) < number < 1 << 62 else default


def _add_chunk(builder: Builder, chunk: list[Any], unread: Unread) -> None:
    groups: dict[str, list[dict[str, Any]]] = {kind: [] for kind in _CATEGORIES.values()}
    append_of = {category: groups[kind].append for category, kind in _CATEGORIES.items()}
    for event in chunk:
        try:
            category = event.get("cat")
            append = append_of.get(category)
        except (AttributeError, TypeError):
            builder.malformed += 1
            continue
        if append is not None:
            append(event)
        elif category is None and event.get("name") == _ALLOCATION:  # before PyTorch 1.11
            groups[_MEMORY].append(event)
        elif event.get("ph") != "X" or category in _NO_WORK:
            continue
        elif category is not None:
            unread[str(category), str(event.get("pid"))] += 1
        elif _repaired(event) is not None:
            unread[_NO_CATEGORY, str(event.get("pid"))] += 1
        else:
            builder.malformed += 1
    groups[_LAYERS] = [one for one in groups[_LAYERS] if str(one.get("name")).startswith(_LAYER_PREFIX)]
    groups[_MEMORY] = [{"dur": 0, **one} for one in groups[_MEMORY] if one.get("name") == _ALLOCATION]
    for group, events in groups.items():
        if not events:
            continue
        try:
            columns = _columns(builder, group, events)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            # Somewhere a field is absent or absurd: put right what can be, leave out the rest, count it.
            sound = [repaired for event in events if (repaired := _repaired(event)) is not None]
            builder.malformed += len(events) - len(sound)
            if not sound:
                continue
            columns = _columns(builder, group, sound)
        tables = {_LAUNCHES: builder.launches, _DEVICE: builder.device, _MEMORY: builder.memory}
        tables.get(group, builder.host).add(columns)


_LAUNCH_FACTS = {
    "blocks_per_sm": "blocks per SM", "occupancy_pct": "est. achieved occupancy %",
    "registers": "registers per thread", "shared_bytes": "shared memory",
}  # fmt: skip
_SHAPES = ("Input Dims", "Input dims", "Input type", "Input Strides", "Concrete Inputs")
_INTEGERS = (
    "Sequence number", "Fwd thread id", "External id", "external id", "correlation", "device", "stream",
)  # fmt: skip


def _repaired(event: dict[str, Any]) -> dict[str, Any] | None:
    """An event whose fields have the types that they should; None if it has no name or no possible times."""
    start, duration = _number(event.get("ts")), _number(event.get("dur"))
    if not isinstance(event.get("name"), str) or not (abs(start) < _LATEST and 0 <= duration < _LONGEST):
        return None
    args = event.get("args")
    args = dict(args) if isinstance(args, dict) else {}
    args |= {key: _integer(args[key]) for key in _INTEGERS if key in args}
    if not isinstance(args.get("bytes", 0), int | float):
        del args["bytes"]
    try:
        orjson.dumps([args.get(key) for key in _SHAPES])
    except TypeError:  # a size of more than 64 bits
        args = {key: value for key, value in args.items() if key not in _SHAPES}
    threads = {key: str(event.get(key, "")) for key in ("pid", "tid")}
    return {**event, **threads, "ts": start, "dur": duration, "args": args}


def _number(value: Any) -> float:
    """A number, also if it is quoted; NaN if it is none."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _times(events: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
    """Start and duration in nanoseconds, exactly: the parts of a float are scaled separately."""
    start = np.array([event["ts"] for event in events], dtype=np.float64)
    duration = np.array([event["dur"] for event in events], dtype=np.float64)
    if not ((np.abs(start) < _LATEST) & (duration >= 0) & (duration < _LONGEST)).all():
        raise ValueError("an impossible time")
    whole = np.floor(start)
    start_ns = whole.astype(np.int64) * 1000 + np.rint((start - whole) * 1000).astype(np.int64)
    return start_ns, np.rint(duration * 1000).astype(np.int64)


def _numbers(args: list[dict[str, Any]], key: str, default: int = -1) -> np.ndarray:
    return np.array([one.get(key, default) for one in args], dtype=np.int64)


def _finite(args: list[dict[str, Any]], key: str) -> np.ndarray:
    """A number of each event; NaN where there is none, or it cannot be."""
    numbers = np.array([_number(one.get(key)) for one in args], dtype=np.float64)
    return np.where(np.abs(numbers) < 1e30, numbers, np.nan)  # what 32 bits hold


def _columns(builder: Builder, group: str, events: list[dict[str, Any]]) -> dict[str, Any]:
    """The columns of one of a builder's tables."""
    args = [event.get("args") or {} for event in events]
    start_ns, duration_ns = _times(events)
    if group == _MEMORY:
        # A host's number says nothing; PyTorch's device types begin with it.
        devices = [_integer(one.get("Device Id")) if one.get("Device Type") else -1 for one in args]
        figures = {"bytes": "Bytes", "allocated_bytes": "Total Allocated", "reserved_bytes": "Total Reserved"}
        numbers = {name: _finite(args, key) for name, key in figures.items()}
        return {"time_ns": start_ns, "device": devices, **numbers}
    names = [event["name"] for event in events]
    if not set(map(type, names)) <= {str}:
        raise TypeError("a name that is not text")
    external = [one["External id"] if "External id" in one else one.get("external id", -1) for one in args]
    columns = {
        "name": builder.names.of(names),
        "start_ns": start_ns,
        "external": np.array(external, dtype=np.int64),
    }
    if group == _DEVICE:
        for name in ("grid", "block"):
            sizes = (one.get(name) for one in args)
            texts = [",".join(map(str, size)) if isinstance(size, list) else "" for size in sizes]
            columns[name] = builder.names.of(texts)
        return columns | {
            "duration_ns": duration_ns,
            "device": _numbers(args, "device", 0),
            "stream": _numbers(args, "stream"),
            "correlation": _numbers(args, "correlation"),
            "bytes": np.array([one.get("bytes", math.nan) for one in args], dtype=np.float64),
            "message": _messages(builder, args),
            "sequence": -1,
            **{name: _finite(args, key) for name, key in _LAUNCH_FACTS.items()},
        }
    columns["end_ns"] = start_ns + duration_ns
    columns["thread"] = builder.threads.of([(event.get("pid"), event.get("tid")) for event in events])
    if group == _LAUNCHES:
        return columns | {"correlation": _numbers(args, "correlation")}
    if group in (_RANGES, _LAYERS):
        kinds = [RANGE if group == _RANGES else LAYER] * len(names)
    else:
        kinds = [RANGE if is_range(name, group == _OLD) else OPERATOR for name in names]
    return columns | {
        "sequence": _numbers(args, "Sequence number"),
        "forward_thread": _numbers(args, "Fwd thread id", 0),
        "inputs": [_inputs(builder, one) for one in args],
        "kind": kinds,
        "message": _messages(builder, args),
    }


def _inputs(builder: Builder, args: dict[str, Any]) -> int:
    dims = args.get("Input Dims") or args.get("Input dims")
    if not dims:
        return -1
    key = orjson.dumps((dims, args.get("Input type"), args.get("Input Strides"), args.get("Concrete Inputs")))
    return builder.inputs.of((key,))[0]


def _messages(builder: Builder, args: list[dict[str, Any]]) -> list[int]:
    messages = [of_arguments(one) for one in args]
    return [-1 if one is None else builder.messages.of((one,))[0] for one in messages]
