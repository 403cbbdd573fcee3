"""In which batch, pass and layer was something done, by ranges, autograd's sequence numbers and threads?"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from profiling.cost import is_bookkeeping, is_primitive
from profiling.events import LAYER, OPERATOR, RANGE, Events
from profiling.nesting import Nest, nest
from profiling.tables import BACKWARD, DIRECTIONS, END_OF_BATCH, FORWARD, UPDATE

LAYER_PREFIX = "Layer: "
FPROP, BPROP, UPDATING, LOADING, NONE = (DIRECTIONS.index(name) for name in DIRECTIONS)

# A node of the backward graph as autograd runs it: AddmmBackward0, torch::autograd::AccumulateGrad ...
_NODE = re.compile(r"^autograd::engine::|^torch::autograd::|^(?!.*::)\w+Backward\d*$")
_COLLECTIVE = re.compile(r"^(nccl|gloo|mpi|ucc|xccl):")
_STAGES = (
    (re.compile(rf"^({FORWARD}$|DistributedDataParallel\.forward$|#+ *forward\b)"), FPROP),
    (re.compile(rf"^({BACKWARD}$|#+ *backward\b)"), BPROP),
    (re.compile(rf"^({UPDATE}$|Optimizer\.|#+ *(optimizer|zero_grad)\b)"), UPDATING),
    (re.compile(r"^(enumerate\(DataLoader\)|#+ *(copy_batch|wait_for_batch|dataload))"), LOADING),
)
_STEP = re.compile(r"^ProfilerStep#?\s*(\d+)$")
_OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")


@dataclass
class Context:
    """Host events with all that is known of where they stand; arrays run parallel to ``nest.host``.

    Attributes:
        operator: index of the operator that does the work an event belongs to; -1: none.
        direction: index into :data:`profiling.tables.DIRECTIONS`.
        guessed: whether the direction is told by nothing but the neighbourhood of forward operators.
        layer: index into ``names`` of the layer's range; -1: not known.
        sequence: of the nearest operator that has one, forward or backward.
        forward: index of the forward operator whose backward an event belongs to; -1: none.
        node: whether the event is a node of the backward graph.
        loose: whether it is an asynchronous collective.
        batch_of: times in ns -> batch index, -1 outside every batch.
        batch_source: what tells batches apart, for people; empty if nothing does.
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
    batch_of: Callable[[np.ndarray], np.ndarray]
    batch_source: str

    def by_name(self, test: Callable[[str], bool]) -> np.ndarray:
        """``test`` of each event's name, as bools."""
        return name_flags(self.names, test)[self.nest.host["name"]]


def name_flags(names: list[str], test: Callable[[str], bool]) -> np.ndarray:
    """``test`` of each distinct name."""
    return np.fromiter((test(name) for name in names), dtype=bool, count=len(names))


def find_context(events: Events, first_batch: int | None = None) -> Context:
    """Where every host event stands.

    Args:
        first_batch: index of the batch in which the recording began, where the training loop marks batches
            with ``End of Batch``; None: a file, in which PyTorch's own step numbers are preferred.
    """
    names = events.names
    is_collective = name_flags(names, lambda name: bool(_COLLECTIVE.match(name)))
    nested = nest(events.host, is_collective[events.host["name"]] & (events.host["kind"] == RANGE))
    host = nested.host
    index = np.arange(len(host["name"]))
    is_operator = host["kind"] == OPERATOR
    node = is_operator & name_flags(names, lambda name: bool(_NODE.search(name)))[host["name"]]
    node |= is_operator & (host["forward_thread"] > 0) & ~name_flags(names, _is_generic)[host["name"]]
    primitive = is_operator & ~node & name_flags(names, is_primitive)[host["name"]]
    operator = nested.outermost(np.where(primitive, index, -1))
    nearest_operator = nested.nearest(np.where(is_operator, index, -1))
    operator = np.where(operator >= 0, operator, nearest_operator)

    sequence = nested.nearest(np.where(is_operator, host["sequence"], -1))
    inside_node = nested.nearest(np.where(node, index, -1)) >= 0
    forward = nested.nearest(np.where(node, _forward_of(host, node, is_operator), -1))
    layer_own = np.where(_is_layer(names, host), host["name"], -1).astype(np.int64)
    layer = nested.nearest(layer_own)
    layer = np.where((layer < 0) & (forward >= 0), layer[forward], layer)
    batch_of, source = _batches(names, host, first_batch)
    direction, guessed = _directions(names, nested, inside_node, sequence, node)
    return Context(
        names=names,
        nest=nested,
        operator=operator,
        direction=direction,
        guessed=guessed,
        layer=layer,
        sequence=sequence,
        forward=forward,
        node=node,
        loose=is_collective[host["name"]] & (host["kind"] == RANGE),
        batch_of=batch_of,
        batch_source=source,
    )


def _is_generic(name: str) -> bool:
    return name.startswith(("aten::", "c10d::"))


def _is_layer(names: list[str], host: dict[str, np.ndarray]) -> np.ndarray:
    ours = name_flags(names, lambda name: name.startswith(LAYER_PREFIX))[host["name"]]
    return ours | (host["kind"] == LAYER)


def layer_name(name: str) -> str:
    """The layer that a range names."""
    return name.removeprefix(LAYER_PREFIX).removeprefix("nn.Module: ")


def _forward_of(host: dict[str, np.ndarray], node: np.ndarray, is_operator: np.ndarray) -> np.ndarray:
    """For each node of the backward graph: the last operator before it with its sequence number; else -1."""
    has = is_operator & (host["sequence"] >= 0)
    pool = np.flatnonzero(has & (node | (host["forward_thread"] <= 0)))
    order = pool[np.lexsort((node[pool], host["start_ns"][pool], host["sequence"][pool]))]
    place = np.where(node[order], -1, np.arange(len(order)))
    last = np.maximum.accumulate(place) if len(place) else place
    same = (last >= 0) & (host["sequence"][order[last]] == host["sequence"][order])
    forward = np.full(len(node), -1, dtype=np.int64)
    forward[order] = np.where(same & node[order], order[last], -1)
    return forward


def backward_of(context: Context, asked: np.ndarray) -> np.ndarray:
    """For each asked host event: the first node after it with its sequence number and inputs; else -1.

    Its first input is the gradient of the event's output, and so has the output's sizes.
    """
    host = context.nest.host
    nodes = np.flatnonzero(context.node & (host["sequence"] >= 0) & (host["inputs"] >= 0))
    pool = np.concatenate([nodes, asked])
    is_node = np.arange(len(pool)) < len(nodes)
    sequence = context.sequence[pool]
    order = np.lexsort((is_node, -host["start_ns"][pool], sequence))
    # In this order time runs backwards: the node met last is the first one after.
    place = np.where(is_node[order], np.arange(len(order)), -1)
    last = np.maximum.accumulate(place) if len(place) else place
    same = (last >= 0) & (sequence[order[last]] == sequence[order]) & (sequence[order] >= 0)
    found = np.full(len(pool), -1, dtype=np.int64)
    found[order] = np.where(same, pool[order[last]], -1)
    return found[len(nodes) :]


def _directions(
    names: list[str], nested: Nest, inside_node: np.ndarray, sequence: np.ndarray, node: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The direction of each host event, and whether it is a guess."""
    host = nested.host
    of_name = np.array([_stage(name) for name in names], dtype=np.int64)
    staged = np.where(host["kind"] == RANGE, of_name[host["name"]], -1)
    around = nested.nearest(staged)
    by_time = _stage_at(host, staged, host["start_ns"])
    by_thread = _only_backward(host, inside_node)
    in_graph = np.isin(sequence, host["sequence"][node & (host["sequence"] >= 0)]) & (sequence >= 0)
    told = (around >= 0) | inside_node | (by_time >= 0) | by_thread
    direction = np.select(
        [around == UPDATING, inside_node, around >= 0, by_time >= 0, by_thread, in_graph],
        [UPDATING, BPROP, around, by_time, BPROP, FPROP],
        NONE,
    )
    return direction, in_graph & ~told


def _only_backward(host: dict[str, np.ndarray], inside_node: np.ndarray) -> np.ndarray:
    """Whether an event's thread is autograd's own: it runs the backward graph, nothing of the forward pass.

    What such a thread does between two nodes (it adds up the gradients of a tensor used twice) is backward.
    """
    forward = (host["sequence"] >= 0) & (host["forward_thread"] <= 0) & ~inside_node
    if not forward.any():  # a trace without sequence numbers does not tell whose a thread is
        return np.zeros(len(forward), dtype=bool)
    size = int(host["thread"].max(initial=-1)) + 1
    backward_thread = np.bincount(host["thread"], inside_node, size) > 0
    forward_thread = np.bincount(host["thread"], forward | (host["kind"] == LAYER), size) > 0
    return (backward_thread & ~forward_thread)[host["thread"]]


def _stage(name: str) -> int:
    return next((direction for pattern, direction in _STAGES if pattern.search(name)), -1)


def _stage_at(host: dict[str, np.ndarray], staged: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The stage that some thread was in at a time; -1 if none."""
    ranges = np.flatnonzero(staged >= 0)
    if not len(ranges):
        return np.full(len(times), -1)
    ranges = ranges[np.lexsort((-host["end_ns"][ranges], host["start_ns"][ranges]))]
    ranges = ranges[~_contained(host["start_ns"][ranges], host["end_ns"][ranges])]
    place = np.searchsorted(host["start_ns"][ranges], times, side="right") - 1
    inside = (place >= 0) & (times <= host["end_ns"][ranges[place]])
    return np.where(inside, staged[ranges[place]], -1)


def _batches(
    names: list[str], host: dict[str, np.ndarray], first: int | None
) -> tuple[Callable[[np.ndarray], np.ndarray], str]:
    """How a time tells its batch, and by what."""

    def ranges(test: Callable[[str], bool]) -> np.ndarray:
        found = np.flatnonzero((host["kind"] == RANGE) & name_flags(names, test)[host["name"]])
        return found[np.argsort(host["start_ns"][found], kind="stable")]

    marks = ranges(lambda name: name == END_OF_BATCH)
    steps = ranges(lambda name: bool(_STEP.match(name)))
    if len(marks) and (first is not None or not len(steps)):
        return _ended_by(host["start_ns"][marks], first or 0), END_OF_BATCH
    if len(steps):
        numbers = np.array([int(_STEP.match(names[name])[1]) for name in host["name"][steps]])  # type: ignore[index]
        return _within(host["start_ns"][steps], host["end_ns"][steps], numbers), "ProfilerStep"
    updates = ranges(lambda name: bool(_OPTIMIZER_STEP.match(name)))
    # Another hook's range inside the first (Optimizer.step#SGD.step twice) is the same step.
    outer = updates[~_contained(host["start_ns"][updates], host["end_ns"][updates])]
    if len(outer):
        return _ended_by(host["end_ns"][outer], first or 0), "Optimizer.step"
    return (lambda times: np.full(len(times), -1)), ""


def _contained(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Whether each range (sorted by start) lies in one before it."""
    reach = np.maximum.accumulate(end) if len(end) else end
    return np.concatenate([[False], end[1:] <= reach[:-1]]) if len(end) else np.zeros(0, dtype=bool)


def _ended_by(ends: np.ndarray, first: int) -> Callable[[np.ndarray], np.ndarray]:
    def batch_of(times: np.ndarray) -> np.ndarray:
        place = np.searchsorted(ends, times, side="left")
        return np.where(place < len(ends), place + first, -1)

    return batch_of


def _within(start: np.ndarray, end: np.ndarray, number: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    def batch_of(times: np.ndarray) -> np.ndarray:
        place = np.searchsorted(start, times, side="right") - 1
        return np.where((place >= 0) & (times <= end[place]), number[place], -1)

    return batch_of


def works(context: Context) -> np.ndarray:
    """Whether each host event is an operator that does work: no range, no graph node, no mere view."""
    return (
        (context.nest.host["kind"] == OPERATOR)
        & ~context.node
        & ~context.by_name(lambda name: is_bookkeeping(name) or name.startswith("c10d::"))
        & ~context.by_name(lambda name: name == "record_param_comms")
    )
