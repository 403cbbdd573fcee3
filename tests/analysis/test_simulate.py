"""A step with planted gradients, latency and bandwidth is replayed as one does by hand."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.prediction import simulation
from analysis.prediction.allreduce import Layout, ring
from analysis.prediction.simulation import Model, Simulated, buckets, parse_what_ifs, simulate
from analysis.prediction.traced_step import Step
from profiling.errors import UserError

MS = 1e6
ALPHA_NS, NS_PER_BYTE = 20_000.0, 0.1  # 20 us, 10 GB/s
MI = 1 << 20  # elements: 4 MiB


def step_of(**changes) -> Step:
    """Five gradients in a backward pass of 50 ms; batches of 100 ms, but for one in ten of 110 ms."""
    own = np.tile([100.0] * 9 + [110.0], 40) * MS
    values = {
        "load_ns": 5 * MS, "forward_ns": 30 * MS, "backward_ns": 50 * MS, "tail_ns": 15 * MS,
        "ready_ns": np.array([5.0, 10, 20, 40, 50]) * MS,
        "elements": np.array([MI, MI, 8 * MI, 4 * MI, 1000]),
        "whole_buckets": False, "own_ns": own, "own_load_ns": np.full(len(own), 5 * MS),
    }  # fmt: skip
    return Step(**{**values, **changes})


def model_of(step: Step | None = None, **changes) -> Model:
    cost = ring(ALPHA_NS, NS_PER_BYTE)
    return Model(
        **{"step": step or step_of(), "cost": cost, "bytes_per_element": 4, "bucket_mb": 25.0, **changes}
    )


def changed(model: Model, what_if: str) -> Model:
    return simulation.changed(model, what_if, Layout(8))


def simulated(model: Model, ranks: int) -> Simulated:
    return simulate(model, Layout(ranks))


def test_buckets_close_when_they_are_full_and_others_alike_are_no_change():
    ready, sizes = buckets(step_of(), 25.0)
    # 4 + 4 + 32 MiB fill the first; 16 MiB and the last few are the second.
    assert ready.tolist() == [20 * MS, 50 * MS] and sizes.tolist() == [10 * MI, 4 * MI + 1000]
    assert len(buckets(step_of(whole_buckets=True), 1000.0)[0]) == 5  # they are what was sent
    model = model_of()
    assert changed(model, "bucket-mb=50").bucket_mb == 50
    small = replace(model, step=step_of(elements=np.array([MI, MI, 1, 1, 1])))
    for of, megabytes in ((small, 50), (model, 26)):
        with pytest.raises(ValueError, match="same buckets"):
            changed(of, f"bucket-mb={megabytes}")
    assert changed(small, "bucket-mb=1").bucket_mb == 1


@given(
    st.lists(st.integers(1, 10_000_000), min_size=1, max_size=30), st.floats(0.1, 100), st.integers(0, 1000)
)
def test_buckets_hold_every_gradient_once(elements, bucket_mb, seed):
    ready = np.sort(np.random.default_rng(seed).uniform(0, 50 * MS, len(elements)))
    at, sizes = buckets(step_of(ready_ns=ready, elements=np.array(elements)), bucket_mb)
    assert sizes.sum() == sum(elements) and at[-1] == ready[-1] and (np.diff(at) >= 0).all()
    assert (sizes[:-1] * 4 >= bucket_mb * simulation.MIB).all()


def test_a_step_is_what_one_computes_by_hand():
    found = simulated(model_of(), 4)
    first = 6 * ALPHA_NS + 1.5 * 10 * MI * 4 * NS_PER_BYTE  # ready at 20 ms, done at 26.4 ms
    second = 6 * ALPHA_NS + 1.5 * (4 * MI + 1000) * 4 * NS_PER_BYTE  # ready at 50 ms, when the other is done
    assert 20 * MS + first < 50 * MS
    assert found.buckets == 2 and found.exposed_ns[0] == pytest.approx(second)
    # One batch in ten is 10 ms late: of four ranks' batches the latest is so in less than half of the steps.
    assert found.step_ns[0] == pytest.approx(100 * MS + second)
    # Of eight in more than half.
    late = simulated(model_of(), 8)
    assert late.step_ns[0] - late.exposed_ns[0] == pytest.approx(110 * MS)
    alone = simulated(model_of(), 1)
    assert alone.step_ns[0] == pytest.approx(100 * MS) and not alone.exposed_ns.any() and not alone.buckets


@settings(max_examples=30)
@given(st.integers(2, 512), st.floats(0, 1e6), st.floats(0, 100), st.sampled_from([1.0, 5.0, 25.0, 1000.0]))
def test_no_step_is_shorter_than_its_parts(ranks, alpha_ns, ns_per_byte, bucket_mb):
    cost = ring(alpha_ns, ns_per_byte)
    step = step_of(own_ns=np.full(4, 100 * MS), own_load_ns=np.full(4, 5 * MS))
    model = model_of(step, cost=cost, bucket_mb=bucket_mb)
    found = simulated(model, ranks)
    wire = 2 * (ranks - 1) / ranks * 4 * (14 * MI + 1000) * ns_per_byte
    wire += 2 * (ranks - 1) * alpha_ns * found.buckets
    assert 100 * MS - 1 <= found.step_ns[0] <= 100 * MS + wire + 1
    assert found.step_ns[0] >= 50 * MS + wire - 1
    assert simulated(model, 2 * ranks).step_ns[0] >= found.step_ns[0] - 1


SLOW = model_of(cost=ring(1e5, 2.0))


def test_what_ifs_by_hand():
    what_ifs = "fp16-gradients", "network=2x", "no-stragglers", "no-loader", "no-stragglers+no-loader"
    ns = {what_if: simulated(changed(SLOW, what_if), 8).step_ns[0] for what_if in what_ifs}
    plain = simulated(SLOW, 8).step_ns[0]
    assert ns["fp16-gradients"] == pytest.approx(ns["network=2x"])  # half the bytes, or twice the bandwidth
    assert ns["fp16-gradients"] < plain and (changed(SLOW, "network=0.5x").cost.terms[1] == 4.0).all()
    saved = {name: (plain - after) / MS for name, after in ns.items() if "no-" in name}
    assert saved == pytest.approx({"no-stragglers": 10, "no-loader": 5, "no-stragglers+no-loader": 15})


@pytest.mark.parametrize(
    ("given", "what_if", "why"),
    [
        ({"bytes_per_element": 2}, "fp16-gradients", "already"),
        ({"cost": ring(ALPHA_NS, 0.0)}, "network=2x", "bandwidth"),
        ({"step": step_of(whole_buckets=True)}, "bucket-mb=50", "not known"),
    ],
)
def test_what_changes_nothing_is_said(given, what_if, why):
    with pytest.raises(ValueError, match=why):
        changed(model_of(**given), what_if)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("fp16-gradient", "did you mean"), ("network", "network=2x"), ("network=2", "network=2x"),
        ("network=0x", "needs a number"), ("bucket-mb=big", "bucket-mb=50"),
        ("no-loader=3", "takes no value"), ("no-loader+x", "unknown change 'x'"),
    ],
)  # fmt: skip
def test_a_wrong_what_if_is_one_line(text, says):
    with pytest.raises(UserError, match=says):
        parse_what_ifs(f"no-stragglers,{text}")
    assert parse_what_ifs("no-loader, network=1.5x,no-loader") == ["no-loader", "network=1.5x"]
