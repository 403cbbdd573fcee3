"""Exports of Nsight Systems of several releases, against what is known of real ones."""

import pytest

from profiling.tools import recognise, tool
from tests.builders import codes, data_of
from tests.profiling.gpu_databases import DEMANGLED, EPOCH_NS, Nsys, change

read = tool("nsys").read


@pytest.fixture(scope="module")
def nsys(shared_data):
    return shared_data / "nsys"


def frames(path):
    converted = read(path)
    return (
        converted.tables["kernels"].to_pandas(),
        converted.tables["markers"].to_pandas(),
        converted.findings,
    )


def test_two_gpus_of_one_report(nsys):
    path = nsys / "h100_2gpu_1s.sqlite"
    assert recognise(path) == "nsys"
    kernels, markers, findings = frames(path)
    on_gpu = kernels[~kernels["class"].isin(["memcpy", "memset"])]
    assert len(on_gpu) == 3442
    assert on_gpu.groupby("device")["duration_ns"].sum().to_dict() == {0: 22_385_163, 1: 22_444_359}
    assert (kernels["class"] == "memcpy").sum() == 904 and (kernels["class"] == "memset").sum() == 22
    # Two processes, one GPU each: two ranks.
    assert kernels.groupby("rank")["device"].unique().apply(list).to_dict() == {0: [0], 1: [1]}
    assert kernels["start_ns"].min() == 1779630014975716426 + 155357525002
    # The report is a second of a longer one: what was launched before it has no operator, and that is said.
    assert data_of(findings, "launches_missing") == [{"n": 1138, "of": 2184}] * 2
    assert kernels["operator"].notna().sum() == 2 * (2184 - 1138)
    assert kernels["launch_ns"].isna().sum() == 2 * 1138
    waited = (kernels["start_ns"] - kernels["launch_ns"]).dropna()
    assert (waited > 0).all()
    launched = kernels.dropna(subset="launch_ns")
    assert (launched["launch_end_ns"] > launched["launch_ns"]).all() and launched[
        "launch_thread"
    ].notna().all()
    assert markers["name"].str.startswith("FSDP::").all() and len(markers) > 0


def test_operators_of_its_ranges(nsys):
    kernels, _, _ = frames(nsys / "h100_2gpu_1s.sqlite")
    gemms = kernels[(kernels["class"] == "gemm") & kernels["operator"].notna()]
    assert set(gemms["operator"]) == {"aten::mm", "aten::bmm"}
    assert set(kernels[kernels["short_name"] == "softmax_warp_forward"]["operator"].dropna()) == {
        "aten::_softmax"
    }
    # Both clear a workspace.
    assert set(kernels[kernels["class"] == "memset"]["operator"].dropna()) == {"aten::mm", "aten::sum"}


def test_an_export_of_2021_with_pyprofs_markers(nsys):
    kernels, _, _ = frames(nsys / "cnn_pyprof_nvtx_2.9.sqlite")
    on_gpu = kernels[~kernels["class"].isin(["memcpy", "memset"])]
    assert len(on_gpu) == 46 and on_gpu["duration_ns"].sum() == 346_684
    assert set(on_gpu["operator"]) == {"conv2d"} and set(on_gpu["direction"]) == {"fprop"}


def test_an_export_of_an_mpi_program(nsys):
    kernels, markers, _ = frames(nsys / "saxpy_mpi_cuda_2.9.sqlite")
    assert kernels["short_name"].value_counts().to_dict() == {"Memcpy HtoD": 10, "saxpy": 5, "Memcpy DtoH": 5}
    counted = markers["name"].value_counts().to_dict()
    assert counted == {"MPI_Send": 10, "MPI_Recv": 5, "saxpy": 5, "MPI_Init": 1, "MPI_Finalize": 1}


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


def test_each_process_with_work_on_a_gpu_is_a_rank(tmp_path):
    database = Nsys(tmp_path / "node.sqlite")
    database.batches(2, pid=8, device=1)
    database.batches(2, pid=9, device=0)
    database.range("a worker that loads data", 5, 10, pid=20, tid=20)
    kernels, markers, _ = frames(database.close())
    assert kernels.groupby("rank")["device"].unique().apply(list).to_dict() == {0: [0], 1: [1]}
    assert len(kernels) == 12 and len(markers) == 16


def test_mpis_own_ranks_are_kept(tmp_path):
    database = Nsys(tmp_path / "node.sqlite")
    for pid, rank in ((8, 3), (9, 2)):
        database.batches(1, pid=pid, device=pid - 8)
        database.range(f"MPI Rank {rank}", 1, None, pid, pid, kind=39)
    kernels, _, _ = frames(database.close())
    assert kernels.groupby("rank")["device"].unique().apply(list).to_dict() == {2: [1], 3: [0]}


def test_texts_where_numbers_should_be_cost_their_rows(tmp_path):
    database = Nsys(tmp_path / "odd.sqlite")
    database.batches(2)
    path = change(
        database.close(),
        [
            "update CUPTI_ACTIVITY_KIND_KERNEL set start = 'soon' where correlationId = 1",
            "update CUPTI_ACTIVITY_KIND_KERNEL set end = 9e300 where correlationId = 2",
            "update CUPTI_ACTIVITY_KIND_KERNEL set end = start - 5 where correlationId = 10",
        ],
    )
    kernels, _, findings = frames(path)
    assert len(kernels) == 3
    assert sum(one["n"] for one in data_of(findings, "records_damaged")) == 3


def test_kernels_without_times_are_left_out_and_counted(tmp_path):
    database = Nsys(tmp_path / "odd.sqlite")
    database.batches(2)
    change(
        database.close(), ["update CUPTI_ACTIVITY_KIND_KERNEL set start = 0, end = 0 where correlationId = 1"]
    )
    kernels, _, findings = frames(tmp_path / "odd.sqlite")
    assert len(kernels) == 5
    assert data_of(findings, "records_damaged") == [{"n": 1, "what": "events"}]


VARIANTS = {
    "kernels of no process": ["alter table CUPTI_ACTIVITY_KIND_KERNEL drop column globalPid"],
    "a kernel of no process": [
        "update CUPTI_ACTIVITY_KIND_KERNEL set globalPid = null where correlationId = 1"
    ],
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


def test_calls_that_waited_for_the_device_are_a_table(nsys):
    waits = read(nsys / "cnn_pyprof_nvtx_2.9.sqlite").tables["synchronizations"].to_pandas()
    assert waits["name"].value_counts().to_dict() == {
        "cudaEventSynchronize_v3020": 15, "cudaStreamSynchronize_v3020": 11, "cudaFree_v3020": 4,
        "cudaDeviceSynchronize_v3020": 2,
    }  # fmt: skip
    assert (waits["end_ns"] > waits["start_ns"]).all() and waits["thread"].notna().all()
