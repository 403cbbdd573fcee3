"""Centres, intervals, warm-up and tests, on series whose truth is known, or as scipy's."""

import itertools
import math

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis import estimates
from analysis.estimates import (
    change_point,
    difference,
    last,
    least_p_value,
    null_counts,
    rejected_counts,
    runs_needed,
)
from benchmarks import comparison

SERIES = st.lists(st.floats(1.0, 1e6), min_size=4, max_size=60).map(np.array)


def noise(seed: int, count: int, sigma: float = 1.0) -> np.ndarray:
    return 100 + np.random.default_rng(seed).normal(0, sigma, count)


def between_runs(runs, resamples: int = 300, seed: int = estimates.SEED) -> dict[str, float]:
    """The median over runs of their median batch, as a point has it."""
    return estimates.columns_of("ms", estimates.draw_runs(runs, resamples=resamples, seed=seed).sampled())


@pytest.mark.parametrize(("count", "share"), [(4, 0.98), (8, 0.98), (14, 0.98), (40, 0.95)])
def test_a_steady_series_loses_nothing(count: int, share: float) -> None:
    assert np.mean([estimates.warmup(noise(seed, count, 5.0)) == 0 for seed in range(300)]) > share
    assert estimates.warmup(np.full(count, 7.0)) == 0


@pytest.mark.parametrize("count", [6, 12, 40])
@pytest.mark.parametrize("head", [(3.0,), (1.5,), (3.0, 3.0), (1.5, 1.5), (0.5,)])
def test_another_level_at_the_head_is_warmup(count: int, head: tuple[float, ...]) -> None:
    factors = np.r_[head, np.ones(count - len(head))]
    found = [estimates.warmup(factors * noise(seed, count, 3.0)) for seed in range(100)]
    assert np.mean(np.array(found) == len(head)) >= (0.93 if count == 40 else 0.95)


@pytest.mark.parametrize(("percent", "fewest"), [(95, 20), (99, 100)])
def test_a_percentile_needs_a_value_beyond_it(percent: float, fewest: int) -> None:
    assert np.isnan(estimates.percentile(noise(3, fewest - 1), percent))
    assert estimates.percentile(noise(3, fewest), percent) > 100


@given(SERIES)
def test_at_most_half_is_warmup(series: np.ndarray) -> None:
    assert 0 <= estimates.warmup(series) <= len(series) // 2


@settings(max_examples=25)
@given(SERIES)
def test_an_interval_lies_within_the_values_and_in_order(series: np.ndarray) -> None:
    estimate = estimates.median_in_run(series)
    assert estimate.value == np.median(series)
    if np.isnan(estimate.low):
        assert np.isnan(estimate.high)
    else:
        assert series.min() <= estimate.low <= estimate.value <= estimate.high <= series.max()


def runs_of(generator: np.random.Generator, count: int, between: float, inside: float) -> list[np.ndarray]:
    """Runs of 25 batches of 100 ms that differ by ``between`` %, their batches by ``inside`` %."""
    return [
        100 * np.exp(generator.normal(0, between / 100)) + generator.normal(0, inside, 25)
        for _ in range(count)
    ]


@pytest.mark.parametrize(("count", "between"), [(2, 0.1), (2, 5.0), (3, 1.0), (5, 0.1), (5, 5.0)])
def test_intervals_between_runs_hold_the_truth_as_often_as_they_say(count: int, between: float) -> None:
    generator = np.random.default_rng(count)
    hits = 0
    for trial in range(200):
        estimate = between_runs(runs_of(generator, count, between, 0.5), seed=trial)
        hits += estimate["ms_low"] <= 100 <= estimate["ms_high"]
    # 95 % of 200 is 190, with a standard deviation of 3; where runs do not differ it may be more.
    assert hits >= 181


@pytest.mark.parametrize("count", [2, 4])
def test_a_ratio_of_two_points_holds_the_truth_as_often_as_it_says(count: int) -> None:
    """A scaling efficiency is the ratio of two points' rates; widened each by itself it would be too wide."""
    generator = np.random.default_rng(11)
    hits, narrower = 0, []
    for trial in range(200):
        base, point = (
            estimates.draw_runs(runs_of(generator, count, 1.0, 0.5), resamples=300, seed=2 * trial + number)
            for number in range(2)
        )
        widening = estimates.shared_widening([(-1.0, base), (1.0, point)], seed=trial)
        low, high = estimates.interval(point.values(widening) / base.values(widening))
        apart = estimates.interval(point.values() / base.values())
        hits += low <= 1 <= high
        narrower.append((high - low) / (apart[1] - apart[0]))
    assert 181 <= hits <= 199 and np.median(narrower) < 0.9


@pytest.mark.parametrize(("other", "freedom"), [(0.01, 8), (0.0, 4)])
def test_the_degrees_of_freedom_of_a_ratio_are_those_of_welch_and_satterthwaite(other, freedom):
    """Of two points alike with 4 each they are 8; beside a point that does not scatter, its partner's 4."""
    deviates, ones = np.random.default_rng(1).standard_normal(40_000), np.ones(40_000)
    parts = [
        (weight, estimates.Drawn(100.0, sigma, 4, 0.0, weight * deviates, ones))
        for weight, sigma in ((1.0, 0.01), (-1.0, other))
    ]
    chi_square = freedom / estimates.shared_widening(parts) ** 2
    assert np.quantile(chi_square, [0.1, 0.5, 0.9]) == pytest.approx(
        scipy.stats.chi2.ppf([0.1, 0.5, 0.9], freedom), rel=0.03
    )


def test_an_interval_is_no_narrower_than_the_batches_inside_the_runs_allow() -> None:
    """Two runs that happen to agree are not known better than their batches tell."""
    runs = [noise(1, 30, 5.0), noise(2, 30, 5.0)]
    runs[1] += np.median(runs[0]) - np.median(runs[1])
    estimate = between_runs(runs)
    assert estimate["ms_high"] - estimate["ms_low"] > 2


def correlated(generator: np.random.Generator, correlation: float, count: int) -> np.ndarray:
    """A steady first-order series about 100, of standard deviation 1."""
    series = generator.normal(0, 1, count)
    for place in range(1, count):
        series[place] = correlation * series[place - 1] + np.sqrt(1 - correlation**2) * series[place]
    return 100 + series


@pytest.mark.parametrize(
    ("correlation", "count", "least"),
    [(0.0, 20, 0.7), (0.5, 20, 0), (0.3, 50, 0.95), (0.8, 20, 0), (0.8, 200, 0.95), (0.95, 200, 0)],
)
def test_an_interval_of_a_median_inside_a_run_is_right_or_not_there(correlation, count, least) -> None:
    """A short series does not show how much its batches are alike; then it has no interval."""
    generator = np.random.default_rng(3)
    found = [estimates.median_in_run(correlated(generator, correlation, count)) for _ in range(300)]
    known = [each for each in found if np.isfinite(each.low)]
    wrong = sum(not each.low <= 100 <= each.high for each in known)
    assert wrong / 300 <= 0.05 + 0.038  # three standard errors
    assert len(known) / 300 >= least


@pytest.mark.parametrize(("correlation", "count"), [(0.0, 5), (0.0, 20), (0.5, 10), (0.8, 20)])
def test_intervals_of_a_mean_inside_a_run_hold_it_as_often_as_they_say(correlation, count):
    generator = np.random.default_rng(count)
    found = [estimates.mean_in_run(correlated(generator, correlation, count)) for _ in range(400)]
    assert np.mean([each.low <= 100 <= each.high for each in found]) >= 0.95 - 0.033  # three standard errors


def test_of_series_drawn_together_one_that_drifts_does_not_widen_the_others() -> None:
    generator = np.random.default_rng(1)
    steady, drifting = generator.standard_normal(16), np.arange(16.0)
    drawn = estimates.errors_of_means(np.array([steady, drifting]), 4000, generator)
    assert drawn is not None and drawn.shape == (3, 4000)
    for errors, values in zip(drawn, (steady, drifting, steady + drifting), strict=True):
        alone = estimates.mean_in_run(values)
        low, high = np.quantile(errors, [0.025, 0.975])
        assert high - low == pytest.approx(alone.high - alone.low, rel=0.25)
    # The sum errs with what it is made of: by nearly as much, and to the same side.
    assert np.mean(np.sign(drawn[2]) == np.sign(drawn[1])) > 0.9


def test_one_run_and_two_batches_have_no_interval_nor_has_what_they_are_compared_with() -> None:
    one, two = noise(1, 30), [noise(1, 30), noise(2, 30)]
    estimate = between_runs([one])
    assert estimate["ms"] == np.median(one) and np.isnan([estimate["ms_low"], estimate["ms_high"]]).all()
    drawn = [(1.0, estimates.draw_runs([one])), (-1.0, estimates.draw_runs(two))]
    assert estimates.shared_widening(drawn) is None and np.isnan(drawn[0][1].values()).all()
    assert estimates.median_in_run(np.array([1.0, 2.0]))[0] == 1.5
    assert np.isnan(estimates.mean_in_run(np.array([1.0, 2.0, 3.0])).low)
    assert np.isnan(estimates.median_in_run(np.array([]))).all()


# --- two sets of runs, and results in order --------------------------------------------------------------


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
    assert comparison.noise(runs)["scatter_pct"] == pytest.approx(1.25, abs=0.1)
    # Within three standard errors.
    assert comparison.share(runs, 0, 120, seed=5, found=("slower", "faster")) <= 0.05 + 0.06
    assert comparison.share(runs, 2, 60, seed=5, found=("slower",)) >= 0.80 - 0.155
    assert comparison.share(runs, 2, 20, seed=5, found=("faster",)) == 0


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
        assert last(np.append(before, newest / (1 + end / 100))).p_value == pytest.approx(0.05)


@pytest.mark.parametrize("count", [3, 7, 12])
def test_without_a_change_there_is_a_verdict_in_one_of_twenty(count):
    drawn = np.exp(np.random.default_rng(count).normal(0, 0.02, (SIMULATIONS, count)))
    wrong = 3 * np.sqrt(0.05 * 0.95 / SIMULATIONS)
    assert np.mean([last(one).p_value <= 0.05 for one in drawn]) == pytest.approx(0.05, abs=wrong)
    if count > 3:
        assert np.mean([change_point(one).p_value <= 0.05 for one in drawn[:200]]) <= 0.05 + 1.5 * wrong
