"""In which batch, pass and layer was something done, by ranges, autograd's sequence numbers and threads?"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from profiling.attribution.batch_times import BatchTimes
from profiling.attribution.events import LAYER, OPERATOR, RANGE, Columns, Events, name_flags
from profiling.attribution.nesting import Nest, nest
from profiling.attribution.passes import find_directions
from profiling.cost.operators import is_bookkeeping, is_primitive

LAYER_PREFIX = "Layer: "

# A node of the backward graph as autograd runs it: AddmmBackward0, torch::autograd::AccumulateGrad ...
_NODE = re.compile(r"^autograd::engine::|^torch::autograd::|^(?!.*::)\w+Backward\d*$")
_COLLECTIVE = re.compile(r"^(nccl|gloo|mpi|ucc|xccl):")


@dataclass
class Context:
    """Host events with all that is known of where they stand; arrays run parallel to ``nest.host``.

    Attributes:
        operator: index of the operator that does the work an event belongs to; -1: none.
        direction: index into :data:`profiling.schemas.DIRECTIONS`.
        guessed: whether the direction is told by nothing but the neighbourhood of forward operators.
        layer: index into ``names`` of the layer's range; -1: not known.
        sequence: of the nearest operator that has one, forward or backward.
        forward: index of the forward operator whose backward an event belongs to; -1: none.
        node: whether the event is a node of the backward graph.
        loose: whether it is an asynchronous collective.
        batches: in which batch a time lies.
    """

    names: list[str]
    nest: Nest
    operator: np.ndarray
    direction: np.ndarray
    guessed: np.ndarray
    layer: np.ndarray
    sequence: np.ndarray
    forward: np.ndarray
    node: np.ndarray
    loose: np.ndarray
    batches: BatchTimes

    def by_name(self, test: Callable[[str], bool]) -> np.ndarray:
        """``test`` of each event's name, as bools."""
        return name_flags(self.names, test)[self.nest.host["name"]]


def find_context(events: Events, batches: BatchTimes) -> Context:
    """Where every host event stands."""
    names = events.names
    is_collective = name_flags(names, lambda name: bool(_COLLECTIVE.match(name)))
    nested = nest(events.host, is_collective[events.host["name"]] & (events.host["kind"] == RANGE))
    host = nested.host
    index = np.arange(len(host["name"]))
    is_operator = host["kind"] == OPERATOR
    node = is_operator & name_flags(names, lambda name: bool(_NODE.search(name)))[host["name"]]
    node |= is_operator & (host["forward_thread"] > 0) & ~name_flags(names, _is_generic)[host["name"]]
    sequence = nested.nearest(np.where(is_operator, host["sequence"], -1))
    inside_node = nested.nearest(np.where(node, index, -1)) >= 0
    forward = nested.nearest(np.where(node, forward_of(host, node, is_operator), -1))
    layer = nested.nearest(np.where(_is_layer(names, host), host["name"], -1).astype(np.int64))
    layer = np.where((layer < 0) & (forward >= 0), layer[forward], layer)
    direction, guessed = find_directions(names, nested, inside_node, sequence, node)
    return Context(
        names=names,
        nest=nested,
        operator=_operators(names, nested, node),
        direction=direction,
        guessed=guessed,
        layer=layer,
        sequence=sequence,
        forward=forward,
        node=node,
        loose=is_collective[host["name"]] & (host["kind"] == RANGE),
        batches=batches,
    )


def _operators(names: list[str], nested: Nest, node: np.ndarray) -> np.ndarray:
    """The operator that does each event's work: the outermost whose work is its own, else the nearest."""
    host = nested.host
    index = np.arange(len(node))
    is_operator = host["kind"] == OPERATOR
    primitive = is_operator & ~node & name_flags(names, is_primitive)[host["name"]]
    outermost = nested.outermost(np.where(primitive, index, -1))
    return np.where(outermost >= 0, outermost, nested.nearest(np.where(is_operator, index, -1)))


def _is_generic(name: str) -> bool:
    return name.startswith(("aten::", "c10d::"))


def _is_layer(names: list[str], host: Columns) -> np.ndarray:
    ours = name_flags(names, lambda name: name.startswith(LAYER_PREFIX))[host["name"]]
    return ours | (host["kind"] == LAYER)


def layer_name(name: str) -> str:
    """The layer that a range names."""
    return name.removeprefix(LAYER_PREFIX).removeprefix("nn.Module: ")


def forward_of(host: Columns, node: np.ndarray, is_operator: np.ndarray) -> np.ndarray:
    """For each node of the backward graph: the last operator before it with its sequence number; else -1."""
    has = is_operator & (host["sequence"] >= 0)
    pool = np.flatnonzero(has & (node | (host["forward_thread"] <= 0)))
    # An as-of join. In this order the rows of each number follow one another by start, an operator before a
    # node of the same start. Places of operators rise, so that the highest so far is the last operator at or
    # before a row; if its number is another, there is none.
    order = pool[np.lexsort((node[pool], host["start_ns"][pool], host["sequence"][pool]))]
    place = np.where(node[order], -1, np.arange(len(order)))
    last = np.maximum.accumulate(place) if len(place) else place
    same = (last >= 0) & (host["sequence"][order[last]] == host["sequence"][order])
    forward = np.full(len(node), -1, dtype=np.int64)
    forward[order] = np.where(same & node[order], order[last], -1)
    return forward


def backward_of(context: Context, events: np.ndarray) -> np.ndarray:
    """For each host event: the first node after it with its sequence number and inputs; else -1.

    Its first input is the gradient of the event's output, and so has the output's sizes.
    """
    host = context.nest.host
    nodes = np.flatnonzero(context.node & (host["sequence"] >= 0) & (host["inputs"] >= 0))
    pool = np.concatenate([nodes, events])
    is_node = np.arange(len(pool)) < len(nodes)
    sequence = context.sequence[pool]
    order = np.lexsort((is_node, -host["start_ns"][pool], sequence))
    # As in forward_of, but that in this order time runs backwards: the node met last is the first one after.
    place = np.where(is_node[order], np.arange(len(order)), -1)
    last = np.maximum.accumulate(place) if len(place) else place
    same = (last >= 0) & (sequence[order[last]] == sequence[order]) & (sequence[order] >= 0)
    first_after = np.full(len(pool), -1, dtype=np.int64)
    first_after[order] = np.where(same, pool[order[last]], -1)
    return first_after[len(nodes) :]


def is_call_of_collective(name: str) -> bool:
    """Whether an operator asks for a collective, or waits for one, which is recorded by itself."""
    return name.startswith(("c10d::", "_c10d_functional")) or name == "record_param_comms"


def works(context: Context) -> np.ndarray:
    """Whether each host event is an operator that does work: no range, no graph node, no mere view."""
    return (
        (context.nest.host["kind"] == OPERATOR)
        & ~context.node
        & ~context.by_name(lambda name: is_bookkeeping(name) or is_call_of_collective(name))
    )
