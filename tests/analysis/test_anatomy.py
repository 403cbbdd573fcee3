"""Where batches of planted runs go: the parts and what they are made of, by run, rank and stage."""

import pyarrow.parquet as pq
import pytest

from analysis.display.metrics import records
from analysis.frames.divide import PARTS, STAGES, WITHIN
from analysis.frames.load import load
from analysis.measures import anatomy
from profiling import tables
from tests.analysis.commands import one_line_error, run
from tests.analysis.synthetic import Truth, run_of, write_sweep


def test_planted_parts_are_found(tmp_path):
    # Of 100 ms: 60 ms of kernels, and on 2 ranks 20 ms of collectives, 15 of them hidden; 10 % is waiting.
    truth = Truth(noise_ms=0.0, perturbation=1.0)
    runs = [run_of(gpus_per_node=ranks, profile="torch") for ranks in (1, 2)]
    write_sweep(tmp_path, runs, truth)
    one, two = sorted(records(anatomy.anatomy(load(tmp_path)).rows), key=lambda row: row["gpus_per_node"])
    assert one["wall_ms"] == pytest.approx(100) and two["wall_ms"] == pytest.approx(110)
    assert one["exposed_communication_ms"] == 0
    assert two["exposed_communication_ms"] + two["overlapped_communication_ms"] == pytest.approx(20, abs=0.01)
    for row in (one, two):
        assert sum(row[f"{name}_ms"] for name in PARTS) == pytest.approx(row["wall_ms"], abs=1e-6)
        assert row["compute_ms"] == pytest.approx(60, abs=0.01)


def test_stages_and_ranks_add_up_to_the_whole(tmp_path):
    write_sweep(tmp_path, [run_of(gpus_per_node=2, profile="torch")])
    study = load(tmp_path)
    whole = records(anatomy.anatomy(study).rows)[0]
    by_stage = records(anatomy.anatomy(study, ["stage"]).rows)
    assert [row["stage"] for row in by_stage] == list(STAGES)
    assert sum(row["wall_ms"] for row in by_stage) == pytest.approx(whole["wall_ms"])
    by_rank = records(anatomy.anatomy(study, ["rank"]).rows)
    assert [row["attributed_steps"] for row in by_rank] == [20, 20] and whole["attributed_steps"] == 40


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


def test_what_parts_are_made_of_adds_up_to_them(tmp_path):
    truth = Truth(wait_ms={2: 7.0}, queued_ms=3.0, noise_ms=0.1)
    write_sweep(tmp_path, [run_of(gpus_per_node=2, profile="torch")], truth)
    for by in ([], ["rank"], ["stage"], ["step", "stage"]):
        for row in records(anatomy.anatomy(load(tmp_path), by).rows):
            for part, names in WITHIN.items():
                made_of = sum(row[f"{name}_ms"] for name in names)
                assert made_of == pytest.approx(row[f"{part}_ms"], rel=1e-12, abs=1e-9)
    (row,) = records(anatomy.anatomy(load(tmp_path)).rows)
    assert row["loader_wait_ms"] == pytest.approx(7, abs=0.01)


def test_on_a_cpu_idle_is_one(tmp_path):
    write_sweep(tmp_path, [run_of(profile="torch")], Truth(device="cpu"))
    for path in tmp_path.glob("run_*/rank_*"):
        table = tables.read(path, "kernels").to_pydict()
        tables.write(
            tables.as_table("kernels", table | {"device": [-1] * len(table["device"])}), path, "kernels"
        )
    row = run("analysis.anatomy", tmp_path, "--format", "json").json[0]
    assert row["idle_host_bound_ms"] is None and row["idle_other_ms"] is None and row["idle_ms"] > 0


def test_tables_from_before_launches_were_recorded_are_read_and_it_is_said(tmp_path):
    write_sweep(tmp_path, [run_of(gpus_per_node=2, profile="torch")])
    # One rank of two suffices: what it does not know is not known of the run.
    path = next(tmp_path.glob("run_*")) / "rank_0001" / "kernels.parquet"
    pq.write_table(pq.read_table(path).drop_columns("launch_ns"), path)
    ran = run("analysis.anatomy", tmp_path, "--format", "json", "--by", "rank")
    first, second = ran.json
    assert first["idle_host_bound_ms"] > 0 and second["idle_host_bound_ms"] is None
    assert "120 of 240" in ran.err
    assert run("analysis.anatomy", tmp_path, "--format", "json").json[0]["idle_host_bound_ms"] is None


def test_launches_that_are_lost_are_counted(tmp_path):
    write_sweep(tmp_path, [run_of(profile="torch")], Truth(queued_ms=3.0, warmup=0, noise_ms=0.0))
    path = next(tmp_path.glob("run_*")) / "rank_0000" / "kernels.parquet"
    table = pq.read_table(path).to_pydict()
    # The second batch's first kernel: the idle time before it is no longer the host's.
    table["launch_ns"][5] = None
    tables.write(tables.as_table("kernels", table), path.parent, "kernels")
    study = load(tmp_path)
    of_batch = [round(row["idle_host_bound_ms"]) for row in records(anatomy.anatomy(study, ["step"]).rows)]
    assert of_batch[0] == 0 and of_batch[1] > 30
    assert not study.notes()  # 1 of 100
    for place in range(10, 20):
        table["launch_ns"][place] = table["start_ns"][place] + 1
    tables.write(tables.as_table("kernels", table), path.parent, "kernels")
    records(anatomy.anatomy(study := load(tmp_path)).rows)
    assert ": 11 of 100 " in study.notes()[0]


def test_a_run_without_a_profiler_is_said_in_one_line(tmp_path):
    write_sweep(tmp_path, [run_of()])
    assert "profile: torch" in one_line_error(run("analysis.anatomy", tmp_path))


def test_a_damaged_run_costs_no_other(tmp_path):
    write_sweep(tmp_path, [run_of(gpus_per_node=ranks, profile="torch") for ranks in (1, 2)])
    damaged = next(tmp_path.glob("run_*config_1_2_*")) / "rank_0001"
    tables.table_path(damaged, "kernels").write_bytes(b"PAR1 no more")
    ran = run("analysis.anatomy", tmp_path, "--format", "csv")
    assert ran.code == 1 and len(ran.csv) == 1 and "rank_0001" in ran.err
