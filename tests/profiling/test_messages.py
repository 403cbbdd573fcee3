"""What a collective was is told by what the trace says of it; process groups by their names and ranks."""

import pytest

from profiling.attribution.messages import ONE_OF_SEVERAL, kind_of
from tests.builders import data_of
from tests.profiling.test_attribution import one, rows_of
from tests.profiling.traces import Trace, tensors

RCCL = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"
OF_PAIR = {
    "Collective name": "_allgather_base", "In msg nelems": 10, "Out msg nelems": 20, "dtype": "BFloat16",
    "Group size": 2, "Process Group Name": "3", "Process Group Ranks": "[0, 2]",
}  # fmt: skip


def said_of(row) -> tuple:
    return tuple(row[name] for name in ("collective", "process_group", "group_ranks", "group_size", "bytes"))


def world(*groups: tuple[str, list[int]], rank: int = 0) -> dict:
    """A trace's ``distributedInfo`` of a rank in these process groups."""
    listed = [{"pg_name": name, "pg_size": len(ranks), "ranks": ranks} for name, ranks in groups]
    return {"rank": rank, "world_size": max(len(ranks) for _, ranks in groups), "pg_config": listed}


# --- a kernel that bears no name of a collective -------------------------------------------------------


@pytest.mark.parametrize("word", ["nelems", "size"])  # of newer and older releases of PyTorch
@pytest.mark.parametrize("of_call", [False, True])
@pytest.mark.parametrize("name", [RCCL, "ncclDevKernel_Broadcast_RING_LL(ncclWork*)", "msccl_kernel_7"])
def test_a_kernels_own_record_or_the_calls_says_more_than_its_name(tmp_path, name, of_call, word):
    trace, said = Trace(), {key.replace("nelems", word): value for key, value in OF_PAIR.items()}
    if of_call:
        trace.host("record_param_comms", 0, 20, more=said)
    trace.kernel(name, 5, 30, 50, **({} if of_call else said))
    (row,), _ = rows_of(trace, tmp_path)
    assert (row["class"], row["dtype"]) == ("communication", "BFloat16")
    assert said_of(row) == ("allgather", "3", "0,2", 2, 40)


@pytest.mark.parametrize(
    ("launching", "collective"),
    [
        (["c10d::allreduce_", "record_param_comms", "nccl:all_reduce"], "allreduce"),
        (["c10d::_reduce_scatter_base_", "record_param_comms", "nccl:coalesced"], "reducescatter"),
        (["nccl:all_to_all"], "alltoall"),
        (["c10d::send", "nccl:send 0->1"], "sendrecv"),
    ],
)
def test_the_ranges_that_launched_it_say_the_kind(tmp_path, launching, collective):
    trace = Trace()
    for depth, name in enumerate(launching):
        category = "user_annotation" if name.startswith("nccl:") else "cpu_op"
        trace.host(name, depth, 20 - depth, category, more=tensors([100]))
    trace.kernel(RCCL, 10, 30, 50)
    (row,), _ = rows_of(trace, tmp_path)
    assert said_of(row) == (collective, None, None, None, 400)


def test_a_kernel_of_which_nothing_is_recorded_has_the_kind_of_its_name_or_none(tmp_path):
    trace = Trace()
    trace.kernel(RCCL, 5, 30, 50)
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclWork*)", 55, 60, 70)
    rows, _ = rows_of(trace, tmp_path)
    assert [row["class"] for row in rows] == ["communication"] * 2
    assert [said_of(row)[0] for row in rows] == [None, "allreduce"]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("allreduce", "allreduce"), ("_allgather_base", "allgather"), ("all_to_allv", "alltoall"),
     ("reduce_scatter_tensor_coalesced", "reducescatter"), ("recv", "sendrecv"), ("barrier", "barrier"),
     ("_reduce_oop", "reduce"), ("nccl:coalesced", "other"), ("broadcast_oop", "broadcast"),
     ("ncclKernel_AllReduce_RING_LL", "allreduce"), ("ncclAllReduceRingLLKernel_sum_f32", "allreduce"),
     ("gloo:all_reduce", "allreduce"), ("ncclKernel_SendRecv", "sendrecv"), ("ncclDevKernel_1", "other")],
)  # fmt: skip
def test_kinds_as_they_are_named(name, kind):
    assert kind_of(name) == kind


# --- process groups ------------------------------------------------------------------------------------


def test_of_several_groups_none_is_guessed(tmp_path):
    trace = Trace(distributedInfo=world(("0", [0, 1, 2, 3]), ("1", [0, 2])))
    trace.kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclWork*)", 5, 30, 50)
    trace.kernel(RCCL, 55, 60, 70, **OF_PAIR)
    rows, _ = rows_of(trace, tmp_path)
    assert [said_of(row)[:4] for row in rows] == [
        ("allreduce", ONE_OF_SEVERAL, None, None), ("allgather", "3", "0,2", 2)
    ]  # fmt: skip


# --- sizes ---------------------------------------------------------------------------------------------


def fsdp2_step(groups) -> Trace:
    """A step of FSDP2 over Gloo as PyTorch 2.13 records it: two layers, sharded over two ranks.

    The operator bears both tensors and is done before Gloo's own thread, which bears the shard, begins.
    """
    trace = Trace(distributedInfo=groups)
    trace.range("ProfilerStep#1", 0, 1000)
    at = 10.0
    for shard in (792, 392, 392, 792):  # forward, and backward again
        trace.host("c10d::_allgather_base_", at, at + 5, more=tensors([2 * shard], [shard]))
        trace.host("gloo:all_gather", at + 3, at + 40, "user_annotation", thread=2, more=tensors([shard]))
        at += 50
    for shard in (392, 792):  # Gloo makes a reduce-scatter by an allreduce
        trace.host("c10d::_reduce_scatter_base_", at, at + 5, more=tensors([shard], [2 * shard]))
        trace.host("gloo:all_reduce", at + 3, at + 40, "user_annotation", thread=2, more=tensors([2 * shard]))
        at += 50
    return trace


def test_an_allgather_of_which_only_shards_are_recorded_counts_in_whole(tmp_path):
    rows, _ = rows_of(fsdp2_step(world(("0", [0, 1]))), tmp_path)
    gathered = [row for row in rows if row["collective"] == "allgather"]
    assert sum(row["bytes"] for row in gathered) == 4 * 2 * 2 * (792 + 392)
    assert {said_of(row)[1:4] for row in rows} == {("0", "0,1", 2)}
    reduced = [row for row in rows if row["collective"] == "reducescatter"]
    assert sum(row["bytes"] for row in reduced) == 4 * 2 * (792 + 392)
    assert len(gathered) + len(reduced) == len(rows)


def test_collectives_of_gloo_have_the_kinds_that_were_called_for(tmp_path):
    """Of calls with as many elements in the order in which they were made; the others overtake them."""
    trace = Trace(distributedInfo=world(("0", [0, 1]), ("1", [0, 1])))
    calls = ["allreduce_", "_reduce_scatter_base_", "_reduce_scatter_base_", "allreduce_", "broadcast_"]
    for number, name in enumerate(calls):
        sizes = [[[4]], [[4], [8]], [[2], [4]], [[8]], [[8]]][number]
        trace.host(f"c10d::{name}", 10 * number, 10 * number + 5, more=tensors(*sizes))
    for number, size in enumerate([4, 4, 8, 8]):
        at, more = 60 + 10 * number, tensors([size])
        trace.host("gloo:all_reduce", at, at + 5, "user_annotation", thread=2 + size, more=more)
    trace.host("gloo:broadcast", 99, 120, "user_annotation", thread=7, more=tensors([8]))
    rows, _ = rows_of(trace, tmp_path)
    kinds = [(row["collective"], row["bytes"]) for row in rows]
    assert kinds == [
        ("allreduce", 16), ("reducescatter", 16), ("reducescatter", 32), ("allreduce", 32), ("broadcast", 32)
    ]  # fmt: skip


def test_an_allgather_whose_call_is_around_it_has_the_size_of_its_output(tmp_path):
    trace = Trace(distributedInfo={"rank": 0, "world_size": 4})
    trace.host("c10d::_allgather_base_", 0, 50, more=tensors([30], [10]))  # three of the four ranks
    trace.host("gloo:all_gather", 5, 90, "user_annotation", more=tensors([10]))
    rows, _ = rows_of(trace, tmp_path)
    assert one(rows, name="gloo:all_gather")["bytes"] == 120


def test_a_call_by_the_functional_api_is_no_work_of_its_own(tmp_path):
    trace = Trace(distributedInfo=world(("0", [0, 1])))
    trace.host("_c10d_functional::all_reduce", 0, 20, more=tensors([8]))
    trace.host("c10d::allreduce_", 2, 18, more=tensors([8]))
    trace.host("gloo:all_reduce", 5, 60, "user_annotation", thread=2, more=tensors([8]))
    trace.host("_c10d_functional::wait_tensor", 21, 61, more=tensors([8]))
    rows, _ = rows_of(trace, tmp_path)
    assert [row["name"] for row in rows] == ["gloo:all_reduce"]


# --- classes by operators ------------------------------------------------------------------------------


def test_a_convolution_by_the_kernel_of_a_gemm_is_one(tmp_path):
    gemm = "cutlass_tensorop_s1688gemm_128x128_16x5_nn_align4"
    trace = Trace()
    trace.host("aten::cudnn_convolution", 0, 10, more=tensors([2, 3, 8, 8], [4, 3, 3, 3]))
    trace.kernel(gemm, 5, 100, 110)
    trace.host("ConvolutionBackward0", 20, 30, more={"Sequence number": 5, "Fwd thread id": 1})
    trace.kernel(gemm, 25, 110, 120)
    trace.host("aten::mm", 40, 50, more=tensors([2, 2], [2, 2]))
    trace.kernel(gemm, 45, 120, 130)
    trace.kernel("cudnn::gemm::computeOffsetsKernel(cudnn::gemm::Params)", 47, 130, 140)
    trace.kernel(gemm, 55, 140, 150)
    rows, _ = rows_of(trace, tmp_path)
    assert [row["class"] for row in rows] == ["convolution", "convolution", "gemm", "gemm", "gemm"]


# --- devices not known ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "named"),
    [
        ({"cat": "mtia_ccp_events"}, "mtia_ccp_events"),
        ({"cat": "cuda_profiler_range", "pid": 9}, "cuda_profiler_range"),  # its times are made up
        ({"args": {"Task Type": "AI_CORE", "Stream Id": 3}}, "events without a category"),  # Ascend
    ],
)
def test_work_of_an_unknown_device_is_a_finding_and_no_cpus(tmp_path, event, named):
    trace = Trace()
    trace.host("aten::mm", 0, 10, more=tensors([2, 2], [2, 2]))
    for at in ("20", "30"):
        trace.events.append({"ph": "X", "name": "MatMulV2", "pid": 17, "tid": 1, "ts": at, "dur": 5, **event})
    rows, converted = rows_of(trace, tmp_path)
    assert rows == []
    assert data_of(converted.findings, "parts_unread") == [{"what": [named], "n": 2}]
