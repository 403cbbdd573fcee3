"""A rank is named if the others wait for it, again and again; the planted cause is found; else nobody is."""

import numpy as np
import pytest

from analysis.display.metrics import records
from analysis.frames.load import load
from analysis.measures import batches
from analysis.measures.lateness import (
    CLOCK,
    NO,
    SHORT_WAIT,
    STRAGGLER,
)
from analysis.measures.stragglers import caption, rows, verdict
from profiling import tables
from tests.analysis import late_ranks
from tests.analysis.commands import one_line_error, run
from tests.analysis.late_ranks import BATCHES, Job, Planted, write
from tests.analysis.synthetic import MS, Truth, run_of, write_run, write_sweep


def named(made) -> dict[int, str]:
    return {row["rank"]: row["cause"] for row in made if row["verdict"] == STRAGGLER}


def test_a_slow_loader_of_one_rank(tmp_path):
    write(tmp_path, Job(planted={3: Planted(load=6.0)}))
    made = rows(load(tmp_path))
    assert named(made) == {3: "loader"}
    row = made[3]
    # 6 ms were planted; the last of seven others is some 0.5 ms after their median.
    assert row["lateness_ms"] == pytest.approx(6.0, abs=0.3) and row["held_up_ms"] == pytest.approx(
        5.4, abs=0.5
    )
    assert row["lateness_ms_low"] < row["lateness_ms"] < row["lateness_ms_high"]
    assert row["late_pct"] == row["last_pct"] == 100 and row["p_value"] < 0.001
    assert "6.0" in row["evidence"] and row["evidence"].startswith("load +")
    assert sum(row["last_pct"] for row in made) == pytest.approx(100)


@pytest.mark.parametrize("profile", ["none", "torch"])
def test_a_slow_node_is_a_node_and_not_four_ranks(tmp_path, profile):
    job = Job(nodes=2, planted={rank: Planted(forward=8.0) for rank in (4, 5, 6, 7)})
    # Two nodes take turns by chance as a coin does: 25 batches would be too few.
    write(tmp_path, job, profile=profile, attribute_from=5)
    made = rows(load(tmp_path))
    assert named(made) == dict.fromkeys((4, 5, 6, 7), "node")
    assert "node 1" in made[4]["evidence"] and "forward" in made[4]["evidence"]


def test_the_only_rank_of_a_node_is_no_node(tmp_path):
    write(tmp_path, Job(ranks=4, nodes=4, planted={2: Planted(load=6.0)}))
    assert named(rows(load(tmp_path))) == {2: "loader"}


def test_a_clock_that_is_ahead_is_not_blamed(tmp_path):
    write(tmp_path, Job(planted={2: Planted(clock_ms=250.0)}), profile="torch")
    made = rows(load(tmp_path))
    assert {row["verdict"] for row in made} == {NO} and {row["told_by"] for row in made} == {"collectives"}


def test_a_clock_that_jumps_is_called_a_clock(tmp_path):
    write(tmp_path, Job(planted={2: Planted(jump_ms=40.0)}), profile="torch")
    made = rows(load(tmp_path))
    assert named(made) == {} and made[2]["verdict"] == CLOCK


def test_a_late_rank_whose_clock_is_ahead_too_is_named_for_what_others_waited(tmp_path):
    write(tmp_path, Job(planted={2: Planted(load=6.0, clock_ms=-90.0)}), profile="torch")
    made = rows(load(tmp_path))
    assert named(made) == {2: "loader"} and made[2]["lateness_ms"] == pytest.approx(6.0, abs=1.0)


def test_a_slow_gpu_by_its_own_kernels_or_those_of_its_profiled_twin(tmp_path):
    job = Job(planted={5: Planted(slower=1.2)})
    write(tmp_path, job, profile="torch")
    write(tmp_path, job)
    made = {row["profile"]: row for row in rows(load(tmp_path)) if row["rank"] == 5}
    assert {row["cause"] for row in made.values()} == {"GPU"}
    assert "1.20 x" in made["torch"]["evidence"] and "1.20 x" in made["none"]["evidence"]
    # 18 ms of 90: stages show what of that comes before the backward pass.
    assert made["torch"]["lateness_ms"] == pytest.approx(18, abs=1)
    assert made["none"]["lateness_ms"] == pytest.approx(6, abs=1)
    assert "lower bound" in caption(list(made.values())) and "lower bound" not in caption([made["torch"]])


def test_kernels_that_come_late_are_the_hosts(tmp_path):
    write(tmp_path, Job(planted={1: Planted(forward=9.0)}), profile="torch")
    made = rows(load(tmp_path))
    assert named(made) == {1: "host"} and "1.00 x" in made[1]["evidence"]
    assert made[1]["evidence"].startswith("forward +9")
    (found,) = verdict(made)
    assert (found.code, found.rank) == ("straggler", 1)
    assert found.data["mean_lateness_ms"] == pytest.approx(9, abs=1)


def test_a_rank_that_is_named_in_one_repetition_of_several_is_said_to_be(tmp_path):
    write(tmp_path, Job(planted={3: Planted(load=6.0)}))
    made = rows(load(tmp_path))
    quiet = {"verdict": NO, "mean_lateness_ms": 0.1}
    others = [
        row | quiet | {"run": f"run_{number}", "repetition": number} for row in made for number in (1, 2)
    ]
    assert [(one.data["n"], one.data["of"]) for one in verdict(made)] == [(1, 1)]
    (found,) = verdict([*made, *others])
    assert (found.rank, found.data["n"], found.data["of"]) == (3, 1, 3)


def test_without_kernels_gpu_and_host_are_not_told_apart(tmp_path):
    write(tmp_path, Job(planted={1: Planted(forward=9.0)}))
    made = rows(load(tmp_path))
    assert named(made) == {1: "GPU or host"}


def test_rank_0_whose_broadcast_the_others_wait_for_in_their_forward_pass(tmp_path):
    write(tmp_path, Job(broadcast=True, planted={0: Planted(load=6.0)}))
    assert named(rows(load(tmp_path))) == {0: "loader"}


def test_late_in_every_fourth_batch_repeats_and_one_batch_does_not(tmp_path):
    write(tmp_path / "a", Job(planted={6: Planted(load=25.0, every=4)}))
    made = rows(load(tmp_path / "a"))
    assert named(made) == {6: "loader"} and abs(made[6]["lateness_ms"]) < 1
    assert made[6]["mean_lateness_ms"] == pytest.approx(6, abs=1) and 20 < made[6]["late_pct"] < 30
    write(tmp_path / "b", Job(planted={6: Planted(load=400.0, every=BATCHES - 5)}))
    assert named(rows(load(tmp_path / "b"))) == {}


def test_a_rank_that_nobody_waits_for_is_not_named(tmp_path):
    write(tmp_path, Job(planted={4: Planted(forward=10.0, waits=False)}))
    made = rows(load(tmp_path))
    assert named(made) == {} and made[4]["verdict"] == SHORT_WAIT


def test_a_gpu_that_is_slow_at_times_is_compared_at_these_times(tmp_path):
    """Every third backward pass of rank 3 takes 15 ms longer, and all others wait in the allreduce for it."""
    result = write(tmp_path, Job(), profile="torch")
    for rank in range(8):
        directory = tables.rank_directory(result, rank)
        of_rank = tables.read(directory, "kernels").to_pylist()
        for row in of_rank:
            if row["batch_index"] % 3 == 0 and row["short_name"] != "conv_fprop":
                collective = row["short_name"] == "ncclAllReduce"
                if rank == 3 and collective:
                    row["start_ns"] += 15 * MS
                elif rank == 3 or collective:
                    row["duration_ns"] += 15 * MS
        columns = {name: [row[name] for row in of_rank] for name in of_rank[0]}
        tables.write(tables.as_table("kernels", columns), directory, "kernels")
    made = rows(load(tmp_path))
    assert named(made) == {3: "GPU"}
    assert "1.17 x" in made[3]["evidence"]
    # Which batches of an unprofiled run those were is not known: means are compared.
    write(tmp_path, Job(planted={3: Planted(forward=15.0, every=3)}))
    plain = [row for row in rows(load(tmp_path)) if row["profile"] == "none"]
    assert named(plain) == {3: "GPU"} and "profiled run" in plain[3]["evidence"]


@pytest.mark.parametrize(("profile", "same"), [("none", "step_ms"), ("torch", "attributed_ms")])
def test_the_step_is_the_one_of_the_steps_of_each_run(tmp_path, profile, same):
    """Also where warmup drops no step, so that the first counts, which has no lateness."""
    write(tmp_path, Job(ranks=2, noise=0.1), profile=profile)
    study = load(tmp_path)
    (of_run,) = records(batches.batches(study).rows)
    steps = {row["steady_steps"] for row in rows(study)}
    assert of_run["warmup_dropped"] == 0 and steps == {BATCHES - 1 if profile == "none" else 25}
    assert {row["step_ms"] for row in rows(study)} == {of_run[same]}


def test_of_equal_ranks_none_is_last(tmp_path):
    write_sweep(tmp_path, [run_of(gpus_per_node=2)])
    assert {row["last_pct"] for row in rows(load(tmp_path))} == {0}


# --- the command --------------------------------------------------------------------------------------


def test_the_command_by_rank_and_by_batch(tmp_path):
    write(tmp_path, Job(planted={3: Planted(load=6.0)}))
    ran = run("analysis.stragglers", tmp_path)
    assert ran.code == 0  # one host: it has a name
    assert ran.out.startswith("straggler in 1 of 1") and "cause: loader" in ran.out
    by_step = run("analysis.stragglers", tmp_path, "--by", "step", "--format", "csv").csv
    assert len(by_step) == 8 * len({row["step"] for row in by_step})
    longer = [float(row["load_longer_ms"]) for row in by_step if row["rank"] == "3"]
    assert np.median(longer) == pytest.approx(6, abs=0.1)


def test_nobody_is_named_in_words(tmp_path):
    write(tmp_path, Job())
    said = run("analysis.stragglers", tmp_path).out
    assert said.startswith("no stragglers in 1")
    assert " p " not in said and "cause" not in said  # nobody has one


def test_three_steps_do_not_tell_that_there_is_no_straggler(tmp_path, monkeypatch):
    monkeypatch.setattr(late_ranks, "BATCHES", 4)  # the first has none before it
    write(tmp_path, Job(ranks=2))
    ran = run("analysis.stragglers", tmp_path)
    assert "too few steps" in ran.out.splitlines()[0]


def test_one_rank_is_one_line(tmp_path):
    write_sweep(tmp_path, [run_of()])
    assert "several ranks" in one_line_error(run("analysis.stragglers", tmp_path))


def test_dataparallel_has_one_rank_however_many_gpus(tmp_path):
    write_run(tmp_path / "dp", run_of(gpus_per_node=4, backend="dp"), Truth())
    (source,) = load(tmp_path / "dp").sources
    assert source.hosts == ["node0"]  # its host
    assert "several ranks" in one_line_error(run("analysis.stragglers", tmp_path / "dp"))
    write_run(tmp_path / "ddp", run_of(nodes=2, gpus_per_node=2), Truth())
    assert load(tmp_path / "ddp").sources[0].hosts == ["node 0", "node 0", "node 1", "node 1"]


def test_a_damaged_table_takes_out_its_run_only(tmp_path):
    write(tmp_path, Job())
    broken = write(tmp_path, Job(), profile="torch")
    (broken / "rank_0002" / "kernels.parquet").write_bytes(b"PAR1")
    ran = run("analysis.stragglers", tmp_path, "--format", "csv", "--all")
    assert ran.code == 1 and {row["profile"] for row in ran.csv} == {"none"}
    assert "rank_0002" in ran.err


def test_a_missing_rank_is_said(tmp_path):
    write(tmp_path, Job())
    cut = write_run(tmp_path, run_of(gpus_per_node=2, batch=64), Truth())
    (cut / "rank_0001" / "batches.parquet").unlink()
    ran = run("analysis.stragglers", tmp_path, "--format", "csv")
    assert ran.code == 1 and "rank_0001" in ran.err and len(ran.csv) == 8
