"""What does a batch cost on more ranks, if it goes on as it did on few?

Times of a batch on P ranks under weak scaling are fitted by what collectives are known to cost: a part that
every P > 1 pays (a ring's 2(P-1)/P of the bytes), one a step of a tree (log2 P), one a rank (a ring's steps,
P - 1). Few points do not tell these apart: each is fitted, and the interval spans those that fit about as
well.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

# How a cost grows with the number of ranks; Thakur, Rabenseifner and Gropp (2005) derive the first three.
SHAPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "bandwidth": lambda ranks: (ranks - 1) / ranks,
    "tree": lambda ranks: np.log2(ranks),
    "ring": lambda ranks: ranks - 1.0,
}
# A shape counts if its error (root mean square) is within this factor of the best one's ...
_AS_GOOD = 3.0
# ... which is taken to be this share of a batch's time at least: no measurement is better than that.
_LEAST_ERROR = 0.005


@dataclass(frozen=True)
class Prediction:
    """Time of a batch on some number of ranks, with what else the measured points allow; in their unit."""

    ranks: int
    time: float
    low: float
    high: float
    shapes: tuple[str, ...]


def predict(ranks: Sequence[int], times: Sequence[float], wanted: int) -> Prediction:
    """The time of a batch on ``wanted`` ranks.

    Args:
        ranks, times: measured points, two of different ranks at least; the batch of a rank is constant.

    Raises:
        ValueError: fewer points.
    """
    measured, values = np.asarray(ranks, float), np.asarray(times, float)
    if len(set(ranks)) < 2:
        raise ValueError("two world sizes at least")
    fits = {name: _fit(shape, measured, values) for name, shape in SHAPES.items()}
    least = max(min(error for _, error in fits.values()), _LEAST_ERROR * float(values.min()))
    good = {name: fit for name, fit in fits.items() if fit[1] <= _AS_GOOD * least}
    at = np.array([float(wanted)])
    predicted = {name: float(_value(SHAPES[name], fit[0], at)[0]) for name, fit in good.items()}
    weights = np.array([1 / max(error, least) ** 2 for _, error in good.values()])
    centre = float(np.average(list(predicted.values()), weights=weights))
    spread = 2 * least
    return Prediction(
        wanted, centre, min(predicted.values()) - spread, max(predicted.values()) + spread, tuple(predicted)
    )


def _fit(
    shape: Callable[[np.ndarray], np.ndarray], ranks: np.ndarray, times: np.ndarray
) -> tuple[np.ndarray, float]:
    """(base time and cost, both at least 0; root mean square error)."""
    from scipy.optimize import nnls

    # Relative errors count: a slow point is measured no worse than a fast one.
    design = np.stack([np.ones_like(ranks), shape(ranks)], axis=1) / times[:, None]
    coefficients, _ = nnls(design, np.ones_like(times))
    error = float(np.sqrt(np.mean(np.square(_value(shape, coefficients, ranks) - times))))
    return coefficients, error


def _value(
    shape: Callable[[np.ndarray], np.ndarray], coefficients: np.ndarray, ranks: np.ndarray
) -> np.ndarray:
    return coefficients[0] + coefficients[1] * shape(ranks)
