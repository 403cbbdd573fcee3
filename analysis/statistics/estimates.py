"""Medians over runs with their intervals, warmup, and intervals over the steps of one run.

After Hoefler and Belli, *Scientific Benchmarking of Parallel Computing Systems* (SC15): the estimate is the
median, intervals resample runs, and rates are work divided by total time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from profiling.attribution.batch_times import recurs

SEED = 20200520
RESAMPLES = 2000
LEVEL = 0.95

_MOST_ELEMENTS = 4_000_000  # of one resampled matrix: bounds memory
_OFF_LEVEL_SIGMAS = 4.0  # from which on a step is off the steady level
_CLIP_SIGMAS = 8.0
SHORTEST_SERIES = 4
# The least standard deviation of the steady level, relative. That of few values is often far too small by
# chance: they are off the level from a fifth on (4 x 0.05), from 15 values on by 2 % (benchmarks.warmup).
FEWEST_FOR_WIDTH = 15
_LEAST_WIDTH, _LEAST_WIDTH_OF_FEW = 0.005, 0.05
_FEWEST_TO_CHANGE = 12  # values by which a series is seen to change
_SLOWER = 1.05  # from which on it is another level
_INSIDE_RESAMPLES = 200  # for a standard error, which needs fewer than an interval
_MOST_LOG = np.log(1e3)

Statistic = Callable[[np.ndarray], np.ndarray]  # of the last axis


class Estimate(NamedTuple):
    """A centre with its interval; ``low`` and ``high`` are NaN where steps are too few for one."""

    value: float
    low: float = float("nan")
    high: float = float("nan")


def median(values: np.ndarray) -> np.ndarray:
    """Median of the last axis."""
    return np.median(values, axis=-1)


def percentile(values: np.ndarray, percent: float) -> float:
    """The ``percent`` percentile; NaN where so few values have none beyond it (below 20 of the 95th)."""
    enough = len(values) * (100 - percent) >= 100
    return float(np.percentile(values, percent)) if enough else float("nan")


def warmup(values: np.ndarray) -> int:
    """How many values at the head of a series are off its steady level; at most half of them.

    If a third or more of the series is below that level, it became slower: the warmup is that of this part.

    The cut with the least marginal standard error (MSER; White 1997) over clipped values, moved back so that
    at least half of what is cut is off the level of the second half. 0 for fewer than 4 values, and where the
    first is one of many high ones at equal distances (:func:`recurs`).
    """
    count = len(values)
    if count < SHORTEST_SERIES:
        return 0
    steady = values[count // 2 :]
    level = float(np.median(steady))
    least = _LEAST_WIDTH if count >= FEWEST_FOR_WIDTH else _LEAST_WIDTH_OF_FEW
    # By the median absolute deviation: a few outliers do not move it.
    sigma = max(1.4826 * float(np.median(np.abs(steady - level))), least * abs(level))
    if recurs(values, values - level > _OFF_LEVEL_SIGMAS * sigma):
        return 0
    clipped = np.clip(values, level - _CLIP_SIGMAS * sigma, level + _CLIP_SIGMAS * sigma)
    # Variance of what is left after each cut, over its length.
    centred, left = clipped - clipped.mean(), np.arange(count, 0, -1)
    sums, squares = np.cumsum(centred[::-1])[::-1], np.cumsum(centred[::-1] ** 2)[::-1]
    cut = int(np.argmin(((squares / left - (sums / left) ** 2) / left)[: count // 2 + 1]))
    off = np.flatnonzero(np.abs(values[:cut] - level) > _OFF_LEVEL_SIGMAS * sigma)
    # A head that is mostly on the level has an outlier at its end.
    ends = off[np.arange(1, len(off) + 1) >= (off + 1) / 2]
    head = int(ends[-1]) + 1 if len(ends) else 0
    slower = 3 * head > count and np.median(values[:head]) < level
    return warmup(values[:head]) if slower else head


def slower_from(values: np.ndarray) -> tuple[int, float] | None:
    """From which value on a series is higher, and by how much, %; None: it is not, or rises bit by bit.

    Of the ranks of values one step explains more than a line does, and their quartiles before and after it
    are apart.
    """
    count = len(values)
    if count < _FEWEST_TO_CHANGE:
        return None
    _, place_of, alike = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (alike.cumsum() - (alike - 1) / 2)[place_of] - (count + 1) / 2
    times, before = np.arange(count) - (count - 1) / 2, np.arange(1, count)
    by_step = np.cumsum(ranks)[:-1] ** 2 * count / before / (count - before)
    by_step[np.minimum(before, count - before) < max(_FEWEST_TO_CHANGE // 2, count // 5)] = 0
    place = int(np.argmax(by_step)) + 1
    if by_step[place - 1] <= (times @ ranks) ** 2 / (times @ times):
        return None
    (_, low, highest), (lowest, high, _) = (
        np.percentile(part, [25, 50, 75]) for part in (values[:place], values[place:])
    )
    return (place, 100 * (high / low - 1)) if highest < lowest and high > _SLOWER * low else None


def correlation_time(values: np.ndarray) -> float:
    """Integrated autocorrelation time, in values: 1 for independent ones."""
    count = len(values)
    centred = values - values.mean()
    variance = float(centred @ centred)
    if count < SHORTEST_SERIES or variance == 0:
        return 1.0
    size = 1 << (2 * count - 1).bit_length()
    spectrum = np.abs(np.fft.rfft(centred, size)) ** 2
    correlation = np.fft.irfft(spectrum, size)[: count // 2] / variance
    negative = np.flatnonzero(correlation <= 0)
    reach = int(negative[0]) if len(negative) else len(correlation)
    return max(1.0, 2 * float(correlation[:reach].sum()) - 1)


def block_resamples(
    values: np.ndarray, statistic: Statistic, resamples: int = RESAMPLES, seed: int = SEED
) -> np.ndarray:
    """``statistic`` of ``resamples`` series of random blocks of ``values`` (circular block bootstrap)."""
    # n^(1/3) neighbours together, more where they are correlated longer.
    count = len(values)
    length = max(1, min(round(max(count ** (1 / 3), 2 * correlation_time(values))), count // 4 or 1))
    generator = np.random.default_rng(seed)
    blocks = -(-count // length)
    statistics = np.empty(resamples)
    portion = max(1, _MOST_ELEMENTS // max(1, count))
    for first in range(0, resamples, portion):
        size = min(portion, resamples - first)
        starts = generator.integers(0, count, (size, blocks))
        places = (starts[:, :, None] + np.arange(length)) % count
        statistics[first : first + size] = statistic(values[places.reshape(size, -1)[:, :count]])
    return statistics


@dataclass(frozen=True)
class Drawn:
    """The median over runs of a figure, resampled: a parametric bootstrap on the logarithm."""

    value: float
    sigma: float  # standard deviation of the logarithm of a run's figure: 0.01 is about 1 %
    freedom: int  # degrees of freedom of sigma
    inside: float  # relative standard error of a run's figure by its steps: a lower limit of the scatter
    deviates: np.ndarray  # of each resample, the median of as many standard normal numbers as there are runs
    widening: np.ndarray  # of each resample, the true scatter over the estimated one

    def values(self, widening: np.ndarray | None = None) -> np.ndarray:
        """The resampled medians; by default with the point's own widening."""
        sigma = np.maximum(self.sigma * (self.widening if widening is None else widening), self.inside)
        # Student's t of one degree of freedom has no mean: its far tail is cut.
        return self.value * np.exp(np.clip(sigma * self.deviates, -_MOST_LOG, _MOST_LOG))

    def sampled(self, widening: np.ndarray | None = None) -> np.ndarray:
        """The measured median, then the resampled ones."""
        return np.append(self.value, self.values(widening))

    @property
    def variance(self) -> float:
        """Of the logarithm of the median."""
        return float(max(self.sigma, self.inside) ** 2 * self.deviates.var())


def draw_runs(
    runs: Sequence[np.ndarray], statistic: Statistic = median, resamples: int = RESAMPLES, seed: int = SEED
) -> Drawn:
    """The median over runs of ``statistic``, resampled; NaN for one run.

    Each resample draws the scatter from its own distribution (scaled inverse chi-square): intervals of few
    runs are as wide as Student's t. It is not pooled with other points, which may scatter less.
    """
    values = np.array([float(statistic(run)) for run in runs])
    value, freedom = float(np.median(values)), len(runs) - 1
    if not freedom:
        unknown = np.full(resamples, np.nan)
        return Drawn(value, float("nan"), 0, float("nan"), unknown, unknown)
    generator = np.random.default_rng(seed)
    widening = _widening(freedom, generator, resamples)
    deviates = np.median(generator.standard_normal((resamples, len(runs))), axis=1)
    errors = [
        np.std(block_resamples(run, statistic, _INSIDE_RESAMPLES, seed + 1 + number)) / value
        for number, (run, value) in enumerate(zip(runs, values, strict=True))
    ]
    inside = float(np.sqrt(np.mean(np.square(errors))))
    return Drawn(value, float(np.log(values).std(ddof=1)), freedom, inside, deviates, widening)


def _widening(freedom: float, generator: np.random.Generator, resamples: int) -> np.ndarray:
    return np.sqrt(freedom / generator.chisquare(freedom, resamples))


def shared_widening(parts: Sequence[tuple[float, Drawn]], seed: int = SEED) -> np.ndarray | None:
    """The widening of a figure that is made of several points, which each widened would make too wide.

    By Welch and Satterthwaite's degrees of freedom (Welch 1947, *Biometrika* 34). None, each is to be widened
    by itself, where points have different numbers of runs, or one.

    ``parts``: of each point, the derivative of the figure's logarithm by the point's, and the point.
    """
    freedoms = np.array([one.freedom for _, one in parts])
    if len(set(freedoms)) > 1 or not freedoms.all():
        return None
    variances = np.array([weight**2 * one.variance for weight, one in parts])
    resamples = len(parts[0][1].deviates)
    if not variances.sum():
        return np.ones(resamples)
    freedom = float(variances.sum() ** 2 / (variances**2 / freedoms).sum())
    return _widening(freedom, np.random.default_rng(seed), resamples)


def columns_of(name: str, sampled: np.ndarray) -> dict[str, Any]:
    """A figure and the ends of its interval as columns ``name``, ``name_low`` and ``name_high``.

    ``sampled``: the measured value, then the resampled ones; or a row of these a row.
    """
    low, high = interval(sampled[..., 1:])
    return {name: sampled[..., 0], f"{name}_low": low, f"{name}_high": high}


def interval(resampled: np.ndarray) -> tuple[Any, Any]:
    """The central :data:`LEVEL` of resampled values, along the last axis."""
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(resampled, [tail, 100 - tail], axis=-1)
    return low, high


# --- intervals inside one run -------------------------------------------------------------------------

# They do not cover differences between runs. Neighbouring steps are correlated, so intervals are computed for
# the effective number of independent steps. Short series underestimate the correlation (0.8 over 20 steps
# often looks like 0.4), so a value near the upper end of its uncertainty is used.

# Standard errors by which the correlation is taken above its estimate. With fewer, intervals of short
# correlated series are too narrow; with more, independent ones get none (benchmarks.interval_coverage).
_CAUTION = 1.5
_FEWEST = 8  # independent steps of an interval of the median
_FEWEST_OF_MEAN = 4  # steps, of which the correlation of neighbours can be estimated
_HIGHEST = 0.99  # correlation; beyond it is drift


def median_in_run(values: np.ndarray) -> Estimate:
    """The median of a run's steps, with the interval between two order statistics."""
    if not len(values):
        return Estimate(float("nan"))
    from scipy import special

    value = float(np.median(values))
    many = independent_of_median(values)
    if many < _FEWEST:
        return Estimate(value)
    half = special.stdtrit(many - 1, (1 + LEVEL) / 2) / 2 / np.sqrt(many)
    low, high = np.quantile(values, [max(0.0, 0.5 - half), min(1.0, 0.5 + half)])
    return Estimate(value, float(low), float(high))


def mean_in_run(values: np.ndarray) -> Estimate:
    """The mean of a run's batches, with Student's interval for as many as are independent."""
    value = float(np.mean(values)) if len(values) else float("nan")
    many = independent_of_mean(values)
    if not many:
        return Estimate(value)
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
    """Errors of the means of series (series, batches) of the same steps, and of their sum, drawn together.

    Each is Student's t for the effective number of independent steps of its series. Drawn together: normal,
    correlated as the series are, over spreads of one probability. (Series and their sum, resamples); None:
    too few steps.
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
    from scipy import special

    # Normal quantiles of the values' ranks; equal values share the mean of theirs.
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    phi = _highest_correlation(np.asarray(special.ndtri((ranks[which] - 0.5) / count)))
    reach = 1 if phi <= 0 else int(np.log(1e-4) / np.log(phi)) + 1
    longest = 1 + 4 / np.pi * float(np.arcsin(phi ** np.arange(1, reach + 1)).sum()) if phi > 0 else 1.0
    return count / max(longest, correlation_time(np.sign(values - np.median(values))))


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
