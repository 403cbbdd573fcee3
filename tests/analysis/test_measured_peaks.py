"""Work that exceeds a measured peak shows that the peak was measured too low: it is said, and what to do."""

from pathlib import Path

import pytest

from analysis.frames.load import load
from analysis.measures.kernels import exceeded
from analysis.report.base import Context
from analysis.report.kernels import ROOFLINE
from jobs import store
from jobs.store import Calibration
from profiling.findings import Finding
from tests.analysis.commands import run
from tests.analysis.frames import kernels_frame
from tests.analysis.synthetic import Truth, run_of, write_sweep

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


def said_of_peaks(command: str, path: Path) -> list[str]:
    ran = run(f"analysis.{command}", path, "--format", "csv")
    assert ran.code == 0
    return [line for line in ran.err.splitlines() if "above the measured" in line]


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
    notes = said_of_peaks("scaled", measured(flops_per_s, bytes_per_s))
    assert len(notes) == (said is not None)


def test_a_kernel_above_a_measured_peak_is_named_with_what_measures_it_again(measured) -> None:
    path = measured(KERNEL_FLOPS_PER_S / 1.13, HIGH)
    for of in (path, next(path.glob("run_*_torch_*"))):
        (note,) = said_of_peaks("kernels", of)
        assert "conv_bprop, convolution, bprop" in note and note.endswith("up to 113 %")
    section = ROOFLINE.section(Context(load(path)))
    assert section is not None and section.charts


def test_a_kernel_of_no_weight_judges_no_peak_and_small_tensors_no_bandwidth(measured) -> None:
    study = load(measured(HIGH, STEP_BYTES_PER_S / 1.2))
    rows = kernels_frame(study)
    (found,) = exceeded(rows)
    assert (found.code, found.data["peak"]) == ("above_peak", "measured bandwidth")
    assert found.data["most_pct"] == pytest.approx(120)
    assert not exceeded(rows.assign(share_pct=0.5))
    assert not exceeded(rows.assign(mbyte_per_step=127 * rows["calls_per_step"]))


def test_what_makes_the_measured_peaks_doubtful_is_said_where_they_are_used(measured):
    path = measured(HIGH, HIGH)
    peaks = store.read_record(path / store.CALIBRATION, Calibration)
    store.write_record(
        path / store.CALIBRATION, peaks.model_copy(update={"findings": [Finding.from_json("threads waited")]})
    )
    ran = run("analysis.efficiency", path, "--format", "csv", "--notes")
    assert ran.err.count("threads waited") == 1
