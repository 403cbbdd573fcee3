"""A job for each number of nodes: what would end it is found before it is queued."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.analysis.commands import ROOT, Ran, one_line_error, run
from tests.analysis.synthetic import Truth, run_of, write_run
from tests.builders import put_programs

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
def log(tmp_path, monkeypatch) -> Path:
    """On a login node of the cluster `virtual`; what sbatch is asked, a line a job."""
    log = tmp_path / "log"
    sbatch = SBATCH.format(log=log, refusal=REFUSAL)
    put_programs(tmp_path, scontrol="echo 'ClusterName = virtual'", sinfo="echo 'main*|4|2|(null)'")
    put_programs(tmp_path, srun="exit 1", sbatch=sbatch)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for name in [name for name in os.environ if name.startswith(("SLURM_", "SCALEPROF_"))]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(ROOT)
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
    said = one_line_error(run("analysis.scaled", results))
    assert "no usable result" in said
    # The job of two nodes ends before it asks for a run; that of one node has not started.
    for name, value in {"JOB_ID": "32", "JOB_NODELIST": "n[1-2]", "JOB_NUM_NODES": "2"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    job = [tmp_path / "s.yaml", "--launcher=slurm", "--only", "nodes=2", *words]
    ended = run("jobs.sweep", *job)
    assert ended.code == 2 and "no nope0; here: " in ended.err
    write_run(results, run_of(gpus_per_node=1, batch=2), Truth())
    of_table = run("analysis.scaled", results, "--format", "csv")
    assert of_table.code == 1 and "not started" in of_table.err
