"""Planted latencies and bandwidths of links are fitted, and what calls do not tell stays open."""

import numpy as np
import pytest

from analysis.prediction import allreduce
from analysis.prediction.allreduce import Exchanges, Layout, fit, ring
from analysis.prediction.traced_step import algorithms_of

ALPHA_NS, NS_PER_BYTE = 20_000.0, 0.1  # 20 us, 10 GB/s


def seen_of(sizes, ranks=(2, 4, 8), cost=None) -> Exchanges:
    """Allreduces that take what a ring does, one call each."""
    cost = cost or ring(ALPHA_NS, NS_PER_BYTE)
    pairs = [(count, size) for count in ranks for size in sizes]
    ns = np.array([cost.allreduce_ns(size, Layout(count))[0] for count, size in pairs])
    count, size = (np.array(column, float) for column in zip(*pairs, strict=True))
    return Exchanges(count, np.ones(len(ns)), size, ns, np.ones(len(ns)))


def test_a_ring_and_two_levels_cost_what_one_computes_by_hand():
    # 6 messages of 20 us, and 6/4 of 40 MB at 10 GB/s.
    assert ring(ALPHA_NS, NS_PER_BYTE).allreduce_ns(40e6, Layout(4))[0] == pytest.approx(6 * 20e3 + 6e6)
    two = next(one for one in allreduce.LEVELS if one.name == "two-level ring")
    cost = allreduce.Cost(two, np.array([[1e3], [20e3], [0.01], [0.1]]))
    # 4 ranks on each of 2 nodes: 6 messages and 6/4 of the bytes within, 2 and 1 between.
    by_hand = 6 * 1e3 + 2 * 20e3 + 1.5 * 40e6 * 0.01 + 40e6 * 0.1
    assert cost.allreduce_ns(40e6, Layout(8, 2))[0] == pytest.approx(by_hand)
    assert cost.slowest(Layout(8, 2)) == (20e3, 0.1) and cost.slowest(Layout(4)) == (1e3, 0.01)


def test_planted_latency_and_bandwidth_are_fitted_and_forms_that_calls_exclude_are_not_kept():
    best, *others = fit(seen_of([1e4, 1e6, 3e7]))
    assert best.form.name == "ring" and best.terms.shape == (2, 1 + allreduce.RESAMPLES)
    assert best.terms[:, 0] == pytest.approx([ALPHA_NS, NS_PER_BYTE]) and best.error < 1e-6
    # Links of another bandwidth from some size on may well have the same one.
    assert {cost.form.name for cost in others} <= {"slower from 4"}


def test_without_calls_there_is_no_fit():
    with pytest.raises(ValueError, match="no collective"):
        fit(Exchanges(*(np.array([]) for _ in range(5))))


def test_messages_of_one_length_leave_latency_open():
    seen = seen_of([1e6], ranks=(2,))
    assert not any(one.latency_known for one in fit(seen))
    rings = [one for one in fit(seen) if one.form.name == "ring"]
    # All of it bandwidth, or all of it latency: both take what was measured, 2 x 20 us and 100 us.
    assert [one.terms[0, 0] for one in rings] == pytest.approx([0.0, 70_000.0])
    for one in rings:
        assert one.allreduce_ns(1e6, Layout(2))[0] == pytest.approx(seen.ns[0])


def test_messages_of_several_lengths_may_show_that_there_is_no_latency():
    best = fit(seen_of([1e4, 1e6, 3e7], ranks=(8,), cost=ring(0.0, NS_PER_BYTE)))[0]
    assert best.latency_known and best.slowest(Layout(8)) == pytest.approx((0.0, NS_PER_BYTE), abs=1e-9)


def test_noise_of_calls_is_in_the_resamples():
    seen = seen_of(np.geomspace(1e5, 5e7, 30), ranks=(2, 4))
    noisy = seen._replace(ns=seen.ns * np.random.default_rng(1).normal(1, 0.05, 60))
    found = next(one for one in fit(noisy) if one.form.name == "ring").terms[1]
    low, high = np.percentile(found[1:], [2.5, 97.5])
    assert low < NS_PER_BYTE < high and high < 1.2 * low


def test_nccls_kernels_say_their_algorithm():
    names = ["ncclDevKernel_AllReduce_Sum_f32_TREE_LL", "ncclKernel_AllReduce_RING_LL_Sum_float"]
    assert algorithms_of(names) == {"tree", "ring"} and algorithms_of(names[:1]) == {"tree"}
    assert algorithms_of([*names, "ncclDevKernel_Generic"]) == frozenset()
    forms = {
        name: {one.name for one in allreduce.forms(seen_of([1e6])._replace(algorithms=frozenset({name})))}
        for name in ("tree", "ring")
    }
    assert forms["tree"] == {"tree", "binomial"} and "ring" in forms["ring"] and "tree" not in forms["ring"]
