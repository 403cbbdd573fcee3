"""Texts of the same tools as other releases, settings and languages print them, against what they mean."""

import pytest

from profiling.readers.printed import has_decimal_commas, number_and_unit
from profiling.tools import read, recognise
from tests.profiling.samples import HOROVOD, NCU_DETAILS, VTUNE


def tables(path, text, tool):
    path.write_text(text)
    assert recognise(path) == tool
    converted = read(path)
    return {name: table.to_pandas() for name, table in converted.tables.items()}, converted.findings


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("1,234.56", "us", 1_234_560), ("1.234,56", "us", 1_234_560), ("1\u202f234,56", "us", 1_234_560),
        ("1'234.56", "us", 1_234_560), ("1,234,567", "", 1_234_567), ("1.234.567", "", 1_234_567),
        ("2,50", "ms", 2_500_000), ("1,512", "ns", 1512), ("1.512", "us", 1512), ("12,5s", "", 12.5e9),
        ("1 234 567 B", "", 1_234_567), ("-5.5e-3", "s", -5_500_000), (".5", "", 0.5),
        ("0,250", "us", 250), ("-0,250", "", -0.25), ("0,000", "", 0),
    ],
)  # fmt: skip
def test_a_number_in_any_language(text, unit, value):
    assert number_and_unit(text, unit)[0] == pytest.approx(value)


def test_where_one_number_can_only_have_a_decimal_comma_all_have():
    assert has_decimal_commas(["kernel", "8.0", "1.234,5"]) and has_decimal_commas(["2,50"])
    assert not has_decimal_commas(["1,234", "1,234.5", "(256, 1, 1)", "8.0"])
    assert (
        has_decimal_commas(["0,250"]) and has_decimal_commas(["1.234,5s"]) and has_decimal_commas(["2,5 %"])
    )
    assert not has_decimal_commas(["1,234s", "1,234.5 Gbyte/s", "0.250", "1,5-dimethyl"])
    assert number_and_unit("1,512", decimal_comma=True)[0] == 1.512
    assert number_and_unit("1.512", decimal_comma=True)[0] == 1512


SUMMED = "Time(%),Time,Calls,Avg,Min,Max,Name\n%,us,,us,us,us,\n60.00,30.5,2,15.25,10,20.5,k\n"
TEXTS = {"horovod": HOROVOD, "ncu": NCU_DETAILS, "vtune": VTUNE, "nvprof": SUMMED}


@pytest.mark.parametrize("tool", TEXTS)
def test_a_byte_order_mark_before_a_text_changes_nothing(tool, tmp_path):
    path = tmp_path / "printed.txt"
    plain, said = tables(path, TEXTS[tool], tool)
    marked, findings = tables(path, "\ufeff" + TEXTS[tool], tool)
    assert all(marked[name].equals(plain[name]) for name in plain | marked) and findings == said


# --- Nsight Compute ------------------------------------------------------------------------------------

DETAILS = """epoch 1, loss 0.3
==PROF== Connected to process 7 (/usr/bin/python3.10)
==PROF== Profiling "add" - 0: 0%....50%....100% - 8 passes
"this line", "is the program's"
==PROF== Disconnected from process 7
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size",\
"Device","CC","Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Description"
"0","7","python","h","add(float*)","1","7","(256, 1, 1)","(1024, 1, 1)","0","8.0","Speed","Duration","us",\
"{long}","",""
"0","7","python","h","add(float*)","1","7","(256, 1, 1)","(1024, 1, 1)","0","8.0","Speed","","","","Rule",\
"Low, at 60.0% of the peak"
"0","7","python","h","add(float*)","1","7","(256, 1, 1)","(1024, 1, 1)","0","8.0","Speed","DRAM Frequency",\
"Ghz","{three}","",""
"1","7","python","h","add(float*)","1","7","(256, 1, 1)","(1024, 1, 1)","0","8.0","Speed","Duration","ms",\
"{short}","",""
"""
LANGUAGES = {
    "English": {"long": "1,234.56", "three": "1.512", "short": "2.50"},
    "German": {"long": "1.234,56", "three": "1,512", "short": "2,50"},
    "French": {"long": "1\u202f234,56", "three": "1,512", "short": "2,50"},
    "Swiss": {"long": "1\u2019234.56", "three": "1.512", "short": "2.50"},
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_details_among_a_programs_words_in_any_language(tmp_path, language):
    found, findings = tables(tmp_path / "ncu.csv", DETAILS.format(**LANGUAGES[language]), "ncu")
    kernels = found["kernels"]
    assert list(kernels["duration_ns"]) == [1_234_560, 2_500_000]  # two kernels of one name are two launches
    assert set(kernels["grid"]) == {"1024,1,1"} and set(kernels["device"]) == {0}
    metrics = found["atomics"].set_index("event")
    assert metrics.loc["DRAM Frequency (Ghz) : add(float*)"]["mean"] == 1.512
    assert metrics.loc["Duration (ns) : add(float*)"]["count"] == 2
    assert len(metrics) == 2 and findings == []  # what a rule says is no metric


def test_processes_whose_launches_have_the_same_number_are_told_apart(tmp_path):
    head = '"ID","Process ID","Kernel Name","Context","Stream","Metric Name","Metric Unit","Metric Value"\r\n'
    rows = [(0, 5, "nsecond", "1,568"), (0, 6, "usecond", "3.2"), (1, 6, "msecond", "1")]
    text = head + "".join(
        f'"{number}","{process}","k","1","7","gpu__time_duration.sum","{unit}","{value}"\r\n'
        for number, process, unit, value in rows
    )
    found, _ = tables(tmp_path / "old.csv", text, "ncu")
    assert list(found["kernels"]["duration_ns"]) == [1568, 3200, 1_000_000]


def test_a_summary_over_the_launches_of_each_kernel(tmp_path):
    text = """==PROF== Disconnected from process 1
"Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device",\
"CC","Invocations","Section Name","Metric Name","Metric Unit","Minimum","Maximum","Average"
"1","a","h","k(float *)","1","7","(32, 1, 1)","(8, 1, 1)","0","8.0","3","S","Duration","us","1.5","2.5","2"
"1","a","h","k(float *)","1","7","(32, 1, 1)","(8, 1, 1)","0","8.0","3","Occ","Occupancy","%","15","25","20"
"""
    found, _ = tables(tmp_path / "summary.csv", text, "ncu")
    row = found["intervals"].iloc[0]
    assert (row["function"], row["calls"], row["inclusive_ns"], row["thread"]) == ("k(float*)", 3, 6000, -1)
    took = found["atomics"].set_index("event")
    assert list(took.loc["Duration (ns) : k(float*)"][["min", "max", "mean"]]) == [1500, 2500, 2000]
    assert list(took.loc["Occupancy (%) : k(float*)"][["count", "min", "max", "mean"]]) == [3, 15, 25, 20]


# --- nvprof --------------------------------------------------------------------------------------------

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
    found, findings = tables(tmp_path / "nvprof.txt", banner + text, "nvprof")
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
    (kernels,) = tables(tmp_path / "trace.txt", BANNER + TRACES[form], "nvprof")[0].values()
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
    found, findings = tables(tmp_path / "api.csv", BANNER + text, "nvprof")
    rows = found["intervals"].set_index("function")
    assert rows.loc["cudaLaunchKernel"][["calls", "inclusive_ns", "thread"]].to_list() == [2, 10_000, 0]
    assert len(rows) == 2 and findings == []


# --- VTune ---------------------------------------------------------------------------------------------


def test_vtune_with_decimal_commas(tmp_path):
    text = (
        "war: Column filter is ON.\nFunction;CPU Time;CPU Time:Effective Time;Module\nsgemm;12,500;12,0;mkl\n"
    )
    found, _ = tables(tmp_path / "vtune.csv", text, "vtune")
    assert list(found["intervals"]["exclusive_ns"]) == [12.5e9] and list(found["atomics"]["mean"]) == [12]


def test_vtunes_tasks_of_a_gpu_are_counted(tmp_path):
    text = (
        "Computing Task\tWork Size:Global\tComputing Task:Total Time\tComputing Task:Average Time\t"
        "Computing Task:Instance Count\ngemm\t1024\t1.5\t0.5\t3\n"
    )
    found, _ = tables(tmp_path / "vtune.csv", text, "vtune")
    row = found["intervals"].iloc[0]
    assert (row["function"], row["calls"], row["inclusive_ns"], row["thread"]) == ("gemm", 3, 1.5e9, -1)
