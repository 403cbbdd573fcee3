"""analysis.utilization: are the TensorBoard plugin's three figures what they are by its definitions?"""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.measures.utilization import of_device
from tests.analysis.commands import one_line_error, run
from tests.analysis.synthetic import Truth, change, run_of, write_run, write_sweep, write_sweep_record
from tests.profiling.traces import Trace, tensors

MODULE = "analysis.utilization"


def kernels(*rows) -> pd.DataFrame:
    """Kernels of (start, end, blocks a multiprocessor, occupancy)."""
    columns = ["start_ns", "end_ns", "blocks_per_sm", "occupancy_pct"]
    return pd.DataFrame(rows, columns=columns).assign(**{"class": "gemm"})


def windows(*pairs):
    start, end = zip(*pairs, strict=True)
    return np.array(start), np.array(end)


NAN = float("nan")
FIGURES = ("gpu_utilization_pct", "sm_efficiency_pct", "achieved_occupancy_pct", "communication_pct")


@pytest.mark.parametrize(
    ("rows", "whole", "expected"),
    [
        # Two at once from 20 to 30; one lasts until after the window; 25 of 100 ns nothing runs.
        ([(0, 30, 0.5, 50.0), (20, 50, 0.25, 20.0), (75, 120, 8.0, 100.0)], [(0, 100)],
         (75, 20 * 0.5 + 10 * 0.75 + 20 * 0.25 + 25, (30 * 50 + 30 * 20 + 25 * 100) / 85, 0)),
        # What lies between two recordings counts nowhere.
        ([(0, 100, 2.0, 40.0)], [(10, 20), (50, 80)], (100, 100, 40, 0)),
        ([(30, 40, 1.0, 5.0)], [(10, 20), (50, 80)], (0, 0, NAN, NAN)),
        # Kernels without blocks are left out; without any nothing is known.
        ([(0, 10, NAN, NAN), (10, 20, 1.0, 30.0)], [(0, 20)], (100, 50, 30, 0)),
        ([(0, 10, NAN, NAN)], [(0, 20)], (50, NAN, NAN, 0)),
    ],
)  # fmt: skip
def test_each_figure_of_kernels_that_are_known(rows, whole, expected):
    found = of_device(kernels(*rows), windows(*whole))
    assert [found[name] for name in FIGURES] == pytest.approx(list(expected), nan_ok=True)


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30), st.sampled_from([0.25, 0.5, 2.0])), min_size=1)
)
def test_sm_efficiency_is_the_mean_over_every_nanosecond(rows):
    made = kernels(*((start, start + length, blocks, 1.0) for start, length, blocks in rows))
    level = np.zeros(100)
    for start, length, blocks in rows:
        level[start : start + length] += blocks
    found = of_device(made, windows((10, 90)))
    assert found["sm_efficiency_pct"] == pytest.approx(100 * np.minimum(level, 1)[10:90].mean())
    assert found["gpu_utilization_pct"] == pytest.approx(100 * (level > 0)[10:90].mean())


def plant(sweep, **columns):
    """Give every kernel of a sweep's tables such values."""
    for path in sweep.glob("run_*/rank_*/kernels.parquet"):
        change(path.parent, "kernels", **columns)


@pytest.fixture
def sweep(tmp_path):
    runs = [
        run_of(gpus_per_node=ranks, profile=profile, batches=batches, profile_schedule="1,2,5,2")
        for ranks, batches in ((1, 80), (2, 40))
        for profile in ("none", "torch")
    ]
    write_sweep(tmp_path / "planted", runs, Truth(perturbation=1.0, noise_ms=0.01))
    return tmp_path / "planted"


def test_a_row_a_rank_with_the_runs_speedup_over_one_gpu_though_it_ran_for_fewer_batches(sweep):
    plant(sweep, blocks_per_sm=0.5, occupancy_pct=25.0)
    ran = run(MODULE, sweep, "--format", "json")
    assert ran.code == 0, ran.err
    rows = {(row["gpus_per_node"], row["rank"]): row for row in ran.json}
    assert sorted(rows) == [(1, 0), (2, 0), (2, 1)] and rows[2, 0]["unknown"] == ""
    # Kernels take 60 of 100 ms on one GPU; of 110 ms on two, where collectives run 5 ms beyond them. While
    # both run there is a block for each multiprocessor.
    one, *two = (
        {name: row[name] for name in (*FIGURES, "epoch_ms", "speedup")} for row in map(rows.get, sorted(rows))
    )
    busy_of_two = (45 * 50 + 15 * 100 + 5 * 50) / 110
    for row, expected in (
        (one, (60, 30, 25, 0, 80 * 100, 1)),
        *((row, (6500 / 110, busy_of_two, 25, 2000 / 80, 40 * 110, 200 / 110)) for row in two),
    ):
        assert row == pytest.approx(dict(zip(row, expected, strict=True)), rel=0.01)


def test_a_cpu_and_a_profiler_that_does_not_record_blocks_say_why_they_are_not_known(sweep):
    rows = run(MODULE, sweep, "--format", "json").json
    assert all(row["sm_efficiency_pct"] is None and "did not record" in row["unknown"] for row in rows)
    assert all(row["gpu_utilization_pct"] is not None for row in rows)
    plant(sweep, device=-1)
    out = run(MODULE, sweep).out
    # What is empty in every row is no column of the tables, data have it; a CPU has no index.
    assert "util. %" not in out and "occup." not in out and "speedup" in out and "-1" not in out
    assert "gpu_utilization_pct" in run(MODULE, sweep, "--format", "csv").csv[0]


def test_without_a_run_on_one_gpu_there_is_no_speedup(tmp_path):
    gpu = {"device_memory_bytes": 80 * 10**9, "compute_capability": "9.0"}
    write_run(tmp_path, run_of(gpus_per_node=2, profile="torch"), Truth(device="cpu"), **gpu)
    write_sweep_record(tmp_path)
    ran = run(MODULE, tmp_path, "--format", "json")
    assert [row["rank"] for row in ran.json] == [0, 1]  # timed by its profiled run, which is one
    assert {(row["device_memory_gb"], row["compute_capability"]) for row in ran.json} == {(80, "9.0")}
    assert all(row["speedup"] is None for row in ran.json)
    out = run(MODULE, tmp_path, "--notes").out
    assert "each rank" in out and "each GPU" not in out


def test_results_without_a_profiler_are_one_line(tmp_path):
    write_sweep(tmp_path, [run_of()])
    assert "needs a profiled run" in one_line_error(run(MODULE, tmp_path))


def test_a_device_whose_events_are_not_known_is_no_cpu(tmp_path):
    trace = Trace()
    trace.host("aten::mm", 0, 10, more=tensors([2, 2], [2, 2]))
    trace.events.append(
        {"ph": "X", "cat": "mtia_ccp_events", "name": "fc", "pid": 17, "tid": 1, "ts": 20, "dur": 5}
    )
    said = one_line_error(run("analysis.activities", trace.write(tmp_path / "trace.json")))
    assert "mtia_ccp_events" in said and "CPU" not in said
