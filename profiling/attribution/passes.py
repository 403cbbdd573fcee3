"""Which pass does an event belong to: loading, forward, backward, update? By ranges, autograd and threads."""

import re

import numpy as np

from profiling.attribution.events import LAYER, RANGE, Columns, contained, find_ranges, pick
from profiling.attribution.nesting import Nest
from profiling.schemas import BACKWARD, DIRECTIONS, END_OF_BATCH, FORWARD, UPDATE

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
    of_name = np.array([_stage(name) for name in names], dtype=np.int64)
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


def direction_of_stage(name: str) -> str:
    """The direction that a range stands for by its name; "" if it is no stage."""
    return DIRECTIONS[stage] if (stage := _stage(name)) >= 0 else ""


def _stage(name: str) -> int:
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
