"""nvprof's databases and printed tables, against what is known of real ones."""

import csv

import pytest

from profiling.tools import recognise, tool
from tests.builders import data_of, tables
from tests.profiling.gpu_databases import change
from tests.profiling.samples import nvprof_database

read = tool("nvprof").read


@pytest.fixture(scope="module")
def lstm(shared_data):
    return shared_data / "nvprof" / "lstm_pyprof"


def test_a_database_gives_pyprofs_own_table_row_for_row(lstm):
    assert recognise(lstm / "net.sql") == "nvprof"
    kernels = read(lstm / "net.sql").tables["kernels"].to_pandas()
    kernels = kernels[~kernels["class"].isin(["memcpy", "memset"])].reset_index(drop=True)
    with (lstm / "lm.csv").open() as file:
        oracle = list(csv.DictReader(file))
    assert len(kernels) == len(oracle) == 160
    for row, said in zip(kernels.itertuples(), oracle, strict=True):
        assert row.short_name.rpartition("::")[2] == said["Kernel"]
        assert (row.duration_ns, row.stream, row.device) == (int(said["Sil(ns)"]), int(said["Stream"]), 0)
        assert (row.grid, row.block, row.operator) == (said["Grid"], said["Block"], said["Op"])
        if said["Direction"] == "bprop":
            assert row.direction == "bprop"
        elif said["Module"] == "na":
            # What PyProf cannot assign it calls fprop; it ran on autograd's own thread.
            assert row.direction == "bprop"
        elif said["Op"] == "backward":
            assert row.direction == "bprop"  # fills the gradient of the loss
    before = [said["Op"] == "backward" for said in oracle].index(True)
    assert set(kernels["direction"][:before]) == {"fprop"}
    # After the backward pass gradients are clipped and parameters updated.
    assert list(kernels["direction"][112:]) == ["update"] * 48
    assert set(kernels["operator"][112:]) == {"norm", "mul_", "add_"}


def test_times_are_of_the_epoch_and_copies_are_named_as_pytorch_names_them(lstm):
    kernels = read(lstm / "net.sql").tables["kernels"].to_pandas()
    assert kernels["start_ns"].min() // 10**9 == 1583978810  # March 2020
    copies = kernels[kernels["class"] == "memcpy"]
    assert len(copies) == 21
    assert {name.partition(" (")[0] for name in copies["name"]} <= {
        "Memcpy HtoD",
        "Memcpy DtoH",
        "Memcpy DtoD",
    }
    assert (kernels["class"] == "memset").sum() == 8
    assert copies["bytes"].min() > 0
    assert ((kernels["launch_ns"] > 0) & (kernels["launch_ns"] < kernels["start_ns"])).all()
    assert (kernels["launch_end_ns"] > kernels["launch_ns"]).all() and kernels["launch_thread"].notna().all()


def test_a_mark_without_a_time_costs_no_other_row(tmp_path):
    path = nvprof_database(tmp_path / "net.sql")
    before = read(path).tables
    change(path, ["update CUPTI_ACTIVITY_KIND_MARKER set timestamp = null where id = 1001 and flags = 1"])
    converted = read(path)
    assert converted.tables["kernels"].num_rows == before["kernels"].num_rows
    assert converted.tables["markers"].num_rows == before["markers"].num_rows - 1
    assert data_of(converted.findings, "records_damaged") == [{"n": 1, "what": "events"}]


# --- what nvprof prints --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def nvprof(shared_data):
    return shared_data / "nvprof"


def test_a_summary_as_printed(nvprof):
    path = nvprof / "deepspeech_p100/summary_bs32.txt"
    found, findings = tables(path, "nvprof")
    rows = found["intervals"]
    first = rows.iloc[0]
    assert first["function"] == "maxwell_fp16_sgemm_fp16_128x32_nn"
    assert (first["calls"], first["thread"]) == (186615, -1)
    assert first["inclusive_ns"] == 50.0125e9
    on_gpu = rows[rows["thread"] == -1]
    # 76.95 % of the GPU's time is the first kernel's.
    assert 100 * first["inclusive_ns"] / on_gpu["inclusive_ns"].sum() == pytest.approx(76.95, abs=0.01)
    calls = rows[rows["function"] == "cudaLaunchKernel"].iloc[0]
    assert (calls["calls"], calls["inclusive_ns"], calls["thread"]) == (402329, 24.5844e9, 0)
    # Ranges of NCCL's domain are of the host, and no kernel is counted again under them.
    ranges = rows[rows["function"] == "ncclGroupEnd"]
    assert list(ranges["calls"]) == [590, 357] and set(ranges["thread"]) == {0}  # of two threads
    took = found["atomics"].set_index("event").loc["Duration (ns) : maxwell_fp16_sgemm_fp16_128x32_nn"]
    assert (took["count"], took["min"], took["max"], took["mean"]) == (186615, 101150, 564060, 268000)
    assert findings == []


def test_metric_tables(nvprof):
    found, findings = tables(nvprof / "deepspeech_p100/metrics_bs32.txt", "nvprof")
    assert list(found) == ["atomics"] and findings == []
    rows = found["atomics"]
    assert len(rows) == 3 * 98
    metrics = {event.partition(" : ")[0] for event in rows["event"]}
    assert metrics == {"achieved_occupancy", "ipc", "sm_efficiency (%)"}
    row = rows.set_index("event").loc["achieved_occupancy : maxwell_gcgemm_32x32_nt"]
    assert (row["count"], row["min"], row["max"], row["mean"]) == (4, 0.143720, 0.148096, 0.146074)


def test_a_trace_with_a_metric_of_each_launch(nvprof):
    found, _ = tables(nvprof / "resnet50_v100_gputrace_metrics.csv", "nvprof")
    kernels = found["kernels"]
    assert len(kernels) == 583 and set(kernels["device"]) == {2} and set(kernels["stream"]) == {7}
    assert list(kernels["correlation"][:3]) == [4746, 4747, 4748]
    assert "unknown" not in set(kernels["class"]) and (kernels["class"] == "gemm").any()
    hits = found["atomics"]
    assert hits["event"].str.startswith("l2_tex_hit_rate (%) : ").all() and hits["count"].sum() == 583
    # A mangled name is read as every other one.
    assert not kernels["name"].str.startswith("_Z").any()


def test_calls_that_waited_for_the_device_are_told_by_their_numbers(lstm):
    waits = read(lstm / "net.sql").tables["synchronizations"].to_pandas()
    # Each of the 21 copies of pageable memory is waited for.
    assert list(waits["name"]) == ["cudaStreamSynchronize"] * 21
    assert (waits["end_ns"] > waits["start_ns"]).all()
