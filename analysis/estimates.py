"""Medians over runs with their intervals, intervals over the steps of one run, warmup, and tests of two sets.

After Hoefler and Belli, *Scientific Benchmarking of Parallel Computing Systems* (SC15): the estimate is the
median, intervals resample runs, and rates are work divided by total time.

The test of two sets of runs is the exact Mann-Whitney test (1947), which assumes no distribution. Several
configurations are its strata: their counts are added, as in van Elteren's test (1960). The interval of a
difference contains all values that the test does not reject (Hodges and Lehmann 1963). Values are compared by
their logarithms.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations
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
    probability, varies = generator.random(resamples), normal.any(axis=1)  # of a constant all errors are 0
    many = many[varies]
    spread = special.chdtri(many - 1, probability) / (many - 1)
    normal[varies] /= np.sqrt(many * spread)
    return np.asarray(normal)


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


SIGNIFICANCE = 0.05

Stratum = tuple[np.ndarray, np.ndarray]  # figures of the runs of one configuration, before and after
Shapes = tuple[tuple[int, int], ...]  # runs before and after, of each configuration


class Effect(NamedTuple):
    """A difference, %, with its 95 % interval (NaN: too few runs) and two-sided p."""

    effect_pct: float
    low: float
    high: float
    p_value: float


def difference(strata: Sequence[Stratum]) -> Effect:
    """b / a - 1 of two sets of run figures (all positive); of several strata, the difference is one in all.

    The effect of one is that of the medians, of several the median of all ratios of two runs of one.
    """
    shapes = tuple((len(a), len(b)) for a, b in strata)
    ratios = np.sort(np.concatenate([np.subtract.outer(np.log(b), np.log(a)).ravel() for a, b in strata]))
    pairs = len(ratios)
    above = float((ratios > 0).sum() + 0.5 * (ratios == 0).sum())
    # Half a count (runs that are equal) is rounded to the side of no difference.
    tail = math.ceil(min(above, pairs - above))
    p_value = min(1.0, 2 * float(null_counts(shapes)[: tail + 1].sum()))
    low = high = math.nan
    if cut := rejected_counts(shapes, SIGNIFICANCE):
        low, high = (100 * math.expm1(ratios[place]) for place in (cut - 1, pairs - cut))
    effect = float(np.median(ratios))
    if len(strata) == 1:
        effect = math.log(np.median(strata[0][1]) / np.median(strata[0][0]))
    return Effect(100 * math.expm1(effect), low, high, p_value)


@cache
def null_counts(shapes: Shapes) -> np.ndarray:
    """Probability of each count of pairs (a before, b after) with a < b, if nothing differs."""
    probability = np.ones(1)
    for runs_a, runs_b in shapes:
        probability = np.convolve(probability, _null_counts(runs_a, runs_b))
    return probability


@cache
def _null_counts(runs_a: int, runs_b: int) -> np.ndarray:
    # Mann and Whitney's recursion: the largest value of all is one of a or one of b.
    rows = [np.ones(1)] * (runs_b + 1)
    for a in range(1, runs_a + 1):
        row = [np.ones(1)]
        for b in range(1, runs_b + 1):
            counts = np.zeros(a * b + 1)
            counts[: (a - 1) * b + 1] += a / (a + b) * rows[b]
            counts[a:] += b / (a + b) * row[b - 1]
            row.append(counts)
        rows = row
    return rows[runs_b]


def rejected_counts(shapes: Shapes, level: float) -> int:
    """How many of the lowest counts (and as many of the highest) a two-sided test at ``level`` rejects."""
    below = np.cumsum(null_counts(shapes))
    return int(np.searchsorted(below, level / 2 * (1 + 1e-9), side="right"))


def least_p_value(shapes: Iterable[tuple[int, int]]) -> float:
    """The smallest p that the test can give with so many runs: before and after do not overlap."""
    return 2.0 / math.prod(math.comb(a + b, a) for a, b in shapes)


def runs_needed(tests: int) -> int:
    """The fewest runs a side with which one of so many tests can be significant at all."""
    runs = 2
    while tests * least_p_value(((runs, runs),)) > SIGNIFICANCE:
        runs += 1
    return runs


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction (1979) for several tests; NaN stays NaN."""
    values = np.asarray(p_values, float)
    order = [place for place in np.argsort(values) if np.isfinite(values[place])]
    corrected, least = values.copy(), 0.0
    for number, place in enumerate(order):
        least = max(least, min(1.0, (len(order) - number) * values[place]))
        corrected[place] = least
    return corrected.tolist()


# One value a result: results that differ from night to night by more than their runs do are no change.
FEWEST_TO_JUDGE = 3  # values of which the last can be judged
_EXACT = 8  # values of which all orders are tried
_ORDERS = 9999  # of more values, random ones


class Change(NamedTuple):
    """From ``place`` on values are higher by ``effect_pct``."""

    place: int
    effect_pct: float
    p_value: float


def change_point(values: np.ndarray) -> Change:
    """The split of a sequence whose two means differ most, with a permutation test of that difference.

    The statistic is the difference of the means in units of its standard deviation (the likelihood ratio of a
    single change in the mean of normal values; Hinkley 1970). It is compared with the largest of any split of
    the same values in other orders: all of up to 8, else 9,999 random ones.
    """
    logs = np.log(values)
    count = len(logs)
    if count <= _EXACT:
        orders = np.array(list(permutations(logs)))
    else:
        generator = np.random.default_rng(SEED)
        orders = np.vstack([logs, generator.permuted(np.tile(logs, (_ORDERS, 1)), axis=1)])
    largest = _splits(orders).max(axis=1)
    observed = _splits(logs[None])[0]
    place = int(np.argmax(observed)) + 1
    effect = logs[place:].mean() - logs[:place].mean()
    p_value = float((largest >= observed[place - 1] * (1 - 1e-9)).mean())
    return Change(place, 100 * math.expm1(effect), p_value)


def _splits(orders: np.ndarray) -> np.ndarray:
    """The statistic of each split, before the second to before the last value, of each row."""
    count = orders.shape[1]
    before = np.arange(1, count)
    sums = np.cumsum(orders - orders.mean(axis=1, keepdims=True), axis=1)[:, :-1]
    return np.abs(sums) / np.sqrt(before * (count - before) / count)


def last(values: np.ndarray) -> Effect:
    """The last value against the mean of those before, by Student's t for a further value of these."""
    from scipy.special import stdtr, stdtrit

    *before, newest = np.log(values)
    freedom = len(before) - 1
    effect = newest - np.mean(before)
    error = float(np.std(before, ddof=1)) * math.sqrt(1 + 1 / len(before))
    reach = float(stdtrit(freedom, (1 + LEVEL) / 2)) * error
    # Values that are equal but for their last digits do not scatter.
    is_equal = error < 1e-9
    p_value = float(abs(effect) < 1e-9) if is_equal else 2 * float(stdtr(freedom, -abs(effect) / error))
    pct, low, high = (100 * math.expm1(one) for one in (effect, effect - reach, effect + reach))
    return Effect(pct, low, high, p_value)
