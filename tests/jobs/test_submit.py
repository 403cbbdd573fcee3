"""A job for each number of nodes, of Slurm and of others: what would end it is found before it is queued."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from jobs.launchers import LAUNCHERS
from jobs.machine import BATCH_SYSTEMS, job_id
from jobs.run import make_run
from jobs.site import find_site
from jobs.store import this_owner
from tests.analysis.commands import ROOT, Ran, one_line_error, run
from tests.analysis.synthetic import Truth, run_of, write_run
from tests.builders import put_programs
from tests.jobs import stand_ins

REFUSAL = "Invalid account or account/partition combination specified"
SBATCH = """case "$*" in
    --test-only*' -A nobody '*) echo "allocation failure: {refusal}" >&2; exit 1;;
    --test-only*' --qos=small '*--nodes=2*) echo "allocation failure: 2 nodes are not permitted" >&2; exit 1;;
    --test-only*' --begin='*) echo "allocation failure: Requested reservation not usable now" >&2; exit 1;;
    --test-only*) echo "sbatch: Job 7 to start at 2026-01-01T00:00:00" >&2; exit 0;;
esac
echo "$REPORT $SCALEPROF_SITE: $*" >>{log}
case "$*" in
    *--bad*) printf 'sbatch: error: %s\\n' 'Too much memory' 'Batch job: not available' >&2; exit 1;;
    *--note*) echo "sbatch: your budget is low" >&2;;
    *--limit*--nodes=2*) exit 1;;
esac
echo $(grep -c . {log})
"""


@pytest.fixture
def login_node(tmp_path, monkeypatch) -> None:
    """Programs are those that a test puts there."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SCALEPROF_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(ROOT)


@pytest.fixture
def log(tmp_path, login_node) -> Path:
    """On a login node of the cluster `virtual`; what sbatch is asked, a line a job."""
    log = tmp_path / "log"
    sbatch = SBATCH.format(log=log, refusal=REFUSAL)
    put_programs(tmp_path, scontrol="echo 'ClusterName = virtual'", sinfo="echo 'main*|4|2|(null)'")
    put_programs(tmp_path, srun="exit 1", sbatch=sbatch)
    return log


@pytest.fixture
def submit(tmp_path, log):
    """Submits a sweep with such fields of a run."""

    def call(fields: str, *words: str, more: str = "") -> Ran:
        path = tmp_path / "s.yaml"
        path.write_text(f"repetitions: 1\n{more}\nrun: {{{fields}, batches: 3}}\n")
        dashes = [] if "--" in words else ["--"]
        return run("jobs.submit", path, *words, *dashes, "--out", f"{tmp_path}/out")

    return call


def asked(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def test_each_number_of_nodes_is_a_job_with_what_the_site_file_says(submit, log, tmp_path):
    answer = submit("nodes: [2, 1]", "--time=5")
    config, out = tmp_path / "s.yaml", tmp_path / "out"
    begin = "--parsable --output=slurm-%x-%j.out --partition=main --time=5"
    assert answer.code == 0, answer.err
    assert asked(log) == [
        f"no : {begin} --nodes=1 --job-name=s-1 slurm/sweep.sh {config} --only nodes=1 --out {out}",
        f"no : {begin} --nodes=2 --job-name=s-2 --dependency=afterany:1 "
        f"slurm/sweep.sh {config} --only nodes=2 --out {out}",
        f" : {begin} --job-name=s-report --dependency=afterany:1:2 slurm/report.sh {out}/s",
    ]
    assert answer.out == f"job 1: nodes=1\njob 2: nodes=2\njob 3: the report, {out}/s/report.html\n"
    assert answer.err.split() == ["site", "file:", "jobs/sites/virtual.yaml"]


def test_a_dry_run_prints_the_jobs_and_their_commands_and_submits_nothing(submit, log, monkeypatch):
    monkeypatch.setenv("SCALEPROF_SITE", "virtual")  # another shell may not have it
    for words in (["--dry-run"], ["--", "--dry-run"]):
        answer = submit("nodes: [1, 2]", *words)
        assert answer.code == 0 and "nothing submitted" in answer.err
        lines = answer.out.splitlines()
        assert sum("sbatch --parsable --output=" in line for line in lines) == 3
        assert sum(line.startswith("env SCALEPROF_SITE=virtual ") for line in lines) == 3
        assert not any("--dry-run" in line for line in lines)
        assert sum(" srun --nodes=" in line and "--nodelist" not in line for line in lines) == 2
    assert not asked(log)


def test_a_sweep_outside_a_job_can_be_planned_but_not_run(submit, tmp_path):
    submit("nodes: [1, 8]", "--dry-run")
    words = ["jobs.sweep", tmp_path / "s.yaml", "--launcher", "slurm", "--out", tmp_path / "out"]
    plan = run(*words, "--dry-run")
    assert plan.code == 1 and "8 nodes" in plan.err
    assert "srun --nodes=1 " in plan.out
    assert run(*words).code == 2


@pytest.mark.parametrize(
    ("fields", "words", "says"),
    [
        ("nodes: [1, 8]", [], "8 nodes requested, but the partition main has 4"),
        ("network: ib", [], "network ib is not in the site file"),
        ("gpus_per_node: 4", [], "error: no run can start in the partition main: 1 run: 4 ranks per node"),
        ("loader: pytorch, data: /no/imagenet", [], "correct --data (in a sweep file: `data`)"),
        ("nodes: 1", ["-p", "gpu"], "Slurm has no partition 'gpu'; one of: main"),
        ("nodes: 1", ["-N4"], "-N4: each job has the nodes of its runs"),
        ("nodes: 1", ["--only", "batch=4"], "--only is an option of jobs.sweep: write it after --"),
    ],
)  # fmt: skip
def test_what_would_end_the_jobs_is_found_before_one_is_queued(submit, log, fields, words, says):
    answer = submit(fields, *words)
    assert answer.code == 2 and says in answer.err and not asked(log)
    assert "Traceback" not in answer.err


def test_a_python_without_what_is_needed_is_refused_alike_by_the_script_and_the_command(log, tmp_path):
    put_programs(tmp_path, bare=f'exec {sys.executable} -S "$@"')  # without site-packages
    bare = str(tmp_path / "bare")
    for command in (["slurm/submit.sh", "a.yaml"], [bare, "-m", "jobs.sweep", "a.yaml"]):
        environment = {**os.environ, "PYTHON": bare}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        said = one_line_error(Ran(ended.returncode, ended.stdout, ended.stderr))
        assert "lacks what scaleprof needs" in said and not asked(log)


def test_what_is_done_is_not_submitted_again(submit, log, tmp_path):
    for nodes in (1, 2):
        write_run(tmp_path / "out" / "s", run_of(nodes=nodes, batches=3, workers=2), Truth())
        answer = submit("nodes: [1, 2]")
        assert len(asked(log)) == 2
    assert answer.code == 0 and answer.out.endswith(": to do: 0, done: 2\n")


def test_a_job_that_sbatch_refuses_ends_it_and_what_is_queued_is_named(submit, log):
    answer = submit("nodes: [1, 2]", "--bad")
    assert answer.code == 2 and answer.out == ""
    (refused,) = answer.err.splitlines()[1:]
    assert "nodes=1" in refused and refused.endswith("Too much memory; Batch job: not available")
    log.unlink()
    answer = submit("nodes: [1, 2]", "--limit")
    assert "nodes=2" in answer.err and answer.err.endswith("scancel 1)\n")
    assert "your budget" in submit("nodes: 1", "--note").err


def test_an_account_that_slurm_refuses_is_one_line_before_a_job_is_queued(submit, log, monkeypatch):
    for words in (["-A", "nobody"], ["-A", "nobody", "--dry-run"]):
        answer = submit("nodes: [1, 2]", *words)
        assert answer.code == 2 and answer.out == "" and not asked(log)
        assert REFUSAL in answer.err and "-A nobody" in answer.err
    # The largest job is asked for.
    assert "2 nodes are not" in submit("nodes: [1, 2]", "--qos=small").err
    # A job that may only have to wait is submitted.
    assert submit("nodes: 1", "--begin=tomorrow").code == 0 and len(asked(log)) == 2
    monkeypatch.setenv("CHECK", "no")
    assert submit("nodes: 1", "-A", "nobody").code == 0


def test_what_a_job_that_ends_at_its_start_was_to_run_is_known(submit, log, tmp_path, monkeypatch):
    (tmp_path / "wrong.yaml").write_text("network: {eth: {interface: nope0}}")
    answer = submit("nodes: [1, 2], batch: [2, 4]", "--", "--out", f"{tmp_path}/out", "--dry-run")
    assert answer.code == 0 and not (tmp_path / "out").exists()
    words = ["--out", f"{tmp_path}/out", "--site", f"{tmp_path}/wrong.yaml"]
    assert submit("nodes: [1, 2], batch: [2, 4]", "--", *words).code == 0
    results = tmp_path / "out" / "s"
    assert "no usable result" in one_line_error(run("analysis.scaled", results))
    # The job of two nodes ends before it asks for a run; that of one node has not started.
    for name, value in {"JOB_ID": "32", "JOB_NODELIST": "n[1-2]", "JOB_NUM_NODES": "2"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    ended = run("jobs.sweep", tmp_path / "s.yaml", "--launcher=slurm", "--only", "nodes=2", *words)
    assert ended.code == 2 and "no nope0; here: " in ended.err
    write_run(results, run_of(gpus_per_node=1, batch=2), Truth())
    of_table = run("analysis.scaled", results, "--format", "csv")
    assert of_table.code == 1 and "not started" in of_table.err


# --- sites without Slurm: the jobs that are submitted, how they end and begin again, and their ranks ---

SITES = {"pbs": "polaris", "lsf": "summit", "flux": "tuolumne"}
CLIENTS = {"pbs": "qsub", "lsf": "bsub", "flux": "flux"}
COMMANDS = {"pbs": "mpiexec", "lsf": "jsrun", "flux": "flux"}


@pytest.fixture
def given(tmp_path, login_node) -> Path:
    """On a login node with the clients of all batch systems; what they are given, a line a job."""
    given = tmp_path / "given"
    here = f"exec {sys.executable} {stand_ins.__file__}"
    programs = {name: f'{here} {name} {given} "$@"' for name in {*CLIENTS.values(), *COMMANDS.values()}}
    put_programs(tmp_path, **programs)
    return given


def submit_at(tmp_path: Path, batch: str, *words: str) -> Ran:
    """Submit a sweep over two numbers of nodes at the example site, less the modules that it would load."""
    site = (ROOT / "jobs/sites" / f"{SITES[batch]}.yaml").read_text()
    (tmp_path / "site.yaml").write_text("".join(x for x in site.splitlines(True) if "modules" not in x))
    (tmp_path / "s.yaml").write_text("repetitions: 1\nrun: {nodes: [2, 1], gpus_per_node: 4, batches: 3}\n")
    of_sweep = ["--site", f"{tmp_path}/site.yaml", "--out", f"{tmp_path}/out"]
    return run("jobs.submit", tmp_path / "s.yaml", *words, "--", *of_sweep)


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
def test_each_number_of_nodes_is_a_job_in_the_words_of_its_batch_system(given, tmp_path, batch):
    answer = submit_at(tmp_path, batch, "--time", "1:30:00")
    assert answer.code == 0, answer.err
    one, two, report = map(json.loads, asked(given))
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


def test_what_is_wrong_is_found_before_a_job_is_queued(given, tmp_path):
    answer = submit_at(tmp_path, "pbs", "--time", "90")
    assert answer.code == 2 and "--time 90: should be H:MM:SS" in answer.err and not asked(given)
    answer = submit_at(tmp_path, "pbs", "-l", "nodes=2")
    assert answer.code == 2 and "qsub refuses the job (nodes=1): invalid value of -l" in answer.err
    answer = submit_at(tmp_path, "flux", "--wrong")
    assert answer.code == 2 and "unknown option --wrong" in answer.err


IDENTITY = "import os; from profiling.identity import read_identity as r; me = r(os.environ); "
IDENTITY += "print(me.rank, me.size, me.local_rank, me.local_size, os.environ['SCALEPROF_HOST'])"


@pytest.mark.parametrize("batch", BATCH_SYSTEMS)
def test_ranks_know_who_they_are_and_where_rank_0_is(given, tmp_path, batch, monkeypatch):
    system = BATCH_SYSTEMS[batch]
    (tmp_path / "hosts").write_text("batch3\nn1\nn2\nn2\n" if batch == "lsf" else "n1\nn2\n")
    monkeypatch.setenv(system.job_id, "7")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    if system.hostfile:
        monkeypatch.setenv(system.hostfile, str(tmp_path / "hosts"))
    else:
        monkeypatch.setattr("jobs.machine._answer", lambda *_: "n[1-2] 8")
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
def test_a_job_whose_time_is_nearly_up_submits_itself_again_and_resumes(given, tmp_path, batch):
    assert submit_at(tmp_path, batch, "--time", "0:03:01").code == 0  # its last 3 minutes are for ending
    script, (_, two, _) = tmp_path / "out/s/.jobs/s-2.sh", [*map(json.loads, asked(given))]
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
    again = json.loads(asked(given)[3])
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
