"""Whose work is each kernel, and what does it cost? From a profiler's events to the tables.

On a GPU a row is a device activity: its launch tells the operator, and through it batch, direction and layer.
On a CPU a row is a leaf operator. An operator's FLOPs and bytes are counted once, at the innermost operator
whose work is its own, and divided over the kernels it launched by their time.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from profiling.attribution.batch_rows import BatchRows
from profiling.attribution.batch_times import PERIOD, WHOLE, BatchTimes
from profiling.attribution.checks import Tally
from profiling.attribution.classes import CLASS, COMMUNICATION, MEMCPY, MEMSET, classes_of, device_classes
from profiling.attribution.coding import coded, distinct, is_empty, or_null, short_names
from profiling.attribution.context import (
    LAYER_PREFIX,
    Context,
    find_context,
    is_call_of_collective,
    layer_name,
    works,
)
from profiling.attribution.credit import Credit, credit_operators
from profiling.attribution.events import LAYER, OPERATOR, RANGE, Columns, Events, Trace, name_flags, pick
from profiling.attribution.launches import (
    launch_columns,
    launch_of,
    matching,
    synchronizations_table,
)
from profiling.attribution.memory import memory_table
from profiling.attribution.message_rows import Messages, messages_of
from profiling.attribution.messages import ONE_OF_SEVERAL, between_two
from profiling.attribution.passes import LOADING, NONE, UPDATING, stage_of
from profiling.attribution.windows import Windows
from profiling.converted import Converted, collect
from profiling.cost.classify import is_helper
from profiling.cost.operators import is_primitive
from profiling.tables import CLASSES, DIRECTIONS, END_OF_BATCH, as_table


def attribute(
    trace: Trace,
    rank: int | None = None,
    first_batch: int | None = None,
    subject: str = "the trace",
    name_operators: Callable[[Events, Context], Context] = lambda events, context: context,
) -> Converted:
    """All that :func:`attribute_in_windows` gives, as a whole."""
    findings: list[str] = []
    pieces = attribute_in_windows(trace, findings, rank, first_batch, subject, name_operators)
    return collect(pieces, findings)


def attribute_in_windows(
    trace: Trace,
    findings: list[str],
    rank: int | None = None,
    first_batch: int | None = None,
    subject: str = "the trace",
    name_operators: Callable[[Events, Context], Context] = lambda events, context: context,
    batches: bool = False,
    batch_marker: str = "",
) -> Iterator[tuple[str, pa.Table]]:
    """Pieces of the tables ``kernels``, ``markers``, ``synchronizations`` and ``memory`` of a rank.

    Args:
        findings: takes what was found on the way, when all pieces are made.
        rank: for the rows; None: the trace's own, else 0.
        first_batch, batch_marker: see :func:`profiling.attribution.batch_times.find_batches`.
        subject: names the trace in findings.
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
    collected = BatchRows(windows.batches, trace.on_device) if batches else None
    for window in windows:
        events = window.events
        context = name_operators(events, find_context(events, windows.batches))
        rows = (
            _device_rows(events, context, trace, windows.by_launch)
            if trace.on_device
            else _host_rows(events, context, trace, window.owns)
        )
        tally.add(rows.time_ns, rows.start_ns, rows.kind == COMMUNICATION)
        yield "kernels", _kernels(rows, events, context, rank, collected)
        yield "markers", _markers(events, context, rank, window.owns)
        waits = synchronizations_table(events, rank)
        if len(waits):
            yield "synchronizations", waits
        if len(events.memory["time_ns"]):
            yield "memory", memory_table(events, context, rank)
    if collected is not None:
        yield "batches", collected.table(rank)
        trace.findings += collected.findings
    findings += [f"{subject}: {finding}" for finding in tally.findings()]


@dataclass
class _Rows:
    """What becomes the table, before the numbers become names; arrays of one length."""

    name: np.ndarray
    kind: np.ndarray  # index of CLASSES
    operator: np.ndarray  # host event, -1: none
    host: np.ndarray  # host event that says where the row stands, -1: none
    time_ns: np.ndarray  # when it was launched
    start_ns: np.ndarray
    duration_ns: np.ndarray
    device: np.ndarray
    stream: np.ndarray
    flops: np.ndarray
    bytes: np.ndarray
    correlation: np.ndarray
    messages: Messages
    grid: np.ndarray | None = None
    block: np.ndarray | None = None
    blocks_per_sm: np.ndarray | None = None
    occupancy_pct: np.ndarray | None = None
    calls: Columns | None = None  # of the table, about the calls that launched them


def _device_rows(events: Events, context: Context, trace: Trace, by_launch: bool) -> _Rows:
    device, host = events.device, context.nest.host
    launch = launch_of(events) if by_launch else None
    place, time_ns = _launched_at(events, context, launch)
    operator = pick(context.operator, place)
    kind = device_classes(events, host["name"], operator)
    collective = kind == COMMUNICATION
    operators = np.concatenate([operator, place[collective]])
    credit = credit_operators(events, context, distinct(operators[operators >= 0]), _group_size(trace))
    flops, moved = _share(events, device, operator, kind, credit)
    messages = messages_of(
        events, collective, device["name"], device["message"], place, credit.messages, trace.group
    )
    return _Rows(
        name=device["name"], kind=kind, operator=operator, host=place, time_ns=time_ns,
        start_ns=device["start_ns"], duration_ns=device["duration_ns"], device=device["device"],
        stream=device["stream"], flops=flops, bytes=messages.bytes(moved), correlation=device["correlation"],
        messages=messages,
        grid=device["grid"], block=device["block"],
        blocks_per_sm=device["blocks_per_sm"], occupancy_pct=device["occupancy_pct"],
        calls=None if launch is None else launch_columns(events, launch),
    )  # fmt: skip


def _launched_at(
    events: Events, context: Context, launch: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray]:
    """Where and when each device activity was launched: host event and time in ns; -1: not recorded."""
    device, launches, host = events.device, events.launches, context.nest.host
    if launch is not None:
        time_ns = pick(launches["start_ns"], launch)
        place = np.full(len(launch), -1, dtype=np.int64)
        launched = launch >= 0
        place[launched] = context.nest.innermost(launches["thread"][launch[launched]], time_ns[launched])
        return place, time_ns
    # Without records of launches the operator's own number is the only link. With them it must not be used:
    # some versions write the correlation there.
    place = matching(host["external"], np.where(device["external"] > 0, device["external"], -1))
    return place, pick(host["start_ns"], place)


def _share(
    events: Events, device: Columns, operator: np.ndarray, kind: np.ndarray, credit: Credit
) -> tuple[np.ndarray, np.ndarray]:
    """FLOPs and bytes of each device activity: its share of its operator's, by time.

    FLOPs go to the kernels that do the arithmetic, not to those that rearrange data for it. Copies, sets and
    collectives do none, and have bytes of their own.
    """
    flops = np.full(len(operator), np.nan)
    moved = np.full(len(operator), np.nan)
    alone = np.isin(kind, (MEMCPY, MEMSET, COMMUNICATION))
    shared = np.flatnonzero((operator >= 0) & ~alone)
    whose = operator[shared]
    time = device["duration_ns"][shared].astype(np.float64) + 1  # so that no sum is zero
    helper = name_flags(events.names, is_helper)[device["name"][shared]]
    size = len(credit.flops)
    works_time = np.bincount(whose, np.where(helper, 0, time), size)
    all_time = np.bincount(whose, time, size)
    only_helpers = works_time[whose] == 0
    part = np.where(
        only_helpers, time / all_time[whose], np.where(helper, 0, time / np.maximum(works_time[whose], 1))
    )
    flops[shared] = credit.flops[whose] * part
    moved[shared] = credit.bytes[whose] * time / all_time[whose]
    flops[alone] = 0
    copies = np.isin(kind, (MEMCPY, MEMSET))
    within = name_flags(events.names, lambda name: "DtoD" in name or "PtoP" in name)[device["name"]]
    moved[copies] = (device["bytes"] * np.where(within, 2, 1))[copies]
    return flops, moved


def _group_size(trace: Trace) -> int:
    """The ranks of the process group of collectives that do not say it; 0: not known."""
    if trace.group.group == ONE_OF_SEVERAL or (trace.group.size or trace.world_size) < 2:
        return 0
    return trace.group.size or trace.world_size


def _host_rows(
    events: Events, context: Context, trace: Trace, owned: Callable[[np.ndarray], np.ndarray]
) -> _Rows:
    nested, host = context.nest, context.nest.host
    index = np.arange(len(host["name"]))
    is_operator = (host["kind"] == OPERATOR) & ~context.node
    # The outermost operator of its own work, or, where none is known, one that calls no other.
    own = context.operator == index
    calls_none = ~nested.any_below(works(context))
    communicates = context.by_name(is_call_of_collective)
    candidate = is_operator & ~communicates & ((own & context.by_name(is_primitive)) | calls_none)
    outermost = nested.outermost(np.where(candidate, index, -1))
    # A collective that is still open when the next window begins is a row of its own window only.
    loose = context.loose & owned(host["start_ns"])
    rows = np.flatnonzero((candidate & (outermost == index)) | loose)
    credit = credit_operators(events, context, rows, _group_size(trace))
    kind = classes_of(events.names)[host["name"][rows]]
    collective = kind == COMMUNICATION
    name = host["name"][rows]
    messages = messages_of(
        events, collective, name, host["message"][rows], rows, credit.messages, trace.group
    )
    return _Rows(
        name=host["name"][rows], kind=kind, operator=rows, host=rows, time_ns=host["start_ns"][rows],
        start_ns=host["start_ns"][rows], duration_ns=(host["end_ns"] - host["start_ns"])[rows],
        device=np.full(len(rows), -1), stream=np.array(events.threads, dtype=np.int64)[host["thread"][rows]],
        flops=np.where(collective, 0, credit.flops[rows]), bytes=messages.bytes(credit.bytes[rows]),
        correlation=host["external"][rows], messages=messages,
    )  # fmt: skip


def _passes(rows: _Rows, events: Events, context: Context) -> tuple[np.ndarray, np.ndarray]:
    """Direction and class of each row: what a kernel's name and its place tell together."""
    direction = pick(context.direction, rows.host, NONE)
    # What a thread without operators launches (autograd's, to some tools) is of the stage of its time.
    alone = (rows.host < 0) & (rows.time_ns >= 0)
    direction[alone] = stage_of(events.names, context.nest.host, rows.time_ns[alone])
    kind = rows.kind.copy()
    copied_in = name_flags(events.names, lambda name: "HtoD" in name or "HOST_TO_DEVICE" in name)[rows.name]
    # The next batch is copied to the GPU beside the forward pass, not in it; maybe by a loader's own thread.
    stray = alone | ((rows.host >= 0) & ((direction == NONE) | pick(context.guessed, rows.host, False)))
    # Where nothing tells batches apart, nothing says that there is a next one, or a loader.
    stray &= context.batches.source != WHOLE
    direction[(kind == CLASS["loader"]) | (copied_in & stray)] = LOADING
    # An elementwise kernel's name does not say for whom it works; its place does.
    kind[(direction == UPDATING) & (kind == CLASS["pointwise"])] = CLASS["optimizer"]
    return direction, kind


def _batch_of(rows: _Rows, batches: BatchTimes, alone: bool) -> np.ndarray:
    """The batch of each row, by when it was launched; where the kernels tell batches, by when it began."""
    if batches.source in (PERIOD, WHOLE):
        return batches.of(rows.start_ns)
    of_row = np.where(rows.time_ns >= 0, batches.of(rows.time_ns), -1)
    if not alone or (rows.time_ns >= 0).all():
        return of_row
    # What has no launch of its own (a graph's kernels, to some tools) is of the batch of what ran before it.
    # Before the first that has one, and behind the last, nothing says where it belongs.
    order = np.argsort(rows.start_ns, kind="stable")
    known = np.flatnonzero(rows.time_ns[order] >= 0)
    before = np.searchsorted(known, np.arange(len(order)), side="right") - 1
    between = (before >= 0) & (before < len(known) - 1) & (rows.time_ns[order] < 0)
    of_row[order[between]] = of_row[order[known[before[between]]]]
    return of_row


def _kernels(
    rows: _Rows, events: Events, context: Context, rank: int, collected: BatchRows | None
) -> pa.Table:
    direction, kind = _passes(rows, events, context)
    batch = _batch_of(rows, context.batches, collected is not None)
    if collected is not None:
        end_ns = rows.start_ns + rows.duration_ns
        collected.add(batch, rows.time_ns, rows.start_ns, end_ns, direction, kind)
    texts = {
        "name": (rows.name, events.names),
        "short_name": (rows.name, None),
        "class": (kind, CLASSES),
        "direction": (direction, DIRECTIONS),
        "operator": (pick(context.nest.host["name"], rows.operator), events.names),
        "layer": (pick(context.layer, rows.host), [layer_name(name) for name in events.names]),
    }
    columns = {
        name: coded(codes, values or short_names(events.names, rows.name))
        for name, (codes, values) in texts.items()
    }
    columns |= rows.messages.columns()
    for name, codes in (("grid", rows.grid), ("block", rows.block)):
        if codes is not None:
            columns[name] = coded(np.where(is_empty(events.names)[codes], -1, codes), events.names)
    for name, values in (("blocks_per_sm", rows.blocks_per_sm), ("occupancy_pct", rows.occupancy_pct)):
        if values is not None:
            columns[name] = values  # NaN: the tool did not say
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
        **(rows.calls or {}),
    }
    table = as_table("kernels", columns)
    if (rows.start_ns[1:] >= rows.start_ns[:-1]).all():
        return table
    return table.take(pa.array(np.argsort(rows.start_ns, kind="stable")))


def _markers(
    events: Events, context: Context, rank: int, owned: Callable[[np.ndarray], np.ndarray]
) -> pa.Table:
    """The ranges that were opened; layers and collectives are told by the kernels' table."""
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
