"""Databases of Nsight Systems, of several releases, and of nvprof, whatever is odd in them."""

import sqlite3

import numpy as np
import pytest

from profiling.readers import sqlite
from profiling.tools import recognise, tool
from tests.builders import codes, data_of
from tests.profiling.gpu_databases import DEMANGLED, EPOCH_NS, Nsys, change, make_table
from tests.profiling.samples import nvprof_database

read = tool("nsys").read


def frames(path):
    converted = read(path)
    return (
        converted.tables["kernels"].to_pandas(),
        converted.tables["markers"].to_pandas(),
        converted.findings,
    )


@pytest.mark.parametrize("modern", [True, False])
def test_releases_agree_on_one_training(tmp_path, modern):
    database = Nsys(tmp_path / "rank3.sqlite", modern)
    database.batches(3)
    kernels, markers, findings = frames(database.close())
    assert recognise(tmp_path / "rank3.sqlite") == "nsys"
    assert kernels["direction"].to_list() == ["fprop", "bprop", "update"] * 3
    assert kernels["batch_index"].to_list() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert set(kernels["name"]) == {DEMANGLED} and set(kernels["short_name"]) == {"at::native::kernel"}
    assert set(kernels["grid"]) == {"4,2,1"} and set(kernels["block"]) == {"128,1,1"}
    assert markers["name"].to_list() == ["Forward Pass", "Backward Pass", "Model Update", "End of Batch"] * 3
    assert markers["kind"].to_list() == ["range", "range", "range", "mark"] * 3
    assert markers["start_ns"].min() == (EPOCH_NS if modern else 0) + 100
    assert (kernels["start_ns"] - kernels["launch_ns"] == 40).all()
    assert ("not_recorded" in codes(findings)) != modern


@pytest.mark.parametrize(("mpis", "ranks"), [({}, {0: [0], 1: [1]}), ({8: 3, 9: 2}, {2: [0], 3: [1]})])
def test_each_process_with_work_on_a_gpu_is_a_rank_and_mpis_own_are_kept(tmp_path, mpis, ranks):
    database = Nsys(tmp_path / "node.sqlite")
    database.batches(2, pid=8, device=1)
    database.batches(2, pid=9, device=0)
    database.range("a worker that loads data", 5, 10, pid=20, tid=20)
    for pid, rank in mpis.items():
        database.range(f"MPI Rank {rank}", 1, None, pid, pid, kind=39)
    kernels, markers, _ = frames(database.close())
    assert kernels.groupby("rank")["device"].unique().apply(list).to_dict() == ranks
    assert len(kernels) == 12 and len(markers) == 16


def test_texts_where_numbers_should_be_and_times_that_are_missing_cost_their_rows(tmp_path):
    database = Nsys(tmp_path / "odd.sqlite")
    database.batches(3)
    wrong = {1: "start = 'soon'", 2: "end = 9e300", 10: "end = start - 5", 20: "start = 0, end = 0"}
    statement = "update CUPTI_ACTIVITY_KIND_KERNEL set {} where correlationId = {}"
    path = change(database.close(), [statement.format(how, number) for number, how in wrong.items()])
    kernels, _, findings = frames(path)
    assert len(kernels) == 9 - len(wrong)
    assert sum(one["n"] for one in data_of(findings, "records_damaged")) == len(wrong)


VARIANTS = {
    "short names only": ["update CUPTI_ACTIVITY_KIND_KERNEL set demangledName = null, mangledName = null"],
    "texts by number only": ["alter table NVTX_EVENTS drop column text"],
    "started and ended ranges": ["update NVTX_EVENTS set eventType = 60 where eventType = 59"],
    "domains, enumerations and new columns": [
        "insert into NVTX_EVENTS (start, end, eventType, text, globalTid, domainId) "
        "values (5, null, 75, 'NCCL', 117440519, 1)",
        "insert into NVTX_EVENTS (start, end, eventType, globalTid) values (6, null, 33, 117440519)",
        "create table ENUM_NSYS_EVENT_TYPE (id integer, name text, label text)",
        "alter table NVTX_EVENTS add column jsonTextId integer",
        "alter table CUPTI_ACTIVITY_KIND_RUNTIME add column callchainId integer",
    ],
    "tables with a version in their names": [
        f"alter table CUPTI_ACTIVITY_KIND_{kind} rename to CUPTI_ACTIVITY_KIND_{kind}_V2"
        for kind in ("KERNEL", "RUNTIME")
    ],
    "no date": ["drop table TARGET_INFO_SESSION_START_TIME"],
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_exports_of_other_releases_give_the_same_batches(tmp_path, variant):
    database = Nsys(tmp_path / "rep.sqlite")
    database.batches(3)
    kernels, markers, _ = frames(change(database.close(), VARIANTS[variant]))
    assert kernels["direction"].to_list() == ["fprop", "bprop", "update"] * 3
    assert kernels["batch_index"].to_list() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len(markers) == 12


@pytest.mark.parametrize(
    ("head", "row", "name", "on_device"),
    [
        ("Time (%),Total Time (us),Instances,Avg (us),Med (us),Min (us),Max (us),StdDev (us),Name",
         '9.0,8,4,2.0,2.0,1,3,1.0,"void k<(int)4>(float *)"', "void k<4>(float*)", True),
        ('"Time(%)","Total Time","Instances","Average","Minimum","Maximum","Name"',
         "9.0,8000,4,2000.0,1000,3000,k", "k", True),  # of 2020
        ("Time (%),Total Time (ns),Count,Avg (ns),Min (ns),Max (ns),Operation",
         "9.0,8000,4,2000.0,1000,3000,[CUDA memcpy HtoD]", "[CUDA memcpy HtoD]", True),
        ("Time (%),Total Time (ns),Num Calls,Avg (ns),Min (ns),Max (ns),Name",
         "9.0,8000,4,2000.0,1000,3000,cudaLaunchKernel", "cudaLaunchKernel", False),
        ("Time (%),Total Time (ns),Instances,Avg (ns),Min (ns),Max (ns),Style,Range",
         "9.0,8000,4,2000.0,1000,3000,PushPop,:step", "step", False),
    ],
)  # fmt: skip
def test_summaries_that_nsys_stats_prints(tmp_path, head, row, name, on_device):
    path = tmp_path / "stats.csv"
    path.write_text(f"Processing [rep.sqlite] with [sum.py]...\n\n{head}\n{row}\n")
    assert recognise(path) == "nsys"
    found = read(path).tables
    (summed,), (took,) = (found[table].to_pylist() for table in ("intervals", "atomics"))
    assert (summed["function"], summed["calls"], summed["inclusive_ns"]) == (name, 4, 8000)
    assert (summed["thread"] == -1) is on_device
    assert (took["mean"], took["min"], took["max"]) == (2000, 1000, 3000)


def test_a_mark_without_a_time_costs_no_other_row(tmp_path):
    path = nvprof_database(tmp_path / "net.sql")
    before = tool("nvprof").read(path).tables
    change(path, ["update CUPTI_ACTIVITY_KIND_MARKER set timestamp = null where id = 1001 and flags = 1"])
    converted = tool("nvprof").read(path)
    assert converted.tables["kernels"].num_rows == before["kernels"].num_rows
    assert converted.tables["markers"].num_rows == before["markers"].num_rows - 1
    assert data_of(converted.findings, "records_damaged") == [{"n": 1, "what": "events"}]


@pytest.mark.parametrize("odd", [1.5, "soon", "12x", b"77", None, 9e300, 1 << 62])
def test_what_is_no_integer_after_many_that_are_costs_its_row_alone(odd, tmp_path):
    rows = [(number, number) for number in range(sqlite.ROWS + 10)]

    def read_back(more, wanted):
        (tmp_path / "x.sqlite").unlink(missing_ok=True)
        connection = sqlite3.connect(tmp_path / "x.sqlite")
        make_table(connection, "t", "a b:int:not:null", [*rows, more, (8, 8)])
        connection.commit()
        connection.close()
        with sqlite.open_database(tmp_path / "x.sqlite") as opened:
            chunks = list(opened.integers("t", wanted))
            return np.concatenate([chunk["a"] for chunk in chunks]).tolist(), opened.malformed

    many = [one for one, _ in rows]
    costs = odd is not None  # else another column's value: none is wanted
    kept = [*many, *[7] * (not costs), 8]
    assert read_back((7, odd or 0), {"a": -7, "b": None, "absent": 5}) == (kept, int(costs))
    assert read_back((odd, 7), {"a": None}) == ([*many, 8], 1)
