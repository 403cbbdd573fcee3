"""Configurations of a sweep on several numbers of ranks, and how more ranks are laid out."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from analysis.frames.study import Study
from analysis.measures.points import (
    NO_SAMPLES,
    NOT_ALIKE,
    POINT_FIELDS,
    UNPROFILED,
    Point,
    Scaling,
    choose_scaling,
    points_of,
)
from analysis.prediction import curve
from analysis.prediction.allreduce import Layout
from analysis.statistics import estimates
from jobs.run_fields import own_names
from profiling.errors import UserError

KINDS: tuple[Scaling, ...] = ("weak", "strong")
# A node holds so many GPUs as a rule; what was measured on one node says nothing of more.
GPUS_OF_A_NODE = 8
# A prediction over more than this many times the measured ranks is guessing.
FARTHEST = 16
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

    def unseen(self, ranks: int) -> bool:
        """Whether so many ranks need links between nodes, and one node was measured."""
        return self.most == 1 and self.of(ranks).nodes > 1


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

    def batch(self, ranks: int) -> float:
        """Images of a rank's batch."""
        batch = float(self.fields["batch"])
        return batch * self.points[-1].world_size / ranks if self.strong else batch


def configurations(
    study: Study, scaling: Scaling | None = None, gpus_per_node: int | None = None
) -> list[Configuration]:
    """A sweep's configurations; one rank sends no gradients, so its point may be of another precision.

    Args:
        scaling: by default what the report chooses.

    Raises:
        UserError: of none of them the samples of a step are known.
    """
    kind = scaling or choose_scaling(points_of(study, KINDS[0]))
    groups: dict[tuple, list[Point]] = {}
    points = points_of(study, kind)
    known = [point for point in points if point.fields["batch"] and point.has_samples]
    if points and not known:
        raise UserError(f"no prediction: {NO_SAMPLES}")
    for point in known:
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
        by_size: dict[int, Point] = {}  # of points of one world size the one on the fewest nodes
        for point in sorted(_merged(members), key=lambda one: (one.world_size, one.fields["nodes"])):
            by_size.setdefault(point.world_size, point)
        last = _fields(list(by_size.values())[-1])
        answer.append(Configuration(last, tuple(by_size.values()), kind == "strong", gpus_per_node))
    return answer


def _fields(point: Point) -> dict[str, Any]:
    """The fields of a point that its configuration has."""
    return {name: point.fields[name] for name in (*CONFIGURATION, *own_names(point.fields))}


def _merged(members: Sequence[Point]) -> list[Point]:
    """Points that differ in ``batches`` only (a profiled run may be shorter) as one."""
    alike: dict[tuple, list[Point]] = {}
    for point in members:
        alike.setdefault((point.fields["nodes"], point.fields["gpus_per_node"]), []).append(point)
    points = []
    for same in alike.values():
        timed = [one for one in same if one.timed_by == UNPROFILED] or same
        first = max(timed, key=lambda one: (len(one.timed), one.fields["batches"]))
        if len(same) > 1:
            first = replace(first, profiled=tuple(run for one in same for run in one.profiled))
        points.append(first)
    return points


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


def wanted_ranks(text: str, largest: Iterable[int]) -> list[int]:
    """The numbers of ranks to predict, in rising order.

    Args:
        text: as the flag ``--ranks`` has them; empty: twice and four times what each configuration was
            measured on at most.
        largest: the numbers of ranks that configurations were measured on at most.

    Raises:
        UserError: none can be predicted, of no configuration.
    """
    measured = sorted(set(largest)) or [1]
    if not text:
        return sorted({times * count for count in measured for times in (2, 4)})
    values = [value.strip() for value in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,9}", value) and int(value) > 0 for value in values):
        raise UserError(f"--ranks: invalid list {text!r}; expected e.g. 8,16,32")
    wanted = sorted(set(map(int, values)))
    if wanted[-1] <= measured[0]:
        raise UserError(f"--ranks: {text}: measured already; give more than {measured[-1]}")
    if wanted[0] > FARTHEST * measured[-1]:
        raise UserError(
            f"--ranks: {text}: more than {FARTHEST} times the measured {measured[-1]}; give at most "
            f"{FARTHEST * measured[-1]}"
        )
    return wanted
