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


SUMMARY = """==7== NVPROF is profiling process 7, command: python main.py, --with a, comma
==7== Profiling application: python main.py
==7== Profiling result:
"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"
,%,ms,,us,us,us,
"GPU activities",75.000000,3.0,2,1500.0,1000.000000,2000.000000,"void kernel<int=4, bool=1>(float const *)"
"GPU activities",25.000000,1.000000,1,1000.000000,1000.000000,1000.000000,"[CUDA memcpy HtoD]"
"API calls",100.000000,9.000000,3,3000.000000,1.000000,8000.000000,"cudaLaunchKernel"
a line, of the program, itself
"""


def test_a_summary_as_csv_with_lines_of_the_program(tmp_path):
    path = tmp_path / "rank3.txt"
    found, _ = tables(path, "nvprof", SUMMARY)
    rows = found["intervals"]
    assert list(rows["function"]) == [
        "void kernel<4, true>(float const*)",
        "[CUDA memcpy HtoD]",
        "cudaLaunchKernel",
    ]
    assert list(rows["inclusive_ns"]) == [3e6, 1e6, 9e6] and list(rows["calls"]) == [2, 1, 3]
    assert list(rows["thread"]) == [-1, -1, 0] and set(rows["rank"]) == {3}
    assert list(found["atomics"]["max"]) == [2e6, 1e6, 8e6]


@pytest.mark.parametrize("total", [True, False])
def test_an_events_columns_are_those_that_its_table_names(total, tmp_path):
    path = tmp_path / "events.txt"
    head, row = "Invocations              Event Name    Min   Max   Avg", "4  warps_launched  250   256   254"
    path.write_text(
        "==7== Profiling result:\n==7== Event result:\n"
        f"{head}{'   Total' * total}\n"
        'Device "Tesla K40c (0)"\n    Kernel: add(float*)\n'
        f"          {row}{'  1016' * total}\n"
    )
    found, findings = tables(path, "nvprof")
    (event,) = found["atomics"].to_dict("records")
    assert event["event"] == "warps_launched : add(float*)" and findings == []
    assert (event["count"], event["min"], event["max"], event["mean"]) == (4, 250, 256, 254)


def test_numbers_wider_than_an_events_columns_are_told_apart(tmp_path):
    path = tmp_path / "events.txt"
    path.write_text(
        "==7== Profiling result:\n==7== Event result:\n"
        "Invocations  Event Name  Min  Max  Avg  Total\n    Kernel: k\n"
        "          2  active_cycles  12345678901 12345678903 12345678902 24691357804\n"
    )
    found, _ = tables(path, "nvprof")
    assert found["atomics"]["mean"].to_list() == [12345678902]


RANGE = """==7== NVTX result:
==7==   Thread "<unnamed>" (id = 69456)
==7==     Domain "<unnamed>"
==7==       Range "Forward Pass"
"""
IN_RANGE = {
    "plain": """            Type  Time(%)      Time     Calls       Avg       Min       Max  Name
          Range:  100.00%  10.000ms         2  5.0000ms  4.0000ms  6.0000ms  Forward Pass
 GPU activities:  100.00%  3.0000ms         2  1.5000ms  1.0000ms  2.0000ms  void kernel<int=4>(float*)
      API calls:  100.00%  9.0000ms         3  3.0000ms  1.0000us  8.0000ms  cudaLaunchKernel

""",
    "csv": """"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"
,%,ms,,ms,ms,ms,
"Range",100.000000,10.0,2,5.0,4.0,6.0,"Forward Pass"
"GPU activities",100.000000,3.0,2,1.5,1.0,2.0,"void kernel<int=4, bool=1>(float const *)"
"API calls",100.000000,9.0,3,3.0,0.001,8.0,"cudaLaunchKernel"
""",
}


@pytest.mark.parametrize("form", IN_RANGE)
def test_of_a_ranges_table_only_the_range_is_counted(form, tmp_path):
    rows = tables(
        tmp_path / "summary.txt",
        "nvprof",
        SUMMARY + RANGE + IN_RANGE[form] + SUMMARY.replace("==7==", "==8=="),
    )[0]["intervals"]
    assert rows["function"].value_counts()["cudaLaunchKernel"] == 2  # of the other process, after the ranges
    assert len(rows) == 2 * 3 + 1
    assert rows.set_index("function").loc["Forward Pass"][["calls", "thread"]].to_list() == [2, 0]


def test_calls_that_waited_for_the_device_are_told_by_their_numbers(lstm):
    waits = read(lstm / "net.sql").tables["synchronizations"].to_pandas()
    # Each of the 21 copies of pageable memory is waited for.
    assert list(waits["name"]) == ["cudaStreamSynchronize"] * 21
    assert (waits["end_ns"] > waits["start_ns"]).all()


BANNER = "==7== NVPROF is profiling process 7, command: ./a.out\n==7== Profiling result:\n"
ROWS = [("void k<4>(float*)", 2, 30_500, -1), ("[CUDA memcpy DtoH]", 1, 20_000, -1)]
UNQUOTED = """Time(%),Time,Calls,Avg,Min,Max,Name
%,us,,us,us,us,
60.00,30.5,2,15.25,10,20.5,"void k<int=4>(float*)"
40.00,20.0,1,20.0,20,20,[CUDA memcpy DtoH]
"""
IN_SECONDS = """"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"
,%,s,,ms,ns,s,
"GPU activities",60.00,0.0000305,2,0.01525,10000,0.0000205,"void k<int=4>(float*)"
"GPU activities",40.00,0.000020,1,0.020,20000,0.00002,"[CUDA memcpy DtoH]"
"""
PLAIN = """            Type  Time(%)      Time     Calls       Avg       Min       Max  Name
 GPU activities:   60.00%  30.500us         2  15.250us  10.000us  20.500us  void k<int=4>(float*)
                   40.00%  20.000us         1  20.000us  20.000us  20.000us  [CUDA memcpy DtoH]
"""


@pytest.mark.parametrize("text", [UNQUOTED, IN_SECONDS, PLAIN])
@pytest.mark.parametrize("banner", [BANNER, ""])
def test_a_summary_of_any_release_and_unit_with_or_without_nvprofs_own_lines(tmp_path, text, banner):
    found, findings = tables(tmp_path / "nvprof.txt", "nvprof", banner + text)
    names = ["function", "calls", "inclusive_ns", "thread"]
    rows = found["intervals"][names].round(3).itertuples(index=False, name=None)
    assert list(rows) == ROWS and findings == []
    assert found["atomics"]["max"].to_list() == pytest.approx([20_500, 20_000])


TRACES = {
    "csv": """"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z",\
"Registers Per Thread","Static SMem","Dynamic SMem","Size","Throughput","SrcMemType","DstMemType","Device",\
"Context","Stream","Name","Correlation_ID"
ms,us,,,,,,,,B,B,KB,GB/s,,,,,,,
307.25,1.344,,,,,,,,,,4.0,2.8,"Pageable","Device","Tesla K20c (0)","1","7","[CUDA memcpy HtoD]",112
308.05,3,4,1,1,128,1,1,16,0,0,,,,,"Tesla K20c (1)","1","8","k(float*)",114
""",
    "csv of CUDA 5": """Start,Duration,Grid X,Grid Y,Grid Z,Block X,Block Y,Block Z,Registers Per Thread,\
Static SMem,Dynamic SMem,Size,Throughput,Device,Context,Stream,Name
s,ms,,,,,,,,B,B,MB,GB/s,,,,
0.30725,0.001344,,,,,,,,,,0.00390625,2.8,"Tesla K20c (0)",1,7,"[CUDA memcpy HtoD]"
0.30805,0.003,4,1,1,128,1,1,16,0,0,,,"Tesla K20c (1)",1,8,"k(float*)"
""",
    "plain": """\
   Start  Duration            Grid Size      Block Size     Regs*    SSMem*    DSMem*      Size  \
Throughput           Device   Context    Stream  Name
307.25ms  1.3440us                    -               -         -         -         -  4.0000KB  2.8382GB/s  \
Tesla K20c (0)         1         7  [CUDA memcpy HtoD]
308.05ms  3.0000us              (4 1 1)       (128 1 1)        16        0B        0B         -           -  \
Tesla K20c (1)         1         8  k(float*) [114]

Regs: Number of registers used per CUDA thread. This number includes registers used internally by the driver.
""",
}


@pytest.mark.parametrize("form", TRACES)
def test_a_trace_of_two_devices(tmp_path, form):
    (kernels,) = tables(tmp_path / "trace.txt", "nvprof", BANNER + TRACES[form])[0].values()
    assert list(kernels["start_ns"]) == [307_250_000, 308_050_000]
    assert list(kernels["duration_ns"]) == [1344, 3000]
    assert list(kernels["device"]) == [0, 1] and list(kernels["stream"]) == [7, 8]
    assert kernels["bytes"][0] == 4096 and kernels["grid"][1] == "4,1,1"
    assert list(kernels["name"]) == ["[CUDA memcpy HtoD]", "k(float*)"]


def test_a_trace_of_calls_becomes_their_summary(tmp_path):
    text = """"Start","Duration","Name","Correlation_ID"
ms,us,,
107.1,3.2,"cuDeviceGetPCIBusId",1
108.1,4,"cudaLaunchKernel (k(float*) [114])",114
109.1,6,"cudaLaunchKernel (k(float*) [115])",115
"""
    found, findings = tables(tmp_path / "api.csv", "nvprof", BANNER + text)
    rows = found["intervals"].set_index("function")
    assert rows.loc["cudaLaunchKernel"][["calls", "inclusive_ns", "thread"]].to_list() == [2, 10_000, 0]
    assert len(rows) == 2 and findings == []
