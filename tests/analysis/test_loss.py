"""What is lost to scaling: parts of planted growth are found, and add up to the loss."""

from pathlib import Path

import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from analysis.display.metrics import records
from analysis.frames.divide import PARTS
from analysis.frames.load import load
from analysis.measures import anatomy
from analysis.measures.loss import other_steps, without_meaningless_parts
from analysis.measures.scaled import tables, unexplained
from analysis.report.base import Context, by_configuration, finest_parts
from analysis.report.scaling import loss
from profiling.findings import text_of
from tests.analysis.frames import scaled_frame, scaled_rows
from tests.analysis.synthetic import Truth, run_of, write_sweep

# Of a batch 60 ms are kernels and 2 ms a copy beside or after them. Collectives hide behind 15 ms of kernels.
EXPOSED_MS = {1: 0.0, 2: 10.0, 4: 25.0}
WAIT_MS = {1: 1.0, 2: 3.0, 4: 8.0}
BATCH_MS = {1: 100.0, 2: 112.0, 4: 140.0}
TRUTH = {
    "step_ms": BATCH_MS,
    "communication_ms": {size: 15.0 + exposed for size, exposed in EXPOSED_MS.items()},
    "wait_ms": WAIT_MS,
    "noise_ms": 0.0,
    "perturbation": 1.0,
}


def runs(profiled: tuple[int, ...] = (1, 2, 4)) -> list:
    plain = [run_of(gpus_per_node=size) for size in (1, 2, 4)]
    return plain + [run_of(gpus_per_node=size, profile="torch") for size in profiled]


def by_size(path: Path, **given) -> dict[int, dict]:
    return {row["world_size"]: row for row in scaled_rows(load(path), **given)}


def added_up(row: dict) -> float:
    return sum(row[f"loss_{name}_pct"] for name in (*PARTS, "unattributed"))


def test_planted_growth_is_found_and_adds_up(tmp_path: Path) -> None:
    write_sweep(tmp_path, runs(), Truth(**TRUTH))
    found = by_size(tmp_path)
    for size in (2, 4):
        row, batch = found[size], BATCH_MS[size]
        assert row["loss_pct"] == pytest.approx(100 * (batch - 100) / batch)
        assert added_up(row) == pytest.approx(100 - row["scaling_efficiency_pct"], rel=1e-9)
        # The loader's copy of 2 ms runs after the kernels of one rank, and beside the collective of several.
        grown = {
            "compute": 0.0,
            "exposed_communication": EXPOSED_MS[size],
            "exposed_loader": WAIT_MS[size] - WAIT_MS[1] - 2,
            "exposed_copies": 0.0,
        }
        grown["idle"] = batch - 100 - sum(grown.values())
        for name, ms in grown.items():
            assert row[f"loss_{name}_pct"] == pytest.approx(100 * ms / batch, abs=1e-6), name
        assert row["loss_idle_host_bound_pct"] + row["loss_idle_other_pct"] == pytest.approx(
            row["loss_idle_pct"]
        )
        assert row["loss_unattributed_pct"] == pytest.approx(0, abs=1e-6)
        assert row["loss_note"] == ""
    assert found[1]["loss_pct"] == 0 and found[1]["loss_compute_pct"] is None


def test_strong_scaling_compares_with_the_parts_of_as_many_images(tmp_path: Path) -> None:
    # Half the images a rank: ideal are 50 ms, 30 of them kernels; they take 60 ms and 60.
    truth = Truth(step_ms={1: 100.0, 2: 90.0}, noise_ms=0.0, perturbation=1.0, communication_ms=20.0)
    both = [("none", 64, 1), ("torch", 64, 1), ("none", 32, 2), ("torch", 32, 2)]
    planted = [run_of(profile=profile, batch=batch, gpus_per_node=size) for profile, batch, size in both]
    write_sweep(tmp_path, planted, truth)
    row = by_size(tmp_path, scaling="strong")[2]
    assert row["loss_pct"] == pytest.approx(100 * 40 / 90)
    assert row["loss_compute_pct"] == pytest.approx(100 * 30 / 90)
    assert row["loss_exposed_communication_pct"] == pytest.approx(100 * 5 / 90)
    assert added_up(row) == pytest.approx(row["loss_pct"], rel=1e-9)


def test_parts_have_intervals_of_the_profiled_batches(tmp_path: Path) -> None:
    write_sweep(tmp_path, runs(), Truth(**TRUTH | {"noise_ms": 2.0}))
    row = by_size(tmp_path)[4]
    assert row["loss_pct_low"] <= row["loss_pct"] <= row["loss_pct_high"]
    for name in PARTS:
        low, high = (row[f"loss_{name}_pct_{end}"] for end in ("low", "high"))
        assert low <= row[f"loss_{name}_pct"] <= high, name
    # Noise of 2 ms a batch is in the idle time; what is planted alike in every batch has no width.
    assert 0.1 < row["loss_idle_pct_high"] - row["loss_idle_pct_low"] < 5
    assert row["loss_compute_pct_high"] - row["loss_compute_pct_low"] == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(("first", "noise_ms"), [(34, 0.0), (34, 20.0), (37, 1.0)])
def test_of_few_batches_no_part_may_take_less_than_nothing_or_more_than_a_batch(tmp_path, first, noise_ms):
    """Of three there is no interval."""
    few = [run_of(gpus_per_node=1), run_of(gpus_per_node=4)]
    few += [run_of(gpus_per_node=size, profile="torch", attribute_from=first) for size in (1, 4)]
    write_sweep(tmp_path, few, Truth(**TRUTH | {"noise_ms": noise_ms, "warmup": 0}))
    row = by_size(tmp_path)[4]
    walls = [one["wall_ms"] for one in records(anatomy.anatomy(load(tmp_path), ["step"]).rows)]
    for name in ("idle", "idle_host_bound", "idle_other"):
        low, high = (row[f"loss_{name}_pct_{end}"] for end in ("low", "high"))
        if first == 37:
            assert low is high is None and row[f"loss_{name}_pct"] is not None
        elif noise_ms:
            assert high - low <= 2 * 100 * max(walls) / min(walls), name
        else:  # no batch differs from another, nor does the last one, whose end nothing tells of
            assert low == pytest.approx(high, abs=1e-6) == pytest.approx(row[f"loss_{name}_pct"]), name


@pytest.mark.parametrize(
    ("profiled", "said"),
    [((2, 4), "baseline"), ((1, 2), "configuration"), ((), "configuration and baseline")],
)
def test_without_a_profiled_run_the_table_says_so(tmp_path: Path, profiled, said) -> None:
    write_sweep(tmp_path, runs(profiled), Truth(**TRUTH))
    row = by_size(tmp_path)[4]
    assert row["loss_pct"] == pytest.approx(100 * 40 / 140)
    assert row["loss_compute_pct"] is None and row["loss_unattributed_pct"] is None
    assert row["loss_note"].endswith(f" of the {said}")


def without_collectives(directory: Path, *repetitions: int) -> None:
    """Take the collectives out of the traces of 2 ranks of these repetitions."""
    for repetition in repetitions:
        for file in directory.glob(f"run_{repetition}_config_1_2_*_torch_*/rank_*/kernels.parquet"):
            table = pq.read_table(file)
            pq.write_table(table.filter(pc.not_equal(table["class"], "communication")), file)


def test_a_trace_without_a_collective_is_not_averaged_as_none(tmp_path: Path) -> None:
    both = [run_of(gpus_per_node=size, profile=profile) for size in (1, 2) for profile in ("none", "torch")]
    write_sweep(tmp_path, both, Truth(**TRUTH), {"none": 1, "torch": 2})
    whole = by_size(tmp_path)[2]
    without_collectives(tmp_path, 0)
    rest = by_size(tmp_path)[2]
    for name in ("loss_exposed_communication_pct", "loss_idle_pct", "exposed_communication_ms"):
        assert rest[name] == pytest.approx(whole[name]) and rest[name]
    parts = finest_parts(anatomy.anatomy(load(tmp_path)).rows)
    exposed = ["exposed_transfer_ms", "exposed_wait_ms"]
    bars = by_configuration(parts, exposed, ["gpus_per_node"]).set_index("gpus_per_node")
    assert bars.loc[2, exposed].sum() == pytest.approx(EXPOSED_MS[2])
    without_collectives(tmp_path, 1)
    none = by_size(tmp_path)[2]
    assert none["loss_idle_pct"] is None and not none.get("exposed_communication_ms")
    assert "no collectives" in none["loss_note"]


def test_parts_that_explain_nothing_of_the_loss_are_withheld_with_one_line_why(tmp_path: Path) -> None:
    """Profiled steps on 4 ranks took five times as long: of a busy machine, which nobody can tell."""
    write_sweep(tmp_path, [one for one in runs() if one.world_size < 4], Truth(**TRUTH))
    busy = Truth(**TRUTH | {"perturbation": 5.0})
    write_sweep(tmp_path, [one for one in runs() if one.world_size == 4], busy)
    measured = scaled_frame(load(tmp_path))
    row = {one["world_size"]: one for one in records(measured)}[4]
    assert row["loss_unattributed_pct"] < -row["loss_pct"]  # the data keep what was measured
    (part,) = (one for one in tables(measured) if one.title.startswith("Loss of scaling"))
    two, four = ([column.printed(one) for column in part.columns][2:] for one in part.rows)
    assert set(four) == {"-"} and "-" not in two
    assert other_steps(1.4) == "" != other_steps(0.7)
    # Identical runs differ by as much.
    little = row | {"perturbation": 1.2, "loss_pct": 1.0, "loss_unattributed_pct": 4.9}
    frame = pd.DataFrame([row | {"perturbation": 1.2}, little])
    shown = without_meaningless_parts(frame)
    assert "disagree" in shown["loss_note"][0] and pd.isna(shown["loss_idle_pct"][0])
    pd.testing.assert_frame_equal(shown[1:], frame[1:])
    (finding,) = unexplained(frame)
    assert (finding.code, finding.data["cost_pct"]) == ("loss_unexplained", pytest.approx(row["loss_pct"]))
    assert not text_of([finding]).startswith(finding.code)
    context = Context(load(tmp_path))
    found = loss.section(context)
    assert found is not None and len(found.notes) == 1
    assert "loss_unexplained" in {one.code for one in context.study.findings}
    assert [label.rpartition(", ")[2] for label in found.charts[0].figure["data"][0]["y"]] == ["2 GPUs"]
