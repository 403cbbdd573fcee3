"""By how much is the latest of P ranks later than the median one?

Ranks that are late again and again, by their own doing, are some of the P: their lateness stays theirs, on
however many ranks. All others are late by chance: the median of the latest of P is the quantile 0.5^(1/P) of
one, if they are late independently.
"""

from bisect import bisect_left
from collections.abc import Callable

import numpy as np

from analysis.prediction.allreduce import RESAMPLES
from analysis.statistics import estimates

_HALF = 0.5


def latest(own: np.ndarray, late: np.ndarray, ranks: int) -> np.ndarray:
    """The median lateness of the latest rank, then resamples, ns.

    Args:
        own: what each batch of each ordinary rank took by itself, ns.
        late: (late ranks, batches): by how much each is later than the ordinary ranks, ns; not more of them
            than ``ranks``.
    """
    others = ranks - len(late)
    middle = np.median(own)
    if not len(late):

        def of_others(values: np.ndarray) -> np.ndarray:
            return np.quantile(values, 0.5 ** (1 / others), axis=-1)

        resampled = estimates.block_resamples(own, of_others, RESAMPLES)
        return np.concatenate([[of_others(own)], resampled]) - middle
    generator = np.random.default_rng(estimates.SEED)
    medians = [_median_of_all(own - middle, late, others)]
    for _ in range(RESAMPLES):
        drawn = own[generator.integers(0, len(own), len(own))] - middle
        medians.append(_median_of_all(drawn, generator.choice(late, late.shape[1], axis=1), others))
    return np.array(medians)


def _median_of_all(own: np.ndarray, late: np.ndarray, others: int) -> float:
    """The least time by which all have come in half of the batches."""
    of_each = [np.sort(own), *np.sort(late, axis=1)]
    power = [others] + [1] * len(late)

    def come(times: np.ndarray) -> np.ndarray:
        """In which share of the batches all have come by then."""
        share = np.ones(len(times))
        for values, count in zip(of_each, power, strict=True):
            share *= (np.searchsorted(values, times, side="right") / len(values)) ** count
        return share

    # It is one of the times at which a rank comes. More and more have come, so that halving finds it; all
    # of the thousands of times of a thousand ranks need not be gone through.
    return min(float(values[_first(values, come)]) for values in of_each if come(values[-1:])[0] >= _HALF)


def _first(times: np.ndarray, come: Callable[[np.ndarray], np.ndarray]) -> int:
    """The place of the first of sorted times by which all have come in half of the batches."""
    return bisect_left(range(len(times)), True, key=lambda at: bool(come(times[at : at + 1])[0] >= _HALF))
