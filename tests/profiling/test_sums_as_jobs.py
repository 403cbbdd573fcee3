"""Launches of ncu and profiles of TAU are jobs without times of steps; what is not known is one line each."""

import shutil

import pytest

from analysis.frames.load import load
from profiling.convert import main as convert
from profiling.tables import read
from profiling.traced_job import read_job
from tests.analysis.commands import one_line_error, run
from tests.builders import codes
from tests.profiling.samples import NCU_RAW, SAMPLES
from tests.profiling.traced_jobs import Planted, write_job


@pytest.fixture
def ncu(tmp_path):
    folder = tmp_path / "counted"
    folder.mkdir()
    for rank in (0, 1):
        (folder / f"rank{rank}.csv").write_text(NCU_RAW)
    assert convert([str(folder), "--out", str(tmp_path / "out"), "--jobs", "1"]) == 0
    return tmp_path / "out" / "counted"


def test_launches_of_ncu_are_the_kernels_of_a_job(ncu):
    (source,) = load(ncu).sources
    assert source.job is not None and source.job.tool == "ncu"
    assert [one.rank for one in source.job.ranks] == [0, 1]
    launches = sum(read(path.parent, "kernels").num_rows for path in source.tables("kernels"))
    rows = run("analysis.kernels", ncu, "--by", "kernel", "--format", "json").json
    assert sum(row["calls_per_step"] for row in rows) * 2 == pytest.approx(launches)
    assert all(row["ms_per_step"] > 0 for row in rows)


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


def test_of_profiles_of_tau_alone_their_mean_step_is_answered(shared_data, tmp_path):
    folder = shared_data / "tau" / "hvd_r2_merged"
    convert([str(folder), "--out", str(tmp_path), "--jobs", "1"])
    assert run("analysis.tau_batches", tmp_path / "n150_tauprofile").code == 0
    for command in ("anatomy", "batches", "scaled", "stragglers"):
        one_line_error(run(f"analysis.{command}", tmp_path))
    study = load(tmp_path)
    found = {source.id: source.job.findings for source in study.sources}
    assert [name for name, some in found.items() if "marks_missing" in codes(some)] == ["n24_tauprofile"]


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
