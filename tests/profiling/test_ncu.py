"""Nsight Compute's CSV, raw and details, against real files."""

import pytest

from tests.builders import data_of, tables


def test_the_raw_page_of_a_resnet18(shared_data):
    path = shared_data / "ncu/resnet18_a100_raw.csv"
    found, findings = tables(path, "ncu")
    kernels = found["kernels"]
    assert len(kernels) == 235 and kernels["duration_ns"].sum() == 2_497_280
    first = kernels.iloc[0]
    assert (first["short_name"], first["grid"], first["block"]) == (
        "cudnn::ops::nchwToNhwcKernel", "1568,1,1", "256,1,1",
    )  # fmt: skip
    assert (first["flops"], first["bytes"], first["stream"], first["device"]) == (150528, 611712, 7, 0)
    # TF32 convolutions run on tensor cores, whose operations this capture did not count.
    unknown = kernels[kernels["flops"].isna()]
    assert len(unknown) == 34 and set(unknown["class"]) == {"convolution"}
    assert data_of(findings, "flops_missing") == [{"n": 34, "what": "launches on tensor cores"}]
    metrics = found["atomics"]["event"].str.partition(" : ")[0]
    assert "dram__bytes_read.sum (B)" in set(metrics)
    assert not metrics.str.startswith(("device__attribute", "nvlink__", "profiler__")).any()
    durations = found["atomics"][metrics == "gpu__time_duration.sum (ns)"]
    assert (durations["count"] * durations["mean"]).sum() == pytest.approx(2_497_280)


def test_the_long_form_with_ranges_of_nvtx(shared_data):
    path = shared_data / "ncu/resnet50_v100_long.csv"
    found, _ = tables(path, "ncu")
    kernels = found["kernels"]
    assert len(kernels) == 583
    assert kernels["direction"].value_counts().to_dict() == {"bprop": 565, "none": 18}
    operators = kernels["operator"].value_counts()
    # ResNet50 has 53 convolutions and as many normalizations; the first makes no gradient of its input.
    assert operators["aten::cudnn_batch_norm_backward"] == 53
    assert set(found["atomics"]["event"].str.partition(" : ")[0]) == {"lts__t_sector_hit_rate.pct (%)"}
    assert found["atomics"]["count"].sum() == 583


PIPE, CYCLES = "sm__inst_executed_pipe_tensor.sum", "sm__pipe_tensor_cycles_active.sum"
