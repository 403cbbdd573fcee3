"""Which tables are in a trace of PyTorch's profiler (Kineto's JSON)?"""

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from profiling.attribution.attribute import attribute_in_windows
from profiling.readers.chunks import read_facts
from profiling.readers.kineto import read_trace
from profiling.readers.kineto_facts import facts_of
from profiling.readers.origin import UNKNOWN, Origin
from profiling.traced_job import TraceFacts

_PROPERTIES = re.compile(rb'"(device|compute)Properties"')
_CATEGORY = re.compile(
    rb'"cat"\s*:\s*"'
    rb'(cpu_op|Operator|user_annotation|python_function|gpu_mem(cpy|set)|[kK]ernel|cuda_runtime|Runtime)"'
)
_LEGACY = re.compile(rb'"pid"\s*:\s*"CPU functions"')  # written by builds without Kineto


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is a trace of PyTorch's profiler, by its first bytes (decompressed)."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if start == b"{" and b'"schemaVersion"' in head and _PROPERTIES.search(head):
        return True  # also if it ends before its events
    is_list = start == b"[" or (start == b"{" and b'"traceEvents"' in head)
    return is_list and (_CATEGORY.search(head) is not None or _LEGACY.search(head) is not None)


def stream(path: Path, findings: list[str], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """A Kineto trace as pieces of tables ``kernels``, ``markers`` and, of allocations, ``memory``.

    The rank is what the trace says (``distributedInfo``), where it is not known otherwise.
    """
    trace = read_trace(path)
    rank = origin.rank if trace.rank is not None else origin.rank_of(path)
    yield from attribute_in_windows(
        trace, findings, rank, subject=path.name, batches=origin.batches, batch_marker=origin.batch_marker
    )


def facts(path: Path) -> TraceFacts:
    """What a trace says of its job, before its events."""
    return facts_of(read_facts(path), path)
