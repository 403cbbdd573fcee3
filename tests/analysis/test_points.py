"""Corners of scaling: one size only, late ranks, runs that never reach a steady state, groups, how often "
"intervals hold."""

import json
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from analysis.display.metrics import names_of
from analysis.frames.load import load
from analysis.measures import loss, use
from analysis.measures.points import findings, points_of
from analysis.measures.scaled import figures
from analysis.measures.scaled import tables as tables_of
from analysis.report.build import build
from profiling import tables
from tests.analysis.commands import found, run
from tests.analysis.frames import scaled_rows
from tests.analysis.synthetic import MS, Truth, run_of, write_pyprof, write_run, write_sweep


def test_one_size_only_is_its_own_base(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of()])
    (row,) = run("analysis.scaled", tmp_path, "--format", "json", "--all").json
    assert (row["speedup"], row["scaling_efficiency_pct"]) == (1, 100)
    assert row["scaling_efficiency_pct_low"] is None  # by definition, not by measurement
    assert (row["base_world_size"], row["base"]) == (1, "1 node x 1 GPU, fp32 gradients")
    assert row["base_images_per_s"] == row["images_per_s"]
    assert row["step_ms_low"] < row["step_ms"] < row["step_ms_high"]


def test_each_configuration_has_its_own_base(tmp_path: Path) -> None:
    runs = [run_of(gpus_per_node=size, batch=batch) for size in (1, 2) for batch in (16, 32)]
    write_sweep(tmp_path, runs)
    rows = run("analysis.scaled", tmp_path, "--format", "json", "--all").json
    by_point = {(row["batch"], row["world_size"]): row for row in rows}
    for batch in (16, 32):
        assert by_point[batch, 2]["base_images_per_s"] == by_point[batch, 1]["images_per_s"]
    assert by_point[32, 1]["images_per_s"] == pytest.approx(2 * by_point[16, 1]["images_per_s"], rel=0.01)


def test_a_point_is_built_whole_and_stays_as_it_is(tmp_path: Path) -> None:
    runs = [run_of(gpus_per_node=size, profile=profile) for size in (1, 2) for profile in ("none", "torch")]
    write_sweep(tmp_path, runs)
    study = load(tmp_path)
    one, two = sorted(points_of(study), key=lambda point: point.world_size)
    assert (one.baseline, one.base, two.baseline) == (None, one, one)
    assert [len(two.timed), len(two.profiled)] == [2, 1] and two.cost
    before = two.rate
    known = loss.parts_of_points([one, two], loss.parts_of_runs(study))
    assert set(known) == {one, two} and all(known.values()) and two.rate is before
    with pytest.raises(FrozenInstanceError):
        two.baseline = None  # type: ignore[misc]


def test_without_anatomies_the_parts_of_the_loss_are_not_known(tmp_path: Path) -> None:
    write_sweep(
        tmp_path, [run_of(gpus_per_node=size, profile=p) for size in (1, 2) for p in ("none", "torch")]
    )
    study = load(tmp_path)
    two = max(points_of(study), key=lambda point: point.world_size)
    bare, whole = (
        figures([two]),
        figures([two], parts=loss.parts_of_points([two.base, two], loss.parts_of_runs(study))),
    )
    assert bare["loss_pct"] == whole["loss_pct"] and "loss_compute_pct" not in bare
    assert "loss_compute_pct" in whole and bare["loss_note"] and not whole["loss_note"]


@pytest.mark.parametrize("group_by", [(), ("batch", "nodes")])
def test_the_rows_have_one_schema_whatever_the_results(tmp_path: Path, group_by: tuple[str, ...]) -> None:
    """Each row has each column, in one order; where a kind of results has no figure it is empty."""
    write_sweep(tmp_path / "runs", [run_of(), run_of(profile="torch"), run_of(gpus_per_node=2)])
    write_pyprof(tmp_path / "tables")
    own, published = (
        scaled_rows(load(tmp_path / "runs"), methods=[method], group_by=group_by)
        for method in ("corrected", "published")
    )
    tables = scaled_rows(load(tmp_path / "tables"), group_by=group_by)
    assert all(list(row) == list(own[0]) for row in (*own, *published, *tables))
    assert {row["method"] for row in published} == {"published"}
    assert own[0]["runs"] and own[0]["tables"] is None and own[0]["epoch_duration_s"] is None
    assert tables[0]["tables"] == 1 and tables[0]["runs"] is None
    assert published[0]["epoch_duration_s"] and published[0]["tables"] is published[0]["step_ms"] is None


def test_a_run_that_is_watched_otherwise_is_of_the_same_point(tmp_path: Path) -> None:
    """Its durations come from the unprofiled run, whatever its profiler was asked for."""
    write_sweep(tmp_path, [run_of(), run_of(profile="torch", profile_mode="memory")])
    (row,) = run("analysis.scaled", tmp_path, "--format", "json", "--all").json
    assert row["kind_of_runs"] == "unprofiled runs" and row["perturbation"] is not None
    assert row["profile"] == "none+torch"  # torch alone would say that its steps were profiled


def test_every_field_of_the_workload_tells_lines_of_the_report_apart(tmp_path: Path) -> None:
    rates = [0.01, 0.1]
    runs = [run_of(gpus_per_node=size, learning_rate=rate) for size in (1, 2) for rate in rates]
    for one in runs:
        write_run(tmp_path, one, Truth(), outside=("learning_rate",))
    (figure,) = [
        chart.figure
        for section in build(load(tmp_path)).sections
        for chart in section.charts
        if chart.id == "throughput"
    ]
    lines = [line for line in figure["data"] if "learning rate" in str(line.get("name"))]
    assert len({line["name"] for line in lines}) >= 2 and all(list(line["x"]) == [1, 2] for line in lines)


def test_ranks_that_are_late_by_turns_do_not_slow_the_job(tmp_path: Path) -> None:
    """Each batch one of two ranks takes 120 ms and the other 80: the job does a batch in 100 ms."""
    write_sweep(tmp_path, [run_of(gpus_per_node=2)])
    for directory in tmp_path.glob("run_*"):
        for rank in (0, 1):
            _late_by_turns(tables.rank_directory(directory, rank), rank)
    (row,) = run("analysis.scaled", tmp_path, "--format", "json", "--all").json
    assert row["images_per_s"] == pytest.approx(64 / 0.100, rel=0.02)
    # Of the batches themselves each has a slowest rank.
    assert row["step_ms"] == pytest.approx(120)


def _late_by_turns(directory: Path, rank: int) -> None:
    table = tables.read(directory, "batches")
    start = int(table["start_ns"][0].as_py())
    late = np.arange(table.num_rows) % 2 == rank
    ends = start + np.cumsum(np.where(late, 120_000_000, 80_000_000))
    columns = {name: table[name] for name in table.column_names}
    columns |= {"start_ns": np.r_[start, ends[:-1]], "end_ns": ends}
    tables.write(tables.as_table("batches", columns), directory, "batches")


def test_a_run_that_never_settles_is_said(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of()], Truth(warmup=20, warmup_factor=3.0))
    assert found("analysis.scaled", tmp_path)["no_steady_state"]["n"] == 2
    write_sweep(tmp_path / "settled", [run_of()])
    assert "no_steady_state" not in found("analysis.scaled", tmp_path / "settled")


def test_groups_of_fields_and_of_world_sizes(tmp_path: Path) -> None:
    runs = [run_of(gpus_per_node=size, batch=batch) for size in (1, 2, 4) for batch in (16, 32)]
    write_sweep(tmp_path, runs)
    rows = run("analysis.scaled", tmp_path, "--group-by", "world_size", "--format", "json", "--all").json
    assert [row["world_size"] for row in rows] == [1, 2, 4]
    assert "batch" not in rows[0]
    assert rows[1]["scaling_efficiency_pct"] == pytest.approx(100 * 100 / 110, rel=0.01)
    assert rows[1]["speedup"] == pytest.approx(2 * 100 / 110, rel=0.01)
    by_batch = run("analysis.scaled", tmp_path, "--group-by", "batch", "--format", "json", "--all").json
    # Over sizes that differ there is an efficiency (ideal time over time), but no one speedup.
    assert [row["batch"] for row in by_batch] == [16, 32]
    ideal = 100 * (100 + 100) / (110 + 125)
    assert by_batch[1]["speedup"] is None
    assert by_batch[1]["scaling_efficiency_pct"] == pytest.approx(ideal, rel=0.01)
    assert by_batch[1]["scaling_efficiency_pct_low"] < ideal < by_batch[1]["scaling_efficiency_pct_high"]


@pytest.mark.parametrize("sizes", [(1, 2, 4), (1, 2)])
def test_a_group_of_several_world_sizes_has_no_durations(tmp_path: Path, sizes: tuple[int, ...]) -> None:
    """A mean over jobs of different sizes is the duration of none; an efficiency they have."""
    runs = [run_of(gpus_per_node=size, profile=profile) for size in sizes for profile in ("none", "torch")]
    write_sweep(tmp_path, runs, repetitions={"none": 3, "torch": 1})
    ran = run("analysis.scaled", tmp_path, "--group-by", "grad", "--format", "json", "--all")
    (row,) = ran.json
    assert row["runs"] == 3 * len(sizes) and row["scaling_efficiency_pct"]
    of_one_size = ("step_ms", "step_ms_low", "images_per_s", "images_per_s_high", "speedup", "forward_ms",
                   "startup_s", "kernel_ms_per_step", "exposed_communication_ms",
                   "base_images_per_s")  # fmt: skip
    assert {name: row[name] for name in of_one_size} == dict.fromkeys(of_one_size)
    apart = run("analysis.scaled", tmp_path, "--group-by", "grad,world_size", "--format", "json", "--all")
    assert all(row["step_ms"] for row in apart.json)


def test_a_group_with_the_base_point_scales_no_better_for_it(tmp_path: Path) -> None:
    """fp16 gradients are as fast as fp32 here; only fp32 has the point of one rank."""
    runs = [run_of(gpus_per_node=size, grad=grad) for size in (1, 2, 4) for grad in ("fp32", "fp16")
            if size > 1 or grad == "fp32"]  # fmt: skip
    write_sweep(tmp_path, runs)
    rows = run("analysis.scaled", tmp_path, "--group-by", "grad", "--format", "json", "--all").json
    ideal = 100 * (100 + 100) / (110 + 125)
    assert [row["scaling_efficiency_pct"] for row in rows] == pytest.approx([ideal, ideal], rel=0.005)


@pytest.mark.parametrize("name", ["loader", "model", "seed", "batches", "network"])
def test_any_field_groups(tmp_path: Path, name: str) -> None:
    write_sweep(tmp_path, [run_of(gpus_per_node=size) for size in (1, 2)])
    (row,) = run("analysis.scaled", tmp_path, "--group-by", name, "--format", "csv", "--all").csv
    assert row[name] == str(getattr(run_of(), name))


def test_efficiencies_hold_the_truth_as_often_as_they_say(tmp_path: Path) -> None:
    """Small sweeps of two repetitions a point whose runs differ by 3 %: intervals hold the truth."""
    hits = total = 0
    for number in range(10):
        path = tmp_path / str(number)
        # The noise of a run is seeded by its id: another seed of training, another sweep.
        runs = [run_of(gpus_per_node=size, batches=20, batch=16 + number) for size in (1, 2, 4)]
        runs += [run_of(gpus_per_node=size, batches=20, batch=160 + number) for size in (1, 2, 4)]
        truth = write_sweep(path, runs, Truth(run_noise_ms=3.0, noise_ms=0.5), calibration=False)
        for row in scaled_rows(load(path)):
            if row["world_size"] > 1:
                planted = 100 * truth.step_ms[1] / truth.step_ms[row["world_size"]]
                hits += row["scaling_efficiency_pct_low"] <= planted <= row["scaling_efficiency_pct_high"]
                total += 1
    # 95 % of 40 is 38, with a standard deviation of 1.4.
    assert (total, hits >= 34) == (40, True)


def test_sizes_on_which_all_runs_failed_are_said(tmp_path: Path) -> None:
    """All of a size, and of one configuration on most sizes that another has."""
    truth = Truth(step_ms={size: 100.0 + size for size in (1, 2, 4, 8, 16)})
    write_sweep(tmp_path, [*(run_of(gpus_per_node=size) for size in (1, 2, 4, 8)), run_of(batch=64)], truth)
    for size, batch in ((16, 32), (2, 64), (4, 64), (8, 64)):
        failed = run_of(gpus_per_node=size, batch=batch)
        write_run(tmp_path, failed, truth, exit_code=1, reason="out of memory\nand more")
    answer = run("analysis.scaled", tmp_path, "--format", "json", "--notes").json
    said = [one for one in answer["findings"] if one["code"] == "size_without_result"]
    assert [(one.get("configuration"), one["data"]["ranks"], one["data"]["n"]) for one in said] == [
        (None, [16], 1), ("batch 64", [2, 4, 8], 3),
    ]  # fmt: skip
    assert said[0]["data"]["reason"] == "out of memory"


def test_two_repetitions_are_said_to_make_intervals_wide(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(), run_of(gpus_per_node=2)])
    assert found("analysis.scaled", tmp_path)["few_runs"] == {"n": 2, "of": 2, "least": 3}
    for size in (1, 2):
        write_run(tmp_path, run_of(gpus_per_node=size), Truth(), 2)
    assert "few_runs" not in found("analysis.scaled", tmp_path)


def test_the_seed_of_the_intervals_is_recorded_and_they_are_the_same_each_time(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(gpus_per_node=size) for size in (1, 2)], Truth(run_noise_ms=2))
    first, second = (run("analysis.scaled", tmp_path, "--format", "csv", "--all").out for _ in range(2))
    assert first == second
    assert run("analysis.scaled", tmp_path, "--format", "json", "--all").json[0]["interval_seed"] == 20200520


def test_runs_that_differ_much_are_said_to(tmp_path: Path) -> None:
    runs = [run_of(gpus_per_node=size, batch=batch) for size in (1, 2, 4) for batch in (16, 32)]
    write_sweep(tmp_path, runs, Truth(run_noise_ms=40.0))
    assert "runs_differ" in found("analysis.scaled", tmp_path)
    write_sweep(tmp_path / "quiet", runs, Truth(run_noise_ms=1.0))
    assert "runs_differ" not in found("analysis.scaled", tmp_path / "quiet")


def test_how_far_apart_the_runs_of_a_configuration_are_is_said(tmp_path: Path) -> None:
    for repetition, step_ms in enumerate((100.0, 620.0, 200.0)):
        write_run(tmp_path, run_of(), Truth(step_ms={1: step_ms}, noise_ms=0.0), repetition)
    # With another of the same size, what tells it from that.
    write_run(tmp_path, run_of(batch=64), Truth(noise_ms=0.0))
    (finding,) = [one for one in findings(points_of(load(tmp_path))) if one.code == "runs_differ"]
    assert finding.configuration.endswith("batch 32")
    assert (finding.data["n"], finding.data["of"]) == (1, 2)
    assert finding.data["factor"] == pytest.approx(6.2, rel=0.01)


def test_rows_begin_with_the_precision_that_the_base_has(tmp_path: Path) -> None:
    write_sweep(
        tmp_path, [run_of(), *(run_of(gpus_per_node=2, grad=grad) for grad in ("bf16", "fp16", "fp32"))]
    )
    rows = run("analysis.scaled", tmp_path, "--format", "csv", "--all").csv
    expected = [("1", "fp32"), ("2", "fp32"), ("2", "bf16"), ("2", "fp16")]
    assert [(row["world_size"], row["grad"]) for row in rows] == expected


@pytest.mark.parametrize(
    ("device", "title"), [("cpu", ": % of the measured peak"), ("NVIDIA L4", "datasheet's peak |")]
)
def test_a_device_without_a_datasheet_stands_beside_what_was_measured(
    tmp_path: Path, device: str, title: str
) -> None:
    write_sweep(tmp_path, [run_of(), run_of(profile="torch")], Truth(device=device))
    shown = run("analysis.scaled", tmp_path).out
    assert title in shown
    assert ("- | " in shown) is False


def test_an_efficiency_across_devices_is_said_to_be_one(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of()])
    write_run(tmp_path, run_of(gpus_per_node=2), Truth(device="Tesla V100"))
    both = ["NVIDIA A100-SXM4-40GB", "Tesla V100"]
    assert found("analysis.scaled", tmp_path)["devices_differ"] == {"devices": both}
    opening = " ".join(line.text for line in build(load(tmp_path)).summary)
    assert all(device in opening for device in both)


def test_repetitions_on_different_devices_are_said_to_be(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of()])
    assert "devices_differ" not in found("analysis.scaled", tmp_path)
    write_run(tmp_path, run_of(), Truth(device="Tesla V100"), repetition=2)
    both = ["NVIDIA A100-SXM4-40GB", "Tesla V100"]
    assert found("analysis.scaled", tmp_path)["devices_differ"] == {"devices": both}


def test_ranks_of_one_run_on_different_devices_stand_beside_the_mean_of_their_peaks(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(gpus_per_node=4, profile=profile) for profile in ("none", "torch")])
    for path in tmp_path.glob("run_*/manifest.json"):
        manifest = json.loads(path.read_text())
        for rank in manifest["ranks"][2:]:
            rank["device"] = "Tesla V100-SXM2-16GB"
        path.write_text(json.dumps(manifest))
    ran = run("analysis.scaled", tmp_path, "--format", "json", "--all")
    (row,) = ran.json
    assert row["device_name"] == "NVIDIA A100-SXM4-40GB, Tesla V100-SXM2-16GB"
    assert row["peak_tflops_per_s"] == pytest.approx((19.5 + 15.7) / 2)
    assert row["flops_efficiency_of_kernels_pct"] == pytest.approx(100 * 0.74 / 0.06 / 17.6)
    assert "different devices" in ran.err


@pytest.mark.parametrize("command", ["batches", "scaled"])
def test_a_run_whose_pace_moves_throughout_is_said_to_drift(tmp_path: Path, command: str) -> None:
    """From 300 to 100 ms a batch, never steady; and one that is."""
    write_sweep(tmp_path, [run_of()], Truth(warmup=0))
    assert "no_steady_state" not in found(f"analysis.{command}", tmp_path)
    path = next(tmp_path.glob("run_0_*/rank_0000"))
    table = tables.read(path, "batches").to_pandas()
    ends = table["start_ns"][0] + np.cumsum(np.linspace(300, 100, len(table)) * MS).astype(int)
    table["start_ns"], table["end_ns"] = [table["start_ns"][0], *ends[:-1]], ends
    tables.write(
        tables.as_table("batches", {name: table[name].to_numpy() for name in table}), path, "batches"
    )
    drift = found(f"analysis.{command}", tmp_path)["no_steady_state"]
    assert (drift["n"], drift["of"], drift["runs"]) == (1, 2, [path.parent.name])


def test_profiled_runs_alone_are_timed_by_what_was_not_recorded_if_there_is_any(tmp_path: Path) -> None:
    truth = Truth(perturbation=2.0, noise_ms=0.1)
    write_sweep(tmp_path / "half", [run_of(profile="torch")], truth)
    ran = run("analysis.scaled", tmp_path / "half", "--format", "json", "--all")
    assert ran.json[0]["step_ms"] == pytest.approx(100, rel=0.01)
    assert found("analysis.scaled", tmp_path / "half")["timed_by_profiled_runs"] == {"n": 1, "of": 1}
    write_sweep(tmp_path / "all", [run_of(profile="torch", attribute_from=0)], truth)
    ran = run("analysis.scaled", tmp_path / "all", "--format", "json", "--all")
    assert ran.json[0]["step_ms"] == pytest.approx(200, rel=0.01)


@pytest.mark.parametrize("first", [0, 3])
def test_what_the_profiler_costs_is_told_by_steps_that_are_no_warmup(tmp_path: Path, first: int) -> None:
    """Half of the steps are warmup; as many of the recorded ones would move their median."""
    truth = Truth(warmup=6, noise_ms=0, perturbation=1.25)
    write_sweep(
        tmp_path, [run_of(batches=12), run_of(batches=12, profile="torch", attribute_from=first)], truth
    )
    (row,) = run("analysis.scaled", tmp_path, "--format", "json", "--all").json
    assert (row["step_ms"], row["perturbation"]) == (100, 1.25)
    *_, profiled = run("analysis.batches", tmp_path, "--format", "json").json
    assert (profiled["attributed_ms"], profiled["step_ms"], profiled["warmup_dropped"]) == (125, 125, 6)
    assert "first_steps_left_out" in found("analysis.batches", tmp_path)


def test_more_arithmetic_than_the_peak_allows_is_said_without_a_profiler_too(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of()], Truth(training_flops_per_image=1e11))
    above = found("analysis.scaled", tmp_path)["above_peak"]
    assert above["what"] == "MFU" and above["most_pct"] == pytest.approx(164, abs=1)


def test_more_than_ideal_scaling_is_the_base_points_slowness(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(gpus_per_node=size) for size in (1, 2)], Truth(step_ms={1: 100.0, 2: 80.0}))
    above = found("analysis.scaled", tmp_path)["above_ideal"]
    assert (above["n"], above["of"]) == (1, 2) and above["efficiency_pct"] == pytest.approx(125, abs=1)
    write_sweep(tmp_path / "less", [run_of(gpus_per_node=size) for size in (1, 2)])
    assert "above_ideal" not in found("analysis.scaled", tmp_path / "less")


def test_a_run_whose_kernels_turn_out_to_be_damaged_is_in_no_point(tmp_path: Path) -> None:
    """Sums over kernels can be read of it, and are no reason to leave it out; its anatomy cannot."""
    runs = [run_of(gpus_per_node=size, profile="torch") for size in (1, 2)]
    write_sweep(tmp_path, runs, repetitions={"torch": 2})
    broken = next(tmp_path.glob("run_1_config_1_2_*"))
    kernels = broken / "rank_0001" / "kernels.parquet"
    pq.write_table(pq.read_table(kernels).drop_columns("device"), kernels)
    ran = run("analysis.scaled", tmp_path, "--format", "json", "--all")
    assert [(row["world_size"], row["runs"]) for row in ran.json] == [(1, 2), (2, 1)]
    assert "unusable: " in ran.err and broken.name in ran.err


def test_runs_of_other_lengths_are_not_averaged(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(batches=40)])
    write_run(tmp_path, run_of(batches=60), Truth(), 7)
    assert found("analysis.scaled", tmp_path)["not_compared"]["what"] == [
        "runs of 40 steps",
        "runs of 60 steps",
    ]
    write_sweep(tmp_path / "same", [run_of(batches=40), run_of(batches=40, gpus_per_node=2)])
    assert "not_compared" not in found("analysis.scaled", tmp_path / "same")


def test_a_table_of_dashes_is_not_printed(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(), run_of(profile="torch")])
    (row,) = run("analysis.scaled", tmp_path, "--format", "json", "--all").json
    row["tables"] = None
    titles = [part.title for part in tables_of([row])]
    assert (
        titles[-1].startswith("Use of the device")
        and len(tables_of([row | _NOTHING_KNOWN])) == len(titles) - 1
    )
    without = dict.fromkeys(name for name in row if "efficiency_of" in name or name.startswith("mfu"))
    (last,) = [part for part in tables_of([row | without]) if part.title not in titles]
    assert last.title.startswith("Communication")


_NOTHING_KNOWN = dict.fromkeys(names_of(use.METRICS)) | {"device_name": "cpu"}
