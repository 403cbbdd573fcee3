"""What is measured of a configuration at one world size, with all its runs?

A :class:`Point`'s unprofiled runs time it (its profiled ones, if there are no others), the profiled ones say
what its kernels cost. :mod:`analysis.measures.scaling.figures` says what points add up to.
"""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from analysis.display.metrics import telling
from analysis.display.naming import in_words
from analysis.measures.batches.series import Series
from analysis.measures.kernels.costs import Bound
from analysis.measures.scaling.baselines import world_size
from analysis.results.attributed import Costs
from analysis.results.source import Source
from analysis.statistics import estimates
from jobs.run_fields import fields_of, is_default, own_names
from profiling.wording import how_many

NAN = float("nan")
UNPROFILED, PROFILED = "unprofiled runs", "profiled runs"  # by which a point is timed
# Of a program that was watched, what it lacks for a rate, and what gives it.
NO_SAMPLES = "samples per step are unknown; run the program with profiling.watch --samples N (per rank)"
# Of an answer that traces cannot give.
OWN_RUNS = "it needs runs that scaleprof started or watched"
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


def called(point: Point, points: Sequence[Point]) -> str:
    """The label of a point, and, where others of ``points`` have the same, what tells it from these."""
    alike = [one.fields for one in points if one.label == point.label]
    return ", ".join([point.label, *filter(None, [in_words(point.fields, telling(alike, POINT_FIELDS))])])
