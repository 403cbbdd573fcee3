"""How much longer does a step take under the profiler?"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis.measures.scaling.point import UNPROFILED, Point
from analysis.statistics import estimates


def _recorded(point: Point) -> list[np.ndarray]:
    """The batches that a profiler recorded, of each profiled run, without warm-up, ns.

    Of runs that recorded kernels, where there are some: a tool that only reads counters runs each kernel many
    times, and its batches say nothing of those in which kernels were timed.
    """
    runs = [(source, series.recorded_ns.astype(float)) for source, series in point.profiled]
    with_kernels = [(source, run) for source, run in runs if source.tables("kernels")]
    return [run for _, run in with_kernels or runs if len(run)]


def recorded_ns(point: Point) -> float:
    """The median batch that a profiler recorded; NaN without one."""
    runs = _recorded(point)
    return float(np.median([np.median(run) for run in runs])) if runs else float("nan")


def perturbation(points: Sequence[Point]) -> dict[str, Any]:
    """Duration of a batch that the profiler recorded over that of the unprofiled twin, with its interval."""
    recorded = twins = 0.0
    drawn: list[tuple[estimates.Drawn, estimates.Drawn]] = []
    for point in points:
        runs = _recorded(point)
        if not runs or point.timed_by != UNPROFILED:
            continue
        recorded += recorded_ns(point)
        twins += point.batch.value
        # How much profiled runs differ takes two: they may differ more than unprofiled ones do.
        if point.batch_drawn is not None and len(runs) > 1:
            drawn.append((estimates.draw_runs(runs, seed=point.seed + 1), point.batch_drawn))
    low = high = None
    if drawn and len(drawn) == len(points):
        low, high = _interval_of_ratio(drawn)
    ratio = recorded / twins if twins else None
    return {"perturbation": ratio, "perturbation_low": low, "perturbation_high": high}


def _interval_of_ratio(drawn: Sequence[tuple[estimates.Drawn, estimates.Drawn]]) -> tuple[float, float]:
    """Of the sum of the first ones over that of the second ones."""
    parts = [
        (sign * one.value / sum(other.value for other in side), one)
        for sign, side in zip((1, -1), zip(*drawn, strict=True), strict=True)
        for one in side
    ]
    widening = estimates.shared_widening(parts)
    over, under = (
        np.sum([one.values(widening) for one in side], axis=0) for side in zip(*drawn, strict=True)
    )
    return estimates.interval(over / under)
