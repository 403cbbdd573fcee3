"""By how much is the latest of P ranks later than the median one?

Ranks that are late again and again, by their own doing, are some of the P: their lateness stays theirs, on
however many ranks. All others are late by chance: the median of the latest of P is the quantile 0.5^(1/P) of
one, if they are late independently.
"""

import numpy as np

from analysis.prediction.allreduce import RESAMPLES
from analysis.statistics import estimates


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
    times = np.sort(np.concatenate([own, late.ravel()]))
    come = (np.searchsorted(np.sort(own), times, side="right") / len(own)) ** others
    for one in late:
        come *= np.searchsorted(np.sort(one), times, side="right") / len(one)
    return float(times[np.searchsorted(come, 0.5)])
