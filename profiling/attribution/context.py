"""Context of host events: enclosing event, pass and layer, from ranges, sequence numbers and threads."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from profiling.attribution.batch_times import BatchTimes
from profiling.attribution.events import (
    LAYER,
    OPERATOR,
    RANGE,
    Columns,
    Events,
    contained,
    distinct,
    find_ranges,
    name_flags,
    pick,
)
from profiling.cost.operators import is_bookkeeping, is_primitive
from profiling.schemas import BACKWARD, DIRECTIONS, END_OF_BATCH, FORWARD, UPDATE

_AT_ONCE = 1 << 16  # events as Python's numbers, which take five times as much memory


@dataclass
class Nest:
    """Host events sorted so that a parent stands before its children."""

    host: Columns  # the columns, sorted by thread, then start
    parent: np.ndarray  # index of the innermost event around each one; -1 at the top
    levels: list[np.ndarray]  # indices of the events at depth 0, 1,

    def nearest(self, own: np.ndarray) -> np.ndarray:
        """Each event's own value, or where that is -1 that of the nearest event around it; -1 if none."""
        values = own.copy()
        for level in self.levels[1:]:
            lacking = level[values[level] < 0]
            values[lacking] = values[self.parent[lacking]]
        return values

    def outermost(self, own: np.ndarray) -> np.ndarray:
        """The value of the outermost event around each one (or itself) that has one (is not -1)."""
        values = own.copy()
        for level in self.levels[1:]:
            above = values[self.parent[level]]
            inherits = above >= 0
            values[level[inherits]] = above[inherits]
        return values

    def any_below(self, own: np.ndarray) -> np.ndarray:
        """Whether ``own`` (bool) holds for any event inside each one, itself left out."""
        below = np.zeros(len(own), dtype=bool)
        for level in reversed(self.levels[1:]):
            holds = level[own[level] | below[level]]
            below[self.parent[holds]] = True
        return below

    def innermost(self, thread: np.ndarray, time_ns: np.ndarray) -> np.ndarray:
        """Index of the innermost event that contains a time on a thread; -1 if none does."""
        range_of = np.full(len(time_ns), -1, dtype=np.int64)
        starts, threads = self.host["start_ns"], self.host["thread"]
        # The columns are sorted by thread, then start: a thread is one span in which starts rise. What
        # contains a time is the last event that began by then or one around it: a thread's events are nested.
        for number in distinct(thread):
            low, high = np.searchsorted(threads, [number, number + 1])
            places = np.flatnonzero(thread == number)
            place = np.searchsorted(starts[low:high], time_ns[places], side="right") - 1
            range_of[places] = np.where(place >= 0, place + low, -1)
        outside = np.flatnonzero(range_of >= 0)
        while len(outside):
            outside = outside[self.host["end_ns"][range_of[outside]] < time_ns[outside]]
            range_of[outside] = self.parent[range_of[outside]]
            outside = outside[range_of[outside] >= 0]
        return range_of


def nest(host: Columns, loose: np.ndarray) -> Nest:
    """Sort host events and find their parents; ``loose`` events may end anywhere, and so contain nothing."""
    order = np.lexsort(
        # Of events with equal times the range is outside, then what began first.
        (host["external"], host["kind"] != RANGE, -host["end_ns"], host["start_ns"], host["thread"])
    )
    host = {name: column[order] for name, column in host.items()}
    parent, depth = _parents(host, loose[order])
    # Sorted by depth, level after level is one span; each keeps the order of the events.
    by_depth = np.argsort(depth, kind="stable")
    edges = np.searchsorted(depth[by_depth], np.arange(1, depth.max(initial=0) + 1))
    return Nest(host, parent, np.split(by_depth, edges))


def _parents(host: Columns, loose: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # A stack, event by event: rounding makes children end after their parents, and a stack bears that.
    parent, depth = np.full(len(loose), -1, dtype=np.int64), np.zeros(len(loose), dtype=np.int64)
    stack: list[int] = []
    stack_ends: list[int] = []
    current = None
    for first in range(0, len(loose), _AT_ONCE):
        some = slice(first, first + _AT_ONCE)
        starts, ends = host["start_ns"][some].tolist(), host["end_ns"][some].tolist()
        threads, contains_nothing = host["thread"][some].tolist(), loose[some].tolist()
        parents, depths = [-1] * len(starts), [0] * len(starts)
        for place, start in enumerate(starts):
            if threads[place] != current:
                current = threads[place]
                stack.clear()
                stack_ends.clear()
            while stack and stack_ends[-1] <= start:
                stack.pop()
                stack_ends.pop()
            if stack:
                parents[place] = stack[-1]
                depths[place] = len(stack)
            if not contains_nothing[place]:
                end = ends[place]
                stack.append(first + place)
                stack_ends.append(min(end, stack_ends[-1]) if stack_ends else end)
        parent[some], depth[some] = parents, depths
    return parent, depth


FPROP, BPROP, UPDATING, LOADING, NONE = (DIRECTIONS.index(name) for name in DIRECTIONS)

# Stages' names by our loop, PyTorch itself, TorchRec ("## forward ##") and Lightning ("[pl][profile]...").
_STAGES = (
    (re.compile(rf"^({FORWARD}$|\w+DataParallel\.forward$|#+ *forward\b|\[pl\].*\.training_step$)"), FPROP),
    (re.compile(rf"^({BACKWARD}$|#+ *backward\b|\[pl\].*\.backward$)"), BPROP),
    (re.compile(rf"^({UPDATE}$|Optimizer\.|#+ *(optimizer|zero_grad)\b)"), UPDATING),
    (re.compile(r"^(enumerate\(DataLoader\)|#+ *(copy_batch|wait_for_batch|dataload))"), LOADING),
    (re.compile(r"^\[pl\].*\.\w*dataloader_next$"), LOADING),
)


def find_directions(
    names: list[str], nested: Nest, inside_node: np.ndarray, sequence: np.ndarray, node: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The direction of each host event, and whether it is a guess."""
    host = nested.host
    staged = _staged(names, host)
    around = nested.nearest(staged)
    by_time = _stage_at(host, staged, host["start_ns"])
    by_thread = _only_backward(host, inside_node)
    loading = _is_loading(names, host, host["start_ns"])
    in_graph = np.isin(sequence, host["sequence"][node & (host["sequence"] >= 0)]) & (sequence >= 0)
    # Where a loop marks its forward pass, what stands outside is not of it, whatever its number.
    in_graph &= FORWARD not in names
    determined = (around >= 0) | inside_node | (by_time >= 0) | by_thread | loading
    direction = np.select(
        [around == UPDATING, inside_node, around >= 0, by_time >= 0, by_thread, loading, in_graph],
        [UPDATING, BPROP, around, by_time, BPROP, LOADING, FPROP],
        NONE,
    )
    return direction, in_graph & ~determined


def stage_of(names: list[str], host: Columns, times: np.ndarray) -> np.ndarray:
    """The direction of what was done at a time, whichever thread did it: NONE outside every stage."""
    at = _stage_at(host, _staged(names, host), times)
    return np.select([at >= 0, _is_loading(names, host, times)], [at, LOADING], NONE)


def _staged(names: list[str], host: Columns) -> np.ndarray:
    """The direction that each range which is a stage stands for; -1: it is none."""
    of_name = np.array([stage_in(name) for name in names], dtype=np.int64)
    return np.where(host["kind"] == RANGE, pick(of_name, host["name"]), -1)


def _is_loading(names: list[str], host: Columns, times: np.ndarray) -> np.ndarray:
    """Whether a time lies between the end of a batch and the next forward pass, as our markers tell."""
    starts, ends = (
        host["start_ns"][find_ranges(names, host, name.__eq__)] for name in (FORWARD, END_OF_BATCH)
    )
    if not len(starts) or not len(ends):
        return np.zeros(len(times), dtype=bool)
    # Both rise; behind the last of each stands a time that never comes.
    never = np.iinfo(np.int64).max
    next_start, next_end = (
        np.append(edges, never)[np.searchsorted(edges, times)] for edges in (starts, ends)
    )
    return next_start < next_end


def _only_backward(host: Columns, inside_node: np.ndarray) -> np.ndarray:
    """Whether a thread is autograd's own; what it does between two nodes (adding gradients) is backward."""
    forward = (host["sequence"] >= 0) & (host["forward_thread"] <= 0) & ~inside_node
    if not forward.any():  # a trace without sequence numbers does not tell whose a thread is
        return np.zeros(len(forward), dtype=bool)
    size = int(host["thread"].max(initial=-1)) + 1
    backward_thread = np.bincount(host["thread"], inside_node, size) > 0
    forward_thread = np.bincount(host["thread"], forward | (host["kind"] == LAYER), size) > 0
    return (backward_thread & ~forward_thread)[host["thread"]]


def stage_in(name: str) -> int:
    """The direction of the stage that a range's name means; -1 if it is none."""
    return next((direction for pattern, direction in _STAGES if pattern.search(name)), -1)


def _stage_at(host: Columns, staged: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The stage that some thread was in at a time; -1 if none."""
    ranges = np.flatnonzero(staged >= 0)
    if not len(ranges):
        return np.full(len(times), -1)
    ranges = ranges[np.lexsort((-host["end_ns"][ranges], host["start_ns"][ranges]))]
    # Without those that lie in others, starts and ends rise together: the last range that began by a time is
    # the only one that can contain it, if any does.
    ranges = ranges[~contained(host["start_ns"][ranges], host["end_ns"][ranges])]
    place = np.searchsorted(host["start_ns"][ranges], times, side="right") - 1
    inside = (place >= 0) & (times <= host["end_ns"][ranges[place]])
    return np.where(inside, staged[ranges[place]], -1)


LAYER_PREFIX = "Layer: "

# A node of the backward graph as autograd runs it: AddmmBackward0, torch::autograd::AccumulateGrad ...
_NODE = re.compile(r"^autograd::engine::|^torch::autograd::|^(?!.*::)\w+Backward\d*$")
_COLLECTIVE = re.compile(r"^(nccl|gloo|mpi|ucc|xccl):")


@dataclass
class Context:
    """Host events with all that is known of where they stand; arrays run parallel to ``nest.host``."""

    names: list[str]
    nest: Nest
    operator: np.ndarray  # index of the operator that does the work an event belongs to; -1: none
    direction: np.ndarray  # index into :data:`profiling.schemas.DIRECTIONS`
    guessed: np.ndarray  # whether only neighbouring forward operators suggest the direction
    layer: np.ndarray  # index into ``names`` of the layer's range; -1: not known
    sequence: np.ndarray  # of the nearest operator that has one, forward or backward
    forward: np.ndarray  # index of the forward operator whose backward an event belongs to; -1: none
    node: np.ndarray  # whether the event is a node of the backward graph
    loose: np.ndarray  # whether it is an asynchronous collective
    batches: BatchTimes  # in which batch a time lies

    def by_name(self, test: Callable[[str], bool]) -> np.ndarray:
        """``test`` of each event's name, as bools."""
        return name_flags(self.names, test)[self.nest.host["name"]]


def find_context(events: Events, batches: BatchTimes) -> Context:
    names = events.names
    is_collective = name_flags(names, lambda name: bool(_COLLECTIVE.match(name)))
    nested = nest(events.host, is_collective[events.host["name"]] & (events.host["kind"] == RANGE))
    host = nested.host

    def by_name(test: Callable[[str], bool]) -> np.ndarray:
        return name_flags(names, test)[host["name"]]

    index = np.arange(len(host["name"]))
    is_operator = host["kind"] == OPERATOR
    node = is_operator & by_name(lambda name: bool(_NODE.search(name)))
    generic = by_name(lambda name: name.startswith(("aten::", "c10d::")))
    node |= is_operator & (host["forward_thread"] > 0) & ~generic
    sequence = nested.nearest(np.where(is_operator, host["sequence"], -1))
    inside_node = nested.nearest(np.where(node, index, -1)) >= 0
    forward = nested.nearest(np.where(node, forward_of(host, node, is_operator), -1))
    is_layer = by_name(lambda name: name.startswith(LAYER_PREFIX)) | (host["kind"] == LAYER)
    layer = nested.nearest(np.where(is_layer, host["name"], -1).astype(np.int64))
    layer = np.where((layer < 0) & (forward >= 0), layer[forward], layer)
    # The operator that does an event's work: the outermost whose work is its own, else the nearest.
    outermost = nested.outermost(np.where(is_operator & ~node & by_name(is_primitive), index, -1))
    nearest = nested.nearest(np.where(is_operator, index, -1))
    direction, guessed = find_directions(names, nested, inside_node, sequence, node)
    return Context(
        names=names, nest=nested, operator=np.where(outermost >= 0, outermost, nearest), direction=direction,
        guessed=guessed, layer=layer, sequence=sequence, forward=forward, node=node,
        loose=is_collective[host["name"]] & (host["kind"] == RANGE), batches=batches,
    )  # fmt: skip


def layer_name(name: str) -> str:
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
    """For each host event: the first node after it with its sequence number and inputs; else -1."""
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
