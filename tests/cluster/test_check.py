"""The check of nodes on a cluster of its own, where one node's processor and another's link are slow."""

import os
from pathlib import Path

import pytest

from tests.analysis.commands import run
from tests.cluster.virtual import Cluster

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
        out, said = tmp_path / "check", tmp_path / "job.out"
        job = own.sbatch("--nodes=4", f"--output={said}", "slurm/check.sh", "--out", str(out))
        assert own.wait(job, 600)["ExitCode"] == ("1:0" if slow else "0:0"), said.read_text()
    finally:
        own.control("stop")
    rows = {row["node"]: row["slow"] for row in run("analysis.check", out, "--format", "csv").csv}
    assert {node for node, what in rows.items() if what} == ({"n2", "n3"} if slow else set())
    if slow:
        assert rows["n2"] == "link" and "link" not in rows["n3"]
