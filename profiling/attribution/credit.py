"""The cost of each recorded operator, and the message of each collective."""

import math
import re
from dataclasses import dataclass

import numpy as np

from profiling.attribution.context import Context, backward_of, works
from profiling.attribution.events import Events, name_flags
from profiling.attribution.messages import UNKNOWN, Message, complete, kind_of
from profiling.cost.operators import Mask, operator_cost
from profiling.cost.shapes import Inputs

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
    """FLOPs, bytes and messages of the host events at ``indices``.

    Args:
        ranks: of the process group of collectives that do not say it; 0: not known.
    """
    host = context.nest.host
    size = len(host["name"])
    credit = Credit(np.full(size, np.nan), np.full(size, np.nan), {})
    if not len(indices):
        return credit
    collective = name_flags(events.names, lambda name: bool(_COLLECTIVE.match(name)))[host["name"]]
    credit.messages.update(
        (index, _message(events, context, index, ranks)) for index in indices[collective[indices]].tolist()
    )
    # Views cost nothing, with or without recorded inputs; whatever does work needs them.
    indices = indices[~collective[indices] & (host["inputs"][indices] >= 0) | ~works(context)[indices]]
    outputs = _output_inputs(events, context, indices)
    masks = _masks(events, context, indices)
    keys = np.stack([host["name"][indices], host["inputs"][indices], outputs, masks])
    distinct, which = np.unique(keys, axis=1, return_inverse=True)
    costs = np.array([_cost(events, *key) for key in distinct.T.tolist()]).reshape(-1, 2)
    credit.flops[indices], credit.bytes[indices] = costs[which.ravel()].T
    return credit


def _cost(events: Events, name: int, inputs: int, output: int, mask: int) -> tuple[float, float]:
    gradient = events.inputs[output].tensor(0) if output >= 0 else None
    given = events.inputs[inputs] if inputs >= 0 else Inputs()
    wanted: Mask | None = (bool(mask & 1), bool(mask & 2), False) if mask >= 0 else None
    cost = operator_cost(events.names[name], given, gradient.sizes if gradient else None, wanted)
    return (float("nan"), float("nan")) if cost is None else (float(cost.flops), float(cost.bytes))


def _output_inputs(events: Events, context: Context, indices: np.ndarray) -> np.ndarray:
    """The inputs of the backward node of each operator whose output's sizes must be found; else -1."""
    host = context.nest.host
    outputs = np.full(len(indices), -1, dtype=np.int64)
    needs = name_flags(events.names, lambda name: bool(_NEEDS_OUTPUT.search(name)))[host["name"][indices]]
    needing = np.flatnonzero(needs & ~context.node[indices])
    nodes = backward_of(context, indices[needing])
    outputs[needing] = np.where(nodes >= 0, host["inputs"][nodes], -1)
    return outputs


def _masks(events: Events, context: Context, indices: np.ndarray) -> np.ndarray:
    """Which gradients a convolution's backward makes, where the trace does not say: bits 1 input, 2 weight.

    Old versions call one operator for each. Else both are made, but for the convolution that autograd reaches
    last: what it convolves is the data, which wants no gradient.
    """
    host = context.nest.host
    masks = np.full(len(indices), -1, dtype=np.int64)
    backward = name_flags(events.names, lambda name: bool(_CONVOLUTION_BACKWARD.match(name)))
    which = np.flatnonzero(backward[host["name"][indices]])
    silent = [at for at in which if not _says_mask(events, host["inputs"][indices[at]])]
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


def _says_mask(events: Events, inputs: int) -> bool:
    values = events.inputs[inputs].values if inputs >= 0 else ()
    return any(
        isinstance(value, list) and value and all(isinstance(one, bool) for one in value) for value in values
    )


def _message(events: Events, context: Context, index: int, ranks: int) -> Message:
    """What is known of a collective: as recorded on it or on a collective around it, else by what they are.

    The innermost says the kind (Gloo makes a reduce-scatter by an allreduce); the largest of all their
    tensors is the message, but for an allgather of which nothing but the shards is recorded.
    """
    host = context.nest.host
    around = []
    while index >= 0 and _COLLECTIVE.match(events.names[host["name"][index]]):
        around.append(index)
        index = int(context.nest.parent[index])
    messages = [events.messages[host["message"][one]] for one in around if host["message"][one] >= 0]
    kinds = [kind_of(events.names[host["name"][one]]) for one in around]
    kind = next((one for one in kinds if one != UNKNOWN), "")
    message = complete("", [*messages, Message(kind)], Message())
    if not math.isnan(message.bytes):
        return message
    sizes = [size for one in around for size in _tensor_bytes(events, host["inputs"][one]) if size]
    moved = float(max(sizes, default=math.nan))
    if message.collective == "allgather" and sizes and max(sizes) == min(sizes):
        moved *= message.size or ranks or math.nan
    return message._replace(bytes=moved)


def _tensor_bytes(events: Events, inputs: int) -> list[int]:
    """Bytes of each argument of a call; those of a list are one message."""
    if inputs < 0:
        return []
    given = events.inputs[inputs]
    single = [tensor.bytes for tensor in given.tensors if tensor]
    return single + [sum(tensor.bytes for tensor in many) for many in given.lists]
