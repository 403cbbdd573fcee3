"""Peaks and analytic counts: the datasheet's, the user's own, and what a run can reach at best."""

import importlib.util
from pathlib import Path

import pytest
import yaml

from analysis.measures import peaks
from profiling.errors import UserError
from tests.analysis.commands import one_line_error, run
from tests.analysis.synthetic import Truth, run_of, write_sweep


@pytest.mark.parametrize(
    ("device", "precision", "tflops", "gb_per_s"),
    [
        ("Tesla K40m", "fp32", 4.29, 288),
        ("NVIDIA H100 80GB HBM3", "bf16", 989.4, 3350),
        ("NVIDIA A100-SXM4-40GB", "fp32", 19.5, 1555),
        ("NVIDIA A100-PG509-200", "bf16", 312, 1555),
        ("Tesla V100-SXM2-16GB", "fp32", 15.7, 900),
        ("Tesla V100-DGXS-32GB", "fp16", 125, 898),
        ("NVIDIA GeForce RTX 4090", "fp32", 82.6, 1008),
        ("NVIDIA GeForce GTX 1080 Ti", "fp32", 11.3, 484),
        ("NVIDIA B200", "bf16", 2250, 8000),
        ("NVIDIA GB200", "tf32", 1250, 8000),
        ("NVIDIA GH200 480GB", "fp16", 989.4, 4000),
        ("NVIDIA GH200 144G HBM3e", "fp16", 989.4, 4900),
        ("NVIDIA A10", "bf16", 125, 600),
        ("NVIDIA A30", "bf16", 165, 933),
        ("NVIDIA A40", "bf16", 149.7, 696),
        ("NVIDIA L40", "bf16", 181, 864),
        ("NVIDIA GeForce RTX 5090", "bf16", 209.5, 1792),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "bf16", 503.8, 1792),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "fp32", 120, 1597),
        ("AMD Instinct MI210", "fp16", 181, 1638),
        ("AMD Instinct MI250X", "fp32", 47.9, 1638),
        ("AMD Instinct MI250X/MI250", "fp16", 191.5, 1638),
        ("AMD Instinct MI250", "fp16", 181, 1638),
        ("AMD Instinct MI300X", "bf16", 1307.4, 5300),
        ("AMD Instinct MI300A", "bf16", 980.6, 5300),
        ("AMD Instinct MI325X", "bf16", 1307.4, 6000),
        ("AMD Instinct MI350X", "bf16", 2306.9, 8000),
        ("AMD Instinct MI355X", "bf16", 2516.6, 8000),
    ],
)
def test_devices_as_their_driver_names_them(
    device: str, precision: str, tflops: float, gb_per_s: float
) -> None:
    peak = peaks.find(device)
    assert peak is not None
    assert peak.flops_per_s[precision] == pytest.approx(tflops * 1e12, rel=0.02)
    assert peak.bytes_per_s == pytest.approx(gb_per_s * 1e9, rel=0.02)


def test_peaks_that_no_source_confirms_are_said_to_be_so(tmp_path):
    for device, doubt in (
        ("NVIDIA GH200 480GB", "not confirmed: GH200 96GB"),
        ("NVIDIA H100 64GB", "no source was found for the memory's"),
        ("NVIDIA H100 SXM5 96GB", "sources differ on the memory's"),
        ("Tesla V100-DGXS-32GB", "its arithmetic rates are taken from V100 SXM2"),
        ("NVIDIA L40", ""),
    ):
        write_sweep(tmp_path / device, [run_of(profile="torch")], Truth(device=device))
        said = " ".join(run("analysis.efficiency", tmp_path / device).out.split())
        assert doubt in said and ("not confirmed" in said) == bool(doubt)


@pytest.mark.parametrize("device", ["NVIDIA H100 64GB", "NVIDIA H100 SXM5 64GB", "NVIDIA H100 96GB"])
def test_of_a_memory_that_no_source_describes_only_the_arithmetic_is_known(device):
    peak = peaks.find(device)
    assert peak is not None and peak.flops_per_s["bf16"] == 989.5e12 and peak.bytes_per_s is None
    whole = peaks.find("NVIDIA H100")
    assert whole is not None and whole.bytes_per_s == 3350e9


@pytest.mark.parametrize(
    "name",
    [
        "K40m",
        "P100",
        "V100",
        "T4",
        "A100",
        "H100",
        "H200",
        "L4",
        "L40S",
        "2080 Ti",
        "3090",
        "4090",
        "1080 Ti",
    ],
)
def test_every_common_gpu_has_an_entry_with_its_source(name: str) -> None:
    entries = [peak for peak in peaks.read_peaks() if name in peak.name]
    assert entries
    for peak in entries:
        assert peak.source != "user"
        assert peak.flops_per_s["fp32"] > 0
        assert peaks.find(peak.name) is not None


def test_no_device_has_the_peaks_of_another() -> None:
    for peak in peaks.read_peaks():
        found = peaks.find(peak.name)
        assert found is not None
        assert found.flops_per_s == peak.flops_per_s
    assert peaks.find("NVIDIA L40") != peaks.find("NVIDIA L4")
    assert peaks.find("a device of tomorrow") is None


@pytest.mark.parametrize(
    "device",
    [
        "NVIDIA A100-SXM-64GB",
        "NVIDIA A10G",
        "NVIDIA A100-SXM-64GB MIG 1g.8gb",
        "AMD Radeon Graphics",
    ],
)
def test_a_variant_that_no_datasheet_lists_has_no_peaks_of_another(device: str) -> None:
    assert peaks.find(device) is None


@pytest.mark.parametrize(
    ("device", "bf16_tflops", "gb_per_s", "said"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 989.5 / 7, 3350 / 8, "1/7 of the arithmetic, 1/8 of the"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.20gb", 989.5 / 7, 3350 / 4, ", 2/8"),
        ("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 312 * 3 / 7, 1555 / 2, "3/7 of the arithmetic, 4/8"),
        ("NVIDIA A100-SXM4-80GB MIG 7g.80gb", 312, 2039, "8/8 of the memory of A100 SXM4 80GB"),
        ("NVIDIA H200 MIG 1g.18gb+me", 989.5 / 7, 4800 / 8, "of H200 SXM"),
        ("NVIDIA A30 MIG 2g.12gb", 165 / 2, 933 / 2, "2/4 of the arithmetic, 2/4"),
    ],
)
def test_a_mig_slice_has_its_share_and_that_is_said(device, bf16_tflops, gb_per_s, said) -> None:
    peak = peaks.find(device)
    assert peak is not None
    assert peak.flops_per_s["bf16"] == pytest.approx(bf16_tflops * 1e12)
    assert peak.bytes_per_s == pytest.approx(gb_per_s * 1e9)
    assert said in peak.unconfirmed and peak.name == device


def test_a_user_adds_a_device_of_their_own(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", [run_of(), run_of(profile="torch")], Truth(device="Accelerator X"))
    ran = run("analysis.scaled", tmp_path / "sweep", "--format", "csv")
    assert "Accelerator X (fp32)" in ran.err
    own = tmp_path / "own.yaml"
    own.write_text("- name: Accelerator X\n  tflops: {fp32: 20}\n  gb_per_s: 1000\n")
    (row,) = run("analysis.scaled", tmp_path / "sweep", "--format", "json", "--all", "--peaks", own).json
    assert row["flops_efficiency_of_kernels_pct"] == pytest.approx(100 * 7.4e11 / 0.06 / 20e12)
    assert row["peak_gb_per_s"] == 1000


NOT_RIGHT = [
    "", "a: b", "- name: X", "- name: X\n  tflops: 3\n  gb_per_s: 1", "- [", "\x00",
    "- name: X\n  match: '('\n  tflops: {}\n  gb_per_s: 1",
    "- name: X\n  tflops: {fp32: fast}\n  gb_per_s: 1",
    "!!python/object:os.system {}",
]  # fmt: skip


@pytest.mark.parametrize("content", NOT_RIGHT)
def test_a_peaks_file_that_is_not_right_is_one_line(tmp_path: Path, content: str) -> None:
    write_sweep(tmp_path / "sweep", [run_of()])
    own = tmp_path / "own.yaml"
    own.write_text(content)
    line = one_line_error(run("analysis.scaled", tmp_path / "sweep", "--peaks", own))
    assert "own.yaml" in line
    with pytest.raises(UserError):
        peaks.read_peaks(own)


def test_a_peaks_file_that_is_absent_is_one_line(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of()])
    assert "absent.yaml" in one_line_error(
        run("analysis.scaled", tmp_path, "--peaks", tmp_path / "absent.yaml")
    )


def test_more_than_the_peak_is_a_finding(tmp_path: Path) -> None:
    write_sweep(
        tmp_path, [run_of(), run_of(profile="torch")], Truth(flops=3e12, training_flops_per_image=9.4e10)
    )
    ran = run("analysis.scaled", tmp_path)
    assert "measured, datasheet peak" in ran.out


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="counts layers with torch")
@pytest.mark.parametrize("model", ["resnet50", "resnet18", "vgg16", "alexnet"])
def test_analytic_counts_are_those_of_the_models(root: Path, model: str) -> None:
    from train.models import build_model, flops_per_image

    assert yaml.safe_load((root / "analysis" / "measures" / "models.yaml").read_text())[
        model
    ] == pytest.approx(flops_per_image(build_model(model), 224)[0], rel=0.005)
