"""What does a batch cost on more ranks, if it goes on as it did on few?

Times of a batch on P ranks are fitted by what collectives are known to cost: a part that every P > 1 pays
alike (a pipelined tree's bytes), or nearly (a ring's: 2(P-1)/P of them), one a step of a tree (log2 P), one a
rank (a ring's steps, P - 1):

    weak scaling     T(P) = a + max(0, c s(P) - hidden)
    strong scaling   T(P) = a P0 / P + f (1 - P0 / P) + max(0, c s(P) - hidden)

with one of these shapes s, or one of bytes and one of steps at once; f is what fewer images do not save.

What the backward pass hides of the exchange costs nothing until there is more of it than the pass is long; a
rate does not say how much that is. So it is tried from nothing to all that can be, with a last bucket whose
exchange nothing hides. Few points do not tell these apart: the range spans all that the measured points
allow. Nor do rates say whether what the largest point costs more than ideal is there for good (a link
between nodes, a slow rank) or grows with every rank (a link that all share): the range holds both. It is no
confidence interval: of what begins beyond the points it knows nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analysis.prediction.curve_fits import SHAPES, fits_of

# What fits counts if its chi-square is within this of the least (95 % of one parameter).
_AS_GOOD = 3.84
# Runs of one point, where none was repeated: as they differ on clusters that are in use.
ASSUMED_SCATTER = 0.03
# No measurement is better than this share of a batch's time.
_LEAST_ERROR = 0.003


@dataclass(frozen=True)
class Prediction:
    """Time of a batch on some number of ranks, with what else the measured points allow; in their unit.

    Where the points set no lower limit, ``low`` is 0.
    """

    ranks: int
    time: float
    low: float
    high: float
    shapes: tuple[str, ...]


def predict(
    ranks: Sequence[int],
    times: Sequence[float],
    wanted: int,
    errors: Sequence[float] | None = None,
    strong: bool = False,
) -> Prediction:
    """The time of a batch on ``wanted`` ranks.

    Args:
        ranks, times: measured points, two of different ranks at least, in rising order of ranks; the batch of
            a rank is constant (``strong``: that of the job).
        errors: standard error of each time, relative; by default what the points are off the best shape, and
            no more than runs differ on a cluster in use.

    Raises:
        ValueError: fewer points.
    """
    if len(set(ranks)) < 2:
        raise ValueError("two world sizes at least")
    measured, values = np.asarray(ranks, float), np.asarray(times, float)
    point_errors = _own_errors(measured, values, strong) if errors is None else np.asarray(errors, float)
    point_errors = np.maximum(point_errors, _LEAST_ERROR)
    fits = fits_of(measured, values, point_errors, float(wanted), strong)
    least = float(fits.chi_square.min())
    # Points that no shape meets are known less well than was said.
    scale = max(1.0, least / max(1, len(values) - 2))
    good = fits.of(fits.chi_square <= least + _AS_GOOD * scale)
    reach = np.sqrt(_AS_GOOD * scale - (good.chi_square - least)) * good.error
    # The centre is of the simplest that is as good: nothing hidden.
    simple = good.of(good.allowed & ~good.hidden) if (good.allowed & ~good.hidden).any() else good
    centre = float(np.average(simple.time, weights=np.exp((least - simple.chi_square) / scale / 2)))
    stays, grows = _least_and_most(measured, values, point_errors * np.sqrt(scale), float(wanted), strong)
    low = min(max(float((good.time - reach).min()), stays) if not strong else stays, centre)
    low = max(low, 0.0)  # the errors of few points reach below what a time can be
    high = max(float((good.most + reach).max()), grows, centre)
    names = tuple(name for name in SHAPES if any(name in one for one in good.shapes))
    return Prediction(wanted, centre, low, high, names)


def _least_and_most(
    ranks: np.ndarray, times: np.ndarray, errors: np.ndarray, wanted: float, strong: bool
) -> tuple[float, float]:
    """The time if what the largest point costs more than ideal stays, and if it grows with every rank."""
    share, ahead = (ranks[0] / ranks[-1], ranks[0] / wanted) if strong else (1.0, 1.0)
    cost = times[-1] - times[0] * share
    error = 1.96 * float(np.hypot(times[-1] * errors[-1], times[0] * share * errors[0]))
    growth = (wanted - 1) / (ranks[-1] - 1)
    ideal = times[0] * ahead
    # Of what takes longer than ideal on the largest point, one rank's own error is no part.
    own = 1.96 * float(times[-1] * errors[-1]) if not strong else error
    return float(ideal + cost - own), float(ideal + max(cost + error, 0.0) * growth)


def _own_errors(ranks: np.ndarray, times: np.ndarray, strong: bool) -> np.ndarray:
    """Errors of points that nobody repeated: what they are off the best shape; no more than is assumed."""
    from scipy.special import stdtrit

    errors = np.full(len(times), ASSUMED_SCATTER)
    freedom = len(times) - 2
    if freedom < 1:
        return errors
    fits = fits_of(ranks, times, errors, float(ranks[-1]), strong)
    # What is hidden is fitted, too, and so are two shapes at once: they would take up what points are off.
    least = fits.chi_square[~fits.hidden & (fits.parameters <= 2)].min()
    off = np.sqrt(least / freedom) * float(stdtrit(freedom, 0.975)) / 1.96
    return errors * min(1.0, off)
