"""What does a trace say about what is advised? Nobody is told to do what the job does already."""

import re
from collections import Counter
from typing import Any

import pyarrow as pa

from analysis.display.numbers import digits
from analysis.measures.anatomy.traces import trace_of, transfers_of
from analysis.measures.critical_path.paths import COPIES, RunPaths
from analysis.results.query import query
from analysis.results.source import Source, reading
from analysis.results.study import Study
from profiling import tables
from profiling.cost.shapes import element_bytes

# Copies of the recorded steps by name, in which tools say from which memory to which.
_COPIES = """
    select name::varchar, sum(duration_ns)::double, sum(if(isfinite(bytes), bytes, 0))::double
    from read_parquet($kernels)
    where "class"::varchar = 'memcpy' and batch_index is not null and duration_ns >= 0
    group by all
"""
_BETWEEN = re.compile(r"^(?P<way>Memcpy \w+) \((?P<source>\w+) -> (?P<target>\w+)\)$")
_WAYS = {"Memcpy HtoD": "source", "Memcpy DtoH": "target"}  # of which of the two memories is the host's
_PAGEABLE, _PINNED = "Pageable", "Pinned"
_LESS = {
    "Memcpy HtoD": "copy less to the device (a smaller type; decode or augment there), or keep it there",
    "Memcpy DtoH": "copy less to the host (.item(), .cpu(), printed tensors)",
}


def about_copies(study: Study, paths: RunPaths) -> str:
    """What to try against copies: by the direction that is longest on the path, and the host's memory."""
    way = _longest_copy(paths)
    if way not in _WAYS:
        return "fewer copies within and between devices (.contiguous(), .clone(), torch.cat)"
    ahead = "ahead of their use" if paths.source.without_steps else "one batch ahead"
    pinned = f"pinned memory with non_blocking=True, {ahead}"
    if way == "Memcpy DtoH":
        pinned = f"{_LESS[way]}, or pinned memory with non_blocking=True"
    ns, moved = _by_memory(study, paths, way)
    most = max(ns, key=lambda memory: ns[memory], default="")
    if most == _PAGEABLE:
        return f"{pinned}: the copies use pageable memory"
    if most != _PINNED:
        return f"{pinned} (the trace does not say whether they use it already)"
    rate = f", at {digits(moved[most] / ns[most], 3)} GB/s" if moved[most] and ns[most] else ""
    return f"{_LESS[way]}: the copies already use pinned memory{rate}"


def _longest_copy(paths: RunPaths) -> str:
    """The copies that take most of the critical path, ``Memcpy HtoD``; empty: none is on it."""
    ns: Counter[str] = Counter()
    for step in paths.steps:
        mine = step.part == COPIES
        for name, lasts in zip(step.kernel[mine].tolist(), step.duration_ns[mine].tolist(), strict=True):
            ns[str(name)] += lasts
    return ns.most_common(1)[0][0] if ns else ""


def _by_memory(study: Study, paths: RunPaths, way: str) -> tuple[Counter[str], Counter[str]]:
    """What copies in a direction take, ns, and their bytes, by the host's memory; "": not recorded."""
    ns: Counter[str] = Counter()
    moved: Counter[str] = Counter()
    source = paths.source
    for name, lasts, size in query(study, source, _COPIES, kernels=source.tables("kernels")):
        match = _BETWEEN.match(name or "")
        if match is None or match["way"] == way:
            memory: Any = match[_WAYS[way]] if match else ""
            ns[memory] += lasts
            moved[memory] += size
    return ns, moved


# --- collectives --------------------------------------------------------------------------------------

# What kernels of NCCL are called after: ncclDevKernel_AllReduce_Sum_f16_RING_LL, ..._Sum__nv_bfloat16.
_IN_NAMES = {2: re.compile(r"_(half|b?f16|bfloat16)(_|\W|$)"), 4: re.compile(r"_(float|f32)(_|\W|$)")}
_REDUCED = ("allreduce", "reducescatter")


def about_collectives(study: Study, paths: RunPaths) -> str:
    """What to try against collectives: 16 bits only where sums are not in 16 bits already."""
    element = _element_of_sums(paths.source)
    fewer = "larger batches, which need fewer of them"
    if element == 2:
        return f"overlap them with computation, or {fewer} (their sums are in 16 bits already)"
    unsaid = "" if element else ", if they are not yet"
    return f"overlap them with computation, send less (gradients in 16 bits{unsaid}), or {fewer}"


def untold(study: Study, source: Source) -> str:
    """Why a job's transfers cannot be told from waits, if so: a clause."""
    trace = trace_of(study, source)
    if source.ranks < 2 or not trace.has_collectives or transfers_of(trace.calls, trace.matched) is not None:
        return ""
    only = f"with {len(trace.ranks)} of {source.ranks} ranks recorded, " if ranks_are_missing(source) else ""
    return f"{only}transfer cannot be told from waiting for other ranks"


def ranks_are_missing(source: Source) -> bool:
    """Whether a job had more ranks than left kernels."""
    return len(source.tables("kernels")) < source.ranks


def _element_of_sums(source: Source) -> int:
    """Bytes of an element of the collectives that sum gradients, of those that take longest; 0: not known.

    All ranks sum alike: the first one's are read.
    """
    with reading(source):
        columns = ["name", "class", "collective", "dtype", "duration_ns"]
        kernels = tables.read(source.tables("kernels")[0].parent, "kernels", columns)
    texts = {name: kernels[name].cast(pa.string()).to_pylist() for name in ("name", "collective", "dtype")}
    ns: Counter[int] = Counter()
    for name, kind, dtype, lasts in zip(*texts.values(), kernels["duration_ns"].to_pylist(), strict=True):
        if kind in _REDUCED:
            ns[_element(name or "", dtype or "")] += max(lasts or 0, 0)
    return ns.most_common(1)[0][0] if ns else 0


def _element(name: str, dtype: str) -> int:
    """Bytes of an element of a collective, by what the tool says, or the kernel's name; 0: neither does."""
    by_name = (size for size, pattern in _IN_NAMES.items() if pattern.search(name))
    return element_bytes(dtype) or next(by_name, 0)


# --- data loading -------------------------------------------------------------------------------------

# PyTorch's range around a DataLoader's next batch names the class of its iterator.
_ITERATORS = """
    select count(*) filter ("name"::varchar like '%_SingleProcessDataLoaderIter%'),
        count(*) filter ("name"::varchar like '%_MultiProcessingDataLoaderIter%')
    from read_parquet($markers)
"""


def about_loading(study: Study, paths: RunPaths) -> str:
    """What to try against data loading: workers, or more than the DataLoader is seen to have."""
    source = paths.source
    markers = source.tables("markers")
    ((alone, shared),) = query(study, source, _ITERATORS, markers=markers) if markers else [(0, 0)]
    if alone:
        return "num_workers of the DataLoader: it is 0 here, so the training process itself loads each batch"
    more = "more workers than the DataLoader has" if shared else "more workers"
    return f"{more}, or a faster loader"
