"""The virtual cluster does what a cluster does: it is what the other tests stand on."""

import os
import subprocess
import sys

import pytest

from tests.cluster.virtual import ROOT, SCRIPT, Cluster


@pytest.mark.turn(1)
def test_ranks_run_on_nodes_of_their_own(cluster):
    answer = cluster.run("srun", "--nodes=32", "--ntasks=64", "--label", "hostname", timeout_s=60)
    assert answer.returncode == 0, answer.stderr
    hosts = sorted(line.split()[1] for line in answer.stdout.splitlines())
    assert hosts == sorted([f"n{node}" for node in range(1, 33)] * 2)


def test_a_node_that_loses_power_fails_its_job_and_comes_back(cluster):
    job = cluster.sbatch("--nodes=2", "--nodelist=n31,n32", "--no-requeue", "--wrap", "sleep 60")
    cluster.until(lambda: cluster.job(job)["JobState"] == "RUNNING")
    cluster.control("kill-node", "n31")
    try:
        assert cluster.wait(job)["JobState"] == "NODE_FAIL"
    finally:
        cluster.control("boot-node", "n31")
    answer = cluster.run("srun", "--nodelist=n31", "hostname")
    assert answer.stdout == "n31\n", answer.stderr


def test_a_links_rate_can_be_limited(cluster):
    cluster.control("shape", "80mbit")
    try:
        assert "rate 80Mbit" in cluster.control("on", "n3", "tc", "qdisc", "show", "dev", "eth0")
    finally:
        cluster.control("shape", "off")
    assert "tbf" not in cluster.control("on", "n3", "tc", "qdisc", "show", "dev", "eth0")


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


def test_wrong_use_is_one_line(tmp_path):
    answer = Cluster(tmp_path / "none")._run([str(SCRIPT), "exec", "true"], 10)
    assert answer.returncode == 1
    assert answer.stderr == "virtual_cluster.sh: head is not up\n"
