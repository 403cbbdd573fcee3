"""The virtual cluster does what a cluster does: it is what the other tests stand on."""

import os
import subprocess
import sys

import pytest

from profiling.identity import expand_nodes
from tests.cluster.virtual import ROOT, SCRIPT, Cluster


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
    lists = ["n[1-3,7],x", "a[01-03]", "g[8-11]b[1-2],z9"]
    for text in lists:
        theirs = cluster.control("exec", "scontrol", "show", "hostnames", text).split()
        assert expand_nodes(text) == theirs
