"""Longest path of each step, and the duration of the step if a part of it took no time.

All ranks with aligned clocks form one graph, in which a collective ends on every rank a fixed time after the
last rank entered it. A step lasts from the last rank's start to the last rank's end. What came before the
step is fixed as recorded, so each step is a graph of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames.divide import union
from analysis.frames.matching import TOGETHER, Clock, Shared
from analysis.measures.waits import (
    COMMUNICATION,
    GAPS,
    HOST,
    KERNEL,
    Activities,
    Recorded,
    activities_of,
    edges_of,
    ended_in_time,
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
    def ends(self) -> tuple[list[int], list[int]]:
        """Tails and heads as Python's integers, which a loop reads faster."""
        return self.tail.tolist(), self.head.tolist()


def moments(graph: Graph, ns: np.ndarray | None = None) -> np.ndarray:
    """When each node is, in ns since the beginning, shape (nodes,); a node without edges is there at once.

    Args:
        ns: lengths of the edges, instead of the graph's.
    """
    at = [0] * graph.nodes
    lengths = graph.ns if ns is None else ns
    for tail, head, length in zip(*graph.ends, lengths.tolist(), strict=True):
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
        pieces: of the path, in order. ``part`` (a number of waits.py), ``ns`` (its length), ``begin_ns``, and
            ``rank`` and ``activity``: which of which rank (their places) it is of.
        free_ns: what the step would take, by the name of what takes no time.
    """

    batch_index: int
    start_ns: int
    end_ns: int
    pieces: pd.DataFrame
    free_ns: dict[str, int]


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
        clocks = clocks or [Clock()] * len(ranks)
        self.activities = [_on_clock(one, clock) for one, clock in zip(ranks, clocks, strict=True)]
        self.batches = [_steps_on_clock(one, clock) for one, clock in zip(ranks, clocks, strict=True)]
        times = [np.stack([one.start_ns, one.end_ns], axis=1).ravel() for one in self.activities]
        self.first = np.cumsum([0, *map(len, times)])
        edges = []
        for place, (activities, batches) in enumerate(zip(self.activities, self.batches, strict=True)):
            loading = union(*(batches[name].to_numpy() for name in ("start_ns", "load_end_ns")))
            mine, first = edges_of(activities, loading), self.first[place]
            tail = mine["tail"].where(mine["tail"] < 0, mine["tail"] + first)
            edges.append(mine.assign(tail=tail, head=mine["head"] + first, rank=place))
        arrivals = self._meet(edges, ranks, collectives)
        every = np.concatenate([*times, arrivals])
        joined = pd.concat(edges, ignore_index=True)
        del edges, times
        order = np.lexsort((_levels(every, joined["tail"].to_numpy(), joined["head"].to_numpy()), every))
        self.times_ns = every[order]
        self.place = np.append(np.argsort(order), -1).astype(np.int32)  # of no moment: -1
        joined["tail"], joined["head"] = self.place[joined["tail"]], self.place[joined["head"]]
        self.edges = joined.sort_values("head", kind="stable", ignore_index=True)

    def _meet(
        self, edges: list[pd.DataFrame], ranks: Sequence[Recorded], collectives: Sequence[Shared]
    ) -> np.ndarray:
        """Add the edges to and from the moments at which the last rank entered each collective.

        Alone a rank's collective would last as long as it does after that.

        Args:
            edges: of each rank.

        Returns:
            These moments, ns.
        """
        arrivals = [np.zeros(0, np.int64)]
        number = int(self.first[-1])
        calls_of = [_calls(one, activities) for one, activities in zip(ranks, self.activities, strict=True)]
        for one in collectives:
            members = [(self.activities[member], calls_of[member]) for member in one.members]
            numbers = one.calls - np.array([[ranks[member].first_call] for member in one.members])
            counts = np.array([[len(calls)] for _, calls in members])
            numbers = numbers[:, ((numbers >= 0) & (numbers < counts)).all(axis=0)]
            calls = np.stack([of[mine] for (_, of), mine in zip(members, numbers, strict=True)])
            start, end = (
                np.stack([getattr(of, name)[mine] for (of, _), mine in zip(members, calls, strict=True)])
                for name in ("start_ns", "end_ns")
            )
            last = start.max(axis=0)
            meets = end > last
            if one.kind not in TOGETHER:  # a sender may be done while the receiver is still to come
                meets &= meets.all(axis=0)
            moments_of = number + np.arange(len(last))
            for row, rank in enumerate(one.members):
                mine, moment = calls[row][meets[row]], moments_of[meets[row]]
                lasts, first = (end[row] - last)[meets[row]], self.first[rank]
                of_rank = edges[rank]
                rows = np.flatnonzero((of_rank["tail"] % 2 == 0) & (of_rank["head"] == of_rank["tail"] + 1))
                rows = rows[np.searchsorted(of_rank["activity"].to_numpy()[rows], mine)]
                of_rank.loc[rows, "ns"] = lasts
                edges += [
                    make_edges(first + 2 * mine, moment, 0, COMMUNICATION, mine, rank),
                    make_edges(moment, first + 2 * mine + 1, lasts, COMMUNICATION, mine, rank, across=True),
                ]
            arrivals.append(last)
            number += len(last)
        return np.concatenate(arrivals)

    def paths(self, what_if: Mapping[str, WhatIf]) -> Iterator[CriticalPath]:
        """The path of each step that all ranks recorded.

        Args:
            what_if: by their names. One whose parts are not on a step's path changes nothing, and is not
                computed.
        """
        steps = pd.concat(self.batches, keys=range(len(self.batches)), names=["place"])
        of_steps: Any = steps.groupby("batch_index")
        for index, of_step in of_steps:
            start, end = int(of_step["start_ns"].max()), int(of_step["end_ns"].max())
            if len(of_step) == len(self.batches) and end > start:
                yield self._path(int(index), start, end, of_step["end_ns"].tolist(), what_if)

    def _path(
        self, index: int, start: int, end: int, ends: Sequence[int], what_if: Mapping[str, WhatIf]
    ) -> CriticalPath:
        edges, nodes = self._between(start, end, index, ends)
        graph = Graph(nodes, *(edges[name].to_numpy() for name in ("tail", "head", "ns")))
        path = edges.iloc[critical(graph)]
        pieces = path.assign(begin_ns=start + path["ns"].cumsum() - path["ns"])[path["ns"] > 0]
        on_path = set(pieces["part"])
        free = {
            name: int(moments(graph, _without(edges, one))[-1])
            for name, one in what_if.items()
            if one.alone or on_path.intersection(one.parts)
        }
        pieces = pieces[["part", "ns", "begin_ns", "rank", "activity"]].reset_index(drop=True)
        return CriticalPath(index, start, end, pieces, dict.fromkeys(what_if, end - start) | free)

    def _between(self, start: int, end: int, index: int, ends: Sequence[int]) -> tuple[pd.DataFrame, int]:
        """The edges of a step, and how many moments it has: from 1, in order of time, the last its end."""
        first, behind = np.searchsorted(self.times_ns, [start, end], side="right").tolist()
        mine = self.edges.iloc[slice(*np.searchsorted(self.edges["head"], [first, behind]))]
        tail, head, ns = (mine[name].to_numpy() for name in ("tail", "head", "ns"))
        begun = np.maximum(self.times_ns[tail] + ns - start, 0)
        begun = np.where(tail < 0, self.times_ns[head] - start, begun)
        inside = tail >= first
        mine = mine.assign(
            tail=np.where(inside, tail - first + 1, 0), head=head - first + 1, ns=np.where(inside, ns, begun)
        )
        last = behind - first + 1
        sinks = pd.concat([self._last(place, index, of_rank, start) for place, of_rank in enumerate(ends)])
        sinks = sinks.assign(head=last, tail=(sinks["tail"] - first + 1).clip(lower=0))
        return pd.concat([mine, sinks], ignore_index=True), last + 1

    def _last(self, rank: int, index: int, end: int, start: int) -> pd.DataFrame:
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
        if not latest.any():  # nothing was recorded in it
            return make_edges(np.array([-1]), np.array([0]), end - start, GAPS, np.array([0]), rank)
        ns = np.where(latest, end - np.maximum(since, start), 0)
        part = np.where(activities.kind[lasts] == KERNEL, GAPS, HOST)
        tail = self.place[self.first[rank] + 2 * lasts + 1]
        return make_edges(tail, np.zeros(len(tail), np.int64), ns, part, lasts, rank)


def _levels(times_ns: np.ndarray, tail: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Of moments at one time how many edges lead from one to the next until there."""
    level = np.zeros(len(times_ns), np.int64)
    at_once = (tail >= 0) & (times_ns[tail] == times_ns[head])
    tail, head = tail[at_once], head[at_once]
    while (early := level[head] <= level[tail]).any():
        np.maximum.at(level, head[early], level[tail[early]] + 1)
    return level


def _on_clock(recorded: Recorded, clock: Clock) -> Activities:
    activities = ended_in_time(activities_of(recorded))
    times = {name: clock.to_reference(getattr(activities, name)) for name in ("start_ns", "end_ns")}
    return replace(activities, **times)


def _steps_on_clock(recorded: Recorded, clock: Clock) -> pd.DataFrame:
    """``batch_index, start_ns, load_end_ns, end_ns`` of a rank's steps."""
    batches = recorded.batches.assign(load_end_ns=lambda of: of["start_ns"] + of["load_ns"].clip(lower=0))
    for name in ("start_ns", "load_end_ns", "end_ns"):
        batches[name] = clock.to_reference(batches[name].to_numpy())
    return batches


def _calls(recorded: Recorded, activities: Activities) -> np.ndarray:
    """The activities that are a rank's collectives, in order."""
    ran = np.flatnonzero(activities.kernel_class >= 0)
    activity_of = np.empty(len(recorded.kernels), np.int64)
    activity_of[activities.row[ran]] = ran
    return activity_of[recorded.calls]


def _without(edges: pd.DataFrame, one: WhatIf) -> np.ndarray:
    """The lengths of edges if something took no time."""
    ns = edges["ns"].to_numpy()
    ns = np.where(np.isin(edges["part"], one.parts), np.minimum(ns, 0), ns)
    return np.where(edges["across"], NEVER, ns) if one.alone else ns
