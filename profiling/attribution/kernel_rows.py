"""Rows of the kernel table, before codes become names: launch, operator, cost and message of each kernel.

On a GPU a row is a device activity, matched to its launch; on a CPU it is a leaf operator.
"""

import math
import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from profiling.attribution.context import Context, backward_of, is_call_of_collective, works
from profiling.attribution.events import (
    CLASS,
    COMMUNICATION,
    MEMCPY,
    MEMSET,
    OPERATOR,
    Columns,
    Events,
    Interner,
    Trace,
    array_of,
    classes_of,
    coded,
    distinct,
    name_flags,
    or_null,
    pick,
)
from profiling.attribution.messages import ONE_OF_SEVERAL, UNKNOWN, Message, complete, kind_of
from profiling.cost.classify import is_helper
from profiling.cost.operators import Inputs, Mask, is_primitive, operator_cost
from profiling.tables import as_table

# Their output's sizes follow from stride and padding, which not every version records.
_NEEDS_OUTPUT = re.compile(r"conv|pool")
_CONVOLUTION_BACKWARD = re.compile(r"^aten::\w*conv\w*_backward$")
_COLLECTIVE = re.compile(r"^(c10d::|_c10d_functional|record_param_comms$|(nccl|gloo|mpi|ucc|xccl):)")


@dataclass
class Credit:
    """Costs by host event, NaN where not known or not asked; what is known of those that are collectives."""

    flops: np.ndarray
    bytes: np.ndarray
    messages: dict[int, Message]


def credit_operators(events: Events, context: Context, indices: np.ndarray, ranks: int = 0) -> Credit:
    """FLOPs, bytes and messages of host events; ``ranks``: of an unnamed process group, 0: not known."""
    host = context.nest.host
    size = len(host["name"])
    credit = Credit(np.full(size, np.nan), np.full(size, np.nan), {})
    if not len(indices):
        return credit
    collective = context.by_name(lambda name: bool(_COLLECTIVE.match(name)))
    rows = indices[collective[indices]].tolist()
    asked = _calls(events, context, collective) if rows else {}
    credit.messages.update((index, _message(events, context, index, asked, ranks)) for index in rows)
    # Views cost nothing, with or without recorded inputs; whatever does work needs them.
    indices = indices[~collective[indices] & (host["inputs"][indices] >= 0) | ~works(context)[indices]]
    # The inputs of the backward node, where the sizes of an operator's output must be found.
    outputs = np.full(len(indices), -1, dtype=np.int64)
    needs = context.by_name(lambda name: bool(_NEEDS_OUTPUT.search(name)))[indices]
    needing = np.flatnonzero(needs & ~context.node[indices])
    nodes = backward_of(context, indices[needing])
    outputs[needing] = np.where(nodes >= 0, host["inputs"][nodes], -1)
    keys = np.stack(
        [host["name"][indices], host["inputs"][indices], outputs, _masks(events, context, indices)]
    )
    distinct, which = np.unique(keys, axis=1, return_inverse=True)
    costs = np.array([_cost(events, *key) for key in distinct.T.tolist()]).reshape(-1, 2)
    credit.flops[indices], credit.bytes[indices] = costs[which.ravel()].T
    return credit


def _cost(events: Events, name: int, inputs: int, output: int, mask: int) -> tuple[float, float]:
    gradient = events.inputs[output].tensor(0) if output >= 0 else None
    given = events.inputs[inputs] if inputs >= 0 else Inputs()
    made: Mask | None = (bool(mask & 1), bool(mask & 2), False) if mask >= 0 else None
    cost = operator_cost(events.names[name], given, gradient.sizes if gradient else None, made)
    return (float("nan"), float("nan")) if cost is None else (float(cost.flops), float(cost.bytes))


def _masks(events: Events, context: Context, indices: np.ndarray) -> np.ndarray:
    """Which gradients a convolution's backward makes, where the trace does not say: bits 1 input, 2 weight.

    Old versions call one operator for each. Else both are made, but for the convolution that autograd reaches
    last: what it convolves is the data, which wants no gradient.
    """
    host = context.nest.host
    masks = np.full(len(indices), -1, dtype=np.int64)
    backward = name_flags(events.names, lambda name: bool(_CONVOLUTION_BACKWARD.match(name)))

    def is_recorded(inputs: int) -> bool:
        values = events.inputs[inputs].values if inputs >= 0 else ()
        return any(
            isinstance(one, list) and one and all(isinstance(flag, bool) for flag in one) for one in values
        )

    which = np.flatnonzero(backward[host["name"][indices]])
    silent = [at for at in which if not is_recorded(host["inputs"][indices[at]])]
    if not silent:
        return masks
    makes = {
        bit: context.nest.any_below(context.by_name(lambda name, end=end: name.endswith(end)))  # type: ignore[misc]
        for bit, end in ((1, "_backward_input"), (2, "_backward_weight"))
    }
    rows = indices[silent]
    bits = makes[1][rows] * 1 + makes[2][rows] * 2
    batch = context.batches.of(host["start_ns"][rows])
    sequence = context.sequence[rows]
    order = np.lexsort((sequence, batch))
    is_first = np.zeros(len(rows), dtype=bool)
    is_first[order] = np.concatenate([[True], batch[order][1:] != batch[order][:-1]])
    masks[silent] = np.where(bits > 0, bits, np.where(is_first & (sequence >= 0), 2, 3))
    return masks


def _calls(events: Events, context: Context, collective: np.ndarray) -> dict[int, int]:
    """Of collectives in Gloo's own threads the operator that called for each, by kind, elements and order."""
    host = context.nest.host
    calls = collective & context.by_name(lambda name: name.startswith("c10d::"))
    rows = np.flatnonzero((calls | context.loose) & (host["inputs"] >= 0))
    waiting: dict[tuple[str, int], deque[int]] = {}
    asked: dict[int, int] = {}
    for row in rows[np.argsort(host["start_ns"][rows], kind="stable")].tolist():
        kind, given = kind_of(events.names[host["name"][row]]), events.inputs[host["inputs"][row]]
        sizes = [tensor.elements for tensor in given.tensors if tensor]
        sizes += [sum(tensor.elements for tensor in many) for many in given.lists]
        size = (min if kind == "allgather" else max)(sizes, default=0)
        # Gloo makes a reduce-scatter by an allreduce.
        queue = waiting.setdefault(("allreduce" if kind == "reducescatter" else kind, size), deque())
        if calls[row]:
            queue.append(row)
        elif queue:
            asked[row] = queue.popleft()
    return asked


def _message(events: Events, context: Context, index: int, asked: Mapping[int, int], ranks: int) -> Message:
    """What is known of a collective: as recorded on it or on a collective around it, else by what they are.

    The operator that ``asked`` for it says its kind, else the innermost; the largest of all their tensors is
    the message, but for an allgather of which nothing but the shards is recorded.
    """
    host = context.nest.host
    around = [asked[index]] if index in asked else []
    while index >= 0 and _COLLECTIVE.match(events.names[host["name"][index]]):
        around.append(index)
        index = int(context.nest.parent[index])
    messages = [events.messages[host["message"][one]] for one in around if host["message"][one] >= 0]
    kinds = [kind_of(events.names[host["name"][one]]) for one in around]
    kind = next((one for one in kinds if one != UNKNOWN), "")
    message = complete("", [*messages, Message(kind)], Message())
    if not math.isnan(message.bytes):
        return message
    inputs = [events.inputs[number] for one in around if (number := host["inputs"][one]) >= 0]
    tensors = [tensor for given in inputs for tensor in given.tensors if tensor]
    sizes = [tensor.bytes for tensor in tensors]
    # A list does not say the type of its tensors: it is that of tensors recorded beside it.
    wide = next((one.bytes / one.elements for one in tensors if one.bytes and one.elements), 0)
    lists = [many for given in inputs for many in given.lists]
    sizes += [sum(one.elements * wide if wide else one.bytes for one in many) for many in lists]
    sizes = [size for size in sizes if size]
    moved = float(max(sizes, default=math.nan))
    if message.collective == "allgather" and sizes and max(sizes) == min(sizes):
        moved *= message.size or ranks or math.nan
    return message._replace(bytes=moved)


# --- messages of collectives --------------------------------------------------------------------------


@dataclass(frozen=True)
class Messages:
    """The messages of a table's rows."""

    number: np.ndarray  # of each row, index of ``distinct``; -1: it is no collective
    distinct: list[Message]

    def bytes(self, otherwise: np.ndarray) -> np.ndarray:
        """Of each row the bytes of its message; of those that are no collective what is given."""
        sizes = np.array([*(one.bytes for one in self.distinct), np.nan])
        return np.where(self.number >= 0, sizes[self.number], otherwise)

    def columns(self) -> dict[str, pa.Array]:
        texts = {
            "collective": [one.collective for one in self.distinct],
            "process_group": [one.group for one in self.distinct],
            "group_ranks": [one.ranks for one in self.distinct],
            "dtype": [one.dtype for one in self.distinct],
        }
        sizes = np.array([*(one.size or -1 for one in self.distinct), -1])
        return {
            **{name: self._text(values) for name, values in texts.items()},
            "group_size": or_null(sizes[self.number], pa.int32()),
        }

    def _text(self, values: list[str]) -> pa.Array:
        has_text = np.array([*(value not in ("", UNKNOWN) for value in values), False], dtype=bool)
        return coded(np.where(has_text[self.number], self.number, -1), values)


def messages_of(
    events: Events,
    collective: np.ndarray,
    names: np.ndarray,
    own: np.ndarray,
    place: np.ndarray,
    of_calls: Mapping[int, Message],
    group: Message,
) -> Messages:
    """The messages of rows that are collectives.

    Args:
        names: of the rows, as numbers of ``events.names``.
        own: the messages that they bear themselves, as numbers of ``events.messages``; -1: none.
        place: the host events they belong to, whose messages are ``of_calls``.
        group: the process group of those that do not say it.
    """
    rows = np.flatnonzero(collective)
    interner = Interner()
    number = np.full(len(names), -1, dtype=np.int64)
    of_operators = [
        [*([events.messages[one]] if one >= 0 else []), *([of_calls[where]] if where in of_calls else [])]
        for one, where in zip(own[rows].tolist(), place[rows].tolist(), strict=True)
    ]
    texts = [events.names[name] for name in names[rows].tolist()]
    number[rows] = interner.of([complete(*one, group) for one in zip(texts, of_operators, strict=True)])
    return Messages(number, list(interner.index))


# --- launches -----------------------------------------------------------------------------------------

_DENSE = 8  # numbers to find, if each that is known has fewer than so many others beside it
# Of CUDA (with a version behind it, to Nsight Systems), HIP, Level Zero and SYCL.
_WAITS = re.compile(r"Synchronize(_|$)|^(cuda|hip)Free(_|$)|^ur(EventWait|QueueFinish)$")


def launch_columns(events: Events, launch: np.ndarray) -> dict[str, pa.Array]:
    launches = events.launches
    start_ns, end_ns = (pick(launches[name], launch) for name in ("start_ns", "end_ns"))
    thread = pick(np.array(events.threads, dtype=np.int64), pick(launches["thread"], launch))
    timed = end_ns > start_ns
    return {
        "launch_ns": or_null(start_ns, pa.int64()),
        "launch_end_ns": or_null(np.where(timed, end_ns, -1), pa.int64()),
        "launch_thread": array_of(thread, launch >= 0),
    }


def synchronizations_table(events: Events, rank: int) -> pa.Table:
    launches = events.launches
    waits = name_flags([*events.names, ""], lambda name: _WAITS.search(name) is not None)
    rows = np.flatnonzero(waits[launches["name"]])  # -1 is the last, which has no name
    rows = rows[np.argsort(launches["start_ns"][rows], kind="stable")]
    columns = {
        "rank": np.full(len(rows), rank, dtype=np.int32),
        "name": coded(launches["name"][rows], events.names),
        "start_ns": launches["start_ns"][rows],
        "end_ns": launches["end_ns"][rows],
        "thread": np.array(events.threads, dtype=np.int64)[launches["thread"][rows]],
    }
    return as_table("synchronizations", columns)


def matching(numbers: np.ndarray, queried: np.ndarray) -> np.ndarray:
    """Index in ``numbers`` of each queried number; -1 where it is not there, or is below 0."""
    if not len(numbers):
        return np.full(len(queried), -1, dtype=np.int64)
    least, most = int(numbers.min()), int(numbers.max())
    # A table of all numbers from the least to the most, and one place more: what is not known asks for that
    # one, the last, which stays -1. Equal numbers are written last to first, so that the first one remains.
    if most - least < _DENSE * len(numbers):  # as numbers that count launches are: several times as fast
        place_of = np.full(most - least + 2, -1)
        place_of[(numbers - least)[::-1]] = np.arange(len(numbers))[::-1]  # of equal numbers the first
        near = (queried >= max(least, 0)) & (queried <= most)
        return place_of[np.where(near, queried - least, -1)]
    # Too sparse for a table: known[order] rises, and the place of a number among them is its own if equal.
    order = np.argsort(numbers, kind="stable")
    place = order[np.minimum(np.searchsorted(numbers, queried, sorter=order), len(numbers) - 1)]
    return np.where((numbers[place] == queried) & (queried >= 0), place, -1)


# --- rows ---------------------------------------------------------------------------------------------


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
    device_events: Columns | None = None  # that the rows are of
    calls: Columns | None = None  # of the table, about the calls that launched them


_ARITHMETIC = (CLASS["gemm"], CLASS["convolution"])


def _device_classes(events: Events, names: np.ndarray, operator: np.ndarray) -> np.ndarray:
    """The class of each device activity, by its name, or by its operator or record where they know better."""
    of_name, device = classes_of(events.names), events.device
    kind = of_name[device["name"]]
    of_operator = np.where(operator >= 0, of_name[pick(names, operator, 0)], CLASS["other"])
    # A convolution is often done by the very kernels of a GEMM; which it was is the operator's to say.
    either = np.isin(kind, _ARITHMETIC) & np.isin(of_operator, _ARITHMETIC)
    kind = np.where(either | (kind == CLASS["other"]), of_operator, kind)
    # What bears the record of a collective is one, whatever its library calls it.
    bears = np.array([*(bool(one.collective) for one in events.messages), False], dtype=bool)
    kind[bears[device["message"]] & ~np.isin(kind, (MEMCPY, MEMSET))] = COMMUNICATION
    return kind


def device_rows(events: Events, context: Context, trace: Trace, by_launch: bool) -> KernelRows:
    """A row for each device activity; ``by_launch``: recorded launches tie activities to the host."""
    device, launches, host = events.device, events.launches, context.nest.host
    if by_launch:
        # The call that launched each activity; -1: not recorded.
        launch = matching(launches["correlation"], device["correlation"])
        time_ns = pick(launches["start_ns"], launch)
        place = np.full(len(launch), -1, dtype=np.int64)
        launched = launch >= 0
        place[launched] = context.nest.innermost(launches["thread"][launch[launched]], time_ns[launched])
    else:
        # Without records of launches the operator's own number is the only link. With them it must not be
        # used: some versions write the correlation there.
        place = matching(host["external"], np.where(device["external"] > 0, device["external"], -1))
        time_ns = pick(host["start_ns"], place)
    operator = pick(context.operator, place)
    kind = _device_classes(events, host["name"], operator)
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
        messages=messages, device_events=device,
        calls=launch_columns(events, launch) if by_launch else None,
    )  # fmt: skip


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
    """A row for each leaf operator, and for each collective in a thread of its own that this window owns."""
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
    for row, message in credit.messages.items():
        if own := trace.groups.get(events.threads[host["thread"][row]]):
            credit.messages[row] = message._replace(group=own.group, ranks=own.ranks, size=own.size)
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
