"""What did ranks on one clock do, and what of it waited for another rank? Edges between all their moments.

On each of its ranks a collective ends when it has lasted since the last of them entered it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from analysis.measures.batches.overlap import union
from analysis.measures.critical_path.activities import (
    COMMUNICATION,
    Activities,
    Recorded,
    activities_of,
    ended_in_time,
)
from analysis.measures.critical_path.edges import TYPES, Edges, edges_of
from analysis.results.matching import TOGETHER, Ahead


@dataclass(frozen=True)
class Collectives:
    """The same collectives of some ranks.

    Attributes:
        kind: e.g. allreduce.
        members: places of the ranks.
        calls: (members, calls), which of each member's collectives they are, in order of their start.
    """

    kind: str
    members: tuple[int, ...]
    calls: np.ndarray


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


@dataclass(frozen=True)
class JoinedEdges:
    """Edges between the moments of all ranks, which are numbered in order of time."""

    tail: np.ndarray
    head: np.ndarray
    ns: np.ndarray
    part: np.ndarray
    activity: np.ndarray
    rank: np.ndarray
    across: np.ndarray  # from a collective's last arrival: another rank may have been waited for


_TYPES = {**TYPES, "rank": np.int32, "across": np.bool_}


class Joined:
    """All that ranks on one clock recorded, as edges between moments that are numbered in order of time.

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
        clocks: Sequence[Ahead] | None = None,
        collectives: Sequence[Collectives] = (),
    ) -> None:
        recorded = [
            _on_clock(one, clock) for one, clock in zip(ranks, clocks or [Ahead()] * len(ranks), strict=True)
        ]
        self.activities = [one.activities for one in recorded]
        self.batches = [one.batches for one in recorded]
        times = [np.stack([one.start_ns, one.end_ns], axis=1).ravel() for one in self.activities]
        self.first = np.cumsum([0, *map(len, times)])
        arrivals, meeting = self._meetings(recorded, collectives)
        pieces = [*(self._placed(place, one.edges) for place, one in enumerate(recorded)), *meeting]
        every = np.concatenate([*times, np.array(arrivals, np.int64)])
        edges: dict[str, np.ndarray] = {
            name: np.concatenate([getattr(one, name) for one in pieces], dtype=kind)
            for name, kind in _TYPES.items()
        }
        del recorded, pieces, meeting, times
        order = np.lexsort((_levels(every, edges["tail"], edges["head"]), every))
        self.times_ns = every[order]
        self.place = np.append(np.argsort(order), -1).astype(np.int32)  # of no moment: -1
        edges |= {name: self.place[edges[name]] for name in ("tail", "head")}
        by_head = np.argsort(edges["head"], kind="stable")
        self.edges = JoinedEdges(**{name: column[by_head] for name, column in edges.items()})

    def _placed(self, rank: int, edges: Edges) -> JoinedEdges:
        """Edges of a rank, by numbers of the moments of all."""
        first, count = int(self.first[rank]), len(edges.head)
        return JoinedEdges(
            np.where(edges.tail >= 0, edges.tail + first, -1), edges.head + first, edges.ns, edges.part,
            edges.activity, np.full(count, rank, np.int32), np.zeros(count, bool),
        )  # fmt: skip

    def _meetings(
        self, recorded: Sequence[_Rank], collectives: Sequence[Collectives]
    ) -> tuple[list[int], list[JoinedEdges]]:
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
    ) -> list[JoinedEdges]:
        """Edges of a rank to its collectives' last arrivals and from them; alone it would last as long."""
        first = self.first[rank]
        own = np.flatnonzero((mine.tail % 2 == 0) & (mine.head == mine.tail + 1))
        mine.ns[own[np.searchsorted(mine.activity[own], calls)]] = lasts
        place = np.full(len(calls), rank)
        part = np.full(len(calls), COMMUNICATION)
        none = np.zeros_like(lasts)
        no, yes = np.zeros(len(calls), bool), np.ones(len(calls), bool)
        return [
            JoinedEdges(first + 2 * calls, moment, none, part, calls, place, no),
            JoinedEdges(moment, first + 2 * calls + 1, lasts, part, calls, place, yes),
        ]


def _levels(times_ns: np.ndarray, tail: np.ndarray, head: np.ndarray) -> np.ndarray:
    """Of moments at one time how many edges lead from one to the next until there."""
    level = np.zeros(len(times_ns), np.int64)
    at_once = (tail >= 0) & (times_ns[tail] == times_ns[head])
    tail, head = tail[at_once], head[at_once]
    while (early := level[head] <= level[tail]).any():
        np.maximum.at(level, head[early], level[tail[early]] + 1)
    return level


def _on_clock(recorded: Recorded, clock: Ahead) -> _Rank:
    activities = ended_in_time(activities_of(recorded))
    times = {name: clock.remove(getattr(activities, name)) for name in ("start_ns", "end_ns")}
    activities = replace(activities, **times)
    batches = dict(recorded.batches)
    load_end = clock.remove(batches["start_ns"] + np.maximum(batches["load_ns"], 0))
    batches |= {name: clock.remove(batches[name]) for name in ("start_ns", "end_ns")}
    edges = edges_of(activities, union(batches["start_ns"], load_end))
    return _Rank(activities, edges, batches, _calls(recorded, activities), recorded.first_call)


def _calls(recorded: Recorded, activities: Activities) -> np.ndarray:
    """The activities that are the rank's collectives."""
    ran = np.flatnonzero(activities.kernel_class >= 0)
    activity_of = np.empty(len(recorded.kind), np.int64)
    activity_of[activities.row[ran]] = ran
    return activity_of[recorded.calls]
