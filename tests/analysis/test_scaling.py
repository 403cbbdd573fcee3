"""Scaled efficiencies of a sweep whose truth is planted."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from analysis import efficiency
from analysis.display.numbers import OPEN, has_open_interval
from analysis.frames.load import load
from analysis.measures import batches, kernels
from analysis.measures.certainty import is_unsure, without_unusable_intervals
from analysis.report.build import build
from analysis.statistics import estimates
from profiling import tables
from tests.analysis.commands import found, run
from tests.analysis.frames import kernels_frame, scaled_frame
from tests.analysis.synthetic import Truth, run_of, write_run, write_sweep, write_sweep_record

SIZES = (1, 2, 4)


def sweep(grads: tuple[str, ...] = ("fp32",), **fields) -> list:
    return [
        run_of(gpus_per_node=size, grad=grad, profile=profile, **fields)
        for size in SIZES
        for grad in grads
        for profile in ("none", "torch")
        if size > 1 or grad == "fp32"
    ]


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Truth]:
    path = tmp_path_factory.mktemp("results") / "planted"
    return path, write_sweep(path, sweep(("fp32", "fp16")), repetitions={"none": 3, "torch": 1})


@pytest.fixture(scope="module")
def table(planted: tuple[Path, Truth]) -> pd.DataFrame:
    return scaled_frame(load(planted[0]))


def at(table: pd.DataFrame, size: int, grad: str = "fp32") -> pd.Series:
    found = table[(table["world_size"] == size) & (table["grad"] == grad)]
    assert len(found) == 1
    return found.iloc[0]


def test_the_steps_before_a_cuda_graph_are_of_the_warm_up(tmp_path: Path) -> None:
    for graph, dropped in ((False, 3), (True, 11)):
        runs = [run_of(gpus_per_node=size, graph=graph) for size in (1, 2)]
        write_sweep(tmp_path / str(graph), runs, repetitions={"none": 1})
        assert set(scaled_frame(load(tmp_path / str(graph)))["warmup_dropped"]) == {dropped}


@pytest.mark.parametrize("size", SIZES)
def test_batch_and_its_interval(table: pd.DataFrame, planted: tuple[Path, Truth], size: int) -> None:
    row, truth = at(table, size), planted[1]
    assert row["step_ms"] == pytest.approx(truth.step_ms[size], rel=0.01)
    assert row["step_ms_low"] <= row["step_ms"] <= row["step_ms_high"]
    assert row["step_ms_high"] - row["step_ms_low"] < 2
    assert row["step_ms"] < row["p95_ms"] < row["p99_ms"] <= row["max_ms"] < truth.step_ms[size] + 6
    assert row["warmup_dropped"] == 3 * truth.warmup
    assert (row["runs"], row["kind_of_runs"]) == (3, "unprofiled runs")


@pytest.mark.parametrize("size", SIZES)
def test_throughput_speedup_and_efficiency(
    table: pd.DataFrame, planted: tuple[Path, Truth], size: int
) -> None:
    row, truth = at(table, size), planted[1]
    rate = 32 * size / truth.step_ms[size] * 1e3
    ideal = truth.step_ms[1] / truth.step_ms[size]
    assert row["images_per_s"] == pytest.approx(rate, rel=0.01)
    assert row["scaling_efficiency_pct"] == pytest.approx(100 * ideal, rel=0.01)
    assert row["speedup"] == pytest.approx(size * ideal, rel=0.01)
    assert (row["base_world_size"], row["base"]) == (1, "1 node x 1 GPU, fp32 gradients")
    assert row["base_images_per_s"] == pytest.approx(320, rel=0.01)
    if size > 1:
        assert row["scaling_efficiency_pct_low"] < 100 * ideal < row["scaling_efficiency_pct_high"]


def test_one_rank_stands_in_for_every_precision_of_gradients(table: pd.DataFrame) -> None:
    """One rank sends no gradients, so a sweep has no such point."""
    row = at(table, 2, "fp16")
    assert row["base"] == "1 node x 1 GPU, fp32 gradients"
    assert row["scaling_efficiency_pct"] == pytest.approx(100 * 100 / 110, rel=0.01)


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


def test_an_interval_of_the_perturbation_takes_two_profiled_runs(tmp_path: Path) -> None:
    truth = write_sweep(tmp_path, sweep()[:4], repetitions={"none": 3, "torch": 2})
    row = at(scaled_frame(load(tmp_path)), 2)
    assert row["perturbation_low"] < truth.perturbation < row["perturbation_high"]


def test_stages_add_up_to_the_batch(table: pd.DataFrame) -> None:
    stages = table[["load_ms", "forward_ms", "backward_ms", "update_ms"]].sum(axis=1)
    assert stages.tolist() == pytest.approx(table["step_ms"].tolist(), rel=0.01)


def test_groups_sum_costs_first(planted: tuple[Path, Truth], table: pd.DataFrame) -> None:
    grouped = scaled_frame(load(planted[0]), group_by=["gpus_per_node"]).set_index("gpus_per_node")
    both = table[table["world_size"] == 2]
    images = 2 * 64
    seconds = sum(64 / rate for rate in both["images_per_s"])
    assert grouped.loc[2, "images_per_s"] == pytest.approx(images / seconds)
    assert grouped.loc[2, "scaling_efficiency_pct"] == pytest.approx(100 * 100 / 110, rel=0.01)
    assert grouped.loc[2, "scaling_efficiency_pct_low"] < grouped.loc[2, "scaling_efficiency_pct_high"]


def test_a_step_ends_with_the_slowest_rank(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(gpus_per_node=2)], Truth(slowest_extra_ms=7, noise_ms=0.1))
    row = batches.batches(load(tmp_path)).rows.iloc[0]
    assert row["step_ms"] == pytest.approx(110, abs=0.3)
    assert row["startup_s"] == 5.0


def strong_sweep(path: Path, *more, **truth) -> None:
    """A fixed global batch size of 64; truth: 100 / (60 x 2) = 83 % on 2 ranks, 100 / (45 x 4) = 56 % on "
    "4."""
    runs = [run_of(gpus_per_node=size, batch=64 // size) for size in SIZES]
    write_sweep(path, [*runs, *more], Truth(step_ms={1: 100.0, 2: 60.0, 4: 45.0}, noise_ms=0.2, **truth))


def test_strong_scaling_compares_equal_global_batches(tmp_path: Path) -> None:
    strong_sweep(tmp_path)
    for scaling in ("strong", None):  # the only kind that compares any of these
        found = scaled_frame(load(tmp_path), scaling=scaling)
        assert set(found["scaling"]) == {"strong"}
        assert found["world_size"].tolist() == [1, 2, 4]
        # T(P0) P0 / (T(P) P)
        assert at(found, 2)["scaling_efficiency_pct"] == pytest.approx(100 * 100 / (60 * 2), rel=0.01)
    assert at(scaled_frame(load(tmp_path), scaling="weak"), 2)["base_world_size"] == 2


def test_the_kind_of_scaling_is_that_of_most_comparisons(tmp_path: Path) -> None:
    strong_sweep(tmp_path / "strong", run_of(gpus_per_node=2, batch=64))
    chosen = run("analysis.scaled", tmp_path / "strong", "--format", "csv", "--all")
    # 4 ranks x 16 and 2 x 32 have a base of the same global batch, 2 x 64 one of the same batch a GPU.
    assert {row["scaling"] for row in chosen.csv} == {"strong"}
    page = build(load(tmp_path / "strong"))
    assert "global" in next(s for s in page.sections if s.id == "table").tables[0].title
    write_sweep(tmp_path / "weak", [run_of(gpus_per_node=size) for size in SIZES])
    plain = run("analysis.scaled", tmp_path / "weak")
    assert "Weak scaling" in plain.out and "--scaling" not in plain.out


def test_efficiency_is_by_throughput_where_slow_batches_are_rare(tmp_path: Path) -> None:
    """By median batches it would be 83 %; a batch in five of two ranks takes twice as long."""
    strong_sweep(tmp_path, warmup=0)
    for path in tmp_path.glob("run_*_config_1_2_*/rank_*"):
        table = tables.read(path, "batches")
        start, end = (table[name].to_numpy() for name in ("start_ns", "end_ns"))
        slow = np.where(table["batch_index"].to_numpy() % 5 == 2, end - start, 0)
        for name, more in (("end_ns", slow), ("backward_ns", slow)):
            place = table.schema.get_field_index(name)
            table = table.set_column(place, table.schema.field(name), pa.array(table[name].to_numpy() + more))
        tables.write(table, path, "batches")
    row = at(scaled_frame(load(tmp_path)), 2)
    assert row["step_ms"] == pytest.approx(60, rel=0.01)
    assert row["images_per_s"] == pytest.approx(64 / (60 * 1.2) * 1e3, rel=0.01)
    assert row["scaling_efficiency_pct"] == pytest.approx(100 * 100 / (60 * 1.2 * 2), rel=0.01)


@pytest.mark.parametrize(
    ("truth", "says"),
    [
        # Kernels of 60 ms of an unprofiled batch take 260 of 320 ms of a recorded one.
        (
            Truth(step_ms={1: 80.0}, noise_ms=0, perturbation=4.0, kernel_ms=260.0),
            "kernels were timed in slower steps",
        ),
        # 90 ms of kernels in 80 ms recorded just as fast: two streams.
        (Truth(step_ms={1: 80.0}, perturbation=1.0, kernel_ms=90.0), "several kernels run at once"),
    ],
)
def test_an_efficiency_of_kernels_below_that_of_the_step_says_why(
    tmp_path: Path, truth: Truth, says: str
) -> None:
    write_sweep(tmp_path, [run_of(profile=profile) for profile in ("none", "torch")], truth)
    (row,) = run("analysis.scaled", tmp_path, "--format", "json", "--all").json
    assert row["flops_efficiency_of_step_pct"] > row["flops_efficiency_of_kernels_pct"]
    assert says in row["use_note"]


def test_the_profilers_cost_is_that_of_the_runs_that_timed_kernels(tmp_path: Path) -> None:
    """Counters of a kernel are read by running it again and again: 50 times the batch, and no kernels."""
    truth = Truth(noise_ms=0.1)
    write_sweep(tmp_path, [run_of(profile=profile) for profile in ("none", "torch")], truth)
    counted = write_run(tmp_path, run_of(profile="ncu"), Truth(perturbation=50.0))
    (counted / "rank_0000" / "kernels.parquet").unlink()
    (row,) = run("analysis.scaled", tmp_path, "--format", "json", "--all").json
    assert row["profiled_runs"] == 2
    assert row["perturbation"] == pytest.approx(truth.perturbation, rel=0.01)


def test_without_a_point_of_one_rank_the_smallest_is_the_base(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(gpus_per_node=size) for size in (2, 4)])
    row = at(scaled_frame(load(tmp_path)), 4)
    assert row["base_world_size"] == 2
    assert row["speedup"] == pytest.approx(2 * 110 / 125, rel=0.01)


def test_one_repetition_says_why_there_is_no_interval(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(gpus_per_node=2)], repetitions={"none": 1})
    ran = run("analysis.scaled", tmp_path)
    assert ran.code == 0
    assert found("analysis.scaled", tmp_path)["few_runs"] == {"n": 1, "of": 1, "least": 3}
    row = run("analysis.scaled", tmp_path, "--format", "json", "--all").json[0]
    assert row["step_ms_low"] is None
    assert "one repetition" in row["interval_note"]


def wild(folder: Path) -> Path:
    """Two runs of each configuration; on two ranks the second takes twice as long."""
    for size in (1, 2):
        for repetition in (0, 1):
            truth = Truth(step_ms={1: 100.0, 2: 110.0 * (1 + repetition)})
            write_run(folder, run_of(gpus_per_node=size), truth, repetition)
    write_sweep_record(folder)
    return folder


@pytest.mark.parametrize(
    ("low", "high", "shown"),
    [
        (1.0, 100.0, (1.0, 100.0)),  # ten times its value, either way
        (1.0, 100.5, OPEN),
        (0.9, 50.0, OPEN),
        (float("nan"), float("nan"), None),
        (None, None, None),
    ],
)
def test_an_interval_has_to_tell_the_order_of_magnitude(low: Any, high: Any, shown: Any) -> None:
    row = {"step_ms": 10.0, "step_ms_low": low, "step_ms_high": high}
    found = without_unusable_intervals(row)
    if shown is None:
        assert found is not row and found["step_ms_high"] is high and not has_open_interval(found)
    else:
        assert (found["step_ms_low"], found["step_ms_high"]) == shown
        assert has_open_interval(found) is (shown == OPEN)


@pytest.mark.parametrize(("low", "unsure"), [(50.5, False), (49.5, True)])
def test_an_efficiency_is_unsure_whose_interval_is_wider_than_40_points(low: float, unsure: bool) -> None:
    row = {"scaling_efficiency_pct": 70.0, "scaling_efficiency_pct_low": low, "world_size": 4}
    assert is_unsure({**row, "scaling_efficiency_pct_high": 90.0}) is unsure


@pytest.mark.parametrize(
    ("runs", "factor", "usable"), [(2, 1.45, True), (2, 1.6, False), (3, 4.5, True), (3, 5.5, False)]
)
def test_how_far_apart_runs_are_whose_interval_says_nothing(runs: int, factor: float, usable: bool) -> None:
    """As docs/methods.md has it: the longest run takes so many times as long as the shortest."""
    medians = np.geomspace(100.0, 100.0 * factor, runs)
    drawn = estimates.draw_runs([np.full(40, median) for median in medians])
    low, high = estimates.interval(drawn.values())
    row = {"step_ms": drawn.value, "step_ms_low": low, "step_ms_high": high}
    assert has_open_interval(without_unusable_intervals(row)) is not usable


def test_what_is_lost_is_as_sure_as_the_efficiency() -> None:
    """A loss near 0 has an interval that is many times as wide, and says much."""
    ends = {"scaling_efficiency_pct_low": 92.0, "scaling_efficiency_pct_high": 108.0}
    row = {
        "scaling_efficiency_pct": 99.9,
        **ends,
        "loss_pct": 0.1,
        "loss_pct_low": -8.0,
        "loss_pct_high": 8.0,
    }
    assert without_unusable_intervals(row) == row
    found = without_unusable_intervals(row | {"scaling_efficiency_pct_high": 1600.0, "loss_pct_low": -1500.0})
    assert (found["loss_pct_low"], found["loss_pct_high"]) == OPEN


def test_without_a_twin_the_profiled_run_times_itself_by_unrecorded_batches(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(profile="torch")], Truth(perturbation=2.0))
    study = load(tmp_path)
    row = scaled_frame(study).iloc[0]
    assert row["step_ms"] == pytest.approx(100, rel=0.01)
    assert row["kind_of_runs"] == "profiled runs"
    assert pd.isna(row["perturbation"])
    assert "timed_by_profiled_runs" in {finding.code for finding in study.findings}


def test_uncredited_arithmetic_is_a_warning(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(), run_of(profile="torch")], Truth(flops=3e11))
    study = load(tmp_path)
    scaled_frame(study)
    assert "flops_far_off" in {finding.code for finding in study.findings}


def test_a_cpu_has_measured_peaks_only(tmp_path: Path) -> None:
    write_sweep(tmp_path, [run_of(), run_of(profile="torch")], Truth(device="cpu"))
    study = load(tmp_path)
    row = scaled_frame(study).iloc[0]
    assert pd.isna(row["flops_efficiency_of_kernels_pct"])
    assert row["flops_efficiency_of_kernels_of_measured_pct"] == pytest.approx(100 * 7.4e11 / 0.06 / 15e12)
    assert not [finding for finding in study.notes() if "peak" in finding]


def test_the_published_method_counts_start_up_in(planted: tuple[Path, Truth]) -> None:
    rows = run("analysis.scaled", planted[0], "--method", "published", "--format", "json", "--all").json
    assert {row["method"] for row in rows} == {"published"}
    assert all(row["application_s"] > 20 for row in rows)


def test_explain_measures_on_these_runs(planted: tuple[Path, Truth]) -> None:
    ran = run("analysis.scaled", planted[0], "--explain", "--format", "csv", "--all")
    assert len(ran.csv) == 5


def test_the_terminal_stays_within_120_columns(planted: tuple[Path, Truth]) -> None:
    ran = run("analysis.scaled", planted[0])
    assert max(len(line) for line in ran.out.splitlines()) <= 120
    assert ran.err == ""


def test_efficiency_of_kernels(planted: tuple[Path, Truth]) -> None:
    found = efficiency.table(load(planted[0]), group_by=["grad"]).set_index("grad")
    truth = planted[1]
    assert found.loc["fp16", "compute_efficiency_pct"] == pytest.approx(50)
    assert found.loc["fp16", "tflops_per_s"] == pytest.approx(truth.flops / truth.kernel_ms / 1e9)
    assert found.loc["fp16", "loader_ms_per_step"] == 0
    assert found.loc["fp16", "attributed_steps"] == (2 + 4) * 20


def test_kernels_of_a_batch(planted: tuple[Path, Truth]) -> None:
    study = load(planted[0])
    name = next(source.id for source in kernels.with_kernels(study) if source.world_size == 2)
    found = kernels_frame(study, run=name).set_index("kernel")
    row = found.loc["conv_bprop"]
    assert (row["class"], row["direction"]) == ("convolution", "bprop")
    assert row["calls_per_step"] == 1
    assert row["ms_per_step"] == pytest.approx(15)
    assert row["mean_us"] == row["min_us"] == row["max_us"] == pytest.approx(15e3)
    assert row["gflop_per_step"] == pytest.approx(planted[1].flops * 2 / 3 / 1e9)
    assert found["share_pct"].sum() == pytest.approx(100)
    assert set(kernels_frame(study, direction="fprop")["direction"]) == {"fprop"}


@pytest.mark.parametrize(("device", "unit"), [("cpu", "rank"), ("NVIDIA A100-SXM4-40GB", "GPU")])
def test_a_node_has_gpus_and_without_any_it_has_ranks(tmp_path: Path, device: str, unit: str) -> None:
    write_sweep(tmp_path, [run_of(gpus_per_node=size) for size in (1, 2)], Truth(device=device))
    out = run("analysis.scaled", tmp_path).out
    assert f" {unit}s/ " in out.splitlines()[2] + " " and f"(fixed per-{unit} batch size)" in out
    (table, *_) = next(one for one in build(load(tmp_path)).sections if one.id == "table").tables
    assert table.columns[0].header == f"{unit}s/node"


def test_rows_of_a_sweep_that_is_partly_done_are_in_the_order_of_the_whole(tmp_path: Path) -> None:
    """One rank was profiled already, two ranks not yet in fp32."""
    done = [
        run_of(gpus_per_node=1),
        run_of(gpus_per_node=1, profile="torch"),
        run_of(gpus_per_node=2),
        run_of(gpus_per_node=2, grad="fp16"),
        run_of(gpus_per_node=2, grad="fp16", profile="torch"),
    ]
    write_sweep(tmp_path, done)
    made = scaled_frame(load(tmp_path))
    order = [(1, "fp32"), (2, "fp32"), (2, "fp16")]
    assert list(zip(made["world_size"], made["grad"], strict=True)) == order


def test_a_configuration_alone_has_no_efficiency_in_the_table_and_is_called_by_its_size(
    tmp_path: Path,
) -> None:
    write_sweep(tmp_path, [run_of()])
    out = run("analysis.scaled", tmp_path).out
    assert "Baselines" not in out and "100.0" not in out and "scaling eff" not in out
    assert out.splitlines()[3].split()[:2] == ["nodes", "node"] and "resnet50" not in out
    data = run("analysis.scaled", tmp_path, "--format", "json", "--all").json
    assert data[0]["scaling_efficiency_pct"] == 100  # of data that several sweeps are put together from
