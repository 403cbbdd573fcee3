"""Configurations at one world size (points), with all their runs and their baselines.

A point's unprofiled runs time it (its profiled ones, if there are no others); the profiled ones tell what its
kernels cost.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np

from analysis.display.metrics import telling
from analysis.display.numbers import label_of
from analysis.frames.kernel_sums import COSTS, Costs
from analysis.frames.steps import Series, all_series
from analysis.frames.study import Source, Study
from analysis.measures.peaks import Bound, bound_of, costs_of
from analysis.statistics import estimates
from jobs.run_fields import fields_of, is_default, own_names
from profiling.findings import Finding

NAN = float("nan")
UNPROFILED, PROFILED = "unprofiled runs", "profiled runs"  # by which a point is timed
NO_SAMPLES = "samples per step are unknown; run the program with profiling.watch --samples N (per rank)"
OWN_RUNS = "it needs runs that scaleprof started or watched"
NO_BOUND = Bound("", None, None)
POINT_FIELDS = fields_of("workload", "size", "length")
NOT_ALIKE = fields_of("size", "length")  # in which a point may differ from its baseline
WIDE_SCATTER = 0.1  # standard deviation of the logarithm of the runs' medians

Scaling = Literal["weak", "strong"]
Fields = Mapping[str, Any]
Runs = tuple[tuple[Source, Series], ...]


def world_size(fields: Fields) -> int:
    """Ranks of one GPU each."""
    return int(fields["nodes"] * fields["gpus_per_node"])


def point_names(*fields: Fields) -> list[str]:
    """The fields that tell points apart: ours, and the factors of programs' own among ``fields``."""
    return [*POINT_FIELDS, *own_names(*fields)]


def point_fields(fields: Fields) -> dict[str, Any]:
    """Of a run's fields, those of its point."""
    return {name: fields[name] for name in point_names(fields)}


@dataclass(frozen=True, eq=False)
class Point:
    """A configuration at one world size: what was measured of it. What follows from that is computed once.

    Attributes:
        fields: its values of :func:`point_names`.
        timed, profiled: its runs with their batches.
        timed_by: which runs those are that time it.
        bound: the peaks of its device.
        cost: of its kernels, mean over its profiled runs.
        baseline: the point of fewer ranks with which it is compared; None: there is none.
    """

    fields: Fields
    timed: Runs
    profiled: Runs = ()
    timed_by: str = UNPROFILED
    bound: Bound = NO_BOUND
    cost: Costs | None = None
    baseline: "Point | None" = None

    @property
    def base(self) -> "Point":
        """The baseline; the point itself, if it is the smallest."""
        return self.baseline or self

    @property
    def world_size(self) -> int:
        return world_size(self.fields)

    @property
    def images(self) -> float:
        """Images of one batch of the job."""
        return float(np.mean([series.images[series.steady].mean() for _, series in self.timed]))

    @property
    def has_samples(self) -> bool:
        """Whether its images are known; of a program that was watched they may not be."""
        return not np.isnan(self.images)

    @property
    def on_cpus(self) -> bool:
        """Whether its runs ran without GPUs."""
        return all(run.on_cpus for run, _ in (*self.timed, *self.profiled))

    @property
    def label(self) -> str:
        nodes, gpus = self.fields["nodes"], self.fields["gpus_per_node"]
        unit = "rank" if self.on_cpus else "GPU"
        # Of a program that was watched, the precision of gradients may be unknown.
        grad = f", {self.fields['grad']} gradients" if self.fields["grad"] else ""
        return f"{nodes} node{'s' * (nodes != 1)} x {gpus} {unit}{'s' * (gpus != 1)}{grad}"

    def images_per_s(self, pace_ns: np.ndarray) -> np.ndarray:
        """Images of all ranks over the total time of these batches (the last axis)."""
        return self.images / pace_ns.mean(axis=-1) * 1e9

    @property
    def steps(self) -> list[np.ndarray]:
        """Durations of the job's steady batches of each timed run, ns."""
        return [series.steady_ns.astype(float) for _, series in self.timed]

    @property
    def paces(self) -> list[np.ndarray]:
        """The same batches of the rank that took longest for all of them: they add up to the job's time."""
        return [series.pace_ns.astype(float) for _, series in self.timed]

    @property
    def seed(self) -> int:
        """Of this point's resampling: points are resampled each for itself.

        Fields that have their default say nothing, so that a new field of Run moves no interval.
        """
        told = {name: value for name, value in self.fields.items() if not is_default(name, value)}
        return estimates.SEED + zlib.crc32(repr(sorted(told.items(), key=str)).encode()) % 2**20

    @cached_property
    def scatter(self) -> estimates.Scatter:
        """By how much the median batch differs between runs."""
        return estimates.scatter([float(np.median(run)) for run in self.steps])

    @cached_property
    def batch_drawn(self) -> estimates.Drawn | None:
        """Of the median batch, ns; None of one run."""
        return estimates.draw_runs(self.steps, seed=self.seed) if len(self.timed) > 1 else None

    @cached_property
    def batch_resamples(self) -> np.ndarray | None:
        return self.batch_drawn.values() if self.batch_drawn else None

    @cached_property
    def rate_drawn(self) -> estimates.Drawn | None:
        """Of images/s; None of one run."""
        if len(self.timed) < 2:
            return None
        return estimates.draw_runs(self.paces, self.images_per_s, seed=self.seed)

    @cached_property
    def rate_resamples(self) -> np.ndarray | None:
        return self.rate_drawn.values() if self.rate_drawn else None

    @cached_property
    def batch(self) -> estimates.Estimate:
        """The median batch, ns."""
        return estimates.of_resamples(self.steps, estimates.median, self.batch_resamples)

    @cached_property
    def rate(self) -> estimates.Estimate:
        """Images/s."""
        return estimates.of_resamples(self.paces, self.images_per_s, self.rate_resamples)


def called(point: Point, points: Sequence[Point]) -> str:
    """The label of a point, and, where others of ``points`` have the same, what tells it from these."""
    alike = [one.fields for one in points if one.label == point.label]
    return ", ".join([point.label, *filter(None, [label_of(point.fields, telling(alike, POINT_FIELDS))])])


# --- baselines --------------------------------------------------------------------------------------------


def choose_scaling(points: Sequence[Point]) -> Scaling:
    """The kind of scaling that compares more of the points with one of fewer ranks; weak if they tie."""
    every = [point.fields for point in points]
    return "strong" if _compared(every, "strong") > _compared(every, "weak") else "weak"


def _compared(every: Sequence[Fields], scaling: Scaling) -> int:
    """How many points have a baseline of fewer ranks."""
    bases = (every[base_of(number, every, scaling)] for number in range(len(every)))
    return sum(world_size(base) < world_size(own) for base, own in zip(bases, every, strict=True))


def base_of(number: int, every: Sequence[Fields], scaling: Scaling) -> int:
    """The place of the point of the smallest world size of the otherwise equal configuration.

    One rank sends no gradients: where a configuration has no point of one rank with its own precision of
    gradients, the one with any other is the baseline.
    """
    own = every[number]
    alike = [place for place, other in enumerate(every) if _key(other, scaling) == _key(own, scaling)]
    base = min(
        alike,
        key=lambda place: (
            world_size(every[place]),
            every[place]["nodes"],
            every[place]["batches"] != own["batches"],
        ),
    )
    if world_size(every[base]) > 1:
        ones = [
            place
            for place, other in enumerate(every)
            if world_size(other) == 1 and _key(other, scaling, "grad") == _key(own, scaling, "grad")
        ]
        if ones:
            base = min(ones, key=lambda place: every[place]["grad"] != "fp32")
    return base


def _key(fields: Fields, scaling: Scaling, *without: str) -> tuple:
    if scaling == "strong":
        # The global batch; of a program whose samples are unknown, none is known to be that of another.
        fields = {**fields, "batch": (fields["batch"] or 1) * world_size(fields)}
    return tuple(str(value) for name, value in fields.items() if name not in (*NOT_ALIKE, *without))


# --- the points of a study --------------------------------------------------------------------------------


def points_of(study: Study, scaling: Scaling | None = "weak") -> list[Point]:
    """The points of a study, each with its baseline; found once a study and set of runs.

    Args:
        scaling: by which baselines are found; None: as :func:`choose_scaling` finds.
    """
    kept: dict[tuple, list[Point]] = study.kept("points")
    key = (scaling, *(source.id for source in study.sources))
    if key not in kept:
        points = _points(study, scaling)
        # Runs that turned out to be unusable are in none of them.
        key = (scaling, *(source.id for source in study.sources))
        kept[key] = points
    return kept[key]


def _points(study: Study, scaling: Scaling | None) -> list[Point]:
    series = all_series(study)
    # Load first, so that runs with damaged tables are excluded.
    costs = costs_of(study, [source for source in study.of_kind("run") if source.fields["profile"] != "none"])
    runs: dict[tuple, dict[str, list[tuple[Source, Series]]]] = {}
    fields: dict[tuple, dict[str, Any]] = {}
    for source in study.of_kind("run"):
        own = point_fields(source.fields)
        key = tuple(map(str, own.items()))
        fields.setdefault(key, own)
        by = runs.setdefault(key, {UNPROFILED: [], PROFILED: []})
        by[UNPROFILED if source.fields["profile"] == "none" else PROFILED].append((source, series[source.id]))
    measured = []
    for key, by in runs.items():
        which = UNPROFILED if by[UNPROFILED] else PROFILED
        known = [costs[source.id] for source, _ in by[PROFILED] if source.id in costs]
        means = {name: float(np.mean([getattr(one, name) for one in known])) for name in COSTS if known}
        cost = Costs(sum(one.batches for one in known), **means) if known else None
        bound = bound_of(study, by[which][0][0])
        measured.append(Point(fields[key], tuple(by[which]), tuple(by[PROFILED]), which, bound, cost))
    every, kind = [point.fields for point in measured], scaling or choose_scaling(measured)
    bases = [base_of(number, every, kind) for number in range(len(every))]
    points = [
        point if bases[number] == number else replace(point, baseline=measured[bases[number]])
        for number, point in enumerate(measured)
    ]
    for finding in findings(points):
        study.log.add(finding)
    return points


def findings(points: Sequence[Point]) -> Iterator[Finding]:
    """What makes the points' figures uncertain, or not comparable with each other."""
    of = len(points)
    if few := sum(len(point.timed) < 3 for point in points):
        yield Finding("few_runs", data={"n": few, "of": of, "least": 3})
    if apart := [point for point in points if point.scatter.sigma > WIDE_SCATTER]:
        worst = max(apart, key=lambda point: point.scatter.sigma)
        medians = [float(np.median(run)) for run in worst.steps]
        data = {"n": len(apart), "of": of, "factor": max(medians) / min(medians)}
        yield Finding("runs_differ", configuration=called(worst, points), data=data)
    alike: dict[tuple, set[int]] = {}
    for point in points:
        key = tuple(str(value) for name, value in point.fields.items() if name != "batches")
        alike.setdefault(key, set()).add(point.fields["batches"])
        devices = {
            device for one in (point, point.base) for run, _ in (*one.timed, *one.profiled)
            for device in run.devices
        }  # fmt: skip
        if len(devices) > 1:
            yield Finding("devices_differ", configuration=called(point, points), data={"devices": devices})
        own, base = _threads(point), _threads(point.base)
        # Where ranks have GPUs, CPU threads do little of the work.
        if point.on_cpus and own and base and own != base:
            threads = {"threads": own, "base": base}
            yield Finding("threads_differ", configuration=called(point, points), data=threads)
    for lengths in {tuple(sorted(one)) for one in alike.values() if len(one) > 1}:
        yield Finding("not_compared", data={"what": [f"runs of {length} steps" for length in lengths]})
    if profiled := sum(point.timed_by == PROFILED for point in points):
        yield Finding("timed_by_profiled_runs", data={"n": profiled, "of": of})


def _threads(point: Point) -> set[int]:
    reports = [rank for run, _ in point.timed if run.manifest for rank in run.manifest.ranks]
    return {rank.threads for rank in reports if rank.threads}
