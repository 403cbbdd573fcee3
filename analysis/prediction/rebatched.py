"""How long does a rank compute where its batch is a smaller one? For strong scaling.

Where the batch of the job is constant, more ranks have fewer images each. What a rank computes by itself
(without loading, and without waiting for gradients) is taken to be f + w b for b images of a rank, neither
below 0: least squares of relative errors over the measured points that say it. Those are traced points, and
the point of one rank, which waits for nobody. Gradients have one size whatever the batch, so that what an
allreduce moves stays.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.measures.scaling.point import Point
from analysis.prediction.allreduce import RESAMPLES, nonnegative
from analysis.prediction.simulate import Step
from analysis.statistics import estimates

ONE_BATCH = (
    "the per-rank batch size shrinks with more ranks, and its computation time is known for one size only: "
    "profile a second number of ranks (profile: torch), or measure one rank"
)


@dataclass(frozen=True)
class Computing:
    """f and w of this file's docstring: (2, 1 + resamples), ns."""

    terms: np.ndarray

    def ns(self, batch: float) -> np.ndarray:
        """The estimate, then resamples."""
        return np.array([1.0, batch]) @ self.terms

    def shorter(self, batch: float, of: float) -> np.ndarray:
        """By what factor computing ``batch`` images takes longer than ``of`` images."""
        return self.ns(batch) / self.ns(of)


def computing(
    points: Sequence[Point],
    steps: Sequence[Step | None],
    lacking: Sequence[float],
    scatter: float,
    seed: int = estimates.SEED,
) -> Computing | None:
    """The fit; None where fewer than two batches of a rank tell.

    The point of one rank tells all that a batch takes, a traced step only what its kernels and stages show.
    What that lacks of the measured batch may be the rank's own, as it is in the point of one rank, or not:
    both are to be tried.

    Args:
        steps: of each point, where it was traced.
        lacking: of each point, what its traced step is to be longer, ns.
        scatter: by how much runs differ, relative.
    """
    timings = [
        (float(point.fields["batch"]), _own_ns(point, step) + more)
        for point, step, more in zip(points, steps, lacking, strict=True)
        if step is not None or point.world_size == 1
    ]
    if len({batch for batch, _ in timings}) < 2:
        return None
    batches, took = (np.array(column) for column in zip(*timings, strict=True))
    generator = np.random.default_rng(seed)
    drawn = np.exp(scatter * generator.standard_normal((RESAMPLES, len(took))))
    factors = np.concatenate([np.ones((1, len(took))), drawn])
    design = np.stack([np.ones(len(took)), batches]) / took
    return Computing(nonnegative(design, np.ones_like(factors), factors, {}))


def _own_ns(point: Point, step: Step | None) -> float:
    if step is not None:
        return step.forward_ns + step.backward_ns + step.tail_ns
    loads = np.concatenate(
        [series.rank_stages["load"][:, series.steady].ravel() for _, series in point.timed]
    )
    return point.batch.value - float(np.median(loads))
