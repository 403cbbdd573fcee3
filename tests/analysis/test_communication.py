"""Collectives are matched over ranks; planted waits, clocks and bandwidths are found."""

import numpy as np
import pytest

from analysis.communication import bus_factor, calls_of, kind_of, match, rows
from analysis.load import load
from tests.analysis.commands import one_line_error, run
from tests.analysis.synthetic import Truth, run_of, write_sweep, write_tau

US = 1_000


def rank_of(rank: int, starts_us, ends_us, offset_us: int = 0, compute_us=(), batch=None):
    """A rank's collectives, on a clock that is ``offset_us`` ahead; kernels of compute beside them."""
    rows = [(start, end, "communication", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1e6)
            for start, end in zip(starts_us, ends_us, strict=True)]  # fmt: skip
    rows += [(start, end, "gemm", "sgemm", 0.0) for start, end in compute_us]
    start, end, kind, name, moved = (np.array(column) for column in zip(*rows, strict=True))
    kernels = {
        "batch_index": np.zeros(len(rows), int) if batch is None else np.array(batch),
        "start_ns": (start + offset_us) * US,
        "duration_ns": (end - start) * US,
        "class": kind, "direction": np.full(len(rows), "bprop"), "short_name": name, "bytes": moved,
    }  # fmt: skip
    return calls_of(rank, kernels, np.array([0]))


def test_wait_is_what_passes_before_the_last_rank_arrives():
    # Rank 1 arrives 40 us late to the first and is first at the second; both end together.
    ranks = [rank_of(0, [0, 100], [50, 160]), rank_of(1, [40, 90], [50, 160])]
    matched = match(ranks)
    assert (matched.transfer_ns == np.array([[10, 60], [10, 60]]) * US).all()
    assert (matched.wait_ns == np.array([[40, 0], [0, 10]]) * US).all()


def test_clocks_are_aligned_on_the_ends():
    ends = np.arange(1, 30) * 100
    exact = rank_of(0, ends - 20, ends)
    ahead = rank_of(1, ends - 15, ends + np.arange(29) % 3 - 1, offset_us=5000)
    matched = match([exact, ahead])
    assert np.abs(matched.end_ns[1] - matched.end_ns[0]).max() <= 1 * US
    assert matched.residual_ns <= 1 * US and (matched.transfer_ns[0] <= 15 * US).all()


def test_ranks_that_made_other_collectives_are_not_matched():
    assert match([rank_of(0, [0, 100], [50, 160]), rank_of(1, [40], [50])]) is None
    elsewhere = rank_of(1, [0, 100], [50, 160], batch=[0, 0])
    elsewhere.batch_index[1] = 1
    assert match([rank_of(0, [0, 100], [50, 160]), elsewhere]) is None


def test_exposed_is_what_no_model_kernel_hides():
    one = rank_of(0, [0, 100], [50, 160], compute_us=[(20, 120)])
    assert list(one.exposed_ns) == [20 * US, 40 * US]


def test_collectives_that_overlap_are_counted_once():
    one = rank_of(0, [0, 30], [50, 60])
    assert one.exposed_ns.sum() == 60 * US


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float", "allreduce"),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevComm*)", "allgather"),
        ("ncclAllReduceRingLLKernel_sum_f32", "allreduce"),
        ("gloo:all_reduce", "allreduce"),
        ("ncclKernel_SendRecv", "sendrecv"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16", "reducescatter"),
        ("gloo:broadcast", "broadcast"),
        ("ncclDevKernel_Generic_1", "other"),
    ],
)
def test_kinds_of_real_names(name, kind):
    assert kind_of(name) == kind


def test_bus_factors_are_nccl_tests():
    assert bus_factor("allreduce", 4) == 1.5 and bus_factor("allgather", 4) == 0.75
    assert bus_factor("broadcast", 4) == 1.0


def test_a_sweep_of_our_own(tmp_path):
    # 20 ms of collectives a batch are planted, of which 15 ms are hidden.
    write_sweep(tmp_path, [run_of(gpus_per_node=2, profile="torch")], Truth(noise_ms=0.0))
    (row,) = rows(load(tmp_path))
    assert row["ms_per_batch"] == pytest.approx(20, abs=0.01)
    assert row["exposed_ms"] + row["overlapped_ms"] == pytest.approx(20, abs=0.01)
    assert row["transfer_ms"] + row["wait_ms"] == pytest.approx(row["ms_per_batch"])
    by_rank = rows(load(tmp_path), by_rank=True)
    assert [one["rank"] for one in by_rank] == [0, 1]


def test_tau_tables(tmp_path):
    path = write_tau(tmp_path / "x_interval.gzip", {(1, 4, 32): [60.0, 62.0, 64.0]})
    (row,) = run("analysis.communication", path, "--format", "csv").csv
    # mpi_allreduce takes half of each rank's time: 3 x 30.75 + 31 s in the median repetition.
    assert float(row["mpi_s"]) == pytest.approx(3 * 30.75 + 31)
    assert row["repetitions"] == "3"


def test_the_references_tables(shared_data):
    ran = run(
        "analysis.communication", shared_data / "surfboard" / "tau" / "lisa_atomic.gzip", "--format", "csv"
    )
    assert ran.code == 0 and len(ran.csv) == 80
    by_nodes = {int(row["nodes"]): float(row["messages"]) for row in ran.csv
                if row["grad"] == "fp16" and row["workers"] == "2" and row["batch"] == "32"
                and row["gpus_per_node"] == "4"}  # fmt: skip
    assert list(by_nodes) == sorted(by_nodes) and by_nodes[8] > by_nodes[1]


def test_one_rank_is_said_in_one_line(tmp_path):
    write_sweep(tmp_path, [run_of(profile="torch")])
    assert "runs of several ranks" in one_line_error(run("analysis.communication", tmp_path))
