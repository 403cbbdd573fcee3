"""Extrapolate the duration of a batch to more ranks by the costs of collectives.

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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

# What fits counts if its chi-square is within this of the least (95 % of one parameter).
_AS_GOOD = 3.84
# Runs of one point, where none was repeated: as they differ on clusters that are in use.
ASSUMED_SCATTER = 0.03
# No measurement is better than this share of a batch's time.
_LEAST_ERROR = 0.003
# How a cost grows with the number of ranks; Thakur, Rabenseifner and Gropp (2005) derive them.
SHAPES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "constant": lambda ranks: 1.0 * (ranks > 1),
    "bandwidth": lambda ranks: (ranks - 1) / ranks,
    "tree": lambda ranks: np.log2(ranks),
    "ring": lambda ranks: ranks - 1.0,
}
# The share of a step's computing that can hide such a cost (of what is constant it does not matter): all of a
# backward pass, which does twice what the forward pass does.
_MOST_HIDDEN = {"bandwidth": 2 / 3, "tree": 2 / 3, "ring": 2 / 3}
# A cost that grows with every rank (latencies, links that all share) is seen before it is that long, by the
# last bucket's part of it. Where nothing is to be seen, no more than this is hidden.
_MOST_UNSEEN = {**_MOST_HIDDEN, "ring": 0.2}
_TRIED = 9  # shares, from none to that
# The share of an exchange that nothing hides, as the last bucket's: of one bucket in many, to one in four.
_VISIBLE = (0.0, 0.1, 0.25)
# Which costs there may be at once: none, one, or one of bytes (a ring's, or a pipelined tree's) and one of
# messages.
_TOGETHER: tuple[tuple[str, ...], ...] = (
    (), *((name,) for name in SHAPES), ("bandwidth", "tree"), ("bandwidth", "ring"), ("constant", "tree"),
    ("constant", "ring"),
)  # fmt: skip
_SINGULAR = 1e10


@dataclass(frozen=True)
class Prediction:
    """Time of a batch on some number of ranks, with what else the measured points allow; in their unit.

    Where the points set no lower limit, ``low`` is 0.
    """

    time: float
    low: float
    high: float
    shapes: tuple[str, ...]


def predict(
    ranks: Sequence[int],
    times: Sequence[float],
    target: int,
    errors: Sequence[float] | None = None,
    strong: bool = False,
) -> Prediction:
    """The time of a batch on ``target`` ranks.

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
    fits = fits_of(measured, values, point_errors, float(target), strong)
    least = float(fits.chi_square.min())
    # Points that no shape meets are known less well than was said.
    scale = max(1.0, least / max(1, len(values) - 2))
    good = fits[fits.chi_square <= least + _AS_GOOD * scale]
    reach = np.sqrt(_AS_GOOD * scale - (good.chi_square - least)) * good.error
    # The centre is of the simplest that is as good: nothing hidden.
    simple = good[good.allowed & ~good.hidden] if (good.allowed & ~good.hidden).any() else good
    centre = float(np.average(simple.time, weights=np.exp((least - simple.chi_square) / scale / 2)))
    # The time if what the largest point costs more than ideal stays, and if it grows with every rank.
    share, ahead = (ranks[0] / ranks[-1], ranks[0] / target) if strong else (1.0, 1.0)
    cost, ideal = values[-1] - values[0] * share, values[0] * ahead
    # Of what takes longer than ideal on the largest point, one rank's own error is no part.
    own = 1.96 * values[-1] * point_errors[-1] * np.sqrt(scale)
    error = float(np.hypot(own, 1.96 * values[0] * share * point_errors[0] * np.sqrt(scale)))
    stays = float(ideal + cost - (error if strong else own))
    grows = float(ideal + max(cost + error, 0.0) * (target - 1) / (ranks[-1] - 1))
    low = min(max(float((good.time - reach).min()), stays) if not strong else stays, centre)
    low = max(low, 0.0)  # the errors of few points reach below what a time can be
    high = max(float((good.most + reach).max()), grows, centre)
    names = tuple(name for name in SHAPES if any(name in one for one in good.shapes))
    return Prediction(centre, low, high, names)


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


# --- the fits ------------------------------------------------------------------------------------------


def fits_of(
    ranks: np.ndarray, times: np.ndarray, errors: np.ndarray, target: float, strong: bool
) -> "pd.DataFrame":
    """All shapes and pairs of them, with all shares hidden, exposed from each point on (or from none).

    Returns:
        A row a way to go on: its ``shapes``, ``chi_square`` and number of ``parameters``; ``allowed``: no
        cost came out below 0 (those that did so by chance are kept for the range); ``hidden``: whether
        something is; ``time`` and ``most`` on the target ranks (``most`` where not all is known of what is
        hidden); ``error`` of that time, of one chi-square more.
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
    """What was measured, and the target."""

    ranks: np.ndarray
    times: np.ndarray
    errors: np.ndarray
    target: float
    strong: bool

    @property
    def base(self) -> np.ndarray:
        """How computing goes down, of each point and of the target one."""
        every = np.append(self.ranks, self.target)
        return self.ranks[0] / every if self.strong else np.ones(len(every))

    def costs(self, names: Sequence[str]) -> np.ndarray:
        """The shapes that cost anything, (shapes, points and the target one)."""
        every = np.append(self.ranks, self.target)
        columns = [SHAPES[name](every) for name in names]
        return np.stack([one for one in columns if one[:-1].any()] or [np.zeros_like(every)])


def _fitted(
    points: _Points, names: tuple[str, ...], overhead: bool, hidden: np.ndarray, first: int, visible: float
) -> dict[str, np.ndarray] | None:
    """Rows of :func:`fits_of`, a share ``hidden`` each, the exchange exposed from the ``first`` point on.

    Args:
        visible: the share of the exchange that nothing hides.

    Returns:
        None where the points do not tell the terms.
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
    # Whether just the points that were said to be are exposed, and whether the target ranks are.
    right, out = np.ones(len(hidden), dtype=bool), np.ones(1, dtype=bool)
    if hidden.any():
        limit = hidden[:, None] * values[:, :1] * base
        if separable:
            rise = (1 - visible) * values[:, parts:] @ costs  # what can be hidden of the exchange
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
        # The last point hides all that it can: what the target ranks would show of it is not known.
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
