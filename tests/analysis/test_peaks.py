"""Peaks and analytic counts: the datasheet's, the user's own, and what a run can reach at best."""

import importlib.util
from pathlib import Path

import pytest
import yaml

from analysis.frames.load import load
from analysis.measures import peaks
from analysis.report.base import Context
from analysis.report.kernels import roofline
from jobs import store
from jobs.store import Calibration
from profiling.errors import UserError
from tests.analysis.commands import found as findings
from tests.analysis.commands import one_line_error, run
from tests.analysis.synthetic import Truth, run_of, write_sweep


@pytest.mark.parametrize(
    ("device", "precision", "tflops", "gb_per_s"),
    [
        ("Tesla K40m", "fp32", 4.29, 288), ("NVIDIA H100 80GB HBM3", "bf16", 989.4, 3350),
        ("NVIDIA A100-SXM4-40GB", "fp32", 19.5, 1555), ("NVIDIA B200", "bf16", 2250, 8000),
        ("NVIDIA GB200", "tf32", 1250, 8000), ("NVIDIA GH200 480GB", "fp16", 989.4, 4000),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "bf16", 503.8, 1792),
        ("AMD Instinct MI250X/MI250", "fp16", 191.5, 1638), ("AMD Instinct MI300X", "bf16", 1307.4, 5300),
    ],
)  # fmt: skip
def test_devices_as_their_driver_names_them(device, precision, tflops, gb_per_s) -> None:
    peak = peaks.find(device)
    assert peak is not None
    assert peak.flops_per_s[precision] == pytest.approx(tflops * 1e12, rel=0.02)
    assert peak.bytes_per_s == pytest.approx(gb_per_s * 1e9, rel=0.02)


def test_each_entry_has_a_source_and_no_device_the_peaks_of_another() -> None:
    for peak in peaks.read_peaks():
        assert peak.source != "user" and peak.flops_per_s["fp32"] > 0
        found = peaks.find(peak.name)
        assert found is not None
        assert found.flops_per_s == peak.flops_per_s
    assert peaks.find("NVIDIA L40") != peaks.find("NVIDIA L4")
    # No datasheet lists these variants.
    unlisted = ("A100-SXM-64GB", "A10G", "A100-SXM-64GB MIG 1g.8gb")
    for device in ("a device of tomorrow", "AMD Radeon Graphics", *(f"NVIDIA {name}" for name in unlisted)):
        assert peaks.find(device) is None


def test_a_user_adds_a_device_of_their_own(tmp_path: Path) -> None:
    write_sweep(tmp_path / "sweep", [run_of(), run_of(profile="torch")], Truth(device="Accelerator X"))
    assert "Accelerator X (fp32)" in run("analysis.scaled", tmp_path / "sweep", "--format", "csv").err
    own = tmp_path / "own.yaml"
    own.write_text("- name: Accelerator X\n  tflops: {fp32: 20}\n  gb_per_s: 1000\n")
    (row,) = run("analysis.scaled", tmp_path / "sweep", "--format", "json", "--all", "--peaks", own).json
    assert row["flops_efficiency_of_kernels_pct"] == pytest.approx(100 * 7.4e11 / 0.06 / 20e12)
    assert row["peak_gb_per_s"] == 1000
    absent = tmp_path / "absent.yaml"
    assert "absent.yaml" in one_line_error(run("analysis.scaled", tmp_path / "sweep", "--peaks", absent))


NOT_RIGHT = [
    "", "a: b", "- name: X", "- name: X\n  tflops: 3\n  gb_per_s: 1", "- [", "\x00",
    "- name: X\n  match: '('\n  tflops: {}\n  gb_per_s: 1",
    "- name: X\n  tflops: {fp32: fast}\n  gb_per_s: 1",
    "!!python/object:os.system {}",
]  # fmt: skip


@pytest.mark.parametrize("content", NOT_RIGHT)
def test_a_peaks_file_that_is_not_right_is_named(tmp_path: Path, content: str) -> None:
    own = tmp_path / "own.yaml"
    own.write_text(content)
    with pytest.raises(UserError, match=r"own\.yaml"):
        peaks.read_peaks(own)


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="counts layers with torch")
@pytest.mark.parametrize("model", ["resnet50", "alexnet"])
def test_analytic_counts_are_those_of_the_models(root: Path, model: str) -> None:
    from train.models import build_model, flops_per_image

    counts = yaml.safe_load((root / "analysis" / "measures" / "models.yaml").read_text())
    assert counts[model] == pytest.approx(flops_per_image(build_model(model), 224)[0], rel=0.005)


HIGH = 1e16
STEP_FLOPS_PER_S = Truth().flops / (Truth().kernel_ms / 1e3)
STEP_BYTES_PER_S = Truth().bytes / (Truth().kernel_ms / 1e3)
# Of the backward convolution: two thirds of the FLOPs in a quarter of the time.
KERNEL_FLOPS_PER_S = STEP_FLOPS_PER_S * 8 / 3


@pytest.fixture
def measured(tmp_path: Path):
    """Writes a profiled run of two ranks, whose sweep measured such peaks."""

    def write(flops_per_s: float, bytes_per_s: float) -> Path:
        runs = [run_of(gpus_per_node=2, profile=profile, threads=3) for profile in ("none", "torch")]
        write_sweep(tmp_path, runs)
        peaks = Calibration(
            gemm_flops_per_s={2: flops_per_s}, copy_bytes_per_s={2: bytes_per_s},
            device=Truth().device, seconds=1.0,
        )  # fmt: skip
        store.write_record(tmp_path / store.CALIBRATION, peaks)
        return tmp_path

    return write


@pytest.mark.parametrize(
    ("flops_per_s", "bytes_per_s", "said"),
    [
        (STEP_FLOPS_PER_S / 1.13, HIGH, 113),
        (HIGH, STEP_BYTES_PER_S / 1.2, 120),
        # Clocks and peaks are some per cent off.
        (STEP_FLOPS_PER_S / 1.09, STEP_BYTES_PER_S / 1.09, None),
    ],
)
def test_a_step_above_a_measured_peak_is_a_finding(measured, flops_per_s, bytes_per_s, said) -> None:
    found = findings("analysis.scaled", measured(flops_per_s, bytes_per_s))
    assert found.get("above_peak", {}).get("most_pct") == (said and pytest.approx(said, abs=1))


def test_a_kernel_above_a_measured_peak_is_named_with_what_measures_it_again(measured) -> None:
    path = measured(KERNEL_FLOPS_PER_S / 1.13, HIGH)
    for of in (path, next(path.glob("run_*_torch_*"))):
        above = findings("analysis.kernels", of)["above_peak"]
        assert above["what"] == "conv_bprop, convolution, bprop"
        assert above["most_pct"] == pytest.approx(113, abs=1)
    section = roofline.section(Context(load(path)))
    assert section is not None and section.charts
