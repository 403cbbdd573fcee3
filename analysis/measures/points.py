"""Configurations at one world size (points), with their runs and their baselines.

The durations of a point come from its unprofiled runs (from profiled ones, if there are no others), its
kernels from its profiled runs.
"""

import zlib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd

from analysis.display.metrics import telling
from analysis.display.numbers import label_of
from analysis.frames.kernel_sums import costs
from analysis.frames.steps import Series, all_series
from analysis.frames.study import Source, Study
from analysis.measures.lateness import parts_of_stages
from analysis.measures.peaks import Bound, bound_of
from analysis.statistics import estimates
from jobs.run_fields import fields_of, is_default, own_names
from profiling.findings import Finding

UNPROFILED, PROFILED = "unprofiled runs", "profiled runs"  # by which a point is timed
NO_SAMPLES = "samples per step are unknown; run the program with profiling.watch --samples N (per rank)"
OWN_RUNS = "it needs runs that scaleprof started or watched"
POINT_FIELDS = fields_of("workload", "size", "length")
NOT_ALIKE = fields_of("size", "length")  # in which a point may differ from its baseline
LONG_TAIL = 0.05  # by which the mean step is longer than the median one, as a share
WIDE_SCATTER = 0.1  # standard deviation of the logarithm of the runs' medians

_NO_BOUND = Bound("", None, None)

Scaling = Literal["weak", "strong"]
Fields = Mapping[str, Any]
Runs = tuple[tuple[Source, Series], ...]


def point_names(*fields: Fields) -> list[str]:
    """The fields that tell points apart: ours, and the factors of programs' own among ``fields``."""
    return [*POINT_FIELDS, *own_names(*fields)]


def point_fields(fields: Fields) -> dict[str, Any]:
    """Of a run's fields, those of its point."""
    return {name: fields[name] for name in point_names(fields)}


@dataclass(frozen=True, eq=False)
class Point:
    """A configuration at one world size: what was measured of it.

    Attributes:
        fields: its values of :func:`point_names`.
        timed, profiled: its runs with their steps.
        timed_by: which runs those are that time it.
        bound: the peaks of its device.
        cost: of its kernels (:func:`~analysis.frames.kernel_sums.costs`), mean over its profiled runs.
        baseline: the point of fewer ranks with which it is compared; None: there is none.
    """

    fields: Fields
    timed: Runs
    profiled: Runs = ()
    timed_by: str = UNPROFILED
    bound: Bound = _NO_BOUND
    cost: pd.Series | None = None
    baseline: "Point | None" = None

    @property
    def base(self) -> "Point":
        """The baseline; the point itself, if it is the smallest."""
        return self.baseline or self

    @property
    def world_size(self) -> int:
        """Ranks of one GPU each."""
        return int(self.fields["nodes"] * self.fields["gpus_per_node"])

    @cached_property
    def images(self) -> float:
        """Images of one step of the job; NaN: a program that was watched did not say."""
        return float(np.mean([series.images[series.steady].mean() for _, series in self.timed]))

    @property
    def has_samples(self) -> bool:
        return not np.isnan(self.images)

    @property
    def runs(self) -> list[Source]:
        # Where there are no others, profiled runs time it.
        return list({source.id: source for source, _ in (*self.timed, *self.profiled)}.values())

    @property
    def label(self) -> str:
        nodes, gpus = self.fields["nodes"], self.fields["gpus_per_node"]
        unit = "rank" if all(run.on_cpus for run in self.runs) else "GPU"
        # Of a program that was watched, the precision of gradients may be unknown.
        grad = f", {self.fields['grad']} gradients" if self.fields["grad"] else ""
        return f"{nodes} node{'s' * (nodes != 1)} x {gpus} {unit}{'s' * (gpus != 1)}{grad}"

    @property
    def seed(self) -> int:
        """Of its resampling: points are resampled each for itself.

        Fields that have their default are left out, so that a new field of Run moves no interval.
        """
        given = {name: value for name, value in self.fields.items() if not is_default(name, value)}
        return estimates.SEED + zlib.crc32(repr(sorted(given.items(), key=str)).encode()) % 2**20

    @cached_property
    def stages_ns(self) -> pd.Series:
        """What the mean step is made of by stages (:func:`parts_of_stages`); adds up to it."""
        parts = pd.DataFrame([parts_of_stages(series) for _, series in self.timed]).mean()
        whole = self.images / self.rate.value * 1e9 if self.has_samples else self.mean_ns
        return parts * (whole / parts.sum())

    @cached_property
    def mean_ns(self) -> float:
        """Mean step of the job: what its rate is of."""
        return float(np.median([series.pace_ns.mean() for _, series in self.timed]))

    @cached_property
    def tail_ns(self) -> float:
        """By how much the mean step is longer than the median one, mean over its runs."""
        paces = [series.pace_ns for _, series in self.timed]
        return float(np.mean([pace.mean() - np.median(pace) for pace in paces]))

    @cached_property
    def batch(self) -> estimates.Drawn:
        """Duration of a step, ns: of each run the median."""
        steps = [series.steady_ns.astype(float) for _, series in self.timed]
        return estimates.draw_runs(steps, seed=self.seed)

    @cached_property
    def scatter(self) -> estimates.Scatter:
        """By how much the median step differs between runs."""
        return estimates.scatter([float(np.median(series.steady_ns)) for _, series in self.timed])

    @cached_property
    def rate(self) -> estimates.Drawn:
        """Images/s: of all ranks, over the time that the slowest of them took for all steps."""
        paces = [series.pace_ns.astype(float) for _, series in self.timed]
        return estimates.draw_runs(paces, lambda ns: self.images / ns.mean(axis=-1) * 1e9, seed=self.seed)


# --- baselines --------------------------------------------------------------------------------------------


def choose_scaling(points: Sequence[Point]) -> Scaling:
    """The kind of scaling that compares more of the points with one of fewer ranks; weak if they tie."""
    every = [point.fields for point in points]
    weak, strong = (
        sum(_size(every[base]) < _size(own) for own, base in zip(every, bases_of(every, kind), strict=True))
        for kind in ("weak", "strong")
    )
    return "strong" if strong > weak else "weak"


def bases_of(every: Sequence[Fields], scaling: Scaling) -> list[int]:
    """The places of the points' baselines: the smallest world size of the otherwise equal configuration.

    One rank sends no gradients: where a configuration has no point of one rank with its own precision of
    gradients, the one with any other is the baseline.

    Args:
        every: the fields of each point.
    """

    def key(own: Fields, *without: str) -> tuple:
        if scaling == "strong":
            # The global batch; of a program whose samples are unknown, none is known to be that of another.
            own = {**own, "batch": (own["batch"] or 1) * _size(own)}
        return tuple(str(value) for name, value in own.items() if name not in (*NOT_ALIKE, *without))

    alike, on_one = defaultdict(list), defaultdict(list)
    for place, own in enumerate(every):
        alike[key(own)].append(place)
        if _size(own) == 1:
            on_one[key(own, "grad")].append(place)
    bases = []
    for own in every:
        order = {
            place: (_size(every[place]), every[place]["nodes"], every[place]["batches"] != own["batches"])
            for place in alike[key(own)]
        }
        base = min(order, key=order.__getitem__)
        if _size(every[base]) > 1:
            ones = on_one[key(own, "grad")]
            base = min(ones, key=lambda place: every[place]["grad"] != "fp32", default=base)
        bases.append(base)
    return bases


def _size(fields: Fields) -> int:
    return int(fields["nodes"] * fields["gpus_per_node"])


# --- the points of a study --------------------------------------------------------------------------------


def points_of(study: Study, scaling: Scaling | None = "weak") -> list[Point]:
    """The points of a study, each with its baseline; found once a study and set of runs.

    Args:
        scaling: by which baselines are found; None: as :func:`choose_scaling` finds.
    """
    kept: dict[tuple, list[Point]] = study.kept("points")
    key = scaling, *(source.id for source in study.sources)
    if key in kept:
        return kept[key]
    series = all_series(study)
    # Load first, so that runs with damaged tables are excluded.
    cost = costs(study, [source for source in study.of_kind("run") if source.fields["profile"] != "none"])
    runs = defaultdict(list)
    for source in study.of_kind("run"):
        runs[tuple(map(str, point_fields(source.fields).items()))].append((source, series[source.id]))
    points = []
    for of_point in runs.values():
        profiled = tuple(run for run in of_point if run[0].fields["profile"] != "none")
        timed = tuple(run for run in of_point if run[0].fields["profile"] == "none")
        known = cost[cost.index.isin([source.id for source, _ in profiled])]
        points.append(Point(
            point_fields(of_point[0][0].fields),
            timed=timed or profiled,
            profiled=profiled,
            timed_by=UNPROFILED if timed else PROFILED,
            bound=bound_of(study, (timed or profiled)[0][0]),
            cost=known.mean() if len(known) else None,
        ))  # fmt: skip
    bases = bases_of([point.fields for point in points], scaling or choose_scaling(points))
    points = [
        point if points[base] is point else replace(point, baseline=points[base])
        for point, base in zip(points, bases, strict=True)
    ]
    for finding in findings(points):
        study.log.add(finding)
    # Runs that turned out to be unusable are in none of them.
    kept[scaling, *(source.id for source in study.sources)] = points
    return points


def findings(points: Sequence[Point]) -> Iterator[Finding]:
    """What makes the points' figures uncertain, or not comparable with each other."""
    of = len(points)
    if few := sum(len(point.timed) < 3 for point in points):
        yield Finding("few_runs", data={"n": few, "of": of, "least": 3})
    if scattered := [point for point in points if point.scatter.sigma > WIDE_SCATTER]:
        worst = max(scattered, key=lambda point: point.scatter.sigma)
        medians = [float(np.median(series.steady_ns)) for _, series in worst.timed]
        data = {"n": len(scattered), "of": of, "factor": max(medians) / min(medians)}
        yield Finding("runs_differ", configuration=_label(worst, points), data=data)
    if tails := [point for point in points if point.tail_ns > LONG_TAIL * point.mean_ns]:
        worst = max(tails, key=lambda point: point.tail_ns / point.mean_ns)
        data = {"n": len(tails), "of": of, "tail_pct": 100 * worst.tail_ns / worst.mean_ns}
        yield Finding("few_long_steps", configuration=_label(worst, points), data=data)
    lengths = defaultdict(set)
    for point in points:
        key = tuple(str(value) for name, value in point.fields.items() if name != "batches")
        lengths[key].add(point.fields["batches"])
        devices = {device for one in (point, point.base) for run in one.runs for device in run.devices}
        if len(devices) > 1:
            yield Finding("devices_differ", configuration=_label(point, points), data={"devices": devices})
        threads, base = (
            {rank.threads for run, _ in one.timed if run.manifest for rank in run.manifest.ranks} - {0, None}
            for one in (point, point.base)
        )
        # Where ranks have GPUs, CPU threads do little of the work.
        if devices == {"cpu"} and threads and base and threads != base:
            differ = {"threads": threads, "base": base}
            yield Finding("threads_differ", configuration=_label(point, points), data=differ)
    for differing in {tuple(sorted(one)) for one in lengths.values() if len(one) > 1}:
        yield Finding("not_compared", data={"what": [f"runs of {length} steps" for length in differing]})
    if profiled := sum(point.timed_by == PROFILED for point in points):
        yield Finding("timed_by_profiled_runs", data={"n": profiled, "of": of})


def _label(point: Point, points: Sequence[Point]) -> str:
    """Its label, and, where others have the same, what tells it from these."""
    alike = [one.fields for one in points if one.label == point.label]
    return ", ".join([point.label, *filter(None, [label_of(point.fields, telling(alike, POINT_FIELDS))])])
