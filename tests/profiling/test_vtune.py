"""VTune's reports, in the forms that ``vtune -report`` writes."""

import pytest

from profiling.tools import recognise, tool

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


def tables(path):
    converted = read(path)
    return {name: table.to_pandas() for name, table in converted.tables.items()}, converted.findings


@pytest.mark.parametrize("form", HOTSPOTS)
def test_hotspots_with_either_delimiter(form, tmp_path):
    path = tmp_path / "rank1.csv"
    path.write_text("vtune: Using result path `r000hs'\n" + HOTSPOTS[form])
    assert recognise(path) == "vtune"
    found, findings = tables(path)
    rows = found["intervals"]
    assert list(rows["function"]) == ["sgemm_kernel", "std::pair<int, float>"]
    assert list(rows["exclusive_ns"]) == [12.5e9, 2.5e9] and set(rows["rank"]) == {1}
    assert rows["calls"].isna().all() and set(rows["thread"]) == {0}  # VTune samples: it counts no calls
    assert found["atomics"]["event"][0] == "CPU Time:Effective Time : sgemm_kernel"
    assert findings == []


def test_hardware_events(tmp_path):
    path = tmp_path / "events.csv"
    path.write_text(EVENTS)
    assert recognise(path) == "vtune"
    events = tables(path)[0]["atomics"].set_index("event")["mean"]
    assert events["Hardware Event Count:INST_RETIRED.ANY : sgemm_kernel"] == 1_200_000
    assert events["Hardware Event Count:CPU_CLK_UNHALTED.THREAD : sgemm_kernel"] == 600_000


def test_a_summary_of_memory_access(tmp_path):
    path = tmp_path / "summary.csv"
    path.write_text(MEMORY)
    assert recognise(path) == "vtune"
    found, _ = tables(path)
    assert found["atomics"].set_index("event")["mean"].to_dict() == {
        "Elapsed Time": 12.5,
        "Memory Bound": 34.5,
    }


def test_a_row_of_functions_with_their_call_stacks_is_named_after_the_function(tmp_path):
    path = tmp_path / "hotspots.csv"
    path.write_text("Function / Call Stack,CPU Time,Instructions Retired,Module\nsgemm,1.5,1000,libmkl.so\n")
    assert recognise(path) == "vtune"
    found, _ = tables(path)
    assert list(found["intervals"]["function"]) == ["sgemm"]
    assert list(found["atomics"]["event"]) == ["Instructions Retired : sgemm"]


@pytest.mark.parametrize("column", ["CPU Time:Effective Time:Self", "CPU Time:Effective Time"])
def test_effective_time_stands_for_a_time_that_the_report_lacks(column, tmp_path):
    path = tmp_path / "hotspots.csv"
    path.write_text(f"Function,{column},Clockticks,Module\nsgemm,1.5,99,libmkl.so\n")
    assert list(tables(path)[0]["intervals"]["exclusive_ns"]) == [1.5e9]
    path.write_text(f"Function,{column},CPU Time:Self,Module\nsgemm,1.5,2.5,libmkl.so\n")
    assert list(tables(path)[0]["intervals"]["exclusive_ns"]) == [2.5e9]
