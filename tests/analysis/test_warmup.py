"""Which steps of traces are warmup: of few only what is slow by far, of many what is off the level."""

import numpy as np
import pytest

from analysis.measures.batches.series import warmup_of_traces
from analysis.statistics.estimates import FEWEST_FOR_WIDTH
from benchmarks.warmup import steps

SHORT = (3, 4, 5, 8, 10, 12, FEWEST_FOR_WIDTH - 1)


def warmups(count: int, head: tuple[float, ...] = (), spikes: float = 0.0, of: int = 200) -> np.ndarray:
    """Of traces of one rank whose steps vary by 5 %."""
    every = steps(np.random.default_rng(count), of, count, head, spikes)
    return np.array([warmup_of_traces(one[None, :], np.ones((1, count), bool)) for one in every])


@pytest.mark.parametrize("count", SHORT)
def test_no_step_of_a_short_trace_is_dropped_for_noise(count):
    assert not warmups(count).any()
    # A tenth of the steps takes half as long again, also the first ones.
    assert not warmups(count, spikes=1.5).any()


@pytest.mark.parametrize("count", [5, 8, 12, 14, 30])
@pytest.mark.parametrize("head", [(3.0,), (3.0, 3.0), (20.0, 2.5)])
def test_slow_first_steps_of_a_trace_are_dropped(count, head):
    assert np.mean(warmups(count, head) == len(head)) >= 0.95


def test_a_small_change_of_level_is_found_in_a_longer_trace_alone():
    assert not warmups(FEWEST_FOR_WIDTH - 1, (1.5, 1.5)).any()
    assert np.mean(warmups(FEWEST_FOR_WIDTH, (1.5, 1.5)) >= 2) > 0.97


def test_what_the_conversion_left_out_is_dropped_first():
    rank_ns = np.array([[500.0, 100, 101, 99, 100, 102], [100, 100, 101, 99, 100, 102]])
    attributed = np.ones((2, 6), bool)
    attributed[0, 0] = False
    assert warmup_of_traces(rank_ns, attributed) == 1
    rank_ns[:, 1] = 400.0  # slow on the job's own clock, behind the one that was left out
    assert warmup_of_traces(rank_ns, attributed) == 2
