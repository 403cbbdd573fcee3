"""What kernels do, grouped as asked, beside their roofs; and what the difference of two runs adds up from."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from analysis.display import plots
from analysis.display.metrics import records
from analysis.frames.load import load
from analysis.measures import kernels, peaks
from analysis.measures.peaks import Roof
from analysis.report import kernels as report
from analysis.report.base import Context
from analysis.report.render import Section
from profiling import tables
from tests.analysis.commands import one_line_error, run
from tests.analysis.frames import kernels_frame
from tests.analysis.synthetic import Truth, change, change_rows, run_of, write_pyprof, write_run, write_sweep

OPERATORS = {"conv_fprop": "aten::convolution", "conv_bprop": "aten::convolution", "relu": "aten::relu"}
LAYERS = {"conv_fprop": "conv1", "conv_bprop": "conv1", "relu": "act1", "sgd": None}


@pytest.fixture(scope="module")
def planted(tmp_path_factory) -> Path:
    """A profiled run on one rank and one on two, with operators and layers."""
    path = tmp_path_factory.mktemp("kernels")
    write_sweep(path, [run_of(gpus_per_node=ranks, profile="torch") for ranks in (1, 2)])
    for file in path.glob("run_*/rank_*/kernels.parquet"):
        names = tables.read(file.parent, "kernels")["short_name"].to_pylist()
        of_names = {"operator": [*map(OPERATORS.get, names)], "layer": [*map(LAYERS.get, names)]}
        change(file.parent, "kernels", **{name: lambda _, made=made: made for name, made in of_names.items()})
    return path


def run_paths(path: Path) -> list[Path]:
    return sorted(path.glob("run_*_torch_*"))


@pytest.mark.parametrize(
    ("by", "group", "ms"),
    [
        ("class", {"class": "convolution"}, 30),
        ("operator", {"operator": "aten::convolution"}, 30),
        ("layer", {"layer": "conv1"}, 30),
        ("direction", {"direction": "fprop"}, 30),
        ("kernel", {"kernel": "conv_bprop"}, 15),
        ("layer,direction", {"layer": "conv1", "direction": "bprop"}, 15),
    ],
)
def test_kernels_are_grouped_as_asked(planted: Path, by: str, group: dict[str, str], ms: float) -> None:
    found = run("analysis.kernels", run_paths(planted)[0], "--by", by, "--format", "csv").csv
    assert list(found[0])[: by.count(",") + 1] == by.split(",")
    (row,) = [row for row in found if all(row[name] == value for name, value in group.items())]
    assert float(row["ms_per_step"]) == pytest.approx(ms)
    # Whatever the groups, they hold every kernel: four of 15 ms and a copy of 2 ms.
    assert sum(float(row["ms_per_step"]) for row in found) == pytest.approx(62)
    assert sum(float(row["share_pct"]) for row in found) == pytest.approx(100)


@pytest.mark.parametrize("flags", ["--by operatr", "--by class --method published", "--summary"])
def test_wrong_groups_are_one_line(planted: Path, flags: str) -> None:
    one_line_error(run("analysis.kernels", planted, *flags.split()))


def test_planted_kernels_stand_where_their_work_puts_them(planted: Path) -> None:
    found = kernels_frame(load(run_paths(planted)[0])).set_index("kernel")
    truth = Truth()
    conv, relu = found.loc["conv_fprop"], found.loc["relu"]
    assert conv["intensity_flop_per_byte"] == pytest.approx(truth.flops / 3 / (truth.bytes / 4))
    assert conv["bound"] == "compute" and relu["bound"] == "bandwidth"
    assert conv["roof_pct"] == pytest.approx(100 * truth.flops / 3 / 0.015 / 19.5e12)
    assert conv["roof_pct"] == pytest.approx(conv["flops_efficiency_pct"])
    assert relu["roof_pct"] == pytest.approx(100 * truth.bytes / 4 / 0.015 / 1.555e12)
    assert conv["roof_of_measured_pct"] == pytest.approx(100 * truth.flops / 3 / 0.015 / 15e12)
    assert conv["flops_efficiency_of_measured_pct"] == pytest.approx(conv["roof_of_measured_pct"])
    assert relu["bandwidth_efficiency_of_measured_pct"] == pytest.approx(relu["roof_of_measured_pct"])
    # A copy of the loader's is no work of the model.
    assert found.loc["copy"][list(peaks.COLUMNS)].isna().all()


def totals(a: Path, b: Path, *flags: str) -> dict[str, dict[str, float]]:
    found = run("analysis.kernels", a, b, "--summary", "--format", "json", *flags).json
    return {row.pop("change"): row for row in found}


def test_the_planted_difference_is_explained_and_adds_up(tmp_path: Path) -> None:
    """Kernels of 60 ms become 80, a collective of 20 ms is new, of which 15 ms are hidden; 2 ms of copies."""
    a = write_run(tmp_path, run_of(profile="torch"), Truth(noise_ms=0))
    truth = Truth(kernel_ms=80.0, noise_ms=0)
    found = totals(a, write_run(tmp_path, run_of(profile="torch", gpus_per_node=2), truth))
    assert list(found) == [
        "slower", "new", "same", "all kernels", "run at once", "no kernel runs", "step",
    ]  # fmt: skip
    differences = {name: row["difference_ms"] for name, row in found.items()}
    assert differences["slower"] == pytest.approx(20) and found["slower"]["kernels"] == 4
    assert differences["new"] == pytest.approx(20) and found["new"]["kernels"] == 1
    # The collective runs from 65 to 85 ms: beside kernels until 80, beside the copy until 82.
    assert differences["run at once"] == pytest.approx(-17)
    assert differences["step"] == pytest.approx(1.25 * (110 - 100))
    assert found["step"]["a_ms"] == pytest.approx(125)
    kinds = sum(differences.get(kind, 0.0) for kind in kernels.KINDS)
    assert kinds == pytest.approx(differences["all kernels"]) == pytest.approx(40)
    parts = ("all kernels", "run at once", "no kernel runs")
    assert sum(differences[name] for name in parts) == pytest.approx(differences["step"])


def side(calls: float, each_ms: float) -> pd.DataFrame:
    """One kernel with so many calls per step, of so many ms each."""
    named = {"kernel": "gemm", "class": "gemm", "direction": "fprop"}
    return pd.DataFrame([{**named, "calls_per_step": calls, "ms_per_step": calls * each_ms}])


def totals_of(a: pd.DataFrame, b: pd.DataFrame) -> list[dict[str, Any]]:
    return records(kernels.summary(kernels.differences(a, b), kernels.Side(a), kernels.Side(b)))


@pytest.mark.parametrize(
    ("calls", "each_ms", "change", "by_calls", "by_duration"),
    [
        (20, 1.0, "more calls", 10.0, 0.0), (5, 1.0, "fewer calls", -5.0, 0.0),
        (10, 1.5, "slower", 0.0, 5.0), (10, 0.5, "faster", 0.0, -5.0),
        (20, 0.8, "more calls", 9.0, -3.0),  # although each is shorter
        (8, 2.0, "slower", -3.0, 9.0),  # although they are fewer
        (20, 0.5, "same", 7.5, -7.5), (10, 1.0, "same", 0.0, 0.0),
    ],
)  # fmt: skip
def test_more_calls_are_not_slower_ones(calls, each_ms, change, by_calls, by_duration):
    """Before, a step has 10 calls of 1 ms."""
    a, b = side(10, 1.0), side(calls, each_ms)
    (row,) = records(kernels.differences(a, b))
    assert row["change"] == change
    assert (row["by_calls_ms"], row["by_duration_ms"]) == pytest.approx((by_calls, by_duration))
    assert row["by_calls_ms"] + row["by_duration_ms"] == pytest.approx(row["difference_ms"])
    (back,) = records(kernels.differences(b, a))
    assert (back["by_calls_ms"], back["by_duration_ms"]) == pytest.approx((-by_calls, -by_duration))
    *_, whole = totals_of(a, b)
    assert whole["by_calls_ms"] + whole["by_duration_ms"] == pytest.approx(whole["difference_ms"])
    # Ten large copies, or 320 small ones: the two effects would be many times the difference.
    other = side(320, 0.01) if calls > 10 else side(2.5, 5.0)
    (row,) = records(kernels.differences(a, other))
    assert (row["change"], row["by_calls_ms"], row["by_duration_ms"]) == ("other calls", None, None)
    assert {one["change"]: one["by_calls_ms"] for one in totals_of(a, other)} == {
        "other calls": None, "all kernels": None,
    }  # fmt: skip


def test_a_launch_without_a_duration_does_not_hide_the_batch_and_one_without_a_place_does(tmp_path) -> None:
    """Nobody counts it, nor one of a duration below 0: the others still add up to the batch."""
    one = run_of(profile="torch", gpus_per_node=2)
    a, b = (write_run(tmp_path / name, one, Truth(noise_ms=0)) for name in "ab")
    before = totals(a, b)
    odd = [{"duration_ns": took} for took in (None, -(10**9))]
    change_rows(b / "rank_0001", "kernels", lambda rows: [*rows, *(rows[0] | one for one in odd)])
    assert totals(a, b) == before and "step" in before
    change(b / "rank_0001", "kernels", start_ns=lambda at: [None, *at[1:]])
    assert "all kernels" in (found := totals(a, b)) and "step" not in found


def test_the_published_method_prints_its_tables(tmp_path: Path) -> None:
    a, b = write_pyprof(tmp_path / "a"), write_pyprof(tmp_path / "b", trials=0)
    words = ("analysis.kernels", a, b, "--direction", "fprop", "--method", "published")
    rows, said = run(*words, "--format", "csv").csv, run(*words).out
    assert rows and all(row["kernel"] in said for row in rows) and "A: run_0" in said
    words = ("analysis.kernels", a, "--metric", "flops-efficiency", "--method", "published")
    assert "flops" in run(*words).out
    assert "omit B" in one_line_error(run(*words[:2], b, *words[2:]))


def roofline_of(path: Path) -> Section | None:
    return report.roofline.section(Context(load(path)))


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
    drawn = str(report.figure(pd.DataFrame([kernel]), [("<b>device</b>", Roof(1e12, 1e12))], "")["data"])
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
