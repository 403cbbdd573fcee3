"""Scaling of sweeps whose truth is planted: efficiencies, intervals, baselines, groups, use of the device."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from analysis.diagnosis.runs import is_unsure
from analysis.display.metrics import records
from analysis.display.numbers import OPEN
from analysis.frames.load import load
from analysis.measures import anatomy
from analysis.measures.points import findings, points_of
from analysis.measures.scaled import without_unusable_intervals
from analysis.report.render import in_a_line
from profiling import tables
from tests.analysis.commands import answered, found, run
from tests.analysis.frames import opening_of, scaled_frame, section_of
from tests.analysis.synthetic import MS, Truth, change_manifest, run_of, write_run, write_sweep

SIZES = (1, 2, 4)
BOTH = ["NVIDIA A100-SXM4-40GB", "Tesla V100"]


def of_sizes(*sizes: int, **fields: Any) -> list:
    return [run_of(gpus_per_node=size, **fields) for size in sizes]


def both_of(*sizes: int, **fields: Any) -> list:
    """Unprofiled and profiled."""
    return [run_of(gpus_per_node=size, profile=of, **fields) for size in sizes for of in ("none", "torch")]


def asked(path: Path, *more: str) -> list[dict[str, Any]]:
    """The command's rows."""
    return answered("analysis.scaled", path, *more)[0]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    path = tmp_path_factory.mktemp("results") / "planted"
    runs = [*both_of(*SIZES), *both_of(2, 4, grad="fp16")]
    return path, write_sweep(path, runs, repetitions={"none": 3, "torch": 1})


@pytest.fixture(scope="module")
def table(planted: tuple[Path, Truth]) -> pd.DataFrame:
    return scaled_frame(load(planted[0]))


def at(table: pd.DataFrame, size: int, grad: str = "fp32") -> pd.Series:
    (place,) = np.flatnonzero((table["world_size"] == size) & (table["grad"] == grad))
    return table.iloc[place]


@pytest.mark.parametrize("size", SIZES)
def test_durations_throughput_and_efficiency(table, planted, size: int) -> None:
    row, truth = at(table, size), planted[1]
    step_ms = truth.step_ms[size]
    ideal = truth.step_ms[1] / step_ms
    figures = {
        "step_ms": step_ms, "images_per_s": 32 * size / step_ms * 1e3, "scaling_efficiency_pct": 100 * ideal,
        "speedup": size * ideal, "base_images_per_s": 320,
    }  # fmt: skip
    assert row[list(figures)].tolist() == pytest.approx(list(figures.values()), rel=0.01)
    assert row["step_ms_low"] <= row["step_ms"] <= row["step_ms_high"] < row["step_ms_low"] + 2
    stages = row[[f"mean_{stage}_ms" for stage in ("load", "forward", "backward", "update")]].sum()
    assert stages == pytest.approx(row["step_ms"], rel=0.01)
    assert (row["warmup_dropped"], row["runs"], row["kind_of_runs"]) == (9, 3, "unprofiled runs")
    assert row["base_world_size"] == 1
    if size > 1:
        assert row["scaling_efficiency_pct_low"] < 100 * ideal < row["scaling_efficiency_pct_high"]
    # One rank sends no gradients, and stands in for every precision; rows begin with the one it has.
    assert at(table, 2, "fp16")["base_world_size"] == 1
    assert at(table, 2, "fp16")["scaling_efficiency_pct"] == pytest.approx(100 * 100 / 110, rel=0.01)
    order = [(1, "fp32"), (2, "fp32"), (4, "fp32"), (2, "fp16"), (4, "fp16")]
    assert list(zip(table["world_size"], table["grad"], strict=True)) == order


def strong_sweep(path: Path, *more, **truth) -> None:
    """A job's batch of 64; truth: 100 / (60 x 2) = 83 % on 2 ranks, 100 / (45 x 4) = 56 % on 4."""
    runs = [run_of(gpus_per_node=size, batch=64 // size) for size in SIZES]
    write_sweep(path, [*runs, *more], Truth(step_ms={1: 100.0, 2: 60.0, 4: 45.0}, noise_ms=0.2, **truth))


def test_strong_scaling_compares_equal_global_batches(tmp_path: Path) -> None:
    strong_sweep(tmp_path)
    found = scaled_frame(load(tmp_path))  # the only kind that compares any of these
    assert set(found["scaling"]) == {"strong"} and found["world_size"].tolist() == [1, 2, 4]
    # T(P0) P0 / (T(P) P)
    assert at(found, 2)["scaling_efficiency_pct"] == pytest.approx(100 * 100 / (60 * 2), rel=0.01)
    assert at(scaled_frame(load(tmp_path), scaling="weak"), 2)["base_world_size"] == 2
    # 2 ranks x 64 have a base of the same batch a GPU, which two others with the same global batch outnumber.
    write_run(tmp_path, run_of(gpus_per_node=2, batch=64), Truth())
    assert {row["scaling"] for row in asked(tmp_path)} == {"strong"}


def change_steps(directory: Path, took_ns: Any) -> None:
    """Let the steps of a rank take as long as ``took_ns`` makes of their durations."""
    table = tables.read(directory, "batches")
    start, end = (table[name].to_numpy() for name in ("start_ns", "end_ns"))
    ends = start[0] + np.cumsum(np.asarray(took_ns(end - start), np.int64))
    columns = {name: table[name] for name in table.column_names}
    columns |= {"start_ns": np.r_[start[0], ends[:-1]], "end_ns": ends}
    tables.write(tables.as_table("batches", columns), directory, "batches")


def test_efficiency_is_by_throughput_where_slow_batches_are_rare(tmp_path: Path) -> None:
    """By median batches it would be 83 %; a batch in five of two ranks takes twice as long."""
    strong_sweep(tmp_path, warmup=0)
    for path in tmp_path.glob("run_*_config_1_2_*/rank_*"):
        change_steps(path, lambda took: took * np.where(np.arange(len(took)) % 5 == 2, 2, 1))
    row = at(scaled_frame(load(tmp_path)), 2)
    assert row["step_ms"] == pytest.approx(60, rel=0.01)
    assert row["images_per_s"] == pytest.approx(64 / (60 * 1.2) * 1e3, rel=0.01)
    assert row["scaling_efficiency_pct"] == pytest.approx(100 * 100 / (60 * 1.2 * 2), rel=0.01)


def test_a_step_ends_with_the_slowest_rank_and_ranks_late_by_turns_do_not_slow_the_job(tmp_path) -> None:
    write_sweep(tmp_path / "slow", of_sizes(2), Truth(slowest_extra_ms=7, noise_ms=0.1))
    row = anatomy.batches(load(tmp_path / "slow")).rows.iloc[0]
    assert row["step_ms"] == pytest.approx(110, abs=0.3)
    # Each batch one of two ranks takes 120 ms and the other 80: the job does a batch in 100 ms.
    write_sweep(tmp_path / "turns", of_sizes(2))
    for path in (tmp_path / "turns").glob("run_*/rank_*"):
        rank = int(path.name[-1])
        change_steps(path, lambda took, r=rank: np.where(np.arange(len(took)) % 2 == r, 120, 80) * MS)
    (row,) = asked(tmp_path / "turns")
    assert row["images_per_s"] == pytest.approx(64 / 0.100, rel=0.02)
    assert row["step_ms"] == pytest.approx(120)  # of the batches themselves each has a slowest rank


@pytest.mark.parametrize(("first", "step_ms"), [(20, 100), (0, 200)])
def test_profiled_runs_alone_are_timed_by_what_was_not_recorded_if_there_is_any(tmp_path, first, step_ms):
    runs = [run_of(profile="torch", attribute_from=first)]
    write_sweep(tmp_path, runs, Truth(perturbation=2.0, noise_ms=0.1))
    (row,), said = answered("analysis.scaled", tmp_path)
    assert row["step_ms"] == pytest.approx(step_ms, rel=0.01) and row["perturbation"] is None
    assert row["kind_of_runs"] == "profiled runs"
    assert said["timed_by_profiled_runs"] == {"n": 1, "of": 1}


def test_groups_sum_costs_first(planted, table: pd.DataFrame) -> None:
    """A mean over jobs of different sizes is the duration of none; the base point makes none look better."""
    by_size = scaled_frame(load(planted[0]), group_by=["world_size"])
    assert by_size["world_size"].tolist() == [1, 2, 4] and "grad" not in by_size
    seconds = sum(64 / rate for rate in table["images_per_s"][table["world_size"] == 2])
    assert by_size["images_per_s"][1] == pytest.approx(2 * 64 / seconds)
    assert by_size["speedup"][1] == pytest.approx(2 * 100 / 110, rel=0.01)
    ends = by_size[["scaling_efficiency_pct_low", "scaling_efficiency_pct_high"]].loc[1]
    assert ends.iloc[0] < 100 * 100 / 110 < ends.iloc[1]
    rows = asked(planted[0], "--group-by", "grad")
    ideal = 100 * (100 + 100) / (110 + 125)
    assert [row["scaling_efficiency_pct"] for row in rows] == pytest.approx([ideal, ideal], rel=0.005)
    of_one_size = ("step_ms", "step_ms_low", "images_per_s", "images_per_s_high", "speedup")
    of_one_size += ("kernel_ms_per_step", "exposed_communication_ms", "base_images_per_s")
    assert {row[name] for row in rows for name in of_one_size} == {None}
    assert [row["runs"] for row in rows] == [9, 6]


def test_intervals_take_two_runs_and_are_the_same_each_time(tmp_path: Path) -> None:
    write_sweep(tmp_path, of_sizes(1, 2), Truth(run_noise_ms=2))
    answer = answered("analysis.scaled", tmp_path)
    assert answer[1]["few_runs"] == {"n": 2, "of": 2, "least": 3}
    assert answered("analysis.scaled", tmp_path) == answer
    write_run(tmp_path, run_of(batch=64), Truth())
    rows, said = answered("analysis.scaled", tmp_path)
    assert said["few_runs"] == {"n": 3, "of": 3, "least": 3}
    (alone,) = [row for row in rows if row["runs"] == 1]
    assert alone["step_ms_low"] is None and alone["step_ms"]
    for size in (1, 2):
        write_run(tmp_path, run_of(gpus_per_node=size), Truth(), 2)
    assert found("analysis.scaled", tmp_path)["few_runs"]["n"] == 1


def test_runs_that_differ_much_are_said_to(tmp_path: Path) -> None:
    for repetition, step_ms in enumerate((100.0, 620.0, 200.0)):
        write_run(tmp_path, run_of(), Truth(step_ms={1: step_ms}, noise_ms=0.0), repetition)
    # With another of the same size, what tells it from that.
    write_run(tmp_path, run_of(batch=64), Truth(noise_ms=0.0))
    (finding,) = [one for one in findings(points_of(load(tmp_path))) if one.code == "runs_differ"]
    assert finding.configuration.endswith("batch 32")
    assert (finding.data["n"], finding.data["of"]) == (1, 2)
    assert finding.data["factor"] == pytest.approx(6.2, rel=0.01)


def test_sizes_on_which_all_runs_failed_are_said(tmp_path: Path) -> None:
    truth = Truth(step_ms={size: 100.0 + size for size in (1, 2, 4, 8, 16)})
    write_sweep(tmp_path, [*of_sizes(1, 2, 4, 8), run_of(batch=64)], truth)
    for size, batch in ((16, 32), (2, 64), (4, 64), (8, 64)):
        failed = run_of(gpus_per_node=size, batch=batch)
        write_run(tmp_path, failed, truth, exit_code=1, reason="out of memory\nand more")
    answer = run("analysis.scaled", tmp_path, "--format", "json", "--notes").json
    said = [one for one in answer["findings"] if one["code"] == "size_without_result"]
    assert [one["data"] for one in said] == [{"ranks": [16], "n": 1, "reason": "out of memory"}]


def test_an_interval_has_to_tell_the_order_of_magnitude() -> None:
    """Ten times the value, either way; a loss near 0 is as sure as the efficiency it is the rest of."""
    nan, names = np.nan, ("step_ms", "scaling_efficiency_pct", "loss_pct")
    values = {"step_ms": 10.0, "scaling_efficiency_pct": 99.9, "loss_pct": 0.1}
    ends = [
        ((1.0, 100.0), (92.0, 108.0), (-8.0, 8.0)),
        ((1.0, 100.5), (92.0, 1600.0), (-1500.0, 8.0)),
        ((0.9, 50.0), (92.0, 108.0), (-8.0, 8.0)),
        ((nan, nan), (92.0, nan), (-8.0, 8.0)),
    ]
    rows = [
        values | {f"{name}_{end}": one for name, of in zip(names, row, strict=True)
                  for end, one in zip(("low", "high"), of, strict=True)}
        for row in ends
    ]  # fmt: skip
    frame = pd.DataFrame(rows)
    shown = without_unusable_intervals(frame)
    pd.testing.assert_frame_equal(shown.loc[[0, 3]], frame.loc[[0, 3]])
    found = [[(row[f"{name}_low"], row[f"{name}_high"]) for name in names[::2]] for row in records(shown)]
    assert found[1:3] == [[OPEN, OPEN], [OPEN, (-8.0, 8.0)]]
    # Nor is an efficiency sure whose interval is wider than 40 points.
    ends = {"scaling_efficiency_pct_low": 92.0, "scaling_efficiency_pct_high": 132.5}
    assert is_unsure(ends) and not is_unsure(ends | {"scaling_efficiency_pct_high": 131.5})


def test_a_run_that_never_settles_or_drifts_is_said(tmp_path: Path) -> None:
    write_sweep(tmp_path / "never", [run_of()], Truth(warmup=20, warmup_factor=3.0))
    assert found("analysis.scaled", tmp_path / "never")["no_steady_state"]["n"] == 2
    write_sweep(tmp_path / "drifts", [run_of()], Truth(warmup=0))
    path = next((tmp_path / "drifts").glob("run_0_*/rank_0000"))
    for command in ("batches", "scaled"):
        assert "no_steady_state" not in found(f"analysis.{command}", tmp_path / "drifts")
    change_steps(path, lambda took: np.linspace(300, 100, len(took)) * MS)
    for command in ("batches", "scaled"):
        drift = found(f"analysis.{command}", tmp_path / "drifts")["no_steady_state"]
        assert (drift["n"], drift["of"], drift["runs"]) == (1, 2, [path.parent.name])
    change_steps(path, lambda took: np.linspace(125, 100, len(took)) * MS)
    warming = found("analysis.scaled", tmp_path / "drifts")["still_warming"]
    assert (warming["n"], warming["of"]) == (1, 2) and warming["longer_pct"] == pytest.approx(16, abs=1)


def test_more_than_ideal_scaling_and_more_than_the_peak_are_said(tmp_path: Path) -> None:
    write_sweep(tmp_path, of_sizes(1, 2), Truth(step_ms={1: 100.0, 2: 80.0}, training_flops_per_image=1e11))
    said = found("analysis.scaled", tmp_path)
    assert (said["above_ideal"]["n"], said["above_ideal"]["of"]) == (1, 2)
    assert said["above_ideal"]["efficiency_pct"] == pytest.approx(125, abs=1)
    assert (said["above_peak"]["what"], said["above_peak"]["n"]) == ("MFU", 2)
    assert said["above_peak"]["most_pct"] == pytest.approx(205, abs=2)
    write_sweep(tmp_path / "few", both_of(1), Truth(flops=3e11))
    assert found("analysis.scaled", tmp_path / "few")["flops_far_off"]["n"] == 1
    write_sweep(tmp_path / "less", of_sizes(1, 2))
    assert not {"above_ideal", "above_peak"} & found("analysis.scaled", tmp_path / "less").keys()


def test_runs_of_other_lengths_and_on_other_devices_are_not_averaged_unsaid(tmp_path: Path) -> None:
    """Of a point and its baseline, and of the repetitions of a point."""
    write_sweep(tmp_path, [run_of()])
    assert not {"not_compared", "devices_differ"} & found("analysis.scaled", tmp_path).keys()
    write_run(tmp_path, run_of(), Truth(device="Tesla V100"), repetition=2)
    write_run(tmp_path, run_of(batches=60), Truth(), repetition=7)
    said = found("analysis.scaled", tmp_path)
    assert said["devices_differ"] == {"devices": BOTH}
    assert said["not_compared"]["what"] == ["runs of 40 steps", "runs of 60 steps"]
    write_sweep(tmp_path / "sizes", [run_of()])
    write_run(tmp_path / "sizes", run_of(gpus_per_node=2), Truth(device="Tesla V100"))
    assert found("analysis.scaled", tmp_path / "sizes")["devices_differ"] == {"devices": BOTH}
    opening = opening_of(load(tmp_path / "sizes"))
    assert all(device in opening for device in BOTH)


def test_use_of_the_device(table: pd.DataFrame, planted: tuple[Path, Truth]) -> None:
    row, truth = at(table, 2), planted[1]
    kernels_s, batch_s = truth.kernel_ms / 1e3, truth.step_ms[2] / 1e3
    per_cent = {
        "flops_efficiency_of_kernels_pct": truth.flops / kernels_s / 19.5e12,
        "flops_efficiency_of_step_pct": truth.flops / batch_s / 19.5e12,
        "bandwidth_efficiency_of_kernels_pct": truth.bytes / kernels_s / 1555e9,
        "bandwidth_efficiency_of_step_pct": truth.bytes / batch_s / 1555e9,
        # Two ranks a node measured their peaks together.
        "flops_efficiency_of_step_of_measured_pct": truth.flops / batch_s / 14e12,
        "bandwidth_efficiency_of_step_of_measured_pct": truth.bytes / batch_s / 1.1e12,
        "mfu_pct": truth.training_flops_per_image * 32 / batch_s / 19.5e12,
        "flop_coverage_pct": truth.flops / (truth.training_flops_per_image * 32),
    }
    for name, share in per_cent.items():
        assert row[name] == pytest.approx(100 * share, rel=0.01), name
    for name in ("mfu_pct", "flops_efficiency_of_step_pct", "bandwidth_efficiency_of_step_pct"):
        # As sure as the batch is.
        assert row[f"{name}_low"] == pytest.approx(row[name] * row["step_ms"] / row["step_ms_high"], rel=1e-3)
        assert row[f"{name}_high"] == pytest.approx(row[name] * row["step_ms"] / row["step_ms_low"], rel=1e-3)
    assert row["kernel_ms_per_step"] == pytest.approx(truth.kernel_ms)
    assert row["perturbation"] == pytest.approx(truth.perturbation, rel=0.01)
    assert pd.isna(row["perturbation_low"])  # one profiled run does not tell how much such runs differ
    assert row["exposed_communication_ms"] == pytest.approx(truth.communication_ms - truth.hidden_ms)
    assert row["overlapped_communication_ms"] == pytest.approx(truth.hidden_ms)
    assert pd.isna(at(table, 1)["exposed_communication_ms"])


def test_the_profilers_cost_is_that_of_the_runs_that_timed_kernels(tmp_path: Path) -> None:
    """Counters of a kernel are read by running it again and again: 50 times the batch, and no kernels."""
    truth = Truth(noise_ms=0.1)
    write_sweep(tmp_path, both_of(1), truth, repetitions={"none": 3, "torch": 2})
    counted = write_run(tmp_path, run_of(profile="ncu"), Truth(perturbation=50.0))
    (counted / "rank_0000" / "kernels.parquet").unlink()
    (row,) = asked(tmp_path)
    assert row["profiled_runs"] == 3
    assert row["perturbation"] == pytest.approx(truth.perturbation, rel=0.01)
    assert row["perturbation_low"] < truth.perturbation < row["perturbation_high"]


def test_ranks_of_one_run_on_different_devices_stand_beside_the_mean_of_their_peaks(tmp_path: Path) -> None:
    write_sweep(tmp_path, both_of(4))
    for path in tmp_path.glob("run_*"):
        change_manifest(path, lambda one: {"device": "Tesla V100-SXM2-16GB"} if one.rank > 1 else {})
    (row,), said = answered("analysis.scaled", tmp_path)
    assert row["device_name"] == "NVIDIA A100-SXM4-40GB, Tesla V100-SXM2-16GB"
    assert row["peak_tflops_per_s"] == pytest.approx((19.5 + 15.7) / 2)
    assert row["flops_efficiency_of_kernels_pct"] == pytest.approx(100 * 0.74 / 0.06 / 17.6)
    assert "devices_differ" in said


@pytest.mark.parametrize(("device", "unit"), [("cpu", "rank"), ("NVIDIA L4", "GPU")])
def test_a_cpu_has_measured_peaks_only_and_ranks_instead_of_gpus(tmp_path: Path, device, unit) -> None:
    write_sweep(tmp_path, both_of(1, 2), Truth(device=device))
    (row, _), said = answered("analysis.scaled", tmp_path)
    assert (row["flops_efficiency_of_kernels_pct"] is None) == (device == "cpu")
    assert row["flops_efficiency_of_kernels_of_measured_pct"] == pytest.approx(100 * 7.4e11 / 0.06 / 15e12)
    assert "peak_unknown" not in said
    out = run("analysis.scaled", tmp_path).out
    assert f" {unit}s/ " in out.splitlines()[2] + " " and ("% of measured" in out) == (unit == "rank")
    (first, *_) = section_of(load(tmp_path), "table").tables
    assert in_a_line(first.columns[0].heading) == f"{unit}s/node"
