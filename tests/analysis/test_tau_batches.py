"""A batch's duration by each of TAU's records, against what the programs themselves measured."""

import json
import math

import pytest

from profiling import tables
from tests.analysis.commands import one_line_error, run
from tests.profiling.tau_files import Thread, write_merged

MODULE = "analysis.tau_batches"


def answer(*arguments):
    ran = run(MODULE, *arguments, "--format", "json")
    assert ran.code == 0, ran.err
    return {(row["rank"], row["estimator"]): row for row in ran.json}


def truth_ms(folder, rank, batches=None):
    seconds = json.loads((folder / f"ground_truth.{rank}.json").read_text())["batch_durations"][:batches]
    return 1e3 * sum(seconds) / len(seconds)


@pytest.mark.parametrize(("run", "batches"), [("hvd_r2_merged", 24), ("mpi4py_r2_merged", 150)])
def test_events_are_right_and_the_difference_is_computed_with_the_noise_of_start_up(
    shared_data, run, batches
):
    folder = shared_data / "tau" / run
    starts = sorted(folder.glob("n1_rep*/tauprofile.xml"))
    assert len(starts) == 3
    rows = answer(folder / f"n{batches}/tauprofile.xml", "--startup", *starts)
    for rank in (0, 1):
        event, difference = rows[rank, "event"], rows[rank, "difference"]
        # Of Horovod's rank 0 the last mark is missing.
        truth = truth_ms(folder / f"n{batches}", rank, event["steps"])
        assert event["step_ms"] == pytest.approx(truth, rel=0.005)
        assert event["preferred"] and not difference["preferred"]
        assert difference["steps"] == batches
        assert difference["step_ms_low"] < truth < difference["step_ms_high"]
        # By itself it would not do: start-up's noise is a tenth of a batch and more.
        assert difference["step_ms_high"] - difference["step_ms"] > 0.1 * truth


def test_a_timer_a_batch_is_as_right_as_an_event(shared_data):
    folder = shared_data / "tau/x_mpi4py_r2_merged_batchtimers"
    rows = answer(folder / "tauprofile.xml")
    for rank in (0, 1):
        assert rows[rank, "timers"]["step_ms"] == pytest.approx(truth_ms(folder, rank), rel=0.005)
        assert rows[rank, "timers"]["preferred"] == ((rank, "event") not in rows)


def test_from_snapshot_to_snapshot_a_batch_is_as_long_as_the_program_says(shared_data):
    folder = shared_data / "tau/x_mpi4py_r2_snapshot_perbatch"
    rows = answer(folder)
    for rank in (0, 1):
        # The first batch has no snapshot before it.
        seconds = json.loads((folder / f"ground_truth.{rank}.json").read_text())["batch_durations"][1:]
        marks, truth = rows[rank, "marks"], 1e3 * sum(seconds) / len(seconds)
        assert marks["steps"] == len(seconds) and marks["step_ms"] == pytest.approx(truth, rel=0.01)
        # Half of these batches lies between their stages.
        assert rows[rank, "stages"]["step_ms"] < 0.6 * truth


def merged(path, application_s, batches=0):
    timers = {".TAU application": (1.0, 0.0, 1.0, application_s * 1e6)}
    if batches:
        timers["Forward Pass"] = (float(batches), 0.0, 1.0, batches * 50_000.0)
    return write_merged(path, [Thread(0, 0, timers)])


def test_the_difference_is_over_one_batch_less_and_stands_in_only_where_nothing_is_better(tmp_path):
    long = merged(tmp_path / "long.xml", 30.0)
    starts = [merged(tmp_path / f"one{n}.xml", took) for n, took in enumerate((10.0, 9.9, 10.1))]
    assert "holds no steps" in one_line_error(run(MODULE, long))
    (row,) = answer(long, "--batches", "41", "--startup", *starts).values()
    assert row["estimator"] == "difference" and row["preferred"]
    assert row["step_ms"] == pytest.approx(20_000 / 40)
    # Student's t of 2 degrees (99.5 %), 0.1 s of scatter, one draw beside a median of three: over 40 batches.
    reach = 9.9248 * 100 * (1 + math.pi / 6) ** 0.5 / 40
    assert row["step_ms_high"] - row["step_ms"] == pytest.approx(reach, rel=1e-4)
    rows = answer(merged(tmp_path / "staged.xml", 30.0, batches=41), "--startup", *starts[:1])
    assert rows[0, "stages"]["preferred"] and rows[0, "stages"]["step_ms"] == pytest.approx(50)
    assert rows[0, "difference"]["step_ms_low"] is None  # of one start nothing is known of its scatter


def tables_of_a_run(folder, rank, batches=4, timed=True):
    """What a rank under TAU leaves: batches of 50 ms with stages of 40, as timers or as events."""
    place = tables.rank_directory(folder, rank)
    names = [".TAU application", *(["Forward Pass"] if timed else ["MPI_Init()"])]
    timers = {"function": names, "calls": [1.0, float(batches)], "inclusive_ns": [9e9, batches * 4e7]}
    shared = {"rank": [rank] * 2, "thread": [0] * 2}
    tables.write(tables.as_table("intervals", {**shared, **timers}), place, "intervals")
    events = {"event": ["Batch Duration (ns)", "Forward Pass (ns)"], "count": [float(batches)] * 2}
    events |= {"mean": [5e7, 4e7], "std": [1e6, 0.0]}
    tables.write(tables.as_table("atomics", {**shared, **events}), place, "atomics")
    (place / "rank.json").write_text(json.dumps({"rank": rank, "findings": [f"rank {rank}: a finding"]}))
    return place


@pytest.mark.parametrize("timed", [True, False])
def test_a_run_whose_tables_are_there_is_answered_by_its_event(timed, tmp_path):
    for rank in (0, 1):
        tables_of_a_run(tmp_path / "run", rank, timed=timed)
    rows = answer(tmp_path / "run")
    for rank in (0, 1):
        event, stages = rows[rank, "event"], rows[rank, "stages"]
        assert event["preferred"] and not stages["preferred"]
        assert (event["steps"], event["step_ms"], stages["step_ms"]) == (4, 50, 40)
        assert event["step_ms_low"] is None and event["step_ms_high"] is None  # TAU keeps no series
    assert "rank 1: a finding" in run(MODULE, tmp_path / "run").out
    assert set(answer(tmp_path / "run" / "rank_0001")) == {(1, "event"), (1, "stages")}
