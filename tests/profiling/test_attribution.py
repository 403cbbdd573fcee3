"""From events to rows: batch, direction, layer, operator, cost; on small traces whose truth is known."""

from itertools import pairwise

import pytest

from profiling.errors import UserError
from profiling.schemas import SCHEMAS
from profiling.tools import tool
from tests.builders import codes, data_of
from tests.profiling.traces import Trace, tensors, training_step

read = tool("torch").read


def rows_of(trace, tmp_path, **given):
    converted = read(trace.write(tmp_path / "trace.json"), **given)
    assert converted.tables["kernels"].schema == SCHEMAS["kernels"]
    return converted.tables["kernels"].to_pylist(), converted


def one(rows, **wanted):
    found = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
    assert len(found) == 1, (wanted, found)
    return found[0]


FLOPS = 2 * (2 * 4 * 64) * 27  # of the convolution
# short name -> direction, layer, operator, class of each kernel of a batch, in order of time
KERNELS = {
    "Memcpy HtoD": ("loader", None, "aten::copy_", "memcpy"),
    "nchwToNhwcKernel": ("fprop", "conv1", "aten::cudnn_convolution", "convolution"),
    "sm80_xmma_fprop_implicit_gemm_f32": ("fprop", "conv1", "aten::cudnn_convolution", "convolution"),
    "nll_loss_forward_reduce": ("fprop", None, "aten::nll_loss", "loss"),
    "sm80_xmma_dgrad_implicit_gemm_f32": ("bprop", "conv1", "aten::convolution_backward", "convolution"),
    "sm80_xmma_wgrad_implicit_gemm_f32": ("bprop", "conv1", "aten::convolution_backward", "convolution"),
    "multi_tensor_apply_kernel": ("update", None, None, "optimizer"),
    "vectorized_elementwise_kernel": ("update", None, None, "optimizer"),
}


def test_each_kernel_of_a_training_step_is_attributed(tmp_path):
    trace = Trace(baseTimeNanoseconds=10**18)
    training_step(trace, training_step(trace, 1000.5))
    rows, converted = rows_of(trace, tmp_path)
    assert converted.findings == []
    for batch in (0, 1):  # the first batch's kernels run after its mark: they are launched before it
        found = [row for row in rows if row["batch_index"] == batch]
        names = ("direction", "layer", "operator", "class")
        assert {row["short_name"]: tuple(row[name] for name in names) for row in found} == KERNELS
        flops = {row["short_name"]: row["flops"] for row in found}
        assert flops["sm80_xmma_fprop_implicit_gemm_f32"] == FLOPS and flops["nchwToNhwcKernel"] == 0
        backward = [row["flops"] for row in found if row["direction"] == "bprop"]
        assert sum(backward) == pytest.approx(2 * FLOPS) and backward[0] < backward[1]  # by time
        forward = [row["bytes"] for row in found if row["operator"] == "aten::cudnn_convolution"]
        assert sum(forward) == pytest.approx(4 * (2 * 3 * 64 + 4 * 27 + 2 * 4 * 64))
        assert one(found, short_name="Memcpy HtoD")["bytes"] == 4096
    row = one(rows, short_name="sm80_xmma_fprop_implicit_gemm_f32", batch_index=0)
    assert (row["device"], row["stream"], row["grid"], row["block"]) == (0, 7, "2,1,1", "64,1,1")
    assert (row["start_ns"], row["duration_ns"]) == (10**18 + 1_115_500, 4000)
    assert row["launch_ns"] == 10**18 + 1_015_500  # 100 us before
    markers = converted.tables["markers"].to_pylist()
    names = [row["name"] for row in markers]
    assert names.count("Forward Pass") == names.count("End of Batch") == 2 and "Layer: conv1" not in names
    for row in markers:
        is_mark = row["kind"] == "mark"
        assert is_mark == (row["name"] == "End of Batch") == (row["start_ns"] == row["end_ns"])


def test_between_two_batches_the_next_is_loaded(tmp_path):
    trace = Trace()
    # Under no_grad an operator bears the number of the next that autograd will record: it says nothing.
    bookkeeping = {"Sequence number": 5, "Fwd thread id": 0, **tensors([1], [1])}
    for at in (0, 100):
        trace.host("aten::normal_", at + 2, at + 8, more=tensors([4]))
        trace.range("Forward Pass", at + 10, at + 30)
        trace.host("aten::mm", at + 12, at + 20, more={**bookkeeping, **tensors([2, 3], [3, 4])})
        trace.range("Backward Pass", at + 30, at + 60)
        trace.host("MmBackward0", at + 32, at + 50, more={"Sequence number": 5, "Fwd thread id": 1})
        trace.host("aten::mm", at + 34, at + 40, more=tensors([2, 3], [3, 4]))
        trace.host("aten::copy_", at + 82, at + 84, more=bookkeeping)
        trace.range("End of Batch", at + 90, at + 91)
    trace.host("aten::copy_", 195, 196, more=bookkeeping)
    rows, _ = rows_of(trace, tmp_path)
    told = [(row["direction"], row["batch_index"]) for row in rows]
    assert told == [
        (direction, batch) for batch in (0, 1) for direction in ("loader", "fprop", "bprop", "none")
    ] + [("none", None)]


def test_a_thread_without_operators_works_for_the_loader_or_for_the_stage_of_its_time(tmp_path):
    trace = Trace()
    trace.range("Forward Pass", 0, 50)
    copy = {"category": "gpu_memcpy", "bytes": 4096}
    trace.kernel("Memcpy HtoD (Pinned -> Device)", 5, 10, 20, thread=3, **copy)
    trace.kernel("void dali::kernels::ResampleKernel<float>(float*)", 15, 20, 30, thread=3)
    trace.kernel("volta_sgemm_128x32_tn", 25, 30, 40, thread=4)
    trace.range("End of Batch", 60, 61)
    rows, converted = rows_of(trace, tmp_path)
    assert [row["direction"] for row in rows] == ["loader", "loader", "fprop"]
    assert {row["batch_index"] for row in rows} == {0}
    assert not {"launches_missing", "begun_before_launch"} & set(codes(converted.findings))


@pytest.mark.parametrize(
    ("name", "direction"),
    [
        ("Forward Pass", "fprop"),
        ("## forward ##", "fprop"),
        ("DistributedDataParallel.forward", "fprop"),
        ("FullyShardedDataParallel.forward", "fprop"),
        ("[pl][profile][Strategy]SingleDeviceStrategy.training_step", "fprop"),
        ("[pl][profile][Strategy]DDPStrategy.backward", "bprop"),
        ("## backward ##", "bprop"),
        ("Optimizer.step#AdamW.step", "update"),
        ("Optimizer.zero_grad#SGD.zero_grad", "update"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "loader"),
        ("[pl][profile][_TrainingEpochLoop].train_dataloader_next", "loader"),
        ("a range of the user's", "none"),
    ],
)
def test_the_stages_of_others_are_known_by_name(tmp_path, name, direction):
    trace = Trace()
    trace.range(name, 0, 50)
    trace.kernel("volta_sgemm_128x32_tn", 5, 60, 70)
    rows, _ = rows_of(trace, tmp_path)
    assert [row["direction"] for row in rows] == [direction]


def test_without_markers_autograd_tells_the_direction(tmp_path):
    trace = Trace()
    training_step(trace, 0, markers=False)
    rows, converted = rows_of(trace, tmp_path)
    told = {row["short_name"]: row["direction"] for row in rows}
    assert told["sm80_xmma_fprop_implicit_gemm_f32"] == "fprop"
    assert told["sm80_xmma_dgrad_implicit_gemm_f32"] == "bprop"
    assert told["Memcpy HtoD"] == "loader"
    assert told["multi_tensor_apply_kernel"] == "update"
    assert data_of(converted.findings, "steps_unmarked") == [{"by": "Optimizer.step"}]


def test_a_kernel_launched_before_the_trace_is_kept_and_said(tmp_path):
    trace = Trace()
    training_step(trace, 0)
    trace.events = [event for event in trace.events if event["args"].get("correlation") != 9]
    trace.kernel("orphan", 1, 2, 3)
    del trace.events[-2]  # its launch
    rows, converted = rows_of(trace, tmp_path)
    orphan = one(rows, name="orphan")
    assert (orphan["batch_index"], orphan["direction"], orphan["operator"]) == (None, "none", None)
    assert [row["name"] for row in rows if row["launch_ns"] is None] == ["orphan"]
    assert "launches_missing" in codes(converted.findings)


def test_on_a_cpu_the_rows_are_leaf_operators_each_once(tmp_path):
    trace = Trace()
    trace.range("Forward Pass", 0, 100)
    trace.host("aten::linear", 1, 30, more=tensors([3, 5], [7, 5], [7]))
    trace.host("aten::t", 2, 5, more=tensors([7, 5]))
    trace.host("aten::transpose", 3, 4, more=tensors([7, 5]))
    trace.host("aten::addmm", 6, 29, more=tensors([7], [3, 5], [5, 7]))
    trace.host("aten::empty", 7, 8)
    trace.host("aten::mul_", 40, 60, more=tensors([3, 7], []))
    trace.host("aten::to", 41, 50)
    trace.host("aten::_to_copy", 42, 49)
    trace.host("aten::copy_", 43, 48, more=tensors([], []))
    trace.range("End of Batch", 110, 111)
    rows, _ = rows_of(trace, tmp_path)
    assert [row["name"] for row in rows] == ["aten::t", "aten::addmm", "aten::mul_"]
    assert sum(row["flops"] for row in rows) == 2 * 3 * 5 * 7 + 21
    assert {(row["device"], row["launch_ns"]) for row in rows} == {(-1, None)}
    assert {row["direction"] for row in rows} == {"fprop"}
    spans = [(row["start_ns"], row["start_ns"] + row["duration_ns"]) for row in rows]
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


def test_gloo_collectives_are_communication_wherever_they_end(tmp_path):
    trace = Trace(distributedInfo={"backend": "gloo", "rank": 1, "world_size": 2})
    trace.range("Backward Pass", 0, 100)
    trace.host("c10d::allreduce_", 10, 12, more={"Input Dims": [[[1000]]], "Input type": ["TensorList"]})
    trace.host("gloo:all_reduce", 11, 90, "user_annotation", thread=1, more=tensors([1000]))
    trace.host("aten::mm", 20, 30, more=tensors([2, 2], [2, 2]))
    trace.range("End of Batch", 110, 111)
    rows, _ = rows_of(trace, tmp_path)
    collective = one(rows, name="gloo:all_reduce")
    assert (collective["class"], collective["direction"]) == ("communication", "bprop")
    assert collective["bytes"] == 4000
    assert collective["duration_ns"] == 79_000
    assert one(rows, name="aten::mm")["flops"] == 16
    assert {row["rank"] for row in rows} == {1}
    assert len(rows) == 2


def test_without_shapes_costs_are_unknown_not_zero(tmp_path):
    trace = Trace()
    trace.host("aten::mm", 0, 10)
    trace.kernel("volta_sgemm_128x32_tn", 5, 20, 30)
    rows, converted = rows_of(trace, tmp_path)
    assert rows[0]["flops"] is None
    assert rows[0]["bytes"] is None
    assert data_of(converted.findings, "not_recorded") == [{"what": "input shapes"}]


def test_the_first_convolution_makes_no_input_gradient_where_the_trace_is_silent(tmp_path):
    trace = Trace()
    sizes = ([2, 4, 8, 8], [2, 4, 8, 8], [4, 4, 3, 3])
    for number, at in ((8, 0), (5, 20)):  # autograd runs the last layer first
        node = {"Sequence number": number, "Fwd thread id": 1, **tensors(sizes[0])}
        trace.host("ConvolutionBackward0", at, at + 10, more=node)
        trace.host("aten::convolution_backward", at + 1, at + 9, more=tensors(*sizes))
    rows, _ = rows_of(trace, tmp_path)
    assert [row["flops"] for row in rows] == [2 * 2 * 512 * 36, 2 * 512 * 36]


@pytest.mark.parametrize("graph", [False, True])
def test_kernels_that_outlast_the_next_on_their_stream_end_where_that_begins(tmp_path, graph):
    trace = Trace()
    for at, end in ((10, 1000), (50, 90), (100, 141), (140, 180)):  # the third by its rounding alone
        trace.kernel("sgemm", 1, at, end)
    trace.kernel("sgemm", 1, 20, 900, stream=8)
    for event in trace.events:  # branches of a graph share the number of their launch, and run at once
        event["args"]["correlation"] = 1 if graph else event["args"]["correlation"]
    rows, converted = rows_of(trace, tmp_path)
    took = {row["start_ns"] // 1000: row["duration_ns"] // 1000 for row in rows}
    assert took == {10: 990 if graph else 40, 20: 880, 50: 40, 100: 41, 140: 40}
    assert data_of(converted.findings, "overruns_cut") == ([] if graph else [{"n": 1, "of": 5}])


@pytest.mark.parametrize("later_us", [0, 100])
def test_merged_traces_of_several_ranks_are_refused(tmp_path, later_us):
    """The same step in two processes: at once of two ranks; later it is one that was started again."""
    trace = Trace()
    training_step(trace, 0, batch=3)
    first = len(trace.events)
    training_step(trace, later_us, batch=3)
    trace.events[first:] = [{**event, "pid": f"[rank 1] {event['pid']}"} for event in trace.events[first:]]
    if later_us:
        assert len(rows_of(trace, tmp_path)[0]) == 16
    else:
        with pytest.raises(UserError, match=r"rank 1"):
            rows_of(trace, tmp_path)


def without_the_last_mark(events):
    events.remove([event for event in events if event["name"] == "End of Batch"][-1])


def with_an_update_behind_its_mark(events):
    next(event for event in events if event["name"] == "Model Update")["ts"] += 35


def with_the_devices_clock_back(events):
    for event in events:
        event["ts"] -= 101 * (event["cat"] == "kernel")


@pytest.mark.parametrize(
    ("change", "code", "data"),
    [
        (without_the_last_mark, "marks_missing", {"stage": "End of Batch", "n": 2, "of": 3}),
        (with_an_update_behind_its_mark, "stages_out_of_order", {"n": 2, "of": 12}),
        (with_the_devices_clock_back, "begun_before_launch", {"n": 21, "of": 24, "by_ns": 1000}),
    ],
)
def test_marks_and_clocks_that_are_wrong_are_findings(tmp_path, change, code, data):
    trace, at = Trace(), 0.0
    for _ in range(3):
        at = training_step(trace, at)
    change(trace.events)
    _, converted = rows_of(trace, tmp_path)
    assert data_of(converted.findings, code) == [data]
