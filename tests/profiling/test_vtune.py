"""VTune's reports, in the forms that ``vtune -report`` writes."""

import pytest

from profiling.tools import tool
from tests.builders import tables

read = tool("vtune").read

HOTSPOTS = {
    "comma": "Function,CPU Time,CPU Time:Effective Time,Module,Source File,Start Address\n"
    "sgemm_kernel,12.500000,12.000000,libmkl_avx512.so,gemm.c,0x7f1234\n"
    '"std::pair<int, float>",2.5s,2.5s,python3,[Unknown],0x99\n',
    "tab": "Function\tCPU Time\tCPU Time:Effective Time\tModule\tSource File\tStart Address\n"
    "sgemm_kernel\t12.500000\t12.000000\tlibmkl_avx512.so\tgemm.c\t0x7f1234\n"
    "std::pair<int, float>\t2.5s\t2.5s\tpython3\t[Unknown]\t0x99\n",
}
EVENTS = (
    "Function\tHardware Event Count:INST_RETIRED.ANY\tHardware Event Count:CPU_CLK_UNHALTED.THREAD\tModule\n"
    "sgemm_kernel\t1,200,000\t600000\tlibmkl.so\n"
)
MEMORY = (
    "Hierarchy Level\tMetric Name\tMetric Value\n"
    "0\tElapsed Time\t12.5s\n1\tMemory Bound\t34.5%\n1\tNote\tn/a\n"
)


@pytest.mark.parametrize("form", HOTSPOTS)
def test_hotspots_with_either_delimiter(form, tmp_path):
    found, findings = tables(
        tmp_path / "rank1.csv", "vtune", "vtune: Using result path `r000hs'\n" + HOTSPOTS[form]
    )
    rows = found["intervals"]
    assert list(rows["function"]) == ["sgemm_kernel", "std::pair<int, float>"]
    assert list(rows["exclusive_ns"]) == [12.5e9, 2.5e9] and set(rows["rank"]) == {1}
    assert rows["calls"].isna().all() and set(rows["thread"]) == {0}  # VTune samples: it counts no calls
    assert found["atomics"]["event"][0] == "CPU Time:Effective Time : sgemm_kernel"
    assert findings == []


def test_hardware_events(tmp_path):
    path = tmp_path / "events.csv"
    events = tables(path, "vtune", EVENTS)[0]["atomics"].set_index("event")["mean"]
    assert events["Hardware Event Count:INST_RETIRED.ANY : sgemm_kernel"] == 1_200_000
    assert events["Hardware Event Count:CPU_CLK_UNHALTED.THREAD : sgemm_kernel"] == 600_000


def test_a_summary_of_memory_access(tmp_path):
    path = tmp_path / "summary.csv"
    found, _ = tables(path, "vtune", MEMORY)
    assert found["atomics"].set_index("event")["mean"].to_dict() == {
        "Elapsed Time": 12.5,
        "Memory Bound": 34.5,
    }


def test_a_row_of_functions_with_their_call_stacks_is_named_after_the_function(tmp_path):
    found, _ = tables(
        tmp_path / "hotspots.csv",
        "vtune",
        "Function / Call Stack,CPU Time,Instructions Retired,Module\nsgemm,1.5,1000,libmkl.so\n",
    )
    assert list(found["intervals"]["function"]) == ["sgemm"]
    assert list(found["atomics"]["event"]) == ["Instructions Retired : sgemm"]


@pytest.mark.parametrize("column", ["CPU Time:Effective Time:Self", "CPU Time:Effective Time"])
@pytest.mark.parametrize(
    ("other", "value", "seconds"), [("Clockticks", 99, 1.5), ("CPU Time:Self", 2.5, 2.5)]
)
def test_effective_time_stands_for_a_time_that_the_report_lacks(column, other, value, seconds, tmp_path):
    text = f"Function,{column},{other},Module\nsgemm,1.5,{value},libmkl.so\n"
    rows = tables(tmp_path / "hotspots.csv", "vtune", text)[0]["intervals"]
    assert list(rows["exclusive_ns"]) == [seconds * 1e9]


def test_vtune_with_decimal_commas(tmp_path):
    text = (
        "war: Column filter is ON.\nFunction;CPU Time;CPU Time:Effective Time;Module\nsgemm;12,500;12,0;mkl\n"
    )
    found, _ = tables(tmp_path / "vtune.csv", "vtune", text)
    assert list(found["intervals"]["exclusive_ns"]) == [12.5e9] and list(found["atomics"]["mean"]) == [12]


def test_vtunes_tasks_of_a_gpu_are_counted(tmp_path):
    text = (
        "Computing Task\tWork Size:Global\tComputing Task:Total Time\tComputing Task:Average Time\t"
        "Computing Task:Instance Count\ngemm\t1024\t1.5\t0.5\t3\n"
    )
    found, _ = tables(tmp_path / "vtune.csv", "vtune", text)
    row = found["intervals"].iloc[0]
    assert (row["function"], row["calls"], row["inclusive_ns"], row["thread"]) == ("gemm", 3, 1.5e9, -1)
