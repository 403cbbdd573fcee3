"""Intervals of the median and the mean of one run's batches; they say nothing of other runs.

Neighbouring batches are alike, so an interval counts as many independent batches as would tell as much. How
alike they are is itself an estimate, and in a short series a poor one: 20 batches whose neighbours correlate
by 0.8 often look as if they did by 0.4. So the correlation is taken near the upper end of what the series
allows, and a series that holds too few independent batches by that gets no interval.
"""

import numpy as np

from analysis.statistics.estimates import LEVEL, Estimate, correlation_time

# Standard errors by which the neighbours' correlation is taken above its estimate. Fewer, and too many short
# series of correlated batches get intervals that are too narrow; more, and those of independent batches get
# none (python -m benchmarks.interval_coverage --only batches,means).
_CAUTION = 1.5
_FEWEST = 8  # independent batches by that: fewer hold the median too seldom where they are correlated
_FEWEST_OF_MEAN = 4  # batches, of which the correlation of neighbours can be estimated
_HIGHEST = 0.99  # correlation that is told from a drift


def of_median(values: np.ndarray) -> Estimate:
    """The median of a run's batches.

    The interval lies between two order statistics, as that of independent values does, for as many as the
    sides of the median on which values are tell.
    """
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
    """How many independent values would tell as much of the mean as these, 2 at least; 0: too few to tell."""
    if len(values) < _FEWEST_OF_MEAN:
        return 0.0
    correlation = _highest_correlation(values)
    longest = max((1 + correlation) / (1 - correlation), correlation_time(values))
    return max(len(values) / longest, 2.0)


def errors_of_means(series: np.ndarray, resamples: int, generator: np.random.Generator) -> np.ndarray | None:
    """By how much the means of series of the same batches, and that of their sum, may be off, drawn together.

    Each is Student's t for as many batches as are independent in that series: one that drifts does not make
    the others unsure. Drawn together: normal, correlated as the series are, over spreads of one probability.

    Args:
        series: (series, batches).

    Returns:
        (series and their sum, resamples); None: the batches are too few to tell.
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
    """How many independent values would tell as much of the median as these; 0: too few to tell.

    By the larger of two correlation times of the values' sides of the median: what the series shows, and what
    a first-order process has. There values k apart are on the same side as often as normal ones of
    correlation phi^k (the arcsine law, Sheppard 1899); phi is that of the neighbours' normal scores, so that
    tails and skew do not matter.
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
    """Of neighbours: its estimate, the bias of short series off (Kendall 1954), and some standard errors.

    Not below 0: values that alternate are taken to be independent.
    """
    centred, count = values - values.mean(), len(values)
    variance = float(centred @ centred)
    if not variance:
        return 0.0
    shown = float(centred[1:] @ centred[:-1]) / variance
    shown = min(max(shown + (1 + 3 * shown) / count, -_HIGHEST), _HIGHEST)
    # Fisher's transformation: its standard error is the same for any correlation.
    return min(max(float(np.tanh(np.arctanh(shown) + _CAUTION / np.sqrt(count - 3))), 0.0), _HIGHEST)
