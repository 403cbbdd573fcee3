"""Do two sets of runs differ, by how much, and what difference would so many runs have shown?"""

import math
from dataclasses import dataclass

import numpy as np

from analysis import statistics

SIGNIFICANCE = 0.05
POWER = 0.80
_RESAMPLES = 2000
_EXACT_RUNS = 12  # up to so many runs a side the test is exact


@dataclass(frozen=True)
class Difference:
    """What two sets of runs say of one figure; effects are b over a, less 1, in percent."""

    effect_pct: float
    low: float
    high: float
    p_value: float
    detectable_pct: float


def difference(a: np.ndarray, b: np.ndarray, seed: int = statistics.SEED) -> Difference:
    """Effect, interval and test of two sets of run figures (all positive).

    The interval resamples runs; the test is Mann and Whitney's (1947), which assumes no distribution. What
    is detectable follows from the runs' spread (of the logarithms) as in a two-sample t test.
    """
    from scipy import stats

    effect = 100 * (float(np.median(b)) / float(np.median(a)) - 1)
    if min(len(a), len(b)) < 2:
        return Difference(effect, math.nan, math.nan, math.nan, math.nan)
    generator = np.random.default_rng(seed)
    drawn = [np.median(generator.choice(side, (_RESAMPLES, len(side))), axis=1) for side in (a, b)]
    low, high = statistics.interval(100 * (drawn[1] / drawn[0] - 1))
    exact = max(len(a), len(b)) <= _EXACT_RUNS and len(set(a) | set(b)) == len(a) + len(b)
    p_value = float(stats.mannwhitneyu(a, b, method="exact" if exact else "asymptotic").pvalue)
    return Difference(effect, low, high, p_value, detectable_pct(a, b))


def detectable_pct(a: np.ndarray, b: np.ndarray) -> float:
    """The slowdown that a two-sample t test at 5 % would find in 4 of 5 cases, given the runs' spread, %."""
    from scipy import stats

    freedom = len(a) + len(b) - 2
    spread = math.sqrt(
        (np.log(a).var(ddof=1) * (len(a) - 1) + np.log(b).var(ddof=1) * (len(b) - 1)) / freedom
    )
    quantiles = stats.t.ppf(1 - SIGNIFICANCE / 2, freedom) + stats.t.ppf(POWER, freedom)
    return 100 * (math.exp(quantiles * spread * math.sqrt(1 / len(a) + 1 / len(b))) - 1)


def least_p_value(runs_a: int, runs_b: int) -> float:
    """The smallest p that the test can give with so many runs: both orders without overlap."""
    return 2 / math.comb(runs_a + runs_b, runs_a)
