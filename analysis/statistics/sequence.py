"""Values in order, one a result: the change point, and the last value against those before it.

Values are compared by their logarithms, since a slowdown is a factor. One value a result: results that differ
from night to night by more than their runs do are no change.
"""

import math
from itertools import permutations
from typing import NamedTuple

import numpy as np

from analysis.statistics.estimates import LEVEL, SEED

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

    The statistic is the difference of the means in units of its standard deviation, for equal scatter (the
    likelihood ratio of a single change in the mean of normal values; Hinkley 1970). It is compared with the
    largest of any split of the same values in other orders: all of up to 8, else 9,999 random ones.
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


class Last(NamedTuple):
    """By how much the last value is above those before it, %; with its 95 % interval and two-sided p."""

    effect_pct: float
    low: float
    high: float
    p_value: float


def last(values: np.ndarray) -> Last:
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
    return Last(pct, low, high, p_value)
