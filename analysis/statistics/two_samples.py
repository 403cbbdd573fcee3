"""Tests: two sets of runs; a change in a sequence of results.

The test is the exact Mann-Whitney test (1947), which assumes no distribution. Several configurations are its
strata: their counts are added, as in van Elteren's test (1960). The interval of a difference contains all
values that the test does not reject (Hodges and Lehmann 1963). Values are compared by their logarithms.
"""

import math
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import permutations
from typing import NamedTuple

import numpy as np

from analysis.statistics import estimates

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
FEWEST = 3  # values of which the last can be judged
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
        generator = np.random.default_rng(estimates.SEED)
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
    reach = float(stdtrit(freedom, (1 + estimates.LEVEL) / 2)) * error
    # Values that are equal but for their last digits do not scatter.
    is_equal = error < 1e-9
    p_value = float(abs(effect) < 1e-9) if is_equal else 2 * float(stdtr(freedom, -abs(effect) / error))
    pct, low, high = (100 * math.expm1(one) for one in (effect, effect - reach, effect + reach))
    return Effect(pct, low, high, p_value)
