"""How does a configuration scale, from runs of our own?

A :class:`Point` is a configuration at one world size, with all its runs: the unprofiled ones time it (its
profiled ones, if there are no others), the profiled ones say what its kernels cost.
:mod:`analysis.measures.scaling.figures` says what they add up to.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from analysis.measures.batches.series import Series, all_series
from analysis.measures.kernels.costs import Bound, Costs, bound_of, costs_of
from analysis.results.study import Source, Study
from analysis.statistics import estimates
from jobs.run import fields_of

Scaling = Literal["weak", "strong"]
NAN = float("nan")
UNPROFILED, PROFILED = "unprofiled runs", "profiled runs"  # by which a point is timed

# Two runs give an interval this many times as wide as three do (medians, benchmarks.interval_coverage).
TWO_RUNS_WIDER = 2.5
# Runs of one point that differ by more (standard deviation of the logarithm) are worth a line.
WIDE_SCATTER = 0.1
# In these a point may differ from its base: its size, and for how long it ran.
NOT_ALIKE = fields_of("size", "length")
POINT_FIELDS = fields_of("workload", "size", "length")


@dataclass
class Point:
    """A configuration at one world size.

    Attributes:
        fields: its values of :data:`POINT_FIELDS`.
        timed, profiled: its runs with their batches.
        cost: of its kernels, mean over its profiled runs.
        base: the point it is compared with (itself, if it is the smallest).
        anatomy: ns a batch of a rank by part, mean over its profiled runs, and then means of resampled
            batches; empty: not known, None: not asked.
    """

    fields: dict[str, Any]
    timed: list[tuple[Source, Series]] = field(default_factory=list)
    profiled: list[tuple[Source, Series]] = field(default_factory=list)
    timed_by: str = UNPROFILED
    cost: Costs | None = None
    bound: Bound = field(default_factory=lambda: Bound("", None, None))
    base: "Point | None" = None
    anatomy: dict[str, np.ndarray] | None = None

    def __post_init__(self) -> None:
        self.batch_drawn: estimates.Drawn | None = None  # of the median batch, ns
        self.batch_resamples: np.ndarray | None = None
        self.rate_drawn: estimates.Drawn | None = None  # of images/s
        self.rate_resamples: np.ndarray | None = None
        self.batch = self.rate = estimates.Estimate(NAN, NAN, NAN)
        self.scatter = estimates.Scatter(NAN, 0)  # of the batch, between runs

    @property
    def world_size(self) -> int:
        return self.fields["nodes"] * self.fields["gpus_per_node"]

    @property
    def images(self) -> float:
        """Images of one batch of the job."""
        return float(np.mean([series.images[series.steady].mean() for _, series in self.timed]))

    @property
    def label(self) -> str:
        nodes, gpus = self.fields["nodes"], self.fields["gpus_per_node"]
        return f"{nodes} node{'s' if nodes > 1 else ''} x {gpus}, {self.fields['grad']} gradients"

    def images_per_s(self, pace_ns: np.ndarray) -> np.ndarray:
        """Images of all ranks over the total time of these batches (the last axis)."""
        return self.images / pace_ns.mean(axis=-1) * 1e9

    @property
    def steps(self) -> list[np.ndarray]:
        """Durations of the job's steady batches of each timed run, ns."""
        return [one.steady_ns.astype(float) for _, one in self.timed]

    @property
    def paces(self) -> list[np.ndarray]:
        """The same batches of the rank that took longest for all of them: they add up to the job's time."""
        return [one.pace_ns.astype(float) for _, one in self.timed]

    @property
    def seed(self) -> int:
        """Of this point's resampling: points are resampled each for itself."""
        return estimates.SEED + zlib.crc32(repr(sorted(self.fields.items(), key=str)).encode()) % 2**20

    def measure(self) -> None:
        """Centre, scatter between runs and resamples of the batch, and of the rate."""
        steps, paces, seed = self.steps, self.paces, self.seed
        self.scatter = estimates.scatter([float(np.median(run)) for run in steps])
        if len(self.timed) > 1:
            self.batch_drawn = estimates.draw_runs(steps, seed=seed)
            self.batch_resamples = self.batch_drawn.values()
            self.rate_drawn = estimates.draw_runs(paces, self.images_per_s, seed=seed)
            self.rate_resamples = self.rate_drawn.values()
        self.batch = estimates.of_resamples(steps, estimates.median, self.batch_resamples)
        self.rate = estimates.of_resamples(paces, self.images_per_s, self.rate_resamples)


# --- points -------------------------------------------------------------------------------------------


def points_of(study: Study, scaling: Scaling | None = "weak") -> list[Point]:
    """The points of a study, each with its base; runs that cannot be used are taken out of the study.

    They are found once a study and set of runs: several sections of a report ask for them.

    Args:
        scaling: by which bases are found; None: as :func:`choose_scaling` finds.
    """
    key = (scaling, *(source.id for source in study.sources))
    kept: dict[tuple, list[Point]] = study.kept("points")
    if key not in kept:
        found = _points(study, scaling)
        kept[scaling, *(source.id for source in study.sources)] = found
        return found
    return kept[key]


def choose_scaling(points: Sequence[Point]) -> Scaling:
    """The kind of scaling that compares more of the points with one of fewer ranks; weak if they tie."""
    return "strong" if count_compared(points, "strong") > count_compared(points, "weak") else "weak"


def count_compared(points: Sequence[Point], scaling: Scaling) -> int:
    """How many of the points have a base of fewer ranks."""
    return sum(_base(point, points, scaling).world_size < point.world_size for point in points)


def _points(study: Study, scaling: Scaling | None) -> list[Point]:
    series = all_series(study)
    found: dict[tuple, Point] = {}
    for source in study.of_kind("run"):
        key = tuple(str(source.fields[name]) for name in POINT_FIELDS)
        point = found.setdefault(key, Point({name: source.fields[name] for name in POINT_FIELDS}))
        runs = point.timed if source.fields["profile"] == "none" else point.profiled
        runs.append((source, series[source.id]))
    points = list(found.values())
    for point in points:
        if not point.timed:
            point.timed, point.timed_by = point.profiled, PROFILED
        point.bound = bound_of(study, point.timed[0][0])
        _add_costs(study, point)
    _measure(study, points)
    kind = scaling or choose_scaling(points)
    for point in points:
        point.base = base_of(study, point, points, kind)
    for finding in other_devices(points):
        study.note(finding)
    alone = [series for point in points if point.timed_by == PROFILED for _, series in point.timed]
    if any(one.attributed[one.steady].any() for one in alone):
        study.note("some points have no unprofiled run: their durations hold the profiler's own cost")
    elif alone:
        study.note("some points have no unprofiled run: batches that the profiler did not record time them")
    return points


def other_devices(points: Sequence[Point]) -> list[str]:
    """What is to be said where figures of different devices meet in one: in a point, or in an efficiency."""
    found = []
    for point in points:
        own = _devices(point)
        if len(own) > 1:
            found.append(f"one point ({point.label}) ran on different devices: {' and '.join(own)}")
        base = _devices(point.base) if point.base else own
        if base != own:
            found.append(
                f"points on {' and '.join(own)} are compared with base points on {' and '.join(base)}: such "
                "a scaling efficiency compares the devices, too"
            )
    return list(dict.fromkeys(found))


def _devices(point: Point) -> list[str]:
    runs = [source for source, _ in (*point.timed, *point.profiled)]
    return sorted({device for run in runs for device in run.devices})


def _measure(study: Study, points: Sequence[Point]) -> None:
    """Centres and intervals, and findings where the runs are too few or too different to say much."""
    for point in points:
        point.measure()
    twice = [point for point in points if len(point.timed) == 2]
    if twice:
        study.note(
            f"{len(twice)} of {len(points)} points ran twice: two runs tell little of how much runs differ, "
            f"so that a point's own interval is about {TWO_RUNS_WIDER:g} times as wide as with a third"
        )
    apart = [point for point in points if point.scatter.sigma > WIDE_SCATTER]
    if apart:
        worst = max(apart, key=lambda point: point.scatter.sigma)
        study.note(
            f"runs of one point differ by more than {100 * WIDE_SCATTER:.0f} % (standard deviation) in "
            f"{len(apart)} of {len(points)} points, most in {worst.label} "
            f"({100 * np.expm1(worst.scatter.sigma):.0f} %), so intervals are wide: was the machine busy "
            "with something else?"
        )


def _add_costs(study: Study, point: Point) -> None:
    sources = [source for source, _ in point.profiled]
    found = list(costs_of(study, sources).values())
    if found:
        names = [name for name in Costs.__dataclass_fields__ if name != "batches"]
        means = {name: float(np.mean([getattr(cost, name) for cost in found])) for name in names}
        point.cost = Costs(sum(cost.batches for cost in found), **means)


def base_of(study: Study, point: Point, points: Sequence[Point], scaling: Scaling) -> Point:
    """The smallest world size of the otherwise equal configuration.

    One rank sends no gradients, so its precision of gradients is no matter: where a configuration has no
    point of one rank with its own, the one with any other stands in.
    """
    base = _base(point, points, scaling)
    if base.fields["grad"] != point.fields["grad"]:
        study.note(
            f"one rank sends no gradients: points with {point.fields['grad']} gradients are compared "
            f"with the one-rank point said to be {base.fields['grad']}"
        )
    return base


def _base(point: Point, points: Sequence[Point], scaling: Scaling) -> Point:
    alike = [other for other in points if _key(other, scaling) == _key(point, scaling)]
    base = min(alike, key=lambda other: (*_size(other), other.fields["batches"] != point.fields["batches"]))
    if base.world_size > 1:
        ones = [
            other
            for other in points
            if other.world_size == 1 and _key(other, scaling, "grad") == _key(point, scaling, "grad")
        ]
        if ones:
            base = min(ones, key=lambda other: other.fields["grad"] != "fp32")
    return base


def _size(point: Point) -> tuple[int, int]:
    return point.world_size, point.fields["nodes"]


def _key(point: Point, scaling: Scaling, *without: str) -> tuple:
    fields = dict(point.fields)
    if scaling == "strong":
        fields["batch"] *= point.world_size  # the global batch
    return tuple(str(value) for name, value in fields.items() if name not in (*NOT_ALIKE, *without))
