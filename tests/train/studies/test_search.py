"""The search for what just fits, and for the balance of two halves."""

import pytest

from train.studies import capacity as search


@pytest.mark.parametrize("start", [1, 2, 16, 100, 5000])
@pytest.mark.parametrize("largest", [1, 2, 15, 16, 17, 123, 999, 1000])
def test_the_boundary_is_found_in_few_tries(largest, start):
    asked = []

    def fits(layers):
        asked.append(layers)
        return layers <= largest

    assert search.boundary(fits, start, most=1000) == (largest, largest + 1)
    assert len(asked) == len(set(asked)) <= 2 * 10 and all(1 <= layers <= 1000 for layers in asked)


@pytest.mark.parametrize("off", [-6, -1, 0, 1, 6])
def test_from_near_the_boundary_it_takes_few_tries(off):
    asked = []

    def fits(layers):
        asked.append(layers)
        return layers <= 1550

    assert search.boundary(fits, 1550 + off) == (1550, 1551)
    assert len(asked) <= 6


def test_a_boundary_that_is_nowhere():
    assert search.boundary(lambda _: False, 16, most=100) == (0, 1)
    assert search.boundary(lambda _: True, 16, most=100) == (100, 101)


@pytest.mark.parametrize("start", [1, 8, 15])
@pytest.mark.parametrize("weights", [[1] * 16, [9] * 3 + [1] * 13, [1] * 13 + [9] * 3, [1, 1]])
def test_the_balance_is_found(weights, start):
    def attempt(place):
        return None, sum(weights[:place]) - sum(weights[place:])

    best, tried = search.balance(attempt, start, len(weights) - 1)
    least = min(abs(attempt(place)[1]) for place in range(1, len(weights)))
    assert abs(attempt(best)[1]) == least and len(tried) <= 5


def test_a_side_that_does_not_fit_moves_the_split():
    def attempt(place):
        return None, float("inf") if place > 6 else float("-inf") if place < 6 else -1.0

    best, tried = search.balance(attempt, 2, 15)
    assert best == 6 and len(tried) > 1
    assert search.balance(lambda place: (None, float("nan")), 2, 15)[0] is None
