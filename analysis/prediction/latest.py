"""By how much is the latest of P ranks later than the median one?

Ranks that are late again and again, by their own doing, are some of the P: their lateness stays theirs, on
however many ranks. All others are late by chance: the median of the latest of P is the quantile 0.5^(1/P) of
one, if they are late independently.
"""

from bisect import bisect_left

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
    order = np.argsort(own, kind="stable")
    times, place = own[order] - middle, np.argsort(order)
    medians = [_median_of_all(times, np.arange(1, len(own) + 1), late, others)]
    for _ in range(RESAMPLES):
        drawn = place[generator.integers(0, len(own), len(own))]
        come = np.cumsum(np.bincount(drawn, minlength=len(own)))
        resampled = generator.choice(late, late.shape[1], axis=1)
        medians.append(_median_of_all(times, come, resampled, others))
    return np.array(medians)


def _median_of_all(times: np.ndarray, come: np.ndarray, late: np.ndarray, others: int) -> float:
    """The least time by which all have come in half of the batches.

    Args:
        times, come: sorted times of ordinary ranks, and how many of their batches have come by each.
    """
    of_late = np.sort(late, axis=1)

    def all_come(time: float) -> bool:
        own = np.searchsorted(times, time, side="right")
        share = (come[own - 1] / come[-1] if own else 0.0) ** others
        for one in of_late:
            share *= np.searchsorted(one, time, side="right") / len(one)
        return bool(share >= _HALF)

    # It is one of the times at which a rank comes. More and more have come, so that halving finds it: all of
    # the thousands of times of a thousand ranks need not be gone through.
    candidates = [times, *of_late]
    return min(float(one[bisect_left(one, True, key=all_come)]) for one in candidates if all_come(one[-1]))
