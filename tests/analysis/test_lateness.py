"""Lateness of ranks, and how often one of equally fast ranks is late as often by chance."""

from dataclasses import replace

import numpy as np
import pytest

from analysis.measures import lateness as of
from analysis.measures.lateness import (
    CHANCE,
    CLOCK,
    NO,
    SHORT_WAIT,
    STRAGGLER,
    TOO_FEW,
    chance,
    judge,
    stretches,
)
from analysis.measures.stragglers import cause_of_rank
from tests.analysis.late_ranks import BATCHES
from tests.analysis.synthetic import MS


def lateness(late_ns: np.ndarray, step_ns: float = 100.0) -> of.Lateness:
    ranks, batches = late_ns.shape
    nothing = {name: np.zeros(late_ns.shape) for name in of.PARTS}
    return of.Lateness(of.BY_STAGES, np.arange(batches), late_ns, late_ns, nothing, step_ns,
                       np.zeros(ranks))  # fmt: skip


def verdicts(one: of.Lateness) -> list[str]:
    return judge(one)[0].tolist()


@pytest.mark.parametrize(
    ("caused_ms", "forward_ms", "expected"),
    [
        ([0, 0, 9, 0, 0], 9, ("host", 9)), ([0, 6, 3, 0, 0], 1, ("processor", 6)),
        ([0, 0, 3, 0, 0], 9, ("processor or host", 9)),  # in that run it was hardly late
        ([0, 1, 0, 0, 8], 1, ("processor or host", 1)), (None, 9, ("processor or host", 9)),
    ],
)  # fmt: skip
def test_the_cause_is_what_made_a_rank_come_last(caused_ms, forward_ms, expected):
    late = np.zeros((2, 10))
    late[1] = 9.0 * MS
    one = lateness(late, 100.0 * MS)
    one.parts_ns["forward"][1] = forward_ms * MS
    caused = None if caused_ms is None else np.array([[0.0] * 5, caused_ms]) * MS
    assert cause_of_rank(1, one, caused, "processor") == expected


@pytest.mark.parametrize(
    ("measured_from", "waited", "verdict"),
    [
        (of.BY_STAGES, 1.8, SHORT_WAIT), (of.BY_COLLECTIVES, 1.8, SHORT_WAIT),
        (of.BY_STAGES, 0.0, SHORT_WAIT), (of.BY_COLLECTIVES, 0.0, CLOCK), (of.BY_COLLECTIVES, 1.0, CLOCK),
    ],
)  # fmt: skip
def test_a_verdict_does_not_deny_what_the_row_shows(measured_from, waited, verdict):
    """Behind by 2.2 % of a step, while the others wait for less than the 2 % that make a rank late."""
    late, behind = np.full((4, 50), -waited / 3), np.zeros((4, 50))
    late[1], behind[1] = waited, 2.2
    assert verdicts(replace(lateness(late), measured_from=measured_from, behind_ns=behind))[1] == verdict


def correlated(generator, ranks, batches, rho):
    noise = generator.standard_normal((ranks, batches))
    values = noise.copy()
    for batch in range(1, batches):
        values[:, batch] = rho * values[:, batch - 1] + noise[:, batch]
    return values


@pytest.mark.parametrize(("ranks", "rho"), [(2, 0.0), (8, 0.0), (8, 0.5)])
def test_equal_ranks_are_named_in_at_most_a_run_of_twenty(ranks, rho):
    """120 runs of noise of 5 % of a batch: at 5 %, more than 11 false alarms come once in 50 such tests."""
    generator = np.random.default_rng(7)
    alarms = 0
    for _ in range(120):
        late = of.over_others(100 + 5 * correlated(generator, ranks, BATCHES, rho))
        alarms += STRAGGLER in verdicts(lateness(late))
    assert alarms <= 11


@pytest.mark.parametrize(("ranks", "rho"), [(8, 0.8), (2, 0.9)])
def test_bursts_of_workers_make_no_straggler_of_equal_ranks(ranks, rho):
    """Each fourth step is late, of each rank by about as much as four steps before; 60 runs."""
    generator = np.random.default_rng(5)
    alarms = 0
    for _ in range(60):
        late = np.stack([correlated(generator, ranks, 15, rho) for _ in range(4)], axis=2)
        late = (late * [0.5, 0.5, 0.5, 8.0]).reshape(ranks, 60)
        alarms += STRAGGLER in verdicts(lateness(of.over_others(late)))
    assert alarms <= 7


def test_a_rank_that_is_late_each_fourth_step_is_a_straggler():
    late = np.random.default_rng(6).standard_normal((8, 100))
    late[3, ::4] += 20
    assert verdicts(lateness(of.over_others(late)))[3] == STRAGGLER


def test_chance_of_two_ranks_is_the_binomials():
    """One of two is late in 9 of 10 independent batches, the other in the tenth: 2 x (10 + 1) / 1024."""
    late = np.zeros((2, 10), dtype=bool)
    late[0, :9] = late[1, 9] = True
    assert chance(late, 1)[0] == pytest.approx(22 / 1024, abs=0.008)
    assert chance(np.zeros((2, 10), dtype=bool), 1).tolist() == [1, 1]


def test_ranks_that_are_late_as_often_are_judged_alike_however_long_their_lateness_hangs_together():
    late = np.array([[-8.0], [8.0], [10.0], [-9.0]]) + correlated(np.random.default_rng(104), 4, 25, 0.3)
    assert stretches(late).tolist() == [4, 4, 5, 7]
    # By the longest stretches of those that are late; rank 3, whose are longer still, is not.
    found, p_values = judge(lateness(late))
    assert found[1:3].tolist() == [CHANCE] * 2 and p_values[1:3].tolist() == [chance(late > 0, 5)[2]] * 2


def test_few_batches_repeat_nothing():
    late = np.zeros((8, 3))
    late[2] = 30.0
    # Nor is a rank known not to be late again and again, where no p can be computed.
    for of_ranks, verdict in ((late, TOO_FEW), (np.zeros((8, 3)), TOO_FEW), (np.zeros((8, 30)), NO)):
        assert set(verdicts(lateness(of_ranks))) == {verdict}


@pytest.mark.parametrize("ranks", [2, 3, 4, 7, 8])
def test_over_others_is_less_the_median_of_the_others(ranks):
    values = np.random.default_rng(ranks).integers(0, 9, (ranks, 40)).astype(float)  # with ties
    expected = [values[rank] - np.median(np.delete(values, rank, axis=0), axis=0) for rank in range(ranks)]
    assert (of.over_others(values) == np.array(expected)).all()
