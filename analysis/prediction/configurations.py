"""Which configurations of a sweep were measured on several numbers of ranks, and where do more ranks run?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.measures.batches.series import Series
from analysis.measures.scaling.point import (
    NO_SAMPLES,
    NOT_ALIKE,
    POINT_FIELDS,
    UNPROFILED,
    Point,
    Scaling,
    called,
    choose_scaling,
    points_of,
)
from analysis.prediction import curve
from analysis.prediction.exchange_forms import Layout
from analysis.results.source import Source
from analysis.results.study import Study
from analysis.statistics import estimates
from jobs.run_fields import own_names
from profiling.errors import UserError
from profiling.wording import in_a_row

KINDS: tuple[Scaling, ...] = ("weak", "strong")
# A node holds so many GPUs as a rule; what was measured on one node says nothing of more.
GPUS_OF_A_NODE = 8
# What the points of a configuration have in common.
CONFIGURATION = tuple(name for name in POINT_FIELDS if name not in NOT_ALIKE)


@dataclass(frozen=True)
class Nodes:
    """How ranks are laid out.

    Attributes:
        gpus: that a node holds.
        most: nodes of the largest measured point.
    """

    gpus: int
    most: int

    def of(self, ranks: int) -> Layout:
        """Where so many ranks run."""
        return Layout(ranks, -(-ranks // self.gpus))

    def unseen(self, ranks: int) -> str:
        """Why nothing is known of so many ranks, if so."""
        if self.most > 1 or self.of(ranks).nodes == 1:
            return ""
        return (
            f"{ranks} ranks or more need several nodes of {self.gpus}, and all runs used one node: the cost "
            "of links between nodes is unknown. Measure two nodes (--gpus-per-node sets the size of a "
            "node)"
        )


@dataclass(frozen=True)
class Configuration:
    """The points of one configuration, in rising order of ranks, no two of one world size.

    Attributes:
        fields: those of :data:`CONFIGURATION`; ``batch`` of the largest point.
        strong: the batch of the job is constant, not that of a rank.
    """

    fields: Mapping[str, Any]
    points: tuple[Point, ...]
    strong: bool = False
    gpus_per_node: int | None = None

    @property
    def nodes(self) -> Nodes:
        """How ranks are laid out: as on the measured nodes; of one alone, as on the usual ones."""
        most = max(point.fields["nodes"] for point in self.points)
        largest = max(point.fields["gpus_per_node"] for point in self.points)
        usual = largest if most > 1 else max(largest, GPUS_OF_A_NODE)
        return Nodes(self.gpus_per_node or usual, most)

    @property
    def global_batch(self) -> float | None:
        """Images of a step of all ranks, if they are as many on all numbers of ranks."""
        return float(self.fields["batch"] * self.points[-1].world_size) if self.strong else None

    @property
    def named(self) -> Mapping[str, Any]:
        """The fields by which it is called."""
        return by_global_batch(self.fields, self.global_batch)

    def batch(self, ranks: int) -> float:
        """Images of a rank's batch."""
        whole = self.global_batch
        return float(self.fields["batch"]) if whole is None else whole / ranks


def by_global_batch(fields: Mapping[str, Any], images: float | None) -> dict[str, Any]:
    """Fields with the global batch in the place of a rank's, which is another on each number of ranks.

    Args:
        images: of a step of all ranks; None: the batch of a rank is constant.
    """
    if images is None:
        return dict(fields)
    return {name: value for name, value in fields.items() if name != "batch"} | {"global_batch": images}


def chosen(study: Study, scaling: Scaling | None = None) -> Scaling:
    """The kind of scaling to predict: the one that is asked for, else the report's."""
    return scaling or choose_scaling(points_of(study, KINDS[0]))


def configurations(
    study: Study, scaling: Scaling | None = None, gpus_per_node: int | None = None
) -> list[Configuration]:
    """A sweep's configurations; one rank sends no gradients, so its point may be of another precision.

    Raises:
        UserError: of none of them the samples of a step are known.
    """
    kind = chosen(study, scaling)
    groups: dict[tuple, list[Point]] = {}
    points = points_of(study, kind)
    known = [point for point in points if point.fields["batch"] and point.has_samples]
    if points and not known:
        raise UserError(f"no prediction: {NO_SAMPLES}")
    for point in points:
        if point not in known:
            study.note(f"{called(point, points)}: no prediction: {NO_SAMPLES}")
            continue
        own = {name: point.fields[name] for name in (*CONFIGURATION, *own_names(point.fields))}
        if kind == "strong":
            own["batch"] *= point.world_size
        members = groups.setdefault(tuple(map(str, own.items())), [])
        base = point.base
        if base.world_size < point.world_size and base in known and base not in members:
            members.append(base)
        if point not in members:
            members.append(point)
    answer = []
    for members in groups.values():
        alone = _one_a_size(study, _merged(study, members))
        last = alone[-1].fields
        fields = {name: last[name] for name in (*CONFIGURATION, *own_names(last))}
        answer.append(Configuration(fields, tuple(alone), kind == "strong", gpus_per_node))
    return answer


def _merged(study: Study, members: Sequence[Point]) -> list[Point]:
    """Points that differ in ``batches`` only (a profiled run may be shorter) as one."""
    alike: dict[tuple, list[Point]] = {}
    for point in members:
        alike.setdefault((point.fields["nodes"], point.fields["gpus_per_node"]), []).append(point)
    points = []
    for same in alike.values():
        timed = [one for one in same if one.timed_by == UNPROFILED] or same
        first = max(timed, key=lambda one: (len(one.timed), one.fields["batches"]))
        if len(same) > 1:
            lengths = in_a_row([one.fields["batches"] for one in same])
            study.note(
                f"configurations of {first.label} that differ only in their number of steps ({lengths}) "
                f"are combined: the runs of {first.fields['batches']} steps give the durations"
            )
            first = _with_profiled(first, [run for one in same for run in one.profiled])
        points.append(first)
    return points


def _with_profiled(point: Point, runs: list[tuple[Source, Series]]) -> Point:
    """A point with other profiled runs; what was measured of it stays."""
    return replace(point, profiled=tuple(runs))


def _one_a_size(study: Study, members: Sequence[Point]) -> list[Point]:
    """Of points of one world size the one on the fewest nodes, in rising order of ranks."""
    ordered = sorted(members, key=lambda point: (point.world_size, point.fields["nodes"]))
    by_size: dict[int, Point] = {}
    for point in ordered:
        other = by_size.setdefault(point.world_size, point)
        if other is not point:
            study.note(
                f"{point.fields['model']}: several node counts give {point.world_size} ranks; predictions "
                f"use {other.label}"
            )
    return list(by_size.values())


def scatter_of(points: Sequence[Point]) -> float:
    """By how much runs of a point differ: a standard deviation (relative) as of a normal distribution.

    Pooled over the points of a configuration: a range of a prediction is of all of them. The fewer runs say
    it, the larger it is, so that twice of it holds 95 % as Student's t does. Where no point was repeated, it
    is :data:`analysis.prediction.curve.ASSUMED_SCATTER`.
    """
    from scipy.special import stdtrit

    scatters = [
        point.scatter for point in points if point.scatter.freedom and np.isfinite(point.scatter.sigma)
    ]
    freedom = sum(one.freedom for one in scatters)
    if not freedom:
        return curve.ASSUMED_SCATTER
    pooled = np.sqrt(sum(one.freedom * one.sigma**2 for one in scatters) / freedom)
    return float(pooled * stdtrit(freedom, (1 + estimates.LEVEL) / 2) / 1.96)


def error_of(point: Point, points: Sequence[Point]) -> float:
    """Standard error of a point's duration: by the scatter of all points, or its own where that is larger."""
    own = point.scatter.sigma if np.isfinite(point.scatter.sigma) else 0.0
    return max(scatter_of(points), own) / float(np.sqrt(len(point.timed)))
