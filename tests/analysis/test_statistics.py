"""Centres, intervals and warm-up, on series whose truth is known."""

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.statistics import estimates

SERIES = st.lists(st.floats(1.0, 1e6), min_size=4, max_size=60).map(np.array)


def noise(seed: int, count: int, sigma: float = 1.0) -> np.ndarray:
    return 100 + np.random.default_rng(seed).normal(0, sigma, count)


def between_runs(runs, resamples: int = 300, seed: int = estimates.SEED) -> dict[str, float]:
    """The median over runs of their median batch, as a point has it."""
    drawn = estimates.draw_runs(runs, resamples=resamples, seed=seed)
    return estimates.columns_of("ms", drawn.sampled())


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
    held = np.mean([each.low <= 100 <= each.high for each in found])
    assert held >= 0.95 - 0.033  # three standard errors


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
