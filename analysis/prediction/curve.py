"""Extrapolate the duration of a step to more ranks, by the scaling of collectives.

    weak scaling     T(P) = a + max(0, c s(P) - hidden)
    strong scaling   T(P) = a P0 / P + f (1 - P0 / P) + max(0, c s(P) - hidden)

s is one of :data:`SHAPES`, or the sum of one for bytes and one for messages; f does not shrink with the
images per rank. The part of an exchange that the backward pass hides costs nothing; as throughput does not
show how large it is, all shares are tried, from nothing to everything but the last bucket. Nor does it show
whether the cost at the largest point is constant (a link between nodes, a slow rank) or grows with every rank
(a shared link). The range covers everything that the points allow, and no effects that begin beyond them. It
is not a confidence interval.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

_AS_GOOD = 3.84  # fits within this of the least chi-square are kept: 95 % of one parameter
ASSUMED_SCATTER = 0.03  # between runs of a point, where none was repeated: typical of a cluster in use
_LEAST_ERROR = 0.003  # of a measured step, relative
# How a cost grows with the number of ranks; Thakur, Rabenseifner and Gropp (2005) derive them.
SHAPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "constant": lambda ranks: 1.0 * (ranks > 1),
    "bandwidth": lambda ranks: (ranks - 1) / ranks,
    "tree": lambda ranks: np.log2(ranks),
    "ring": lambda ranks: ranks - 1.0,
}
# The share of a step's computation that can hide such a cost: the backward pass, two thirds of it.
_MOST_HIDDEN = {"bandwidth": 2 / 3, "tree": 2 / 3, "ring": 2 / 3}
# The same where no bucket is visible: a cost that grows with every rank would show before it is that long.
_MOST_UNSEEN = {**_MOST_HIDDEN, "ring": 0.2}
_TRIED = 9  # shares, from none to that
_VISIBLE = (0.0, 0.1, 0.25)  # share of the last bucket, which nothing hides
# Costs that may occur together: none, one, or one of bytes and one of messages.
_TOGETHER: tuple[tuple[str, ...], ...] = (
    (), *((name,) for name in SHAPES), ("bandwidth", "tree"), ("bandwidth", "ring"), ("constant", "tree"),
    ("constant", "ring"),
)  # fmt: skip
_SINGULAR = 1e10


@dataclass(frozen=True)
class Prediction:
    """Predicted duration of a step with its range, in the unit of the measured ones."""

    time: float
    low: float  # 0: the points set no limit
    high: float
    shapes: tuple[str, ...]


def predict(
    ranks: Sequence[int], times: Sequence[float], target: int, errors: Sequence[float] | None = None,
    strong: bool = False,
) -> Prediction:  # fmt: skip
    """The duration of a step on ``target`` ranks, from points of two sizes or more, in rising order.

    The batch of a rank is constant (``strong``: that of the job). ``errors``: relative standard error of each
    time; by default from the residuals of the best shape, at most :data:`ASSUMED_SCATTER`.
    """
    if len(set(ranks)) < 2:
        raise ValueError("two world sizes at least")
    measured, values = np.asarray(ranks, float), np.asarray(times, float)
    point_errors = _own_errors(measured, values, strong) if errors is None else np.asarray(errors, float)
    point_errors = np.maximum(point_errors, _LEAST_ERROR)
    fits = fits_of(measured, values, point_errors, float(target), strong)
    least = float(fits.chi_square.min())
    # Where no shape fits, the errors are larger than given.
    scale = max(1.0, least / max(1, len(values) - 2))
    good = fits[fits.chi_square <= least + _AS_GOOD * scale]
    reach = np.sqrt(_AS_GOOD * scale - (good.chi_square - least)) * good.error
    # The centre is the simplest good fit: nothing hidden.
    simple = good[good.allowed & ~good.hidden] if (good.allowed & ~good.hidden).any() else good
    centre = float(np.average(simple.time, weights=np.exp((least - simple.chi_square) / scale / 2)))
    # If the excess of the largest point over the ideal stays constant, and if it grows with every rank.
    share, ahead = (ranks[0] / ranks[-1], ranks[0] / target) if strong else (1.0, 1.0)
    cost, ideal = values[-1] - values[0] * share, values[0] * ahead
    # The error of the first point does not count for a constant excess.
    own = 1.96 * values[-1] * point_errors[-1] * np.sqrt(scale)
    error = float(np.hypot(own, 1.96 * values[0] * share * point_errors[0] * np.sqrt(scale)))
    stays = float(ideal + cost - (error if strong else own))
    grows = float(ideal + max(cost + error, 0.0) * (target - 1) / (ranks[-1] - 1))
    low = min(max(float((good.time - reach).min()), stays) if not strong else stays, centre)
    low = max(low, 0.0)
    high = max(float((good.most + reach).max()), grows, centre)
    names = tuple(name for name in SHAPES if any(name in one for one in good.shapes))
    return Prediction(centre, low, high, names)


def _own_errors(ranks: np.ndarray, times: np.ndarray, strong: bool) -> np.ndarray:
    """Errors of points without repetitions, from the residuals of the best shape."""
    from scipy.special import stdtrit

    errors = np.full(len(times), ASSUMED_SCATTER)
    freedom = len(times) - 2
    if freedom < 1:
        return errors
    fits = fits_of(ranks, times, errors, float(ranks[-1]), strong)
    # Hidden shares and pairs of shapes would absorb the residuals.
    least = fits.chi_square[~fits.hidden & (fits.parameters <= 2)].min()
    off = np.sqrt(least / freedom) * float(stdtrit(freedom, 0.975)) / 1.96
    return errors * min(1.0, off)


def fits_of(
    ranks: np.ndarray, times: np.ndarray, errors: np.ndarray, target: float, strong: bool
) -> "pd.DataFrame":
    """Fits of all shapes and pairs of them, with every hidden share, exposed from each point on or from none.

    A row a fit: ``shapes, chi_square, parameters``; ``allowed``: no cost is below 0 (those below 0 by chance
    are kept for the range); ``hidden``: whether a share is; ``time`` on the target ranks and its standard
    ``error``; ``most``: the time if all that the last point may hide were exposed.
    """
    import pandas as pd

    points = _Points(ranks, times, errors, target, strong)
    overheads = (False, True) if strong else (False,)
    tried = [(names, overhead, np.zeros(1), 0, 1.0) for overhead in overheads for names in _TOGETHER]
    for overhead, names, first, visible in product(overheads, _TOGETHER, range(len(ranks) + 1), _VISIBLE):
        if names and "constant" not in names:
            limits = _MOST_HIDDEN if visible else _MOST_UNSEEN
            shares = np.linspace(0, min(limits[name] for name in names), _TRIED)[1:]
            tried.append((names, overhead, shares, first, visible))
    parts = [part for one in tried if (part := _fitted(points, *one)) is not None]
    return pd.DataFrame({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})


@dataclass(frozen=True)
class _Points:
    """Measured points and the target."""

    ranks: np.ndarray
    times: np.ndarray
    errors: np.ndarray
    target: float
    strong: bool

    @property
    def base(self) -> np.ndarray:
        """Computation relative to the first point, of each point and the target."""
        every = np.append(self.ranks, self.target)
        return self.ranks[0] / every if self.strong else np.ones(len(every))

    def costs(self, names: Sequence[str]) -> np.ndarray:
        """Values of the shapes that are not 0 everywhere: (shapes, points and the target)."""
        every = np.append(self.ranks, self.target)
        columns = [SHAPES[name](every) for name in names]
        return np.stack([one for one in columns if one[:-1].any()] or [np.zeros_like(every)])


def _fitted(
    points: _Points, names: tuple[str, ...], overhead: bool, hidden: np.ndarray, first: int, visible: float
) -> dict[str, np.ndarray] | None:
    """Rows of :func:`fits_of`, one a share in ``hidden``; None where the points do not determine the terms.

    ``overhead``: whether to fit f, of strong scaling. From point ``first`` on the exchange is exposed;
    nothing hides its share ``visible``.
    """
    base, costs = points.base, points.costs(names)
    exposed = np.arange(len(points.ranks)) >= first
    columns = [base[:-1] - hidden[:, None] * base[:-1] * exposed]
    if overhead:
        columns.append(np.broadcast_to(1 - base[:-1], columns[0].shape))
    parts = len(columns)
    seen = [cost[:-1] * np.where(exposed, 1.0, visible) for cost in costs]
    columns += [np.broadcast_to(cost, columns[0].shape) for cost in seen if cost.any()]
    solved = _solved(points, np.stack(columns, axis=2))
    if solved is None:
        return None
    values, covariance, chi_square = solved
    separable = values.shape[1] > parts
    # Whether exactly these points are exposed by the fit, and whether the target is.
    right, out = np.ones(len(hidden), dtype=bool), np.ones(1, dtype=bool)
    if hidden.any():
        limit = hidden[:, None] * values[:, :1] * base
        if separable:
            rise = (1 - visible) * values[:, parts:] @ costs  # the part of the exchange that can be hidden
            slack = 1e-9 * np.abs(values[:, :1])
            over, under = (rise >= limit - slack)[:, :-1], (rise <= limit + slack)[:, :-1]
            right, out = np.where(exposed, over, under).all(axis=1), rise[:, -1] > limit[:, -1]
        else:
            out = limit[:, -1] < 0
    to = np.zeros(values.shape)
    to[:, 0] = base[-1] * (1 - hidden * out)
    to[:, 1:parts] = 1 - base[-1]
    if separable:
        to[:, parts:] = np.where(out, 1.0, visible)[:, None] * costs[:, -1]
    time = (to * values).sum(axis=1)
    most = time
    if not separable and names:
        # All of the exchange is hidden on the last point: how much would be exposed is not determined.
        growth = float((costs[:, -1] / costs[:, -2]).max())
        most = time + np.maximum(hidden * values[:, 0] * (base[-2] * growth - base[-1]), 0)
    error = np.sqrt(np.maximum(np.einsum("gi,gij,gj->g", to, covariance, to), 0))
    spread = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    keep = right & (values[:, 0] > 0) & (values[:, 1:] >= -1.96 * spread[:, 1:]).all(axis=1)
    shapes = np.empty(len(hidden), dtype=object)
    shapes[:] = [names] * len(hidden)
    every = {
        "shapes": shapes, "chi_square": chi_square, "parameters": np.full(len(hidden), values.shape[1]),
        "allowed": (values[:, 1:] >= 0).all(axis=1), "hidden": hidden > 0, "time": time, "most": most,
        "error": error,
    }  # fmt: skip
    return {name: column[keep] for name, column in every.items()}


def _solved(points: _Points, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """(values, their covariances, chi-squares) of designs (problems, points, terms)."""
    weights = 1 / (points.times * points.errors)
    design, response = columns * weights[:, None], points.times * weights
    size = np.sqrt(np.square(design).sum(axis=1))
    if design.shape[2] > design.shape[1] or (size == 0).any():
        return None
    scaled = design / size[:, None]
    gram = np.einsum("gni,gnj->gij", scaled, scaled)
    if (np.linalg.cond(gram) > _SINGULAR).any():
        return None
    inverse = np.linalg.inv(gram)
    values = np.einsum("gij,gnj,n->gi", inverse, scaled, response) / size
    rest = response - np.einsum("gni,gi->gn", design, values)
    return values, inverse / (size[:, :, None] * size[:, None]), np.square(rest).sum(axis=1)
