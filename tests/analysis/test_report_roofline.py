"""The report's roofline and factors: charts hold what was planted, or words say why there are none."""

import re
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pytest

from analysis.display import plots
from analysis.measures.kernels.roofline import Roof
from analysis.report import factors, kernels, roofline
from analysis.report.base import Context
from analysis.report.build import build
from analysis.report.render import Section
from analysis.results.load import load
from profiling import tables
from tests.analysis.synthetic import Truth, run_of, write_pyprof, write_run, write_sweep


def roofline_of(path: Path) -> Section | None:
    return roofline.ROOFLINE.section(Context(load(path)))


def traces(section: Section | None) -> dict[str, dict]:
    assert section is not None
    return {trace["name"]: trace for trace in section.charts[0].figure["data"]}


# --- the roofline -------------------------------------------------------------------------------------


def test_ticks_are_whole_numbers_and_not_single_digits(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(profile="torch")])
    section = roofline_of(tmp_path)
    assert section is not None
    ticks = section.charts[0].figure["layout"]["xaxis"]
    assert {"5", "10", "20", "50", "100"} <= set(ticks["ticktext"]) and 20.0 in ticks["tickvals"]


def test_kernels_stand_below_both_roofs(tmp_path: Path) -> None:
    truth = write_sweep(tmp_path, [run_of(profile="torch")])
    section = roofline_of(tmp_path)
    found = traces(section)
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
    layout = section.charts[0].figure["layout"] if section else {}
    assert layout["xaxis"]["type"] == layout["yaxis"]["type"] == "log"


def test_names_that_look_like_markup_stay_text_in_legends_and_below_the_pointer() -> None:
    kernel = {"kernel": "k", "class": "<b>c</b>", "direction": "fprop", "hint": "<i>k</i>",
              "ms_per_step": 1.0, "intensity_flop_per_byte": 1.0, "flops_per_s": 1e9}  # fmt: skip
    roof = Roof(1e12, 1e12)
    drawn = str(roofline.figure(pd.DataFrame([kernel]), [("<b>device</b>", roof)], "")["data"])
    top = pd.DataFrame([kernel | {"short_name": "<i>k</i>"}])
    drawn += str(plots.kernels(top, "")["data"])
    assert drawn.count("&lt;b&gt;device") == 2 and drawn.count("&lt;b&gt;c") == 2
    assert "<b>" not in drawn and "<i>" not in drawn


def test_points_are_as_large_as_their_time(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(profile="torch")])
    for file in tmp_path.glob("run_*/rank_*/kernels.parquet"):
        table = tables.read(file.parent, "kernels").to_pandas()
        table.loc[table["short_name"] == "conv_bprop", "duration_ns"] *= 4
        columns = {column: table[column].tolist() for column in table}
        tables.write(tables.as_table("kernels", columns), file.parent, "kernels")
    sizes = traces(roofline_of(tmp_path))["convolution"]["marker"]["size"]
    assert max(sizes) == pytest.approx(2 * min(sizes))  # four times the area


def test_shares_of_the_time_by_bound_are_said(tmp_path: Path) -> None:
    """Two of four kernels credit FLOPs: 30 ms of 62 by arithmetic, 30 by bandwidth; 2 ms of copies."""
    write_sweep(tmp_path, [run_of(profile="torch")])
    section = roofline_of(tmp_path)
    assert section is not None and "48 % of kernel time is in compute-bound kernels and 4" in section.text
    assert "the other 3 % is in collectives" in section.text
    classes = [row.cells[0].text for row in section.tables[0].rows]
    assert set(classes) == {"convolution", "pointwise", "optimizer"}


def test_a_run_all_of_whose_ranks_were_recorded_comes_before_a_larger_one_of_which_one_was(
    tmp_path: Path,
) -> None:
    write_sweep(tmp_path, [run_of(profile="torch", gpus_per_node=size) for size in (2, 4)])
    for rank in (1, 2, 3):
        (file,) = tmp_path.glob(f"run_0_config_1_4*/rank_000{rank}/kernels.parquet")
        file.unlink()
    section = roofline_of(tmp_path)
    assert section is not None and "2 per node" in section.charts[0].figure["layout"]["title"]["text"]
    assert "counts single kernels; the table judges each class as a whole" in section.text


def test_without_a_peak_it_says_so(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(profile="torch")], Truth(device="cpu"), calibration=False)
    section = roofline_of(tmp_path)
    assert section is not None and not section.charts and "--peaks FILE" in section.text


def test_without_flops_it_says_so(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(profile="torch")], Truth(flops=0.0, bytes=0.0))
    section = roofline_of(tmp_path)
    assert section is not None and not section.charts and "no FLOPs or bytes" in section.text


def test_without_kernels_there_is_no_section(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of()])
    assert roofline_of(tmp_path) is None


def test_a_pyprof_table_has_one(tmp_path: Path) -> None:
    found = traces(roofline_of(write_pyprof(tmp_path)))
    assert "convolution" in found and "measured" not in found


# --- one rank and several -----------------------------------------------------------------------------


def test_the_kernels_that_more_ranks_add_are_named_and_add_up(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(gpus_per_node=ranks, profile="torch") for ranks in (1, 2, 4)])
    section = kernels.CHANGE.section(Context(load(tmp_path)))
    assert section is not None and "From 1 to 4 ranks" in section.text
    assert (
        "by +20.0 ms; largest change: ncclAllReduce" in section.text
        and "By kind: new +20.0 ms." in section.text
    )
    # Of 20 ms 15 are beside kernels, 2 beside the copy; recording makes 125 and 156 ms of 100 and 125.
    assert "run at the same time counts once (-17.0 ms)" in section.text and "ncclAllReduce" in str(
        section.tables[1]
    )
    summands = section.tables[0]
    (place,) = [place for place, column in enumerate(summands.columns) if column.header == "B - A ms"]
    totals = {row.cells[0].text: row.cells[place].value for row in summands.rows}
    assert totals["step"] == pytest.approx(1.25 * 25, abs=1.5)
    parts = ("all kernels", "run at once", "no kernel runs")
    assert sum(float(totals[name]) for name in parts) == pytest.approx(float(totals["step"]), abs=2e-3)


def test_the_kinds_that_are_named_add_up_to_all_kernels(tmp_path: Path) -> None:
    """One kernel is gone and another new, and one takes 0.9 % longer: it counts as the same."""
    write_sweep(tmp_path, [run_of(gpus_per_node=ranks, profile="torch") for ranks in (1, 2)])
    for rank in (0, 1):
        folder = next(tmp_path.glob("run_*_1_2_*_torch_*")) / f"rank_{rank:04d}"
        table = tables.read(folder, "kernels")
        names = table["short_name"].to_pylist()
        renamed = pa.array(["fused" if name == "relu" else name for name in names]).dictionary_encode()
        lasted = [
            round(1.009 * ns) if name == "conv_fprop" else ns
            for name, ns in zip(names, table["duration_ns"].to_pylist(), strict=True)
        ]
        for column, values in (("short_name", renamed), ("duration_ns", pa.array(lasted, pa.int64()))):
            table = table.set_column(table.column_names.index(column), column, values)
        tables.write(table, folder, "kernels")
    section = kernels.CHANGE.section(Context(load(tmp_path)))
    assert section is not None
    said = re.search(r"per step and rank changes by ([+-][\d.]+) ms;.*By kind: ([^:]*?ms)\.", section.text)
    assert said is not None
    kinds = {name: float(ms) for name, ms in re.findall(r"([a-z ]+?) ([+-][\d.]+) ms", said[2])}
    assert set(map(str.strip, kinds)) == {"new", "gone", "same"}
    assert sum(kinds.values()) == pytest.approx(float(said[1]), abs=0.05 * (len(kinds) + 1))
    caption = " ".join(section.tables[0].note.split())
    assert "All kernels = new + gone + same." in caption


def test_runs_that_are_not_of_one_configuration_are_no_pair(tmp_path: Path) -> None:
    points = [run_of(profile="torch", workers=ranks, gpus_per_node=ranks) for ranks in (1, 2)]
    write_sweep(tmp_path, points)
    assert kernels.CHANGE.section(Context(load(tmp_path))) is None


def test_the_pair_has_one_precision_of_gradients(tmp_path: Path) -> None:
    points = [run_of(profile="torch", gpus_per_node=2, grad="fp16"), run_of(profile="torch", gpus_per_node=4)]
    write_sweep(tmp_path, points)
    assert kernels.CHANGE.section(Context(load(tmp_path))) is None
    truth = Truth(step_ms={2: 110.0, 4: 125.0, 8: 130.0})
    write_sweep(tmp_path, [run_of(profile="torch", gpus_per_node=8, grad="fp16")], truth, calibration=False)
    section = kernels.CHANGE.section(Context(load(tmp_path)))
    assert section is not None and "From 2 to 8 ranks" in section.text and "differ" not in section.text


def test_one_rank_may_have_another_precision_and_the_section_says_so(tmp_path: Path) -> None:
    points = [run_of(profile="torch"), run_of(profile="torch", gpus_per_node=4, grad="fp16")]
    write_sweep(tmp_path, points)
    section = kernels.CHANGE.section(Context(load(tmp_path)))
    assert (
        section is not None and "fp16 on 4 ranks, fp32 on one rank, which sends no gradients" in section.text
    )
    write_sweep(tmp_path, [run_of(profile="torch", gpus_per_node=4)], calibration=False)
    section = kernels.CHANGE.section(Context(load(tmp_path)))
    assert section is not None and "differ in gradient precision" not in section.text


# --- factors ------------------------------------------------------------------------------------------


def sweep_of(path: Path, repetitions: int = 4) -> Path:
    """Two ranks are slower by half; workers change nothing."""
    truth = Truth(step_ms={1: 100.0, 2: 150.0}, run_noise_ms=1.0)
    runs = [run_of(gpus_per_node=ranks, workers=workers) for ranks in (1, 2) for workers in (1, 2)]
    write_sweep(path, runs, truth, repetitions={"none": repetitions})
    return path


def test_the_factor_that_matters_is_the_longest_bar(tmp_path: Path) -> None:
    section = factors.FACTORS.section(Context(load(sweep_of(tmp_path))))
    assert section is not None and section.text.startswith("The factor gpus_per_node explains most")
    found = traces(section)
    assert list(found) == ["main effect", "interaction"]
    bars = dict(zip(found["main effect"]["y"], found["main effect"]["x"], strict=True))
    assert bars["gpus_per_node"] > 0.95 and abs(bars["workers"]) < 0.05
    ends = found["main effect"]["error_x"]
    assert len(ends["array"]) == 2 and min(ends["array"] + ends["arrayminus"]) >= 0
    order = section.charts[0].figure["layout"]["yaxis"]["categoryarray"]
    assert order[0] == "gpus_per_node"
    assert "No significant interaction" in section.text


def test_one_repetition_has_bars_without_intervals(tmp_path: Path) -> None:
    section = factors.FACTORS.section(Context(load(sweep_of(tmp_path, repetitions=1))))
    assert "error_x" not in traces(section)["main effect"]
    assert section is not None and "not available" in section.text


def test_one_factor_is_no_section(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(gpus_per_node=ranks) for ranks in (1, 2)])
    assert factors.FACTORS.section(Context(load(tmp_path))) is None


def test_profiled_runs_alone_say_why_not(tmp_path: Path) -> None:
    for ranks, workers in ((1, 1), (2, 2)):
        write_run(tmp_path, run_of(profile="torch", gpus_per_node=ranks, workers=workers), Truth())
    section = factors.FACTORS.section(Context(load(tmp_path)))
    assert section is not None and "no unprofiled run" in section.text


def test_the_page_has_both(tmp_path: Path) -> None:
    sweep_of(tmp_path)
    write_run(tmp_path, run_of(profile="torch"), Truth())
    ids = [section.id for section in build(load(tmp_path)).sections]
    assert "factors" in ids and "roofline" in ids
