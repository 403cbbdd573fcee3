"""analysis.hotspots: counters by each tool's names, and what they say bounds a kernel."""

import pandas as pd
import pytest

from analysis.measures.hotspots import by_kernel, why
from profiling import tables, tools
from tests.analysis.commands import one_line_error, run
from tests.analysis.synthetic import Truth, run_of, write_run
from tests.profiling.samples import NVPROF_METRICS, VTUNE

MODULE = "analysis.hotspots"
WARPS = "sm__warps_active.avg.pct_of_peak_sustained_active"
ROW = {"kernel": "k", "mean_us": 500.0}


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        ({"dram_utilization_pct": 80.0, "roof_pct": 30.0, "bound": "compute"}, "memory"),
        ({"dram_utilization_pct": 80.0, "load_efficiency_pct": 25.0}, "memory"),
        ({"roof_pct": 75.0, "bound": "compute"}, "arithmetic"),
        ({"roof_pct": 75.0, "bound": "bandwidth"}, "memory"),
        ({"roof_pct": None, "roof_of_measured_pct": 70.0, "bound": "compute"}, "arithmetic"),
        ({"mean_us": 3.25}, "calls"),
        ({"load_efficiency_pct": 12.5, "store_efficiency_pct": 100.0}, "memory access"),
        ({"achieved_occupancy_pct": 12.0, "ipc": 0.4}, "latency"),
        ({"achieved_occupancy_pct": 50.0, "ipc": 0.4}, "latency"),
        ({"roof_pct": 20.0, "bound": "compute", "counters": "ncu", "ipc": 2.0}, "nothing near"),
        ({"roof_pct": 20.0, "bound": "bandwidth"}, "nothing near"),
        ({}, "unknown"),
        # More than the roof is no bound: caches hold the tensors, as counters say too; or a figure is wrong.
        ({"roof_pct": 250.0, "bound": "bandwidth"}, "cache"),
        ({"roof_pct": 75.0, "bound": "bandwidth", "dram_utilization_pct": 10.0}, "cache"),
        ({"roof_pct": 160.0, "bound": "compute"}, "unknown"),
    ],
)  # fmt: skip
def test_what_bounds_a_kernel(figures, says):
    assert why(pd.DataFrame([{**ROW, **figures}])).tolist() == [says]


def test_counters_by_the_names_of_each_tool():
    def event(metric, kernel, mean, count=1):
        return {"event": f"{metric} : {kernel}", "mean": mean, "count": count}

    events = [
        event(f"{WARPS} (%)", "void a::gemm<float>(float*)", 40.0, 3),
        event(f"{WARPS} (%)", "void a::gemm<half>(half*)", 80.0, 1),
        event("sm__inst_executed_pipe_tensor.sum (inst)", "void a::gemm<half>(half*)", 64.0),
        event("achieved_occupancy", "relu", 0.25), event("dram_utilization", "relu", 5.0),
        event("gld_efficiency (%)", "relu", 75.0), event("something_else", "relu", 1.0),
        event("Hardware Event Count:INST_RETIRED.ANY", "sgemm", 3e9),
        event("Hardware Event Count:CPU_CLK_UNHALTED.THREAD", "sgemm", 2e9),
    ]  # fmt: skip
    found = {name: row.dropna().to_dict() for name, row in by_kernel(pd.DataFrame(events)).iterrows()}
    assert found["a::gemm"] == {"achieved_occupancy_pct": 50.0, "tensor_instructions": 64.0}
    assert found["relu"] == {
        "achieved_occupancy_pct": 25.0, "dram_utilization_pct": 50.0, "load_efficiency_pct": 75.0,
    }  # fmt: skip
    assert found["sgemm"]["ipc"] == 1.5


def plant(sweep, profile, path, tool):
    """A run under ``profile`` that left what ``path`` says."""
    rank = write_run(sweep, run_of(profile=profile, batches=3, attribute_from=2), Truth()) / "rank_0000"
    (rank / "kernels.parquet").unlink()
    for name, table in tools.read(path, tool).tables.items():
        tables.write(table, rank, name)


@pytest.fixture
def timed(tmp_path):
    write_run(tmp_path / "hot", run_of(profile="torch"), Truth())
    return tmp_path / "hot"


def test_the_counters_of_nvprof_beside_the_times_of_the_asked_point(timed, tmp_path):
    other = write_run(timed, run_of(profile="torch", batch=64), Truth(kernel_ms=120.0))
    log = tmp_path / "metrics.csv"
    log.write_text(NVPROF_METRICS.replace("void kernel<int=4>(float*)", "void conv_fprop<float>(float*)"))
    plant(timed, "nvprof", log, "nvprof")  # of batch 32
    ran = run(MODULE, timed, "--top", "2", "--format", "json")
    alone, counted = ran.json
    names = ("achieved_occupancy_pct", "load_efficiency_pct", "dram_utilization_pct")
    assert [counted[name] for name in names] == pytest.approx([20, 75, 30])
    assert counted["counters"] == "nvprof" and counted["ms_per_step"] == pytest.approx(15)
    assert alone["counters"] == "" and "conv_bprop" in ran.err
    table = run(MODULE, timed, "--top", "2").out
    assert "occup." in table and "bound by" in table and "IPC" not in table
    second = run(MODULE, timed, "--run", other.name, "--format", "json").json
    assert {(row["ms_per_step"], row["counters"]) for row in second} == {(30.0, "")}
    assert "run_9" in one_line_error(run(MODULE, timed, "--run", "run_9"))


def test_functions_of_vtune_are_rows_of_their_own(timed, tmp_path):
    report = tmp_path / "vtune.csv"
    report.write_text(VTUNE)
    plant(timed, "vtune", report, "vtune")
    rows = run(MODULE, timed, "--top", "1", "--format", "json").json
    assert [(row["kernel"], row["cpu_s"], row["counters"]) for row in rows] == [
        ("conv_bprop", None, ""), ("sgemm_kernel", 12.5, "vtune"),
    ]  # fmt: skip
