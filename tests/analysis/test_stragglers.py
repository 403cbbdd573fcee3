"""A rank is named if the others wait for it, again and again; the planted cause is found; else nobody is."""

import numpy as np
import pandas as pd
import pytest

from analysis.frames.load import load
from analysis.measures import stragglers
from analysis.measures.lateness import BY_COLLECTIVES, CLOCK, NO, SHORT_WAIT, STRAGGLER, TOO_FEW
from analysis.report.ranks import MOST_ROWS, latest
from tests.analysis import late_ranks
from tests.analysis.commands import one_line_error, run
from tests.analysis.frames import stragglers_rows
from tests.analysis.late_ranks import BATCHES, Job, Planted, write
from tests.analysis.synthetic import MS, Truth, change_rows, run_of, write_run, write_sweep


def rows_of(path) -> list[dict]:
    return stragglers_rows(load(path))


def named(rows) -> dict[int, str]:
    return {row["rank"]: row["cause"] for row in rows if row["verdict"] == STRAGGLER}


def test_a_slow_loader_of_one_rank(tmp_path):
    write(tmp_path, Job(planted={3: Planted(load=6.0)}))
    rows = rows_of(tmp_path)
    assert named(rows) == {3: "loader"}
    row = rows[3]
    # 6 ms were planted; the last of seven others is some 0.5 ms after their median.
    assert row["lateness_ms"] == pytest.approx(6.0, abs=0.3)
    assert row["lateness_ms_low"] < row["lateness_ms"] < row["lateness_ms_high"]
    assert row["late_pct"] == 100 and row["p_value"] < 0.001
    assert row["cause_ms"] == pytest.approx(6.0, abs=0.1)
    ran = run("analysis.stragglers", tmp_path)
    assert ran.code == 0 and ran.out.startswith("straggler: rank 3")
    by_step = run("analysis.stragglers", tmp_path, "--by", "step", "--format", "csv").csv
    assert len(by_step) == 8 * len({row["step"] for row in by_step})
    longer = [float(row["load_longer_ms"]) for row in by_step if row["rank"] == "3"]
    assert np.median(longer) == pytest.approx(6, abs=0.1)


@pytest.mark.parametrize("profile", ["none", "torch"])
def test_a_slow_node_is_a_node_and_not_four_ranks(tmp_path, profile):
    job = Job(nodes=2, planted={rank: Planted(forward=8.0) for rank in (4, 5, 6, 7)})
    # Two nodes take turns by chance as a coin does: 25 steps would be too few.
    write(tmp_path, job, profile=profile, attribute_from=5)
    rows = rows_of(tmp_path)
    assert named(rows) == dict.fromkeys((4, 5, 6, 7), "node")
    assert rows[4]["cause_ms"] == pytest.approx(8, abs=0.5)


@pytest.mark.parametrize(
    ("job", "profile", "cause"),
    [
        (Job(ranks=4, nodes=4, planted={2: Planted(load=6.0)}), "none", {2: "loader"}),  # alone on its node
        (Job(planted={2: Planted(clock_ms=250.0)}), "torch", {}),  # a clock that is ahead, no more
        (Job(planted={2: Planted(load=6.0, clock_ms=-90.0)}), "torch", {2: "loader"}),
        (Job(planted={1: Planted(forward=9.0)}), "none", {1: "GPU or host"}),  # kernels would tell
        (Job(planted={1: Planted(own=9.0)}), "none", {1: "host"}),  # after its data have come: no loader
        (Job(planted={1: Planted(own=9.0)}), "torch", {1: "host"}),
        (Job(broadcast=True, planted={0: Planted(load=6.0)}), "none", {0: "loader"}),
        (Job(planted={1: Planted(forward=9.0)}), "torch", {1: "host"}),  # its kernels come late
        (Job(planted={6: Planted(load=400.0, every=BATCHES - 5)}), "none", {}),  # does not repeat
        # Nobody waits for it.
        (Job(planted={2: Planted(jump_ms=40.0)}), "torch", CLOCK),
        (Job(planted={2: Planted(forward=10.0, waits=False)}), "none", SHORT_WAIT),
    ],
)
def test_the_planted_rank_is_named_with_its_cause(tmp_path, job, profile, cause):
    write(tmp_path, job, profile=profile)
    rows = rows_of(tmp_path)
    if isinstance(cause, str):
        assert named(rows) == {} and rows[2]["verdict"] == cause
        return
    assert named(rows) == cause
    assert {row["told_by"] for row in rows} == {"stages" if profile == "none" else "collectives"}
    if profile == "torch" and 2 in cause:  # it is named for what others waited, whatever its clock shows
        assert rows[2]["lateness_ms"] == pytest.approx(6.0, abs=1.0)


def test_a_slow_gpu_by_its_own_kernels_or_those_of_its_profiled_twin(tmp_path):
    job = Job(planted={5: Planted(slower=1.2)})
    write(tmp_path, job, profile="torch")
    write(tmp_path, job)
    found = {row["profile"]: row for row in rows_of(tmp_path) if row["rank"] == 5}
    assert {row["cause"] for row in found.values()} == {"GPU"}
    assert [row["cause_ms"] for row in found.values()] == pytest.approx([17.3] * 2, abs=0.05)
    # 18 ms of 90: stages show what of that comes before the backward pass.
    assert found["torch"]["lateness_ms"] == pytest.approx(18, abs=1)
    assert found["none"]["lateness_ms"] == pytest.approx(6, abs=1)


def test_a_gpu_that_is_slow_at_times_is_compared_at_these_times(tmp_path):
    """Every third backward pass of rank 3 takes 15 ms longer, and all others wait in the allreduce for it."""

    def slow(row):
        collective = row["short_name"] == "ncclAllReduce"
        if (
            row["batch_index"] % 3
            or row["short_name"] == "conv_fprop"
            or (row["rank"] != 3 and not collective)
        ):
            return row
        name = "start_ns" if row["rank"] == 3 and collective else "duration_ns"
        return row | {name: row[name] + 15 * MS}

    for rank in write(tmp_path, Job(), profile="torch").glob("rank_*"):
        change_rows(rank, "kernels", lambda rows: [*map(slow, rows)])
    rows = rows_of(tmp_path)
    assert named(rows) == {3: "GPU"} and 3 <= rows[3]["cause_ms"] < 5
    # Which steps of an unprofiled run those were is not known: means are compared.
    write(tmp_path, Job(planted={3: Planted(forward=15.0, every=3)}))
    plain = [row for row in rows_of(tmp_path) if row["profile"] == "none"]
    assert named(plain) == {3: "GPU"} and plain[3]["cause_ms"] == rows[3]["cause_ms"]


def test_without_a_late_rank_nobody_has_a_cause(tmp_path, monkeypatch):
    write(tmp_path / "long", Job(), profile="torch")
    out = run("analysis.stragglers", tmp_path / "long").out
    assert out.startswith("no stragglers in runs that can tell: 1 of 1;")
    assert " p " not in out and "cause" not in out
    monkeypatch.setattr(late_ranks, "BATCHES", 4)  # three steps that follow another
    write(tmp_path / "short", Job(ranks=2))
    assert "too few steps" in run("analysis.stragglers", tmp_path / "short").out.splitlines()[0]


def test_one_rank_is_one_line_however_many_gpus(tmp_path):
    write_sweep(tmp_path / "one", [run_of()])
    write_run(tmp_path / "dp", run_of(gpus_per_node=4, backend="dp"), Truth())
    for name in ("one", "dp"):
        assert "several ranks" in one_line_error(run("analysis.stragglers", tmp_path / name))
    assert load(tmp_path / "dp").sources[0].hosts == ["node0"]  # its host
    write_run(tmp_path / "ddp", run_of(nodes=2, gpus_per_node=2), Truth())
    assert load(tmp_path / "ddp").sources[0].hosts == ["node 0", "node 0", "node 1", "node 1"]


def test_the_data_hold_all_ranks_whatever_the_table_shows(tmp_path):
    ranks = 32
    write_sweep(tmp_path, [run_of(gpus_per_node=ranks)], Truth(step_ms={ranks: 100.0}), {"none": 1})
    shown = run("analysis.stragglers", tmp_path).out
    assert "of 32 rows" in shown
    assert len(run("analysis.stragglers", tmp_path, "--format", "csv").csv) == ranks
    wide = run("analysis.stragglers", tmp_path, "--wide").out
    assert "--wide: all" not in wide and len(wide.splitlines()) > len(shown.splitlines())
    by_step = run("analysis.stragglers", tmp_path, "--by", "step").out
    assert "--wide: all" in by_step and len(by_step.splitlines()) < 100


def test_runs_with_too_few_steps_are_counted_beside_those_that_tell():
    # Late from 20 ms on; an unprofiled run does not show a slow backward pass.
    unprofiled = {"run": "run_0", "rank": 0, "mean_lateness_ms": 0.1, "verdict": NO, "told_by": "stages"}
    unprofiled |= {"step_ms": 1000.0, "steady_steps": 50, "cause": None, "node": None}
    enough = unprofiled | {"told_by": BY_COLLECTIVES}
    few = unprofiled | {"verdict": TOO_FEW, "run": "run_1", "steady_steps": 3}
    clock = unprofiled | {"mean_lateness_ms": 9.0, "verdict": CLOCK, "run": "run_2"}
    late = enough | {"mean_lateness_ms": 30.0, "verdict": STRAGGLER, "cause": "host", "late_pct": 90.0}
    late |= {"node": "n0", "cause_ms": 30.0}
    for rows, expected in (
        ((enough, few), ("no_stragglers", 1, 2)),
        ((few,), ("stragglers_unknown", 0, 1)),
        ((unprofiled,), ("stragglers_unknown", 1, 1)),
        ((enough, few, clock), ("no_stragglers", 1, 3)),
        ((late,), ("straggler_costs", 1, 1)),
        ((late, enough | {"run": "run_1"}, enough | {"run": "run_2"}), ("straggler_suspected", 1, 3)),
    ):
        (one,) = stragglers.verdict(pd.DataFrame(rows))
        assert (one.code, one.data["n"], one.data["of"]) == expected


@pytest.mark.parametrize("ranks", [65, 1024, 3000])
def test_of_many_ranks_the_map_keeps_its_size_and_loses_no_late_one(ranks):
    late = np.random.default_rng(1).normal(0, 1, (ranks, 20))
    late[37, 4] = 50.0  # once: no straggler, but to be seen
    late[60] = 90.0
    rows = latest(late)
    assert len(rows) == min(ranks, MOST_ROWS) and {37, 60} <= set(rows) and (np.diff(rows) > 0).all()
    assert late[rows].max(axis=1).min() >= np.delete(late, rows, axis=0).max(initial=-np.inf)
