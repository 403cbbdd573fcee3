"""The exact test of two sets of runs, and of results in order: scipy's, and as often right as they say."""

import itertools
import math

import numpy as np
import pytest
import scipy

from analysis.statistics.two_samples import (
    change_point,
    difference,
    last,
    least_p_value,
    null_counts,
    rejected_counts,
    runs_needed,
)
from benchmarks.comparison import noise, share


@pytest.mark.parametrize(("runs_a", "runs_b"), [(1, 3), (4, 4), (5, 8), (12, 9)])
def test_p_is_scipys_and_the_interval_ends_where_the_test_begins_to_reject(runs_a, runs_b):
    generator = np.random.default_rng(runs_a)
    a, b = np.exp(generator.normal(0, 0.01, runs_a)), np.exp(generator.normal(0.005, 0.01, runs_b))
    found = difference([(a, b)])
    assert found.p_value == pytest.approx(scipy.stats.mannwhitneyu(a, b, method="exact").pvalue)
    apart = scipy.stats.mannwhitneyu(a, 2 * b, method="exact")  # the least that it can give
    assert apart.pvalue == pytest.approx(least_p_value([(runs_a, runs_b)]))
    assert difference([(a, a)]).p_value == 1  # runs that are equal are no evidence
    if not rejected_counts(((runs_a, runs_b),), 0.05):
        assert np.isnan([found.low, found.high]).all()
        return
    for end, outwards in ((found.low, -1e-4), (found.high, 1e-4)):
        for step, rejected in ((outwards, True), (-outwards, False)):
            moved = b / (1 + (end + step) / 100)
            assert (scipy.stats.mannwhitneyu(a, moved, method="exact").pvalue <= 0.05) == rejected


def test_the_null_of_several_configurations_is_that_of_all_orders():
    """Two configurations of 2 and 2, 1 and 2 runs: every order of each is as likely."""
    counts = np.zeros(4 + 2 + 1)
    for first in itertools.combinations(range(4), 2):
        for second in itertools.combinations(range(3), 1):
            above = sum(b > a for a in first for b in set(range(4)) - set(first))
            counts[above + sum(b > a for a in second for b in set(range(3)) - set(second))] += 1
    assert null_counts(((2, 2), (1, 2))) == pytest.approx(counts / counts.sum())


def alarms(scatters: tuple[float, ...], runs: int, is_alarm) -> float:
    """The share of 400 pairs of equal sweeps that ``is_alarm`` calls different."""
    generator = np.random.default_rng(8)
    found = 0
    for _ in range(400):
        found += is_alarm([tuple(np.exp(generator.normal(0, each / 100, (2, runs)))) for each in scatters])
    return found / 400


SCATTERS = [(1.0,) * 6, (0.3, 0.3, 0.3, 0.3, 6.0, 6.0)]


@pytest.mark.parametrize("scatters", SCATTERS)
def test_false_alarms_of_all_together(scatters):
    share = alarms(scatters, 4, lambda strata: difference(strata).p_value <= 0.05)
    assert share <= 0.05 + 3 * 0.011  # and three standard errors


@pytest.mark.parametrize("runs", [4, 5, 10])
def test_the_interval_of_an_effect_holds_it_as_often_as_it_says(runs):
    generator = np.random.default_rng(runs)
    hits = 0
    for _ in range(600):
        a = 100 * np.exp(generator.normal(0, 0.01, runs))
        b = 103 * np.exp(generator.normal(0, 0.02, runs))  # scatters more
        found = difference([(a, b)])
        hits += found.low <= 3 <= found.high
    assert 0.95 - 0.027 <= hits / 600 <= 0.995  # three standard errors; a test of 4 runs has no level of 5 %


def test_the_fewest_runs():
    assert [runs_needed(tests) for tests in (1, 2, 6, 10)] == [4, 5, 5, 6]


def test_false_alarms_and_power():
    """At 10 runs a side: A/A differs in 5 % at most, a slowdown of 2 % is found in 4 of 5 cases and more.

    Runs scatter by 1.25 %; with other noise, and that of real runs: python -m benchmarks.comparison.
    """
    runs = 100 * np.exp(np.random.default_rng(5).normal(0, 0.0125, 200))
    assert noise(runs)["scatter_pct"] == pytest.approx(1.25, abs=0.1)
    # Within three standard errors.
    assert share(runs, 0, 120, seed=5, found=("slower", "faster")) <= 0.05 + 0.06
    assert share(runs, 2, 60, seed=5, found=("slower",)) >= 0.80 - 0.155
    assert share(runs, 2, 20, seed=5, found=("faster",)) == 0


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
