"""Sites without Slurm: the jobs that are submitted, how they end and begin again, and their ranks."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.cluster import BATCH_SYSTEMS, job_id
from jobs.launchers import LAUNCHERS
from jobs.run import make_run
from jobs.site import find_site
from jobs.store import this_owner
from tests.analysis.commands import ROOT, Ran, run
from tests.builders import put_programs
from tests.jobs import stand_ins

SITES = {"pbs": "polaris", "lsf": "summit", "flux": "tuolumne"}
CLIENTS = {"pbs": "qsub", "lsf": "bsub", "flux": "flux"}
COMMANDS = {"pbs": "mpiexec", "lsf": "jsrun", "flux": "flux"}


@pytest.fixture
def log(tmp_path, monkeypatch) -> Path:
    """On a login node with the clients of all batch systems; what they are given, a line a job."""
    log = tmp_path / "log"
    here = f"exec {sys.executable} {stand_ins.__file__}"
    programs = {name: f'{here} {name} {log} "$@"' for name in {*CLIENTS.values(), *COMMANDS.values()}}
    put_programs(tmp_path, **programs)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SCALEPROF_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(ROOT)
    return log


def submit(tmp_path: Path, batch: str, *words: str) -> Ran:
    """Submit a sweep over two numbers of nodes at the example site, less the modules that it would load."""
    site = (ROOT / "jobs/sites" / f"{SITES[batch]}.yaml").read_text()
    (tmp_path / "site.yaml").write_text("".join(x for x in site.splitlines(True) if "modules" not in x))
    (tmp_path / "s.yaml").write_text("repetitions: 1\nrun: {nodes: [2, 1], gpus_per_node: 4, batches: 3}\n")
    of_sweep = ["--site", f"{tmp_path}/site.yaml", "--out", f"{tmp_path}/out"]
    return run("jobs.submit", tmp_path / "s.yaml", *words, "--", *of_sweep)


def asked(log: Path) -> list[dict]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


OPTIONS = {
    "pbs": {
        "-N": ["s-2"], "-j": ["oe"], "-q": ["prod"], "-A": ["my-project"], "-W": ["depend=afterany:1.pbs01"],
        "-l": ["select=2:system=polaris", "walltime=1:30:00", "place=scatter", "filesystems=home:eagle"],
    },
    "lsf": {
        "-J": ["s-2"], "-o": ["s-2.o%J"], "-nnodes": ["2"], "-W": ["1:30"], "-q": ["batch"],
        "-P": ["my-project"], "-w": ["ended(1)"], "-alloc_flags": ["gpumps"],
    },
    "flux": {
        "--job-name": ["s-2"], "--output": ["s-2.o{{id}}"], "--nodes": ["2"], "--exclusive": [""],
        "--time-limit": ["5400s"], "--queue": ["pbatch"], "--bank": ["my-bank"],
        "--dependency": ["afterany:ƒ1"],
    },
}  # fmt: skip


@pytest.mark.parametrize("batch", BATCH_SYSTEMS)
def test_each_number_of_nodes_is_a_job_in_the_words_of_its_batch_system(log, tmp_path, batch):
    answer = submit(tmp_path, batch, "--time", "1:30:00")
    assert answer.code == 0, answer.err
    one, two, report = asked(log)
    assert two["options"] == OPTIONS[batch]
    waits = {"pbs": "-W", "lsf": "-w", "flux": "--dependency"}[batch]
    assert waits not in one["options"]
    after = {
        "pbs": ["depend=afterany:1.pbs01:2.pbs01"], "lsf": ["ended(1) && ended(2)"],
        "flux": ["afterany:ƒ1", "afterany:ƒ2"],
    }  # fmt: skip
    assert report["options"][waits] == after[batch]
    out = tmp_path / "out"
    assert f"exec slurm/sweep.sh {tmp_path}/s.yaml --only nodes=2 --site" in two["script"]
    assert report["script"].endswith(f"exec slurm/report.sh {out}/s\n")
    assert f"export LAUNCHER={BATCH_SYSTEMS[batch].launcher}\n" in two["script"]
    assert (out / "s/.jobs/s-2.sh").read_text() == two["script"] and (out / "s/sweep.json").is_file()
    assert answer.out.splitlines()[1].endswith(": nodes=2")


def test_what_is_wrong_is_found_before_a_job_is_queued(log, tmp_path):
    answer = submit(tmp_path, "pbs", "--time", "90")
    assert answer.code == 2 and "--time 90: should be H:MM:SS" in answer.err and not asked(log)
    answer = submit(tmp_path, "pbs", "-l", "nodes=2")
    assert answer.code == 2 and "qsub refuses the job (nodes=1): invalid value of -l" in answer.err
    answer = submit(tmp_path, "flux", "--wrong")
    assert answer.code == 2 and "unknown option --wrong" in answer.err


IDENTITY = "import os; from profiling.identity import read_identity as r; me = r(os.environ); "
IDENTITY += "print(me.rank, me.size, me.local_rank, me.local_size, os.environ['SCALEPROF_HOST'])"


@pytest.mark.parametrize("batch", BATCH_SYSTEMS)
def test_ranks_know_who_they_are_and_where_rank_0_is(log, tmp_path, batch, monkeypatch):
    system = BATCH_SYSTEMS[batch]
    (tmp_path / "hosts").write_text("batch3\nn1\nn2\nn2\n" if batch == "lsf" else "n1\nn2\n")
    monkeypatch.setenv(system.job_id, "7")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    if system.hostfile:
        monkeypatch.setenv(system.hostfile, str(tmp_path / "hosts"))
    else:
        monkeypatch.setattr("jobs.cluster._ask", lambda *_: "n[1-2] 8")
    launcher = LAUNCHERS[system.launcher].open(find_site(SITES[batch], {}), os.environ)
    assert launcher.nodes == ("n1", "n2")
    command = [sys.executable, "-c", IDENTITY]
    one_run = make_run({"nodes": 2, "gpus_per_node": 2, "device": "cpu"})
    (process,) = launcher.processes(one_run, command, tmp_path)
    environment = {**os.environ, **process.environment}
    ended = subprocess.run(process.argv, env=environment, capture_output=True, text=True, check=True)
    assert sorted(ended.stdout.splitlines()) == ["0 4 0 2 n1", "1 4 1 2 n1", "2 4 0 2 n1", "3 4 1 2 n1"]


SWEEP = """
case "$*" in
    *--print*) exit 0;;
    *jobs.sweep*) trap 'echo time is up; exit 75' USR1; echo "start $SCALEPROF_RESTARTS of $SCALEPROF_JOB_ID"
        for i in $(seq 100); do [ $SCALEPROF_RESTARTS = 0 ] || exit 0; sleep 0.1; done;;
    *analysis.*) echo "writes $2";;
esac
"""


@pytest.mark.parametrize("batch", BATCH_SYSTEMS)
def test_a_job_whose_time_is_nearly_up_submits_itself_again_and_resumes(log, tmp_path, batch):
    assert submit(tmp_path, batch, "--time", "0:03:01").code == 0  # its last 3 minutes are for ending
    script, (_, two, _) = tmp_path / "out/s/.jobs/s-2.sh", asked(log)
    here = tmp_path / "project"
    (here / "jobs").mkdir(parents=True)
    (here / "jobs" / "sweep.py").touch()
    shutil.copytree(ROOT / "slurm", here / "slurm")
    script.write_text(two["script"].replace(f"cd {ROOT} ", f"cd {here} "))
    put_programs(tmp_path, python=SWEEP)
    environment = {**os.environ, BATCH_SYSTEMS[batch].job_id: "2", "PYTHON": str(tmp_path / "python")}
    started = time.monotonic()
    first = subprocess.run(["bash", script], env=environment, capture_output=True, text=True, check=False)
    assert time.monotonic() - started < 8 and first.returncode == 0, first.stderr
    assert first.stdout.splitlines() == ["start 0 of 2", "time is up", "slurm/sweep.sh: back into the queue"]
    again = asked(log)[3]
    assert again["job"] == "2" and again["script"] == script.read_text()
    assert again["options"].pop("-v", ["SCALEPROF_JOB_ID"]) == ["SCALEPROF_JOB_ID"]
    # The new job has an id of its own; the report's job may have ended by then.
    environment |= {BATCH_SYSTEMS[batch].job_id: "4", "SCALEPROF_JOB_ID": "2"}
    second = subprocess.run(["bash", script], env=environment, capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stderr
    assert second.stdout.splitlines() == ["start 1 of 2", "writes analysis.scaled", "writes analysis.report"]


def test_a_job_keeps_the_id_and_counts_the_starts_of_the_first():
    assert job_id({"PBS_JOBID": "9.pbs", "SCALEPROF_JOB_ID": "7.pbs"}) == "7.pbs" and job_id({}) == ""
    me = this_owner({"LSB_JOBID": "9", "SCALEPROF_JOB_ID": "7", "SCALEPROF_RESTARTS": "2"})
    assert (me.job, me.restarts) == ("7", 2) and this_owner({"FLUX_ENCLOSING_ID": "f3"}).job == "f3"
