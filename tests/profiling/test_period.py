"""A period of the kernels: planted ones are found, what is none is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.attribution.batch_times import find_period
from profiling.convert import main
from profiling.tables import read
from profiling.traced_job import read_job
from tests.builders import data_of
from tests.profiling.traced_jobs import START_US, Planted, trace_of

UPDATE = 900  # an optimizer's kernel


def batch_of(generator, layers, forward, backward):
    """Names of a batch's kernels: an embedding, layers alike, a loss, the layers back, the optimizer."""
    layer = generator.integers(0, 40, forward).tolist()
    back = generator.integers(100, 140, backward).tolist()
    return [500, 501, *layer * layers, 600, 601, 602, *back * layers, 700, UPDATE, UPDATE, UPDATE]


def times_of(names, step=10):
    start = np.arange(len(names)) * step
    return np.array(names), start, start + step - 2


@given(
    seed=st.integers(0, 10**6), layers=st.integers(1, 12), forward=st.integers(3, 12),
    backward=st.integers(4, 20), batches=st.integers(4, 12), head=st.integers(0, 30),
)  # fmt: skip
def test_a_planted_period_is_found_whatever_its_layers(seed, layers, forward, backward, batches, head):
    generator = np.random.default_rng(seed)
    one = batch_of(generator, layers, forward, backward)
    # The recording may begin within a batch.
    names, start, end = times_of((one * (batches + 1))[len(one) - min(head, len(one)) :])
    found = find_period(names, start, end, [UPDATE])
    assert found is not None
    assert found.kernels == len(one)
    first = min(head, len(one)) % len(one)
    assert found.edges_ns[:-1].tolist() == [
        10 * (first + number * len(one)) for number in range(len(found.edges_ns) - 1)
    ]
    assert len(found.edges_ns) - 1 >= batches


NONE = {
    "the layers of one step": lambda generator: batch_of(generator, generator.integers(8, 41), 10, 14),
    "nothing recurs": lambda generator: generator.integers(0, 30, 3000).tolist(),
    "two batches are too few": lambda generator: batch_of(generator, 4, 6, 9) * 2,
}


@pytest.mark.parametrize("case", NONE)
@settings(max_examples=30)
@given(seed=st.integers(0, 10**6))
def test_what_does_not_recur_is_refused(case, seed):
    names, start, end = times_of(NONE[case](np.random.default_rng(seed)))
    assert find_period(names, start, end, [UPDATE]) is None


def test_some_kernels_that_come_and_go_lower_the_confidence_and_keep_the_batches():
    generator = np.random.default_rng(1)
    one = batch_of(generator, 6, 8, 12)
    several = [list(one) for _ in range(10)]
    several[4].insert(30, 999)  # an allocation is set to zero, once
    names, start, end = times_of([name for batch in several for name in batch])
    found = find_period(names, start, end, [UPDATE])
    assert found is not None and 0.9 < found.confidence < 1
    assert len(found.edges_ns) - 1 == 10
    assert found.edges_ns[5] == 10 * (5 * len(one) + 1)


def test_without_an_optimizer_batches_are_cut_at_the_longest_pause():
    names, start, end = times_of([*range(20)] * 6)
    start, end = start + np.arange(len(start)) // 20 * 5000 + 7, end + np.arange(len(end)) // 20 * 5000 + 7
    found = find_period(names[13:], start[13:], end[13:])
    assert found is not None
    assert found.edges_ns[0] == start[20]


@pytest.fixture
def unmarked(tmp_path):
    """A converted trace of which nothing marks the batches; a GEMM of its own in each of 6 layers."""
    trace = trace_of(Planted(ranks=1, batches=0), 0)
    for number in range(8):
        at = START_US + 1000 * number
        for layer in range(12):
            kernel = at + 50 * layer
            trace.kernel(f"sgemm_{layer % 6}", kernel, kernel + 5, kernel + 45)
        trace.kernel("void multi_tensor_apply_kernel<float>(float)", at + 700, at + 710, at + 760)
    trace.write(tmp_path / "one.json")
    assert main([str(tmp_path / "one.json"), "--out", str(tmp_path / "out")]) == 0
    return tmp_path / "out" / "one"


def test_batches_of_an_unmarked_trace_are_told_by_their_kernels_and_it_is_said(unmarked, capsys):
    job = read_job(unmarked)
    assert (job.batches_from, job.batches_confidence) == ("a period of the kernels", 1.0)
    by = {"by": "a period of the kernels", "recurring_pct": 100}
    assert data_of(job.findings, "steps_unmarked") == [by]
    rows = read(unmarked / "rank_0000", "batches").to_pylist()
    assert len(rows) == 8 and rows[1]["end_ns"] - rows[1]["start_ns"] == 1_000_000
    assert rows[0]["start_ns"] == round(START_US + 5) * 1000
    kernels = read(unmarked / "rank_0000", "kernels")
    assert np.bincount(kernels["batch_index"].to_numpy()).tolist() == [13] * 8


def test_periods_of_real_traces_are_the_batches_that_are_marked_in_them(shared_data):
    from profiling.tools import Origin, tool

    for name, batches in (("nccl_data", 3), ("resnet50_v100_dims_old_schema", 6), ("resnet_kineto", 30)):
        pieces = list(
            tool("torch").stream(shared_data / "kineto" / f"{name}.json.gz", [], Origin(batches=True))
        )
        kernels = next(piece for table, piece in pieces if table == "kernels").to_pandas()
        marked = next(piece for table, piece in pieces if table == "batches").to_pandas()
        works = kernels[~kernels["class"].isin(["communication", "memcpy", "memset", "loader"])]
        works = works[works.stream == works.stream.value_counts().idxmax()].sort_values("start_ns")
        number = works.name.astype(str).factorize()[0]
        updates = np.unique(number[works["class"] == "optimizer"]).tolist()
        start = works.start_ns.to_numpy()
        found = find_period(number, start, start + works.duration_ns.to_numpy(), updates)
        assert found is not None and len(found.edges_ns) - 1 >= batches - 1, name
        # Each begins in another batch of those that are marked.
        of = np.searchsorted(marked.end_ns.to_numpy(), found.edges_ns[:-1], side="right")
        assert len(set(of.tolist())) == len(of), name
