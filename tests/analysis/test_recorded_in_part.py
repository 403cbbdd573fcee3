"""Recordings that hold only a part of a run: their figures are of what was recorded, and a line says so.

Truth in all: 60 ms of kernels and 0.74 TFLOP a batch of a rank, 5 ms of exposed communication.
"""

from pathlib import Path

import pytest

from analysis.frames.load import load
from tests.analysis.commands import run
from tests.analysis.synthetic import MS, Truth, change, change_rows, run_of, write_sweep

LEFT_OUT = "steps without kernels"


def keep(directory: Path, batches: range) -> None:
    change_rows(directory, "kernels", lambda rows: [row for row in rows if row["batch_index"] in batches])


def one_rank_alone(ranks: list[Path]) -> None:
    (ranks[1] / "kernels.parquet").unlink()
    change(ranks[1], "batches", attributed=False)


def one_rank_without_rows(ranks: list[Path]) -> None:
    keep(ranks[1], range(0))


def cut(ranks: list[Path]) -> None:
    for rank in ranks:
        keep(rank, range(20, 28))


def another_clock(ranks: list[Path]) -> None:
    change(ranks[1], "kernels", start_ns=lambda at: [one + 5 * 3600 * 1000 * MS for one in at])


@pytest.mark.parametrize(
    ("damage", "says", "in_time"),
    [
        (one_rank_alone, "ranks missing in the recording: 1 of 2 (1)", 20),
        (one_rank_without_rows, "ranks missing in the recording: 1 of 2 (1)", 20),
        (cut, f"left out: 24 of 40 {LEFT_OUT}", 16),
        (another_clock, f"left out: 20 of 40 {LEFT_OUT}", 20),
    ],
)
def test_figures_are_of_what_was_recorded(tmp_path: Path, damage, says: str, in_time: int) -> None:
    write_sweep(tmp_path, [run_of(gpus_per_node=2, profile=profile) for profile in ("none", "torch")])
    damage(sorted(next(tmp_path.glob("run_*torch*")).glob("rank_*")))
    names = ("scaled", "efficiency", "kernels", "anatomy", "utilization", "communication")
    ran = {name: run(f"analysis.{name}", tmp_path, "--format", "json", "--all") for name in names}
    of_a_part = [one for one in load(tmp_path).findings if one.code == "profiles_missing"]
    assert len(of_a_part) == ("1 of 2" in says)
    (row,) = ran["scaled"].json
    assert row["kernel_ms_per_step"] == pytest.approx(60)
    assert row["tflop_per_step"] == pytest.approx(0.74)
    assert row["exposed_communication_ms"] == pytest.approx(5)
    assert ran["efficiency"].json[0]["kernel_ms_per_step"] == pytest.approx(60)
    assert {row["kernel"]: row["ms_per_step"] for row in ran["kernels"].json}["relu"] == pytest.approx(15)
    (row,) = ran["communication"].json
    assert [row[name] for name in ("calls_per_step", "mbyte_per_step", "ms_per_step")] == pytest.approx(
        [1, 100, 20]
    )
    # What was not recorded is no idle time, whatever else is.
    (row,) = ran["anatomy"].json
    assert row["attributed_steps"] == in_time
    assert row["compute_ms"] == pytest.approx(60) and row["exposed_communication_ms"] == pytest.approx(5)
    assert all(row["gpu_utilization_pct"] == pytest.approx(47.3, abs=0.5) for row in ran["utilization"].json)
    # Costs go by batch and not by time: another clock does not matter there.
    in_place = ("anatomy", "utilization")
    assert all(says in ran[name].err for name in (in_place if damage is another_clock else ran))


def test_flops_that_nobody_knows_are_not_zero(tmp_path: Path) -> None:
    runs = [run_of(profile=profile) for profile in ("none", "nsys")]
    write_sweep(tmp_path / "alone", runs, Truth(flops=0.0, bytes=0.0))
    (row,) = run("analysis.efficiency", tmp_path / "alone", "--format", "json", "--all").json
    assert row["kernel_ms_per_step"] == pytest.approx(60)
    unknown = ("compute_efficiency_pct", "tflops_per_s", "bandwidth_gb_per_s", "flops_efficiency_pct")
    assert [row[name] for name in unknown] == [None] * 4
    ran = run("analysis.scaled", tmp_path / "alone", "--format", "json", "--all")
    assert (ran.json[0]["tflop_per_step"], ran.json[0]["flop_coverage_pct"]) == (None, None)
    assert "analytic" not in ran.err
    # Beside a run whose FLOPs are known, the rate is of that one.
    write_sweep(tmp_path / "both", runs, Truth(flops=0.0, bytes=0.0))
    write_sweep(tmp_path / "both", [run_of(gpus_per_node=2, profile="torch")])
    (row,) = run("analysis.efficiency", tmp_path / "both", "--format", "json", "--all").json
    assert row["tflops_per_s"] == pytest.approx(0.74 / 0.06)
    assert row["compute_efficiency_pct"] == pytest.approx(50)


def test_batches_that_only_gather_gradients_count(tmp_path: Path) -> None:
    """Every second batch exchanges them: half a call a batch, and nothing is left out."""

    def exchanging(rows):
        return [row for row in rows if row["class"] != "communication" or row["batch_index"] % 2]

    write_sweep(tmp_path, [run_of(gpus_per_node=2, profile="torch")])
    for rank in sorted(tmp_path.glob("run_*/rank_*")):
        change_rows(rank, "kernels", exchanging)
    ran = run("analysis.communication", tmp_path, "--format", "json", "--all")
    assert ran.json[0]["calls_per_step"] == pytest.approx(0.5) and LEFT_OUT not in ran.err
