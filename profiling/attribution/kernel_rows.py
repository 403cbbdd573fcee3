"""Which rows has the table of kernels, before numbers become names? Each with its operator and cost.

On a GPU a row is a device activity, found by its launch; on a CPU a leaf operator.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from profiling.attribution.classes import COMMUNICATION, MEMCPY, MEMSET, classes_of, device_classes
from profiling.attribution.coding import distinct
from profiling.attribution.context import Context, is_call_of_collective, works
from profiling.attribution.credit import Credit, credit_operators
from profiling.attribution.events import OPERATOR, Columns, Events, Trace, name_flags, pick
from profiling.attribution.launches import launch_columns, launch_of, matching
from profiling.attribution.message_rows import Messages, messages_of
from profiling.attribution.messages import ONE_OF_SEVERAL
from profiling.cost.classify import is_helper
from profiling.cost.operators import is_primitive


@dataclass
class KernelRows:
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


def device_rows(events: Events, context: Context, trace: Trace, by_launch: bool) -> KernelRows:
    """A row for each device activity.

    Args:
        by_launch: launches were recorded, and tie activities to the host.
    """
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
    return KernelRows(
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


def host_rows(
    events: Events, context: Context, trace: Trace, owned: Callable[[np.ndarray], np.ndarray]
) -> KernelRows:
    """A row for each leaf operator, and for each collective that runs in a thread of its own.

    Args:
        owned: which times are of this window; a collective may reach into it from the one before.
    """
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
    return KernelRows(
        name=host["name"][rows], kind=kind, operator=rows, host=rows, time_ns=host["start_ns"][rows],
        start_ns=host["start_ns"][rows], duration_ns=(host["end_ns"] - host["start_ns"])[rows],
        device=np.full(len(rows), -1), stream=np.array(events.threads, dtype=np.int64)[host["thread"][rows]],
        flops=np.where(collective, 0, credit.flops[rows]), bytes=messages.bytes(credit.bytes[rows]),
        correlation=host["external"][rows], messages=messages,
    )  # fmt: skip
