"""How does a configuration scale, from runs of our own?

A :class:`Point` is a configuration at one world size, with all its runs: the unprofiled ones time it (its
profiled ones, if there are no others), the profiled ones say what its kernels cost.
:mod:`analysis.measures.scaling.figures` says what they add up to.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from analysis.measures.batches.series import Series, all_series
from analysis.measures.kernels.costs import Bound, bound_of, costs_of
from analysis.measures.scaling import baselines
from analysis.measures.scaling.baselines import Scaling, base_of, world_size
from analysis.results.attributed import COSTS, Costs
from analysis.results.source import Source
from analysis.results.study import Study
from analysis.statistics import estimates
from jobs.run_fields import fields_of, is_default, own_names
from profiling.wording import how_many, in_a_row

NAN = float("nan")
UNPROFILED, PROFILED = "unprofiled runs", "profiled runs"  # by which a point is timed

# Two runs give an interval this many times as wide as three do (medians, benchmarks.interval_coverage).
TWO_RUNS_WIDER = 2.5
# Runs of one point that differ by more (standard deviation of the logarithm) are worth a line.
WIDE_SCATTER = 0.1
# Of a program that was watched, what it lacks for a rate, and what gives it.
NO_SAMPLES = "samples per step are unknown; run the program with profiling.watch --samples N (per rank)"
NO_BOUND = Bound("", None, None)
POINT_FIELDS = fields_of("workload", "size", "length")


Runs = tuple[tuple[Source, Series], ...]


def point_names(*fields: Mapping[str, Any]) -> list[str]:
    """The fields that tell points apart: ours, and the factors of programs' own among ``fields``."""
    return [*POINT_FIELDS, *own_names(*fields)]


def point_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
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

    fields: Mapping[str, Any]
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
        of_node = how_many(gpus, unit)
        # Of a program that was watched, the precision of gradients may be unknown.
        grad = f", {self.fields['grad']} gradients" if self.fields["grad"] else ""
        return f"{how_many(nodes, 'node')} x {of_node}{grad}"

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


# --- points -------------------------------------------------------------------------------------------


def points_of(study: Study, scaling: Scaling | None = "weak") -> list[Point]:
    """The points of a study, each with its baseline.

    They are found once a study and set of runs: several sections of a report ask for them.

    Args:
        scaling: by which baselines are found; None: as :func:`choose_scaling` finds.
    """
    kept: dict[tuple, list[Point]] = study.kept("points")
    key = (scaling, *(source.id for source in study.sources))
    if key not in kept:
        points = _points(study, scaling)
        # Those that turned out to be unusable are in none of them.
        key = (scaling, *(source.id for source in study.sources))
        kept[key] = points
    return kept[key]


def choose_scaling(points: Sequence[Point]) -> Scaling:
    """The kind of scaling that compares more of the points with one of fewer ranks; weak if they tie."""
    return baselines.choose([point.fields for point in points])


def count_compared(points: Sequence[Point], scaling: Scaling) -> int:
    """How many of the points have a baseline of fewer ranks."""
    return baselines.count([point.fields for point in points], scaling)


def _points(study: Study, scaling: Scaling | None) -> list[Point]:
    series = all_series(study)
    # Before there are points: a run whose tables are damaged is in none.
    costs = costs_of(study, [source for source in study.of_kind("run") if _is_profiled(source)])
    runs: dict[tuple, dict[str, list[tuple[Source, Series]]]] = {}
    fields: dict[tuple, dict[str, Any]] = {}
    for source in study.of_kind("run"):
        own = point_fields(source.fields)
        key = tuple(map(str, own.items()))
        fields.setdefault(key, own)
        by = runs.setdefault(key, {UNPROFILED: [], PROFILED: []})
        by[PROFILED if _is_profiled(source) else UNPROFILED].append((source, series[source.id]))
    measured = [_measured(study, fields[key], by, costs) for key, by in runs.items()]
    points = _with_baselines(measured, scaling or baselines.choose([point.fields for point in measured]))
    _note_scatter(study, points)
    for point in points:
        if point.base.fields["grad"] != point.fields["grad"]:
            study.note(
                f"one rank sends no gradients: configurations with {point.fields['grad']} gradients are "
                f"compared with the one-rank run labelled {point.base.fields['grad']}"
            )
    for text in (*other_devices(points), *other_lengths(points)):
        study.note(text)
    alone = [series for point in points if point.timed_by == PROFILED for _, series in point.timed]
    if any(one.attributed[one.steady].any() for one in alone):
        study.note(
            "some configurations have no unprofiled run: their durations include the profiler's overhead"
        )
    elif alone:
        study.note(
            "some configurations have no unprofiled run: their durations come from steps that the "
            "profiler did not record"
        )
    return points


def _is_profiled(source: Source) -> bool:
    return bool(source.fields["profile"] != "none")


def _measured(
    study: Study,
    fields: dict[str, Any],
    runs: Mapping[str, list[tuple[Source, Series]]],
    costs: Mapping[str, Costs],
) -> Point:
    """A point as it was measured, by itself.

    Args:
        costs: of runs, by their ids.
    """
    by = UNPROFILED if runs[UNPROFILED] else PROFILED
    bound = bound_of(study, runs[by][0][0])
    cost = _mean_cost([costs[source.id] for source, _ in runs[PROFILED] if source.id in costs])
    return Point(fields, tuple(runs[by]), tuple(runs[PROFILED]), by, bound, cost)


def _with_baselines(measured: Sequence[Point], scaling: Scaling) -> list[Point]:
    every = [point.fields for point in measured]
    of = [base_of(number, every, scaling) for number in range(len(every))]
    # The smallest points have none: they are what others are compared with.
    return [
        point if of[number] == number else replace(point, baseline=measured[of[number]])
        for number, point in enumerate(measured)
    ]


def other_devices(points: Sequence[Point]) -> list[str]:
    """What is to be said where figures of different devices meet in one: in a point, or in an efficiency."""
    notes = []
    for point in points:
        own = _devices(point)
        if len(own) > 1:
            notes.append(f"one configuration ({point.label}) ran on different devices: {in_a_row(own)}")
        base = _devices(point.base)
        if base and own and base != own:
            notes.append(
                f"configurations on {in_a_row(own)} are compared with a baseline on "
                f"{in_a_row(base)}: this scaling efficiency also compares the devices"
            )
    return list(dict.fromkeys(notes))


def other_lengths(points: Sequence[Point]) -> list[str]:
    """What is to be said where configurations differ in nothing but how long they ran.

    They are two, not repetitions: a longer run is past more of its warmup, and its clocks are others, so that
    the spread of such runs would be no spread of identical ones.
    """
    alike: dict[tuple, set[int]] = {}
    for point in points:
        key = tuple(str(value) for name, value in point.fields.items() if name != "batches")
        alike.setdefault(key, set()).add(point.fields["batches"])
    differ = [sorted(lengths) for lengths in alike.values() if len(lengths) > 1]
    if not differ:
        return []
    lengths = ", ".join(str(one) for one in differ[0])
    return [
        f"{how_many(len(differ), 'configuration')} ran with different numbers of steps ({lengths}); such "
        "runs are not averaged: give all the same number (--batches)"
    ]


def _devices(point: Point) -> list[str]:
    runs = [source for source, _ in (*point.timed, *point.profiled)]
    return sorted({device for run in runs for device in run.devices})


def _note_scatter(study: Study, points: Sequence[Point]) -> None:
    """Notes where the runs are too few or too different to say much."""
    twice = [point for point in points if len(point.timed) == 2]
    if twice:
        study.note(
            f"{len(twice)} of {how_many(len(points), 'configuration')} ran only twice: confidence intervals "
            f"are about {TWO_RUNS_WIDER:g} times as wide there as with three runs"
        )
    apart = [point for point in points if point.scatter.sigma > WIDE_SCATTER]
    if apart:
        worst = max(apart, key=lambda point: point.scatter.sigma)
        medians = [float(np.median(run)) for run in worst.steps]
        study.note(
            f"runs of the same configuration differ by more than {100 * WIDE_SCATTER:.0f} % (standard "
            f"deviation) in {len(apart)} of {how_many(len(points), 'configuration')}, most in {worst.label} "
            f"(by a factor of up to {max(medians) / min(medians):.3g}), so confidence intervals are wide: "
            "was the machine busy?"
        )


def _mean_cost(costs: Sequence[Costs]) -> Costs | None:
    if not costs:
        return None
    means = {name: float(np.mean([getattr(cost, name) for cost in costs])) for name in COSTS}
    return Costs(sum(cost.batches for cost in costs), **means)
