"""Where batches of planted runs go: the parts and what they are made of, by run, rank and stage."""

from pathlib import Path

import numpy as np
import pytest

from analysis.display.metrics import records
from analysis.frames.divide import STAGES, WITHIN
from analysis.frames.load import load
from analysis.measures import anatomy
from tests.analysis.commands import one_line_error, run
from tests.analysis.synthetic import MS, Truth, change, change_rows, run_of, write_sweep


def test_late_launches_are_told_from_other_idle_time(tmp_path):
    # Of 100 ms: 60 ms of kernels, 2 ms of a copy, then nothing until the next batch's first kernel, which is
    # launched 3 ms before it begins. What follows the last batch is not recorded: it is taken to be alike.
    truth = Truth(noise_ms=0.0, perturbation=1.0, warmup=0, queued_ms=3.0)
    write_sweep(tmp_path, [run_of(profile="torch")], truth)
    study = load(tmp_path)
    row = records(anatomy.anatomy(study).rows)[0]
    assert row["idle_ms"] == pytest.approx(38)
    assert row["idle_host_bound_ms"] == pytest.approx(35)
    assert row["idle_other_ms"] == pytest.approx(3)
    of_batch = records(anatomy.anatomy(study, ["step"]).rows)
    assert [round(row["idle_host_bound_ms"], 6) for row in of_batch] == [35] * 20
    assert not study.notes()


def test_what_parts_are_made_of_adds_up_to_them_and_stages_and_ranks_to_the_whole(tmp_path):
    truth = Truth(wait_ms={2: 7.0}, queued_ms=3.0, noise_ms=0.1)
    write_sweep(tmp_path, [run_of(gpus_per_node=2, profile="torch")], truth)
    rows = {by: records(anatomy.anatomy(load(tmp_path), by.split()).rows) for by in ("", "rank", "stage")}
    for row in (row for of in rows.values() for row in of):
        for part, names in WITHIN.items():
            made_of = sum(row[f"{name}_ms"] for name in names)
            assert made_of == pytest.approx(row[f"{part}_ms"], rel=1e-12, abs=1e-9)
    (whole,) = rows[""]
    assert whole["loader_wait_ms"] == pytest.approx(7, abs=0.01)
    assert [row["stage"] for row in rows["stage"]] == list(STAGES)
    assert sum(row["wall_ms"] for row in rows["stage"]) == pytest.approx(whole["wall_ms"])
    assert [row["attributed_steps"] for row in rows["rank"]] == [20, 20] and whole["attributed_steps"] == 40


def test_on_a_cpu_idle_is_one(tmp_path):
    write_sweep(tmp_path, [run_of(profile="torch")], Truth(device="cpu"))
    change(next(tmp_path.glob("run_*/rank_*")), "kernels", device=-1)
    row = run("analysis.anatomy", tmp_path, "--format", "json").json[0]
    assert row["idle_host_bound_ms"] is None and row["idle_other_ms"] is None and row["idle_ms"] > 0


def test_launches_that_are_lost_are_counted(tmp_path):
    write_sweep(tmp_path, [run_of(profile="torch")], Truth(queued_ms=3.0, warmup=0, noise_ms=0.0))
    rank = next(tmp_path.glob("run_*/rank_0000"))
    # The second batch's first kernel: the idle time before it is no longer the host's.
    change(rank, "kernels", launch_ns=lambda at: [*at[:5], None, *at[6:]])
    study = load(tmp_path)
    of_batch = [round(row["idle_host_bound_ms"]) for row in records(anatomy.anatomy(study, ["step"]).rows)]
    assert of_batch[0] == 0 and of_batch[1] > 30
    assert not study.notes()  # 1 of 100
    change_rows(rank, "kernels", lambda rows: [
        row | {"launch_ns": row["start_ns"] + 1 if 10 <= place < 20 else row["launch_ns"]}
        for place, row in enumerate(rows)
    ])  # fmt: skip
    records(anatomy.anatomy(study := load(tmp_path)).rows)
    assert ": 11 of 100 " in study.notes()[0]


def test_a_run_without_a_profiler_is_said_in_one_line(tmp_path):
    write_sweep(tmp_path, [run_of()])
    assert "profile: torch" in one_line_error(run("analysis.anatomy", tmp_path))


NAMES = ("exposed", "overlapped")


@pytest.mark.parametrize("hidden_ms", [0.0, 12.0, 20.0])
def test_planted_communication_is_found(tmp_path: Path, hidden_ms: float) -> None:
    truth = Truth(communication_ms=20.0, hidden_ms=hidden_ms)
    write_sweep(tmp_path, [run_of(gpus_per_node=2, profile="torch")], truth)
    assert exposed_of(tmp_path) == pytest.approx(np.array([[20 - hidden_ms, hidden_ms]] * 3), abs=1e-9)


@pytest.mark.parametrize("step_ms", [100.0, 110.0])
def test_a_collective_that_outlasts_its_batch_is_one_figure_everywhere(tmp_path, step_ms):
    """80 ms that begin 45 ms after a batch does: after its kernels (60 ms) it is exposed to its end.

    The next batch's kernels hide the rest, but of the last one, whose rest no recorded batch holds.
    """
    truth = Truth({2: step_ms}, noise_ms=0.0, perturbation=1.0, warmup=0, communication_ms=80.0)
    write_sweep(tmp_path, [run_of(gpus_per_node=2, profile="torch", attribute_from=20)], truth)
    rest = 45 + 80 - step_ms
    hidden = 15 + rest * 19 / 20
    assert exposed_of(tmp_path) == pytest.approx(np.array([[step_ms - 60, hidden]] * 3), abs=1e-9)


def test_shares_of_several_kinds_and_of_what_reaches_in_add_up(tmp_path: Path) -> None:
    """One kind's calls outlast the batch, another's end in it; a call of no batch reaches into one."""
    truth = Truth({4: 100.0}, noise_ms=0.0, perturbation=1.0, warmup=0, communication_ms=50.0)
    write_sweep(tmp_path, [run_of(gpus_per_node=4, profile="torch")], truth)

    def with_more(rows):
        talks = [row for row in rows if row["class"] == "communication"]
        more = [row | {"start_ns": row["start_ns"] + 30 * MS, "short_name": "ncclAllGather"} for row in talks]
        early = {"start_ns": talks[0]["start_ns"] - 100 * MS, "duration_ns": 130 * MS, "batch_index": None}
        return [talks[0] | early, *rows, *more]

    for path in tmp_path.glob("run_*/rank_*"):
        change_rows(path, "kernels", with_more)
    found = exposed_of(tmp_path)
    assert found == pytest.approx(np.array([found[0]] * 3), abs=1e-9) and found[0, 0] == pytest.approx(40)
    assert len(run("analysis.communication", tmp_path, "--format", "json", "--all").json) == 2


def exposed_of(path: Path) -> np.ndarray:
    """Exposed and overlapped, ms, as scaled, anatomy and communication have them, shape (3, 2)."""
    (scaled,), (anatomy,), calls = (
        run(f"analysis.{name}", path, "--format", "json", "--all").json
        for name in ("scaled", "anatomy", "communication")
    )
    of_row = [[row[f"{name}_communication_ms"] for name in NAMES] for row in (scaled, anatomy)]
    return np.array([*of_row, [sum(row[f"{name}_ms"] for row in calls) for name in NAMES]])
