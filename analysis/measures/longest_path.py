"""Longest path of each step, and the duration of the step if a part of it took no time.

All ranks with aligned clocks form one graph, in which a collective ends on every rank a fixed time after the
last rank entered it. A step lasts from the last rank's start to the last rank's end. What came before the
step is fixed as recorded, so each step is a graph of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from analysis.frames.divide import union
from analysis.frames.matching import TOGETHER, Clock, Shared
from analysis.measures.waits import (
    COMMUNICATION,
    GAPS,
    HOST,
    KERNEL,
    Activities,
    Edges,
    Recorded,
    activities_of,
    edges_of,
    ended_in_time,
    joined,
    make_edges,
)

NEVER = -(1 << 60)  # ns: the length of an edge that is not there


@dataclass(frozen=True)
class Graph:
    """Edges in order of their heads, one element each.

    Attributes:
        nodes: how many there are.
        tail, head: numbers of nodes, ``tail < head``.
        ns: how much later than its tail the head can be at the earliest.
    """

    nodes: int
    tail: np.ndarray
    head: np.ndarray
    ns: np.ndarray

    @cached_property
    def ends(self) -> list[tuple[int, int]]:
        """Tail and head of each edge."""
        return list(zip(self.tail.tolist(), self.head.tolist(), strict=True))


def moments(graph: Graph, ns: np.ndarray | None = None) -> np.ndarray:
    """When each node is, in ns since the beginning, shape (nodes,); a node without edges is there at once.

    Args:
        ns: lengths of the edges, instead of the graph's.
    """
    at = [0] * graph.nodes
    lengths = graph.ns if ns is None else ns
    for (tail, head), length in zip(graph.ends, lengths.tolist(), strict=True):
        reached = at[tail] + length
        if reached > at[head]:
            at[head] = reached
    return np.array(at, np.int64)


def critical(graph: Graph) -> np.ndarray:
    """The edges of a longest path from the beginning to the end, in its order; their lengths sum to it.

    Of edges that are equally late the first in the graph's order is taken.
    """
    at = moments(graph)
    binding = np.flatnonzero((at[graph.tail] + graph.ns == at[graph.head]) & (graph.ns > NEVER // 2))
    edge_of = np.full(graph.nodes, -1)
    edge_of[graph.head[binding[::-1]]] = binding[::-1]  # of several the first is written last
    path = []
    node = graph.nodes - 1
    while (edge := int(edge_of[node])) >= 0:
        path.append(edge)
        node = int(graph.tail[edge])
    return np.array(path[::-1], np.int64)


@dataclass(frozen=True)
class WhatIf:
    """What takes no time.

    Attributes:
        parts: numbers of waits.py.
        alone: no rank waits for another one.
    """

    parts: tuple[int, ...] = ()
    alone: bool = False


@dataclass(frozen=True)
class CriticalPath:
    """The longest path of a step, and what the step would take without parts of it; times in ns.

    Attributes:
        batch_index, start_ns, end_ns: of the step, on the group's clock.
        part, ns, begin_ns, rank, activity: of each piece of the path, in order: what it is (a number of
            waits.py), its length, when it began, and which activity of which rank (their places) it is of.
        free_ns: what the step would take, by the name of what takes no time.
    """

    batch_index: int
    start_ns: int
    end_ns: int
    part: np.ndarray
    ns: np.ndarray
    begin_ns: np.ndarray
    rank: np.ndarray
    activity: np.ndarray
    free_ns: dict[str, int]


@dataclass(frozen=True)
class _Rank:
    """A rank on its group's clock.

    Attributes:
        calls: the activities that are its collectives, in order; ``first_call``: the number of the first.
    """

    activities: Activities
    edges: Edges
    batches: Mapping[str, np.ndarray]
    calls: np.ndarray
    first_call: int


class Group:
    """Ranks on one clock: what they recorded, as edges between moments that are numbered in order of time.

    Attributes:
        activities, batches: of each rank.
        first: the number that a rank's first moment had before they were ordered.
        times_ns: of each moment.
        place: where in that order each moment is, by its number before.
        edges: in order of their heads.
    """

    def __init__(
        self,
        ranks: Sequence[Recorded],
        clocks: Sequence[Clock] | None = None,
        collectives: Sequence[Shared] = (),
    ) -> None:
        recorded = [
            _on_clock(one, clock) for one, clock in zip(ranks, clocks or [Clock()] * len(ranks), strict=True)
        ]
        self.activities = [one.activities for one in recorded]
        self.batches = [one.batches for one in recorded]
        times = [np.stack([one.start_ns, one.end_ns], axis=1).ravel() for one in self.activities]
        self.first = np.cumsum([0, *map(len, times)])
        arrivals, meeting = self._meetings(recorded, collectives)
        pieces = [*(self._placed(place, one.edges) for place, one in enumerate(recorded)), *meeting]
        every = np.concatenate([*times, np.array(arrivals, np.int64)])
        edges = vars(joined(pieces))
        del recorded, pieces, meeting, times
        order = np.lexsort((_levels(every, edges["tail"], edges["head"]), every))
        self.times_ns = every[order]
        self.place = np.append(np.argsort(order), -1).astype(np.int32)  # of no moment: -1
        edges = edges | {name: self.place[edges[name]] for name in ("tail", "head")}
        by_head = np.argsort(edges["head"], kind="stable")
        self.edges = Edges(**{name: column[by_head] for name, column in edges.items()})

    def _placed(self, rank: int, edges: Edges) -> Edges:
        """Edges of a rank, by numbers of the moments of all."""
        first = int(self.first[rank])
        tail = np.where(edges.tail >= 0, edges.tail + first, -1)
        of_rank = np.full(len(tail), rank, np.int32)
        return replace(edges, tail=tail, head=edges.head + first, rank=of_rank)

    def _meetings(
        self, recorded: Sequence[_Rank], collectives: Sequence[Shared]
    ) -> tuple[list[int], list[Edges]]:
        """When the last rank entered each collective, and the edges to and from these moments."""
        arrivals: list[int] = []
        edges = []
        for one in collectives:
            members = [recorded[member] for member in one.members]
            numbers = np.stack(
                [call - rank.first_call for rank, call in zip(members, one.calls, strict=True)]
            )
            counts = np.array([[len(rank.calls)] for rank in members])
            numbers = numbers[:, ((numbers >= 0) & (numbers < counts)).all(axis=0)]
            calls = np.stack([rank.calls[number] for rank, number in zip(members, numbers, strict=True)])
            ranks = [rank.activities for rank in members]
            start = np.stack([each.start_ns[call] for each, call in zip(ranks, calls, strict=True)])
            end = np.stack([each.end_ns[call] for each, call in zip(ranks, calls, strict=True)])
            last = start.max(axis=0)
            meets = end > last
            if one.kind not in TOGETHER:  # a sender may be done while the receiver is still to come
                meets &= meets.all(axis=0)
            moment = self.first[-1] + len(arrivals) + np.arange(len(last))
            for place, member in enumerate(one.members):
                met = meets[place]
                lasts = (end[place] - last)[met]
                edges += self._meeting(member, members[place].edges, calls[place][met], moment[met], lasts)
            arrivals += last.tolist()
        return arrivals, edges

    def _meeting(
        self, rank: int, mine: Edges, calls: np.ndarray, moment: np.ndarray, lasts: np.ndarray
    ) -> list[Edges]:
        """Edges of a rank to its collectives' last arrivals and from them; alone it would last as long."""
        first = self.first[rank]
        own = np.flatnonzero((mine.tail % 2 == 0) & (mine.head == mine.tail + 1))
        mine.ns[own[np.searchsorted(mine.activity[own], calls)]] = lasts
        return [
            make_edges(first + 2 * calls, moment, 0, COMMUNICATION, calls, rank),
            make_edges(moment, first + 2 * calls + 1, lasts, COMMUNICATION, calls, rank, across=True),
        ]

    def paths(self, what_if: Mapping[str, WhatIf]) -> Iterator[CriticalPath]:
        """The path of each step that all ranks recorded.

        Args:
            what_if: by their names. One whose parts are not on a step's path changes nothing, and is not
                computed.
        """
        indices = [set(batches["batch_index"].tolist()) for batches in self.batches]
        for index in sorted(set.intersection(*indices)):
            path = self._path(index, what_if)
            if path is not None:
                yield path

    def _path(self, index: int, what_if: Mapping[str, WhatIf]) -> CriticalPath | None:
        rows = [int(np.flatnonzero(batches["batch_index"] == index)[0]) for batches in self.batches]
        starts, ends = (
            [int(batches[name][row]) for batches, row in zip(self.batches, rows, strict=True)]
            for name in ("start_ns", "end_ns")
        )
        start, end = max(starts), max(ends)
        if end <= start:
            return None
        edges, nodes = self._between(start, end, index, ends)
        graph = Graph(nodes, edges.tail, edges.head, edges.ns)
        path = critical(graph)
        ns = edges.ns[path]
        on_path = set(edges.part[path][ns > 0].tolist())
        free = {
            name: int(moments(graph, _without(edges, one))[-1])
            for name, one in what_if.items()
            if one.alone or on_path.intersection(one.parts)
        }
        begin = start + np.cumsum(ns) - ns
        taken = path[ns > 0]
        return CriticalPath(
            index, start, end, edges.part[taken], edges.ns[taken], begin[ns > 0], edges.rank[taken],
            edges.activity[taken], dict.fromkeys(what_if, end - start) | free,
        )  # fmt: skip

    def _between(self, start: int, end: int, index: int, ends: Sequence[int]) -> tuple[Edges, int]:
        """The edges of a step, and how many moments it has: from 1, in order of time, the last its end."""
        first, behind = np.searchsorted(self.times_ns, [start, end], side="right").tolist()
        rows = slice(*np.searchsorted(self.edges.head, [first, behind]).tolist())
        mine = Edges(**{name: column[rows] for name, column in vars(self.edges).items()})
        begun = self.times_ns[mine.tail] + mine.ns - start
        begun = np.where(mine.tail < 0, self.times_ns[mine.head] - start, np.maximum(begun, 0))
        inside = mine.tail >= first
        mine = replace(
            mine,
            tail=np.where(inside, mine.tail - first + 1, 0),
            head=mine.head - first + 1,
            ns=np.where(inside, mine.ns, begun),
        )
        last = behind - first + 1
        sink = [self._last(place, index, of_rank, start) for place, of_rank in enumerate(ends)]
        for one in sink:
            one.head[:] = last
            one.tail[:] = np.where(one.tail >= first, one.tail - first + 1, 0)
        return joined([mine, *sink]), last + 1

    def _last(self, rank: int, index: int, end: int, start: int) -> Edges:
        """From what a rank did last in a step, on each of its chains, to the step's end.

        The last of all tells when the rank's step ended; on other chains all had to be done by then.
        """
        activities = self.activities[rank]
        mine = np.flatnonzero((activities.batch_index == index) & (activities.end_ns <= end))
        mine = mine[np.lexsort((activities.end_ns[mine], activities.chain[mine]))]
        chain = activities.chain[mine]
        lasts = mine[np.append(chain[1:] != chain[:-1], True)[: len(mine)]]
        since = activities.end_ns[lasts]
        latest = since == since.max(initial=start)
        ns = np.where(latest, end - np.maximum(since, start), 0)
        part = np.where(activities.kind[lasts] == KERNEL, GAPS, HOST)
        tail = self.place[self.first[rank] + 2 * lasts + 1]
        if not latest.any():  # nothing was recorded in it
            tail, ns, lasts = (
                np.append(one, value) for one, value in ((tail, -1), (ns, end - start), (lasts, 0))
            )
            part = np.append(part, GAPS)
        return make_edges(tail, np.zeros(len(tail), np.int64), ns, part, lasts, rank)


def _levels(times_ns: np.ndarray, tail: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Of moments at one time how many edges lead from one to the next until there."""
    level = np.zeros(len(times_ns), np.int64)
    at_once = (tail >= 0) & (times_ns[tail] == times_ns[head])
    tail, head = tail[at_once], head[at_once]
    while (early := level[head] <= level[tail]).any():
        np.maximum.at(level, head[early], level[tail[early]] + 1)
    return level


def _on_clock(recorded: Recorded, clock: Clock) -> _Rank:
    activities = ended_in_time(activities_of(recorded))
    times = {name: clock.to_reference(getattr(activities, name)) for name in ("start_ns", "end_ns")}
    activities = replace(activities, **times)
    batches = dict(recorded.batches)
    load_end = clock.to_reference(batches["start_ns"] + np.maximum(batches["load_ns"], 0))
    batches |= {name: clock.to_reference(batches[name]) for name in ("start_ns", "end_ns")}
    edges = edges_of(activities, union(batches["start_ns"], load_end))
    ran = np.flatnonzero(activities.kernel_class >= 0)
    activity_of = np.empty(len(recorded.kind), np.int64)
    activity_of[activities.row[ran]] = ran
    return _Rank(activities, edges, batches, activity_of[recorded.calls], recorded.first_call)


def _without(edges: Edges, one: WhatIf) -> np.ndarray:
    """The lengths of edges if something took no time."""
    ns = np.where(np.isin(edges.part, one.parts), np.minimum(edges.ns, 0), edges.ns)
    return np.where(edges.across, NEVER, ns) if one.alone else ns
