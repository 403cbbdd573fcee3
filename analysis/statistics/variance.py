"""Analysis of variance, the share of variance a term explains with its interval, and Holm's correction."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from analysis.statistics import estimates

DRAWS = 2000
# Share of the draws within an interval: where configurations scatter differently, as on a cluster, 95 % would
# cover 88 % (python -m benchmarks.interval_coverage --only factors).
_WITHIN = 0.99


@dataclass(frozen=True)
class Effect:
    """One term of an analysis of variance; figures have the shape of the values without its last axis.

    The sums of squares (and degrees of freedom) of the term, of all others (rest) and of the error add up.
    """

    sum_of_squares: np.ndarray
    freedom: int
    rest_sum_of_squares: np.ndarray
    rest_freedom: int
    error_sum_of_squares: np.ndarray
    error_freedom: int
    f_value: np.ndarray
    p_value: np.ndarray
    omega_squared: np.ndarray


def analysis_of_variance(
    columns: Mapping[str, Sequence[Any]], values: np.ndarray, terms: Sequence[tuple[str, ...]]
) -> dict[tuple[str, ...], Effect]:
    """Type II analysis of variance of ``values`` by categorical factors: each term beside all terms that do
    not contain it.

    Args:
        columns: factor -> level of each observation.
        values: shape (..., observations): many sets of values of one design are one call.
        terms: main effects ``("loader",)`` and interactions ``("loader", "grad")``.
    """
    from scipy import special  # scipy.stats would take longer to import than all of this takes

    coded = {name: _code(levels) for name, levels in columns.items()}
    blocks = {term: _block([coded[name] for name in term]) for term in terms}
    one = np.ones((values.shape[-1], 1))
    total, _ = _residual([one], values)
    left, rank = _residual([one, *blocks.values()], values)
    error_freedom, unknown = values.shape[-1] - rank, np.full_like(left, np.nan)
    mean_square = left / error_freedom if error_freedom > 0 else unknown
    effects = {}
    for term in terms:
        beside = [one, *(blocks[other] for other in terms if not set(term) <= set(other))]
        without, rank_without = _residual(beside, values)
        with_it, rank_with = _residual([*beside, blocks[term]], values)
        explained, freedom = without - with_it, rank_with - rank_without
        with np.errstate(divide="ignore", invalid="ignore"):
            f_value = explained / freedom / mean_square if freedom else unknown
            # A share is not below 0, though its estimate may be; of what has no freedom nothing is known.
            own = np.maximum(explained - freedom * mean_square, 0)
            omega_squared = own / (total + mean_square) if freedom else unknown
        effects[term] = Effect(
            sum_of_squares=explained,
            freedom=freedom,
            # In type II a term's own part and the rest of the model's are orthogonal, whatever is missing.
            rest_sum_of_squares=np.maximum(total - left - explained, 0),
            rest_freedom=rank - 1 - freedom,
            error_sum_of_squares=left,
            error_freedom=error_freedom,
            f_value=f_value,
            # What explains nothing may come out a rounding error below 0.
            p_value=np.asarray(special.fdtrc(freedom, error_freedom, np.maximum(f_value, 0))),
            omega_squared=omega_squared,
        )
    return effects


@dataclass(frozen=True)
class Adjusted:
    """The means of a term's levels in a design in which all levels of the other factors weigh alike."""

    means: dict[tuple, float]  # level (a value a factor) -> mean of the fitted model
    # Two levels -> standard error of their difference over the residual standard deviation.
    spread: dict[tuple[tuple, tuple], float]
    mean_square: float  # of the residuals
    freedom: int


def adjusted_means(
    columns: Mapping[str, Sequence[Any]],
    values: np.ndarray,
    terms: Sequence[tuple[str, ...]],
    term: tuple[str, ...],
) -> Adjusted | None:
    """A term's least-squares means (Searle, Speed and Milliken 1980, *The American Statistician* 34).

    None where the observations do not separate its levels from other factors. Arguments are those of
    :func:`analysis_of_variance`.
    """
    coded = {name: _code(levels) for name, levels in columns.items()}
    one = np.ones((len(values), 1))
    blocks = {other: _block([coded[name] for name in other]) for other in terms}
    design = np.hstack([one, *blocks.values()])
    inverse = np.linalg.pinv(design.T @ design, rcond=1e-12, hermitian=True)
    coefficients, estimable = inverse @ design.T @ values, inverse @ design.T @ design
    left, rank = _residual([design], values)
    places: dict[tuple, int] = {}
    for place, level in enumerate(zip(*(columns[name] for name in term), strict=True)):
        places.setdefault(level, place)
    # Sum-to-zero columns of the other terms are 0 on average over a whole design.
    within = [one, *(block if set(other) <= set(term) else 0 * block for other, block in blocks.items())]
    rows = {level: np.hstack(within)[place] for level, place in places.items()}
    spread = {}
    for a, b in itertools.permutations(rows, 2):
        contrast = rows[a] - rows[b]
        if not np.allclose(contrast @ estimable, contrast, atol=1e-8):
            return None
        spread[a, b] = math.sqrt(max(float(contrast @ inverse @ contrast), 0.0))
    means = {level: float(row @ coefficients) for level, row in rows.items()}
    freedom = len(values) - rank
    return Adjusted(means, spread, float(left) / freedom if freedom else math.nan, freedom)


def omega_squared_interval(effect: Effect, seed: int = estimates.SEED) -> tuple[float, float]:
    """Interval, of 95 % or more, of the share of the response's variance that is a term's own.

    Over the variance of the error, the sums of squares of the term and of all others are noncentral
    chi-square, with the variances sought (times the observations) as noncentralities; the error's is
    chi-square. The interval is the middle 99 % of the noncentralities at random quantiles of all three (a
    generalised confidence interval: Weerahandi 1993); for one factor alone, the inverted noncentral F
    distribution (Steiger and Fouladi 1997).

    Returns:
        (low, high), NaN where there are no repetitions to tell the error.
    """
    if not effect.freedom or effect.error_freedom < 1:
        return float("nan"), float("nan")
    generator = np.random.default_rng(seed)
    variance = effect.error_sum_of_squares / generator.chisquare(effect.error_freedom, DRAWS)
    own = _noncentrality(effect.sum_of_squares / variance, effect.freedom, generator)
    rest = _noncentrality(effect.rest_sum_of_squares / variance, effect.rest_freedom, generator)
    observations = 1 + effect.freedom + effect.rest_freedom + effect.error_freedom
    return estimates.interval(own / (own + rest + observations), _WITHIN)


def _noncentrality(values: np.ndarray, freedom: int, generator: np.random.Generator) -> np.ndarray:
    """Noncentralities of chi-square distributions of which the values are random quantiles."""
    from scipy import special

    if not freedom:
        return np.zeros_like(values)
    quantiles = generator.random(len(values))
    roots = np.sqrt(np.maximum(values, 0))
    # Within 0.006 of probability where it is used, a thousand times as fast as the exact inverse.
    parameters = np.square(
        np.maximum(roots - special.ndtri(quantiles) - (freedom - 1) / (2 * roots + 1e-300), 0)
    )
    small = values <= 100 + 20 * freedom
    none = quantiles >= special.chdtr(freedom, values)  # even a noncentrality of 0 has a larger quantile
    exact = small & ~none
    parameters[exact] = special.chndtrinc(values[exact], freedom, quantiles[exact])
    parameters[small & none] = 0
    return parameters


def _code(levels: Sequence[Any]) -> np.ndarray:
    """Sum-to-zero coding, shape (observations, levels - 1): interactions then do not hold main effects."""
    names = list(dict.fromkeys(levels))
    index = np.array([names.index(level) for level in levels])
    coded = np.eye(len(names))[index][:, :-1]
    coded[index == len(names) - 1] = -1
    return coded


def _block(parts: Sequence[np.ndarray]) -> np.ndarray:
    product = parts[0]
    for part in parts[1:]:
        product = (product[:, :, None] * part[:, None, :]).reshape(len(product), -1)
    return product


def _residual(blocks: Sequence[np.ndarray], values: np.ndarray) -> tuple[np.ndarray, int]:
    """(sums of squares that a linear model leaves, its rank)."""
    # Faster than a singular value decomposition; designs of coded levels are well conditioned, or singular.
    design = np.hstack(blocks)
    sizes, directions = np.linalg.eigh(design.T @ design)
    nonzero = sizes > sizes[-1] * 1e-12
    basis = design @ (directions[:, nonzero] / np.sqrt(sizes[nonzero]))
    return np.square(values - values @ basis @ basis.T).sum(axis=-1), basis.shape[1]


@cache
def range_quantile(levels: int, freedom: int, level: float = 0.95) -> float:
    """The studentised range of as many standard normal means that ``level`` of all stay below."""
    # Half a second of imports, for reports with such a factor alone.
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(level, levels, freedom))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction (1979) for several tests; NaN stays NaN."""
    values = np.asarray(p_values, float)
    order = [place for place in np.argsort(values) if np.isfinite(values[place])]
    corrected, least = values.copy(), 0.0
    for number, place in enumerate(order):
        least = max(least, min(1.0, (len(order) - number) * values[place]))
        corrected[place] = least
    return corrected.tolist()
