"""Intervals of the median and mean of one run's steps; they do not cover differences between runs.

Neighbouring steps are correlated, so intervals are computed for the effective number of independent steps.
Short series underestimate the correlation (0.8 over 20 steps often looks like 0.4), so a value near the upper
end of its uncertainty is used. A series with too few independent steps has no interval.
"""

import numpy as np

from analysis.statistics.estimates import LEVEL, Estimate, correlation_time

# Standard errors by which the correlation is taken above its estimate. With fewer, intervals of short
# correlated series are too narrow; with more, independent ones get none (benchmarks.interval_coverage).
_CAUTION = 1.5
_FEWEST = 8  # independent steps of an interval of the median
_FEWEST_OF_MEAN = 4  # steps, of which the correlation of neighbours can be estimated
_HIGHEST = 0.99  # correlation; beyond it is drift


def of_median(values: np.ndarray) -> Estimate:
    """The median of a run's steps, with the interval between two order statistics."""
    if not len(values):
        return Estimate(float("nan"), float("nan"), float("nan"), "no steps")
    from scipy import special

    value = float(np.median(values))
    many = independent_of_median(values)
    if many < _FEWEST:
        return Estimate(value, float("nan"), float("nan"), f"too few steps: {len(values)}")
    half = special.stdtrit(many - 1, (1 + LEVEL) / 2) / 2 / np.sqrt(many)
    low, high = np.quantile(values, [max(0.0, 0.5 - half), min(1.0, 0.5 + half)])
    return Estimate(value, float(low), float(high))


def of_mean(values: np.ndarray) -> Estimate:
    """The mean of a run's batches, with Student's interval for as many as are independent."""
    value = float(np.mean(values)) if len(values) else float("nan")
    many = independent_of_mean(values)
    if not many:
        return Estimate(value, float("nan"), float("nan"), f"too few steps: {len(values)}")
    from scipy import special

    half = float(special.stdtrit(many - 1, (1 + LEVEL) / 2) * values.std(ddof=1) / np.sqrt(many))
    return Estimate(value, value - half, value + half)


def independent_of_mean(values: np.ndarray) -> float:
    """The effective number of independent values for the mean, at least 2; 0: too few to tell."""
    if len(values) < _FEWEST_OF_MEAN:
        return 0.0
    correlation = _highest_correlation(values)
    longest = max((1 + correlation) / (1 - correlation), correlation_time(values))
    return max(len(values) / longest, 2.0)


def errors_of_means(series: np.ndarray, resamples: int, generator: np.random.Generator) -> np.ndarray | None:
    """Errors of the means of series of the same steps, and of their sum, drawn together.

    Each is Student's t for the effective number of independent steps of its series. Drawn together: normal,
    correlated as the series are, over spreads of one probability.

    Args:
        series: (series, batches).

    Returns:
        (series and their sum, resamples); None: too few steps.
    """
    every = np.vstack([series, series.sum(axis=0)])
    many = np.array([[independent_of_mean(one)] for one in every])
    if not many.all():
        return None
    from scipy import special

    sizes, axes = np.linalg.eigh(np.cov(every))  # rounded, one that is 0 may be below
    normal = (axes * np.sqrt(np.maximum(sizes, 0))) @ generator.standard_normal((len(every), resamples))
    spread = special.chdtri(many - 1, generator.random(resamples)) / (many - 1)
    return np.asarray(normal / np.sqrt(many * spread))


def independent_of_median(values: np.ndarray) -> float:
    """The effective number of independent values for the median; 0: too few to tell.

    By the larger of two correlation times of the values' sides of the median: that of the series, and that of
    a first-order process, where values k apart are on the same side as often as normal ones of correlation
    phi^k (the arcsine law, Sheppard 1899); phi is that of the neighbours' normal scores.
    """
    count = len(values)
    if count < _FEWEST:
        return 0.0
    phi = _highest_correlation(_normal_scores(values))
    reach = 1 if phi <= 0 else int(np.log(1e-4) / np.log(phi)) + 1
    longest = 1 + 4 / np.pi * float(np.arcsin(phi ** np.arange(1, reach + 1)).sum()) if phi > 0 else 1.0
    return count / max(longest, correlation_time(np.sign(values - np.median(values))))


def _normal_scores(values: np.ndarray) -> np.ndarray:
    """The normal quantiles of the values' ranks; equal values share the mean of theirs."""
    from scipy import special

    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    return np.asarray(special.ndtri((ranks[which] - 0.5) / len(values)))


def _highest_correlation(values: np.ndarray) -> float:
    """Of neighbours, at least 0: the estimate without its bias (Kendall 1954), plus some standard errors."""
    centred, count = values - values.mean(), len(values)
    variance = float(centred @ centred)
    if not variance:
        return 0.0
    shown = float(centred[1:] @ centred[:-1]) / variance
    shown = min(max(shown + (1 + 3 * shown) / count, -_HIGHEST), _HIGHEST)
    # By Fisher's transformation, whose standard error does not depend on the correlation.
    return min(max(float(np.tanh(np.arctanh(shown) + _CAUTION / np.sqrt(count - 3))), 0.0), _HIGHEST)
