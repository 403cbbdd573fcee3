"""Collectives are matched over ranks; planted waits, clocks and bandwidths are found."""

import numpy as np
import pyarrow.compute as pc
import pytest

from analysis.display.metrics import records
from analysis.frames.anatomy import arrays_of, calls_of
from analysis.frames.divide import activities_of
from analysis.frames.load import load
from analysis.measures.communication import communication
from jobs import store
from profiling import tables
from profiling.tools import read
from tests.analysis.commands import run
from tests.analysis.frames import by_rank, matched_of
from tests.analysis.synthetic import Truth, run_of, write_run, write_sweep, write_tau

US = 1_000
ALWAYS = (np.array([-(1 << 50)]), np.array([1 << 50]))


def rank_of(rank: int, starts_us, ends_us, offset_us: int = 0, compute_us=(), batch=None):
    """A rank's collectives, on a clock that is ``offset_us`` ahead; kernels of compute beside them."""
    rows = [(start, end, "communication", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1e6)
            for start, end in zip(starts_us, ends_us, strict=True)]  # fmt: skip
    rows += [(start, end, "gemm", "sgemm", 0.0) for start, end in compute_us]
    start, end, kind, name, moved = (np.array(column) for column in zip(*rows, strict=True))
    unsaid = np.full(len(rows), None)
    kernels = {
        "collective": unsaid, "process_group": unsaid, "group_ranks": unsaid,
        "group_size": np.zeros(len(rows)), "sequence": np.full(len(rows), -1),
        "batch_index": np.zeros(len(rows), int) if batch is None else np.array(batch),
        "start_ns": (start + offset_us) * US,
        "duration_ns": (end - start) * US,
        "class": kind, "direction": np.full(len(rows), "bprop"), "short_name": name, "bytes": moved,
    }  # fmt: skip
    return calls_of(rank, kernels, np.array([0]), ALWAYS, activities_of(kernels))


def test_wait_is_what_passes_before_the_last_rank_arrives():
    # Rank 1 arrives 40 us late to the first and is first at the second; both end together.
    calls = matched_of([rank_of(0, [0, 100], [50, 160]), rank_of(1, [40, 90], [50, 160])]).calls
    assert calls["transfer_ns"].tolist() == [10 * US, 60 * US] * 2
    waited = calls["left_ns"] - calls["entered_ns"] - calls["transfer_ns"]
    assert waited.tolist() == [40 * US, 0, 0, 10 * US]


def test_a_root_that_leaves_early_does_not_turn_the_clocks():
    """Rank 0 is done with its broadcasts 300 us before rank 1; the allreduces end together."""
    ranks = [rank_of(0, [0, 1000, 2000, 3000], [100, 1100, 2100, 3050]),
             rank_of(1, [0, 1000, 2000, 3000], [400, 1400, 2400, 3050], offset_us=7)]  # fmt: skip
    for one in ranks:
        one["collective"] = ["broadcast"] * 3 + ["allreduce"]
    matched = matched_of(ranks)
    first, second = by_rank(matched, "left_ns")
    assert (second - first).tolist() == [300 * US] * 3 + [0]
    assert matched.residual_ns == 0


def test_a_drift_is_found_and_scatter_is_none():
    ends = np.arange(1, 61) * 10_000
    scatter = np.arange(60) % 3 - 1  # us
    drift = np.linspace(0, 500, 60).astype(int)
    exact = rank_of(0, ends - 20, ends)
    matched = matched_of([exact, rank_of(1, ends - 20, ends + drift + scatter, offset_us=-3000)])
    assert np.abs(np.subtract(*by_rank(matched, "left_ns"))).max() <= 4 * US
    assert matched.residual_ns <= 2 * US
    shifted = matched_of([exact, rank_of(1, ends - 20, ends + scatter, offset_us=40)])
    assert set(by_rank(shifted, "left_ns")[1] - ends * US) == {-US, 0, US}  # one number for all


@pytest.mark.parametrize("offset_us", [0, -3_600_000_000])
def test_planted_clocks_of_eight_real_ranks_of_one_node(shared_data, offset_us):
    """One node has one clock: unshifted, the ends agree within microseconds; a shift is taken back."""
    ranks = []
    for number, path in enumerate(sorted((shared_data / "kineto/dlrm_8ranks").glob("*.gz"))):
        table = read(path).tables["kernels"]
        table = table.filter(pc.is_valid(table["batch_index"]))
        kernels = arrays_of(table)
        kernels["start_ns"] = kernels["start_ns"] + offset_us * number * US
        batches = np.unique(kernels["batch_index"])
        ranks.append(calls_of(number, kernels, batches, ALWAYS, activities_of(kernels)))
    matched = matched_of(ranks)
    assert matched.residual_ns < 5 * US
    ahead = np.stack(by_rank(matched, "end_ns")) - by_rank(matched, "left_ns")
    assert np.abs(ahead - offset_us * np.arange(8)[:, None] * US).max() < 5 * US


def test_ranks_that_made_other_collectives_are_not_matched():
    here, elsewhere = (rank_of(rank, [0, 100], [50, 160]) for rank in range(2))
    assert matched_of([here, rank_of(1, [40], [50])]) is None
    assert matched_of([here, elsewhere.assign(step=[0, 1])]) is None


def test_a_run_is_compared_with_an_allreduce_of_its_ranks_on_as_many_nodes_over_its_network(tmp_path):
    runs = [
        run_of(nodes=nodes, gpus_per_node=2 // nodes, network=network, profile="torch")
        for nodes, network in ((1, "ib"), (2, "ib"), (2, "eth"))
    ]
    write_sweep(tmp_path, runs)
    record = tmp_path / store.CALIBRATION
    measured = [
        store.Allreduce(nodes=1, ranks_per_node=2, network="eth", bus_bytes_per_s=8e9),
        store.Allreduce(nodes=2, ranks_per_node=1, network="IB", bus_bytes_per_s=2e9),
    ]
    known = store.read_record(record, store.Calibration)
    store.write_record(record, known.model_copy(update={"allreduces": measured}))
    of = {
        (row["nodes"], row["network"]): (row["busbw_gb_per_s"], row["busbw_of_measured_pct"])
        for row in records(communication(load(tmp_path)).rows)
    }
    assert of[1, "ib"][1] == pytest.approx(100 * of[1, "ib"][0] / 8)  # no network within a node
    assert of[2, "ib"][1] == pytest.approx(100 * of[2, "ib"][0] / 2)
    assert of[2, "eth"][0] and of[2, "eth"][1] is None


def test_tau_tables_and_the_references(tmp_path, shared_data):
    path = write_tau(tmp_path / "x_interval.gzip", {(1, 4, 32): [60.0, 62.0, 64.0]})
    (row,) = run("analysis.communication", path, "--format", "csv").csv
    # mpi_allreduce takes half of each rank's time: 3 x 30.75 + 31 s in the median repetition.
    assert float(row["mpi_s"]) == pytest.approx(3 * 30.75 + 31)
    assert row["runs"] == "3"
    ran = run("analysis.communication", shared_data / "surfboard/tau/lisa_atomic.gzip", "--format", "csv")
    assert ran.code == 0 and len(ran.csv) == 80
    asked = {"grad": "fp16", "workers": "2", "batch": "32", "gpus_per_node": "4"}.items()
    by_nodes = {int(row["nodes"]): float(row["messages"]) for row in ran.csv if asked <= row.items()}
    assert list(by_nodes) == sorted(by_nodes) and by_nodes[8] > by_nodes[1]


def write_under_tau(folder, count=10.0, **fields):
    """A run of 2 ranks a node: MPI_Allreduce takes 2 s a rank, ``count`` messages of 1 MB."""
    one = run_of(gpus_per_node=2, profile="tau", **fields)
    made = write_run(folder, one, Truth(), outside=[name for name in fields if name != "nodes"])
    for rank in range(one.ranks):
        place = tables.rank_directory(made, rank)
        names = ["MPI_Allreduce()", "MPI_Bcast()", "main => MPI_Allreduce()", "MPI_Init()"]
        timers = {"function": names, "inclusive_ns": [1.5e9, 0.5e9, 9e9, 9e9]}
        tables.write(tables.as_table("intervals", timers), place, "intervals")
        names = ["Message size for all-reduce", "Message size for all-reduce : main", "Heap (KB)"]
        names += ["Message size for gatherv", "Message size for iall-reduce"]  # nor is their time counted
        events = {"event": names, "count": [count, count, 5.0, 7.0, 7.0], "mean": [1e6, 1e6, 3.0, 1e6, 1e6]}
        tables.write(tables.as_table("atomics", events), place, "atomics")


def test_runs_of_our_own_under_tau_are_by_nodes_and_by_what_their_id_does_not_name(tmp_path):
    """Call paths and other timers count nothing; buckets of 5 MB send five times the messages of 25 MB."""
    for nodes in (1, 2):
        write_under_tau(tmp_path / "nodes", nodes=nodes)
    write_under_tau(tmp_path / "buckets", bucket_mb=25)
    write_under_tau(tmp_path / "buckets", 50.0, bucket_mb=5)

    def figures(folder, *names):
        made = run("analysis.communication", tmp_path / folder, "--format", "csv").csv
        return sorted([float(row[name]) for name in names] for row in made)

    assert figures("nodes", "nodes", "mpi_s", "messages", "volume_mbyte") == [[1, 4, 20, 20], [2, 8, 40, 40]]
    assert figures("buckets", "bucket_mb", "runs", "messages") == [[5, 1, 100], [25, 1, 20]]
