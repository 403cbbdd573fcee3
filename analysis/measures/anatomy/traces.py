"""What is known of when each rank of a run did what? The tables of its ranks, reduced to what measures need.

Anatomy, communication and lateness are made of this, and so is what the simulation knows of collectives. A
rank is read, reduced and dropped before the next: all kernels of all ranks are never in memory.
"""

from dataclasses import dataclass

import numpy as np

from analysis.measures.anatomy.collectives import calls_of, match_ranks
from analysis.measures.anatomy.divide import activities_of, edges_of, launch_known, split, windows_of
from analysis.measures.batches.overlap import Intervals, covered, union
from analysis.results.matching import Calls, Matched
from analysis.results.query import note_left_out
from analysis.results.study import Source, Study
from analysis.results.traces import RankTables, read_ranks


@dataclass(frozen=True)
class RankTrace:
    """One rank; times in ns on its own clock.

    Attributes:
        attributed: attributed batches; 0 where no kernel has a place in time.
        calls: its collectives in attributed batches.
        batch_index: of each attributed batch in whose time something ran; one without was not recorded.
        edges_ns: the instants between which the stages of these lie, (batches, 6).
        parts_ns: :func:`divide.split` of these stages, (batches x 5,) each.
        staged: whether their stages are known.
        exposed: of :class:`divide.Activities`.
        activities, unknown_launches: of the device from the first of these batches to the last, and how many
            of them have no known launch.
    """

    attributed: int
    calls: Calls
    batch_index: np.ndarray
    edges_ns: np.ndarray
    parts_ns: dict[str, np.ndarray]
    exposed: Intervals
    activities: int
    unknown_launches: int
    staged: bool = True


@dataclass(frozen=True)
class RunTrace:
    """All ranks of a run that have kernels.

    Attributes:
        matched: the same collectives of all ranks, on one clock; None: not known, or there is none.
        unmatched: in words, of what wait and transfer are not known and why.
    """

    ranks: tuple[RankTrace, ...]
    matched: Matched | None
    unmatched: tuple[str, ...]

    @property
    def calls(self) -> list[Calls]:
        """The collectives of each rank."""
        return [one.calls for one in self.ranks]

    @property
    def has_collectives(self) -> bool:
        return any(len(one.calls.kind) for one in self.ranks)


def trace_of(study: Study, source: Source) -> RunTrace:
    """A run's trace; a study reads it once, and notes what of it is left out.

    Raises:
        Unusable: a table is missing, damaged or wrong.
    """
    kept: dict[str, RunTrace] = study.kept("traces")
    if source.id not in kept:
        kept[source.id] = _read(study, source)
    return kept[source.id]


def _read(study: Study, source: Source) -> RunTrace:
    ranks: list[RankTrace] = []
    untimed = 0
    for one in read_ranks(source):
        if one.untimed_batches:
            study.note(
                f"attributed batches of rank_{one.rank:04d} that lack a time are left out: "
                f"{one.untimed_batches}",
                source,
            )
        untimed += one.untimed_kernels
        ranks.append(reduced(one))
    attributed = sum(one.attributed for one in ranks)
    without = attributed - sum(one.calls.batches for one in ranks)
    note_left_out(study, source, without, attributed, untimed)
    calls = [one.calls for one in ranks]
    if not any(len(one.kind) for one in calls):
        return RunTrace(tuple(ranks), None, ())
    matched, unmatched = match_ranks(calls, source.world_size, source.gpus_per_rank)
    return RunTrace(tuple(ranks), matched, tuple(unmatched))


def reduced(tables: RankTables) -> RankTrace:
    """The trace of a rank from its tables."""
    batches, kernels = tables.batches, tables.kernels
    start, end = kernels["start_ns"], kernels["start_ns"] + kernels["duration_ns"]
    busy = covered((batches["start_ns"], batches["end_ns"]), union(start, end)) > 0
    mine = {name: column[busy] for name, column in batches.items()}
    edges = edges_of(mine)
    activities = activities_of(kernels, (edges[:, 0], edges[:, 1]))
    whole = mine["start_ns"], mine["end_ns"]
    begun = (kernels["device"] >= 0) & (start >= edges.min(initial=_LAST)) & (start < edges.max(initial=0))
    return RankTrace(
        attributed=len(busy) if len(start) else 0,
        calls=calls_of(tables.rank, kernels, batches["batch_index"], whole, activities),
        batch_index=mine["batch_index"],
        edges_ns=edges,
        parts_ns=split(windows_of(edges), activities),
        exposed=activities.exposed,
        activities=int(begun.sum()),
        unknown_launches=int((begun & ~launch_known(kernels)).sum()),
        staged=tables.staged,
    )


_LAST = np.iinfo(np.int64).max
