"""A batch's duration by each of TAU's records, against what the programs themselves measured."""

import json

import pytest

from tests.analysis.commands import one_line_error, run
from tests.profiling.tau_files import Thread, write_merged, write_snapshots

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
        truth = truth_ms(folder / f"n{batches}", rank, event["batches"])
        assert event["batch_ms"] == pytest.approx(truth, rel=0.005)
        assert event["preferred"] and not difference["preferred"]
        assert difference["batches"] == batches
        assert difference["batch_ms_low"] < truth < difference["batch_ms_high"]
        # By itself it would not do: start-up's noise is a tenth of a batch and more.
        assert difference["batch_ms_high"] - difference["batch_ms"] > 0.1 * truth


def test_a_timer_a_batch_is_as_right_as_an_event(shared_data):
    folder = shared_data / "tau/x_mpi4py_r2_merged_batchtimers"
    rows = answer(folder / "tauprofile.xml")
    for rank in (0, 1):
        assert rows[rank, "timers"]["batch_ms"] == pytest.approx(truth_ms(folder, rank), rel=0.005)
        assert rows[rank, "timers"]["preferred"] == ((rank, "event") not in rows)


def test_from_snapshot_to_snapshot_a_batch_is_as_long_as_the_program_says(shared_data):
    folder = shared_data / "tau/x_mpi4py_r2_snapshot_perbatch"
    rows = answer(folder)
    for rank in (0, 1):
        # The first batch has no snapshot before it.
        seconds = json.loads((folder / f"ground_truth.{rank}.json").read_text())["batch_durations"][1:]
        marks, truth = rows[rank, "marks"], 1e3 * sum(seconds) / len(seconds)
        assert marks["batches"] == len(seconds) and marks["batch_ms"] == pytest.approx(truth, rel=0.01)
        # Half of these batches lies between their stages.
        assert rows[rank, "stages"]["batch_ms"] < 0.6 * truth


def test_marks_stand_before_stages_and_stages_say_what_they_leave_out(tmp_path):
    timers = {".TAU application": (1.0, 0.0, 1.0, 9e6), "Forward Pass": (4.0, 0.0, 1.0, 4.0)}
    marked = write_snapshots(tmp_path / "marked", [Thread(0, 0, timers)], snapshots=4)
    rows = answer(marked)
    assert rows[0, "marks"]["preferred"] and rows[0, "marks"]["batches"] == 2
    assert rows[0, "marks"]["batch_ms"] == pytest.approx(0.001)  # a microsecond from one to the next
    assert "between its stages" not in run(MODULE, marked).out
    staged = run(MODULE, merged(tmp_path / "staged.xml", 30.0, batches=41))
    assert "between its stages is missing" in " ".join(staged.out.split())


def merged(path, application_s, batches=0):
    timers = {".TAU application": (1.0, 0.0, 1.0, application_s * 1e6)}
    if batches:
        timers["Forward Pass"] = (float(batches), 0.0, 1.0, batches * 50_000.0)
    return write_merged(path, [Thread(0, 0, timers)])


def test_the_difference_is_over_one_batch_less_and_stands_in_only_where_nothing_is_better(tmp_path):
    long = merged(tmp_path / "long.xml", 30.0)
    starts = [merged(tmp_path / f"one{n}.xml", took) for n, took in enumerate((10.0, 9.9, 10.1))]
    assert "tells no batch" in one_line_error(run(MODULE, long))
    (row,) = answer(long, "--batches", "41", "--startup", *starts).values()
    assert row["estimator"] == "difference" and row["preferred"]
    assert row["batch_ms"] == pytest.approx(20_000 / 40)
    # Student's t of 2 degrees, 0.1 s of scatter, one draw beside three: over 40 batches.
    assert row["batch_ms_high"] - row["batch_ms"] == pytest.approx(
        4.3027 * 100 * (4 / 3) ** 0.5 / 40, rel=1e-4
    )
    rows = answer(merged(tmp_path / "staged.xml", 30.0, batches=41), "--startup", *starts[:1])
    assert rows[0, "stages"]["preferred"] and rows[0, "stages"]["batch_ms"] == pytest.approx(50)
    assert rows[0, "difference"]["batch_ms_low"] is None  # of one start nothing is known of its scatter
