"""What does slurm/sweep.sh do when the sweep in it has ended: is the job requeued, else how is it resumed?"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.analysis.commands import ROOT
from tests.builders import put_programs

PYTHON = """
case "$*" in
    *--print*) exit 0;;
    *jobs.sweep*) kill -s {signal} $PPID; sleep 0.2; exit {code};;
    *analysis.*) echo "writes $2"; kill -s {late} $PPID;;
esac
"""


@pytest.fixture
def job(tmp_path, monkeypatch):
    """A job's script, with a Python in which the sweep ends so, and a scontrol that says so."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "sweep.py").touch()
    shutil.copytree(ROOT / "slurm", tmp_path / "slurm")
    given = {"SLURM_JOB_ID": "42", "SLURM_SUBMIT_DIR": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin"}
    kept = {n: v for n, v in os.environ.items() if not n.startswith(("SLURM_", "SCALEPROF_", "LAUNCHER"))}

    def call(code: int, scontrol: str = "exit 0", signal: str = "CONT", late: str = "CONT"):
        put_programs(tmp_path, scontrol=scontrol, python=PYTHON.format(code=code, signal=signal, late=late))
        environment = {**kept, **given, "PYTHON": str(tmp_path / "python")}
        script = ["bash", tmp_path / "slurm/sweep.sh", "s.yaml", "--only", "grad=fp16,fp32"]
        return subprocess.run(script, env=environment, capture_output=True, text=True, check=False)

    return call


def test_a_job_is_back_in_the_queue_only_where_slurm_requeues_it(job, tmp_path: Path):
    asked = tmp_path / "asked"
    requeued = job(75, f'echo "$@" >{asked}; kill -s TERM $PPID')  # Slurm ends this start of the job
    assert requeued.returncode == 0 and "writes" not in requeued.stdout
    assert asked.read_text() == "requeue 42\n"
    refused = job(75, "echo Requested operation is presently disabled for job 42 >&2; exit 1")
    first, *rest = refused.stdout.splitlines()
    assert "disabled for job 42); submit it again" in first
    assert refused.returncode == 1 and rest == ["writes analysis.scaled", "writes analysis.report"]


def test_a_job_whose_time_is_up_before_the_sweep_begins_is_not_requeued(job):
    ended = job(138, "echo requeued")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "--time" in ended.stderr


def test_time_that_is_nearly_up_when_the_sweep_is_done_ends_nothing(job):
    ended = job(0, "echo requeued", late="USR1")
    assert (ended.returncode, ended.stderr) == (0, "") and "writes analysis.report" in ended.stdout
    code = (
        "import os, signal; from jobs.processes import stopped_in_order\n"
        "with stopped_in_order(): pass\n"
        "os.kill(os.getpid(), signal.SIGUSR1); print('done')"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n")


@pytest.mark.parametrize("code", [0, 1, 2])
def test_the_answers_are_written_unless_the_sweep_could_not_begin(job, code):
    ended = job(code, "echo requeued")
    assert ended.returncode == code and len(ended.stdout.splitlines()) == (2 if code < 2 else 0)
