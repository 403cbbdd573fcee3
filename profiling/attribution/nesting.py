"""Which event lies in which? Parents on each thread, and what an event has from those around it."""

from dataclasses import dataclass

import numpy as np

from profiling.attribution.coding import distinct
from profiling.attribution.events import RANGE, Columns

_AT_ONCE = 1 << 16  # events as Python's numbers, which take five times as much memory


@dataclass
class Nest:
    """Host events sorted so that a parent stands before its children.

    Attributes:
        host: the columns, sorted by thread, then start.
        parent: index of the innermost event around each one; -1 at the top.
        levels: indices of the events at depth 0, 1, ...
    """

    host: Columns
    parent: np.ndarray
    levels: list[np.ndarray]

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
    """Sort host events and find their parents.

    Args:
        host: columns of :data:`profiling.attribution.events.HOST_COLUMNS`.
        loose: bool; events that may end anywhere (an asynchronous collective) and so contain nothing.
    """
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
