"""The change point of results in order, and the last against those before: as often wrong as they say."""

import math

import numpy as np
import pytest
import scipy

from analysis.statistics.two_samples import change_point, last

SIMULATIONS = 400


@pytest.mark.parametrize(("count", "place", "p_value"), [(8, 4, 2 / 70), (8, 1, 2 / 8), (7, 3, 2 / 35)])
def test_p_of_a_change_is_the_share_of_orders_as_extreme(count, place, p_value):
    """Of values of two levels, the orders in which one level comes first, and then the other."""
    values = np.array([100.0] * place + [110.0] * (count - place))
    found = change_point(values)
    assert (found.place, found.effect_pct) == (place, pytest.approx(10))
    assert found.p_value == pytest.approx(p_value)
    # Many values, of which random orders are tried.
    many = change_point(np.repeat(values, 3))
    assert many.place == 3 * place
    assert many.p_value == pytest.approx(2 / math.comb(3 * count, 3 * place), abs=1e-3)


def test_the_last_value_is_judged_by_students_t():
    before, newest = np.array([100.0, 101.0, 99.0, 100.5]), 103.0
    found = last(np.append(before, newest))
    assert found.p_value == pytest.approx(scipy.stats.ttest_ind(np.log(before), np.log([newest])).pvalue)
    assert found.effect_pct == pytest.approx(100 * (newest / scipy.stats.gmean(before) - 1))
    for end in (found.low, found.high):  # what the test just does not reject
        moved = last(np.append(before, newest / (1 + end / 100)))
        assert moved.p_value == pytest.approx(0.05)


@pytest.mark.parametrize("count", [3, 7, 12])
def test_without_a_change_there_is_a_verdict_in_one_of_twenty(count):
    generator = np.random.default_rng(count)
    drawn = np.exp(generator.normal(0, 0.02, (SIMULATIONS, count)))
    wrong = 3 * np.sqrt(0.05 * 0.95 / SIMULATIONS)
    assert np.mean([last(one).p_value <= 0.05 for one in drawn]) == pytest.approx(0.05, abs=wrong)
    if count > 3:
        assert np.mean([change_point(one).p_value <= 0.05 for one in drawn[:200]]) <= 0.05 + 1.5 * wrong
