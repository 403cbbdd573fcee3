"""How sure is a share of the variance? Intervals of omega squared."""

import numpy as np

from analysis.statistics import estimates
from analysis.statistics.variance import Effect

DRAWS = 2000
# So many of the draws lie within: configurations that scatter unlike, as on a cluster, take the coverage of a
# 95 % interval down to 88 % (python -m benchmarks.interval_coverage --only factors).
_WITHIN = 0.99


def omega_squared_interval(effect: Effect, seed: int = estimates.SEED) -> tuple[float, float]:
    """Interval, of 95 % or more, of the share of the response's variance that is a term's own.

    With sums of squares over the variance of the error, a term's and all other terms' together are noncentral
    chi-square, with noncentralities that are the variances sought (times the observations), and the error's
    is chi-square. The interval is the middle 99 % of what one finds by solving for the noncentralities with
    random quantiles of all three (a generalised confidence interval: Weerahandi 1993). For one factor alone
    that is the inverted noncentral F distribution (Steiger and Fouladi 1997), whose coverage is exact; with
    others, the share of these is not known exactly either, and what is known of it counts, too.

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
    """Of a noncentral chi-square distribution of which each value is a random quantile; 0: of none."""
    from scipy import special

    if not freedom:
        return np.zeros_like(values)
    quantiles = generator.random(len(values))
    roots = np.sqrt(np.maximum(values, 0))
    # To 0.006 of probability where it is used; the exact inverse takes a thousand times as long there.
    parameters = np.square(
        np.maximum(roots - special.ndtri(quantiles) - (freedom - 1) / (2 * roots + 1e-300), 0)
    )
    small = values <= 100 + 20 * freedom
    none = quantiles >= special.chdtr(freedom, values)  # even a noncentrality of 0 has a larger quantile
    exact = small & ~none
    parameters[exact] = special.chndtrinc(values[exact], freedom, quantiles[exact])
    parameters[small & none] = 0
    return parameters
