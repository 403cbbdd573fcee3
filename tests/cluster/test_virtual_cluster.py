"""The virtual cluster does what a cluster does; the check of its nodes, and conversion on several."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from profiling.identity import expand_nodes
from profiling.tables import rank_directory
from profiling.traced_job import read_job
from tests.analysis.commands import run
from tests.cluster.test_training import MPIRUN, need_mpirun
from tests.cluster.virtual import ROOT, SCRIPT, Cluster
from tests.profiling.traced_jobs import Planted, trace_of


@pytest.mark.turn(1)
def test_ranks_run_on_nodes_of_their_own(cluster):
    answer = cluster.run("srun", "--nodes=32", "--ntasks=64", "--label", "hostname", timeout_s=60)
    assert answer.returncode == 0, answer.stderr
    hosts = sorted(line.split()[1] for line in answer.stdout.splitlines())
    assert hosts == sorted([f"n{node}" for node in range(1, 33)] * 2)


def test_it_ends_with_its_owner(tmp_path, cluster):
    home = tmp_path / "home"
    code = "import subprocess, sys, os; os.environ['VIRTUAL_CLUSTER_OWNER'] = str(os.getpid());"
    code += "subprocess.run([sys.argv[1], 'start', '1'], check=True)"
    environment = {**os.environ, "VIRTUAL_CLUSTER": str(home)}
    subprocess.run(
        [sys.executable, "-c", code, str(SCRIPT)], env=environment, cwd=ROOT, check=True, timeout=60
    )
    assert (home / "slurm.conf").exists()
    other = Cluster(home)
    # flock succeeds once no machine holds the lock.
    cluster.until(lambda: other._run(["flock", "-n", str(home / "machines/head"), "true"], 5).returncode == 0)


def test_slurm_itself_reads_every_list_as_we_do(cluster):
    for text in ["n[1-3,7],x", "a[01-03]", "g[8-11]b[1-2],z9"]:
        assert expand_nodes(text) == cluster.control("exec", "scontrol", "show", "hostnames", text).split()


# --- the check of nodes on a cluster of its own, where one node's processor and another's link are slow ---

# Where control groups of processors are: version 1, else 2.
CPU_GROUPS = next(
    (p for p in map(Path, ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup")) if os.access(p, os.W_OK)), None
)


@pytest.mark.wide
@pytest.mark.skipif(CPU_GROUPS is None, reason="no control groups for processors on this machine")
@pytest.mark.parametrize("slow", [False, True])
def test_exactly_the_node_with_a_slow_processor_and_that_with_a_slow_link_are_named(tmp_path, able, slow):
    own = Cluster(tmp_path / "home", {"VIRTUAL_CLUSTER_OWNER": str(os.getpid())})
    own.control("start", "4")
    try:
        own.control("cpu", "0.45")
        own.control("shape", "100mbit")
        if slow:
            own.control("cpu", "0.2", "n3")
            own.control("shape", "25mbit", "n2")
        expected, said = "1:0" if slow else "0:0", tmp_path / "job.out"
        for again in range(1 if slow else 2):  # of equal nodes, chance makes one slow in 5 % of checks
            out = tmp_path / f"check{again}"
            job = own.sbatch("--nodes=4", f"--output={said}", "slurm/check.sh", "--out", str(out))
            if (code := own.wait(job, 600)["ExitCode"]) == expected:
                break
        assert code == expected, said.read_text()
    finally:
        own.control("stop")
    rows = {row["node"]: row["slow"] for row in run("analysis.check", out, "--format", "csv").csv}
    assert {node for node, what in rows.items() if what} == ({"n2", "n3"} if slow else set())
    if slow:
        assert rows["n2"] == "link" and "link" not in rows["n3"]


# --- traces of many ranks are converted by ranks of MPI on several nodes; a damaged one costs only -----

RANKS, DAMAGED = 8, 5  # of the traces
NODES = ("n29", "n30")


@pytest.mark.wide
def test_ranks_on_several_nodes_share_the_files(cluster: Cluster, tmp_path: Path):
    need_mpirun()
    raw, out, said = tmp_path / "raw", tmp_path / "out", tmp_path / "out.txt"
    raw.mkdir()
    for rank in range(RANKS):
        trace_of(Planted(ranks=RANKS), rank).write(raw / f"rank_{rank}.json")
    damaged = raw / f"rank_{DAMAGED}.json"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    hosts = ",".join(f"{node}:2" for node in NODES)
    words = [
        str(MPIRUN), "--allow-run-as-root", f"-np {2 * len(NODES)} --host {hosts}",
        "--map-by ppr:2:node:OVERSUBSCRIBE",
        sys.executable, "-m", "profiling.convert", str(raw), "--out", str(out),
    ]  # fmt: skip
    script = tmp_path / "job.sh"
    script.write_text(f"#!/bin/bash\nexport TMPDIR=/dev/shm PYTHONPATH={ROOT}\nexec {' '.join(words)}\n")
    where = [f"--nodes={len(NODES)}", f"--nodelist={','.join(NODES)}", "--exclusive"]
    ended = cluster.wait(cluster.sbatch(*where, f"--output={said}", str(script)), 120)
    text = said.read_text()
    assert ended["ExitCode"] == "1:0", text  # one file cannot be read
    assert f"{RANKS - 1} converted, 1 not" in text and damaged.name in text
    (record,) = out.glob("*/job.json")
    assert [one.rank for one in read_job(record.parent).ranks] == sorted(set(range(RANKS)) - {DAMAGED})
    assert not rank_directory(record.parent, DAMAGED).exists() and not list(out.glob(".*"))
