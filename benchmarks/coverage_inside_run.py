"""Simulated series of steps: how often do intervals inside one run hold the truth?

Parts of :mod:`benchmarks.interval_coverage`. Each step is correlated with the one before; the values are
normal, heavy-tailed (Student's t, 3), skewed (lognormal: sigma 1, or 0.5) or half of independent noise.
"""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from analysis import estimates
from analysis.estimates import Estimate
from analysis.measures.tau import difference

Rows = list[dict[str, Any]]
CORRELATIONS = (0.0, 0.3, 0.5, 0.8, 0.95)


def correlated(generator: np.random.Generator, correlation: float, shape: tuple[int, int]) -> np.ndarray:
    """Steady first-order series of standard normal values, a row each."""
    values = generator.standard_normal(shape)
    for place in range(1, shape[1]):
        values[:, place] *= np.sqrt(1 - correlation**2)
        values[:, place] += correlation * values[:, place - 1]
    return values


def _heavy(values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    from scipy import special

    return np.asarray(special.stdtrit(3, special.ndtr(values)))


def _noisy(values: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    return (values + generator.standard_normal(values.shape)) / np.sqrt(2)


Change = Callable[[np.ndarray, np.random.Generator], np.ndarray]
# What becomes of the values, their median and their mean.
VALUES: dict[str, tuple[Change, float, float]] = {
    "normal": (lambda values, _: values, 0.0, 0.0),
    "heavy tails": (_heavy, 0.0, 0.0),
    "skewed": (lambda values, _: np.exp(values), 1.0, float(np.exp(0.5))),
    "skewed a little": (lambda values, _: np.exp(values / 2), 1.0, float(np.exp(0.125))),
    "half of it noise": (_noisy, 0.0, 0.0),
}


def of_medians(series: int) -> Rows:
    """Of the median of a run's steps (analysis.batches), and of a rank's lateness."""
    kinds = ("normal", "heavy tails", "skewed", "half of it noise")
    return [
        _row(kind, correlation, count, series, estimates.median_in_run, VALUES[kind][1])
        for kind, correlation, count in itertools.product(kinds, CORRELATIONS, (20, 50, 100, 500))
    ]


def of_means(series: int) -> Rows:
    """Of the mean of a run's steps: a kernel's time (analysis.hotspots)."""
    kinds = ("normal", "heavy tails", "skewed", "skewed a little")
    return [
        _row(kind, correlation, count, series, estimates.mean_in_run, VALUES[kind][2])
        for kind, correlation, count in itertools.product(kinds, CORRELATIONS, (5, 10, 20, 50, 200))
    ]


_BATCH_NS = 1e8


def of_differences(cases: int) -> Rows:
    """Of a step by what a run of 50 takes longer than runs of one (analysis.tau_batches)."""
    made = []
    for kind, starts in itertools.product(("normal", "heavy tails", "skewed"), (3, 5, 10)):
        generator = np.random.default_rng(starts)
        change = VALUES[kind][0]
        startups = 1e10 + 1e9 * change(generator.standard_normal((cases, starts + 1)), generator)
        held = 0
        for row in startups:
            found = difference(row[0] + 50 * _BATCH_NS, row[1:] + _BATCH_NS, 50)
            held += found is not None and found[2] <= _BATCH_NS <= found[3]
        made.append({"start-up": kind, "runs of one batch": starts, "batch, held %": 100 * held / cases})
    return made


def _row(
    kind: str, correlation: float, count: int, series: int, of: Callable[[np.ndarray], Estimate], truth: float
) -> dict[str, Any]:
    generator = np.random.default_rng(count)
    values = VALUES[kind][0](correlated(generator, correlation, (series, count)), generator)
    found = [of(each) for each in values]
    known = [each for each in found if np.isfinite(each.low)]
    held = sum(each.low <= truth <= each.high for each in known)
    return {
        "values": kind,
        "correlation of neighbours": correlation,
        "batches": count,
        "with an interval, %": 100 * len(known) / series,
        "of these held, %": 100 * held / len(known) if known else None,
        "with one that is wrong, %": 100 * (len(known) - held) / series,
    }
