"""Turn a profiler's events into tables: step, stage, operator, layer and cost of each kernel.

On a GPU a row is a device activity: its launch identifies the operator, and through it step, direction and
layer. On a CPU a row is a leaf operator. FLOPs and bytes are counted once, at the innermost operator that
does the work itself, and divided among the kernels it launched in proportion to their time.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from profiling.attribution.batch_rows import BatchRows
from profiling.attribution.batch_times import PERIOD, WHOLE, BatchTimes
from profiling.attribution.context import (
    LAYER_PREFIX,
    LOADING,
    NONE,
    UPDATING,
    Context,
    find_context,
    layer_name,
    stage_of,
)
from profiling.attribution.events import (
    CLASS,
    COMMUNICATION,
    LAUNCH_FACTS,
    LAYER,
    RANGE,
    Events,
    Trace,
    coded,
    name_flags,
    or_null,
    pick,
    short_names,
)
from profiling.attribution.kernel_rows import KernelRows, device_rows, host_rows, synchronizations_table
from profiling.attribution.messages import between_two
from profiling.attribution.windows import Tally, Windows
from profiling.findings import Finding
from profiling.schemas import CLASSES, DIRECTIONS, END_OF_BATCH
from profiling.tables import Converted, as_table, collect


def attribute(trace: Trace, rank: int, first_batch: int) -> Converted:
    """All that :func:`attribute_in_windows` gives, as a whole."""
    findings: list[Finding] = []
    return collect(attribute_in_windows(trace, findings, rank, first_batch), findings)


def attribute_in_windows(
    trace: Trace,
    findings: list[Finding],
    rank: int | None = None,
    first_batch: int | None = None,
    name_operators: Callable[[Events, Context], Context] = lambda events, context: context,
    batches: bool = False,
    batch_marker: str = "",
) -> Iterator[tuple[str, pa.Table]]:
    """Pieces of the tables ``kernels``, ``markers``, ``synchronizations`` and ``memory`` of a rank.

    Args:
        findings: takes what was found on the way, when all pieces are made.
        rank: for the rows; None: the trace's own, else 0.
        first_batch, batch_marker: see :func:`profiling.attribution.batch_times.find_batches`.
        name_operators: puts operators and directions right where a tool knows better.
        batches: a recording is all there is of its batches: the table ``batches`` is made too, in which they
            are numbered from 0, and so they are in the others.
    """
    rank = trace.rank if rank is None else rank
    if rank is not None:
        trace.messages = [between_two(one, rank) for one in trace.messages]
    rank = rank or 0
    windows = Windows(trace, first_batch, batch_marker, batches)
    source = windows.batches.source
    tally = Tally(trace, windows.marks, source, rank)
    batch_rows = BatchRows(windows.batches, trace.on_device) if batches else None
    for window in windows:
        context = name_operators(window.events, find_context(window.events, windows.batches))
        # Of a GPU, activities of the device; of a CPU, leaf operators.
        rows = (
            device_rows(window.events, context, trace, windows.by_launch)
            if trace.on_device
            else host_rows(window.events, context, trace, window.owns)
        )
        tally.add(rows.time_ns, rows.start_ns, rows.kind == COMMUNICATION)
        events = window.events
        yield "kernels", _kernels(rows, events, context, rank, batch_rows)
        yield "markers", _markers(events, context, rank, window.owns)
        waits = synchronizations_table(events, rank)
        if len(waits):
            yield "synchronizations", waits
        if len(events.memory["time_ns"]):
            order = np.argsort(events.memory["time_ns"], kind="stable")
            memory = {name: column[order] for name, column in events.memory.items()}
            memory["rank"] = np.full(len(order), rank, dtype=np.int32)
            memory["batch_index"] = or_null(context.batches.of(memory["time_ns"]), pa.int32())
            yield "memory", as_table("memory", memory)
    if batch_rows is not None:
        yield "batches", batch_rows.table(rank)
        trace.findings += batch_rows.findings
    findings += tally.findings()


def _directions(rows: KernelRows, events: Events, context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Direction and class of each row, by the kernel's name and its place."""
    direction = pick(context.direction, rows.host, NONE)
    # What a thread without operators launches (autograd's, to some tools) is of the stage of its time.
    alone = (rows.host < 0) & (rows.time_ns >= 0)
    direction[alone] = stage_of(events.names, context.nest.host, rows.time_ns[alone])
    kind = rows.kind.copy()
    copied_in = name_flags(events.names, lambda name: "HtoD" in name or "HOST_TO_DEVICE" in name)[rows.name]
    # The next batch is copied to the GPU beside the forward pass, not in it; maybe by a loader's own thread.
    stray = alone | ((rows.host >= 0) & ((direction == NONE) | pick(context.guessed, rows.host, False)))
    # Without marked batches there is no next one, and no loader.
    stray &= context.batches.source != WHOLE
    direction[(kind == CLASS["loader"]) | (copied_in & stray)] = LOADING
    # An elementwise kernel's name does not say for whom it works; its place does.
    kind[(direction == UPDATING) & (kind == CLASS["pointwise"])] = CLASS["optimizer"]
    return direction, kind


def _batch_of(rows: KernelRows, batches: BatchTimes, alone: bool) -> np.ndarray:
    """The batch of each row, by when it was launched; where the kernels tell batches, by when it began."""
    # Where no launch is linked at all, the range around a kernel is its batch.
    if batches.source in (PERIOD, WHOLE) or (alone and not (rows.time_ns >= 0).any()):
        return batches.of(rows.start_ns)
    of_row = np.where(rows.time_ns >= 0, batches.of(rows.time_ns), -1)
    if not alone or (rows.time_ns >= 0).all():
        return of_row
    # Kernels without a launch (a CUDA graph's, to some tools) inherit the batch of the kernel before. Those
    # before the first that has a launch, or behind the last, are in no batch.
    order = np.argsort(rows.start_ns, kind="stable")
    known = np.flatnonzero(rows.time_ns[order] >= 0)
    before = np.searchsorted(known, np.arange(len(order)), side="right") - 1
    between = (before >= 0) & (before < len(known) - 1) & (rows.time_ns[order] < 0)
    of_row[order[between]] = of_row[order[known[before[between]]]]
    return of_row


def _kernels(
    rows: KernelRows, events: Events, context: Context, rank: int, batch_rows: BatchRows | None
) -> pa.Table:
    direction, kind = _directions(rows, events, context)
    batch = _batch_of(rows, context.batches, batch_rows is not None)
    if batch_rows is not None:
        end_ns = rows.start_ns + rows.duration_ns
        batch_rows.add(batch, rows.time_ns, rows.start_ns, end_ns, direction, kind)
    texts = {
        "name": (rows.name, events.names),
        "short_name": (rows.name, short_names(events.names, rows.name)),
        "class": (kind, CLASSES),
        "direction": (direction, DIRECTIONS),
        "operator": (pick(context.nest.host["name"], rows.operator), events.names),
        "layer": (pick(context.layer, rows.host), [layer_name(name) for name in events.names]),
    }
    columns: dict[str, Any] = {name: coded(codes, values) for name, (codes, values) in texts.items()}
    columns |= rows.messages.columns() | dict(rows.calls or {})
    if rows.device_events is not None:
        unnamed = name_flags(events.names, lambda name: not name)
        for name in ("grid", "block"):
            codes = rows.device_events[name]
            columns[name] = coded(np.where(unnamed[codes], -1, codes), events.names)
        columns |= {name: rows.device_events[name] for name in LAUNCH_FACTS}
        columns["sequence"] = or_null(rows.device_events["sequence"], pa.int64())
    columns |= {
        "rank": np.full(len(rows.name), rank, dtype=np.int32),
        "batch_index": or_null(batch, pa.int32()),
        "start_ns": rows.start_ns,
        "duration_ns": rows.duration_ns,
        "device": rows.device.astype(np.int32),
        "stream": rows.stream,
        "flops": rows.flops,
        "bytes": rows.bytes,
        "correlation": or_null(rows.correlation, pa.int64()),
    }
    table = as_table("kernels", columns)
    if (rows.start_ns[1:] >= rows.start_ns[:-1]).all():
        return table
    return table.take(pa.array(np.argsort(rows.start_ns, kind="stable")))


def _markers(
    events: Events, context: Context, rank: int, owned: Callable[[np.ndarray], np.ndarray]
) -> pa.Table:
    """The ranges that were opened; layers and collectives are in the kernels' table."""
    host = context.nest.host
    layers = (host["kind"] == LAYER) | context.by_name(lambda name: name.startswith(LAYER_PREFIX))
    rows = np.flatnonzero((host["kind"] == RANGE) & ~layers & ~context.loose & owned(host["start_ns"]))
    rows = rows[np.argsort(host["start_ns"][rows], kind="stable")]
    is_mark = name_flags(events.names, lambda name: name == END_OF_BATCH)[host["name"][rows]]
    columns = {
        "rank": np.full(len(rows), rank, dtype=np.int32),
        "name": coded(host["name"][rows], events.names),
        "kind": coded(np.where(is_mark, 0, 1), ("mark", "range")),
        "start_ns": host["start_ns"][rows],
        "end_ns": np.where(is_mark, host["start_ns"][rows], host["end_ns"][rows]),
        "thread": np.array(events.threads, dtype=np.int64)[host["thread"][rows]],
    }
    return as_table("markers", columns)
