"""Did ranks of a configuration and of its baseline compute with different numbers of CPU threads?"""

from collections.abc import Sequence

from analysis.measures.scaling.point import Point
from profiling.wording import how_many


def unequal_threads(points: Sequence[Point]) -> str:
    """That efficiencies compare ranks with different numbers of threads; empty: they do not.

    Ranks without GPUs share the cores of their node (``threads: 0``), so fewer ranks have more threads each.
    Where ranks have GPUs their threads do little of the work.
    """
    for point in points:
        own, base = _threads(point), _threads(point.base)
        if point.on_cpus and own and base and own != base:
            few, many = how_many(point.base.world_size, "rank"), how_many(point.world_size, "rank")
            # Of runs of profiling.watch, which have no sweep file, the field says nothing.
            by_hand = point.fields["threads"] is None
            remedy = "set OMP_NUM_THREADS=1 for all" if by_hand else "set threads in the sweep file"
            return (
                f"Different threads per rank: {_in_words(base)} on {few}, {_in_words(own)} on {many}. So the "
                f"efficiencies say little about scaling: {remedy}."
            )
    return ""


def _threads(point: Point) -> set[int]:
    """Of the ranks that time the point; empty where they are not known."""
    reports = [rank for run, _ in point.timed if run.manifest for rank in run.manifest.ranks]
    return {rank.threads for rank in reports if rank.threads}


def _in_words(threads: set[int]) -> str:
    return " or ".join(map(str, sorted(threads)))
