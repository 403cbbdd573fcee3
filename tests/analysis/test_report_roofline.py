"""The report's roofline and factors: charts hold what was planted, or words say why there are none."""

from pathlib import Path

import pandas as pd
import pytest

from analysis.display import plots
from analysis.frames.load import load
from analysis.measures.peaks import Roof
from analysis.report import kernels
from analysis.report.base import Context
from analysis.report.render import Section
from tests.analysis.synthetic import Truth, run_of, write_sweep


def roofline_of(path: Path) -> Section | None:
    return kernels.roofline.section(Context(load(path)))


def test_kernels_stand_below_both_roofs(tmp_path: Path) -> None:
    truth = write_sweep(tmp_path, [run_of(profile="torch")])
    (chart,) = roofline_of(tmp_path).charts
    found = {trace["name"]: trace for trace in chart.figure["data"]}
    assert list(found) == ["datasheet", "measured", "convolution"]
    intensity = truth.flops / 3 / (truth.bytes / 4)
    assert sorted(found["convolution"]["x"]) == pytest.approx([intensity, 2 * intensity])
    # Rates of 15 ms of a third, and of two thirds, of the FLOPs, in GFLOP/s.
    rates = [truth.flops * part / 3 / 0.015 / 1e9 for part in (1, 2)]
    assert sorted(found["convolution"]["y"]) == pytest.approx(rates)
    # An A100: flat at 19.5 TFLOP/s from its ridge on, at 1555 GB/s times the intensity before.
    line = found["datasheet"]
    assert line["x"][1] == pytest.approx(19.5e12 / 1.555e12)
    assert line["y"][1:] == pytest.approx([19_500, 19_500])
    assert line["y"][0] / line["x"][0] == pytest.approx(1555)
    axes = chart.figure["layout"]
    assert axes["xaxis"]["type"] == axes["yaxis"]["type"] == "log"


def test_names_that_look_like_markup_stay_text_in_legends_and_below_the_pointer() -> None:
    kernel = {"kernel": "k", "class": "<b>c</b>", "direction": "fprop", "hint": "<i>k</i>",
              "ms_per_step": 1.0, "intensity_flop_per_byte": 1.0, "flops_per_s": 1e9}  # fmt: skip
    roof = Roof(1e12, 1e12)
    drawn = str(kernels.figure(pd.DataFrame([kernel]), [("<b>device</b>", roof)], "")["data"])
    bar = pd.DataFrame([{"label": "<i>k</i>", "series": "<b>c</b>", "value": 1.0}])
    drawn += str(plots.bars(bar, {"<b>c</b>": ""}, "", "", "")["data"])
    assert drawn.count("&lt;b&gt;device") == 2 and drawn.count("&lt;b&gt;c") == 2
    assert "<b>" not in drawn and "<i>" not in drawn


@pytest.mark.parametrize(
    ("truth", "said"), [(Truth(device="cpu"), "--peaks FILE"), (Truth(flops=0.0, bytes=0.0), "FLOPs")]
)
def test_without_a_peak_or_flops_it_says_so(truth: Truth, said: str, tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(profile="torch")], truth, calibration=False)
    section = roofline_of(tmp_path)
    assert section is not None and not section.charts and said in section.unavailable
