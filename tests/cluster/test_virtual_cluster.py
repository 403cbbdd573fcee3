"""The virtual cluster does what a cluster does: it is what the other tests stand on."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from profiling.identity import expand_nodes
from tests.cluster.virtual import ROOT, SCRIPT, Cluster

# Where control groups of processors are: version 1, else 2.
CPU_GROUPS = next(
    (p for p in map(Path, ("/sys/fs/cgroup/cpu", "/sys/fs/cgroup")) if os.access(p, os.W_OK)), None
)


@pytest.mark.turn(1)
def test_ranks_run_on_nodes_of_their_own(cluster):
    answer = cluster.run("srun", "--nodes=32", "--ntasks=64", "--label", "hostname", timeout_s=60)
    assert answer.returncode == 0, answer.stderr
    hosts = sorted(line.split()[1] for line in answer.stdout.splitlines())
    assert hosts == sorted([f"n{node}" for node in range(1, 33)] * 2)


@pytest.mark.wide
@pytest.mark.skipif(CPU_GROUPS is None, reason="no control groups for processors on this machine")
def test_a_nodes_share_of_the_processor_can_be_limited(tmp_path, able):
    own = Cluster(tmp_path / "home", {"VIRTUAL_CLUSTER_OWNER": str(os.getpid())})
    name = f"scaleprof{str(own.home).replace('/', '-')}"
    assert "n1 n2" in own.control("start", "2")
    try:
        own.control("cpu", "0.5")
        groups = own.run("srun", "--nodes=2", "cat", "/proc/self/cgroup").stdout
        assert f"{name}-n1" in groups
        assert f"{name}-n2" in groups
        limits = [*CPU_GROUPS.glob(f"{name}-n?/cpu.cfs_quota_us"), *CPU_GROUPS.glob(f"{name}-n?/cpu.max")]
        assert [limit.read_text().split()[0] for limit in limits] == ["2500", "2500"]  # of each 5000 us
        own.control("kill-node", "n2")
        own.control("boot-node", "n2")  # a node that comes back has its share again
        own.until(lambda: (CPU_GROUPS / f"{name}-n2" / "cgroup.procs").read_text())
        wrong = own._run([str(SCRIPT), "cpu", "0.1"], 10)
        assert wrong.returncode == 1 and wrong.stderr.count("\n") == 1
    finally:
        own.control("stop")
    assert not list(CPU_GROUPS.glob(f"{name}-*"))


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
    lists = ["n[1-3,7],x", "a[01-03]", "g[8-11]b[1-2],z9"]
    for text in lists:
        theirs = cluster.control("exec", "scontrol", "show", "hostnames", text).split()
        assert expand_nodes(text) == theirs
