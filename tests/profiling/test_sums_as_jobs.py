"""Launches of ncu and profiles of TAU are jobs without times of steps; what is not known is one line each."""

import shutil

import pytest

from profiling.convert import main as convert
from profiling.traced_job import read_job
from tests.analysis.commands import one_line_error, run
from tests.builders import codes
from tests.profiling.samples import SAMPLES
from tests.profiling.traced_jobs import Planted, write_job


def test_profiles_of_tau_are_a_job_whose_mpi_is_answered(shared_data, tmp_path):
    folder = shared_data / "tau" / "x_mpi4py_r2_profile_two_metrics"
    assert convert([str(folder), "--out", str(tmp_path), "--jobs", "1"]) == 0  # run.json is none of TAU's
    job = tmp_path / folder.name
    assert "parts_unread" in codes(read_job(job).findings)
    (row,) = run("analysis.communication", job, "--format", "json").json
    assert row["world_size"] == 2 and row["messages"] > 0 and row["mpi_s"] > 0
    assert (row["mpi_s_low"], row["mpi_s_high"]) == (None, None)  # of one run
    assert "[" not in run("analysis.communication", job).out
    assert {row["rank"] for row in run("analysis.tau_batches", job, "--format", "json").json} == {0, 1}
    done = run("analysis.report.__main__", job)
    assert (done.code, done.err.count("\n")) == (0, 1)
    shutil.copytree(job, tmp_path / "again")
    rows = run("analysis.communication", tmp_path, "--format", "json").json
    assert sorted((row["run"], row["mpi_s"]) for row in rows) == [
        ("again", pytest.approx(rows[0]["mpi_s"])), (folder.name, pytest.approx(rows[0]["mpi_s"])),
    ]  # fmt: skip


def test_a_timeline_without_steps_is_no_failure_where_other_jobs_answer(tmp_path):
    write_job(tmp_path / "raw" / "job", Planted(ranks=2))
    SAMPLES["horovod"][1](tmp_path / "raw" / "timeline.json")
    out = tmp_path / "my out"
    assert convert([str(tmp_path / "raw"), "--out", str(out), "--jobs", "1"]) == 0
    for command in ("anatomy", "utilization", "critical_path"):
        done = run(f"analysis.{command}", out, "--notes")
        assert done.code == 0 and "timeline" in done.out and "unusable" not in done.out
    one_line_error(run("analysis.anatomy", out / "timeline"))
    done = run("analysis.report.__main__", out)
    assert (done.code, done.err) == (0, "")
