"""512 ranks on 32 nodes start, meet, end and are recorded; what fails among 256 ranks on 16 nodes is named.

They train nothing (``benchmarks.many_ranks`` starts 1,024). Limits are those that hold for eight ranks.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.scripted_ranks import few_open_files, many
from jobs.store import Manifest
from profiling.identity import expand_nodes
from tests.cluster.test_training import need_mpirun
from tests.cluster.virtual import Cluster, Sweep

pytestmark = pytest.mark.wide
NODES, RANKS_PER_NODE = 32, 16  # whatever processors the machine has
RANKS = NODES * RANKS_PER_NODE
FEWER, ODD = 16, 200  # nodes of runs that fail; the rank that misbehaves


@pytest.fixture(scope="module")
def large(able, tmp_path_factory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("large") / "home", {"VIRTUAL_CLUSTER_OWNER": str(os.getpid())})
    cluster.control("start", str(NODES), str(RANKS_PER_NODE))
    yield cluster
    cluster.control("stop")


def submit(
    cluster: Cluster, folder: Path, launcher: str, nodes: int, more: str = "",
    sbatch: Sequence[str] = (), **variables: str,
) -> tuple[Sweep, str]:  # fmt: skip
    """A sweep of one run, on all processors of its nodes, that is tried once; and its job."""
    in_all = nodes * RANKS_PER_NODE
    sweep = Sweep(cluster, folder, keep_off=()).write(
        f"nodes: {nodes}", f"repetitions: 1\nretries: 0\n{more}", RANKS_PER_NODE, in_all
    )
    with few_open_files():
        variables = {**many(folder, launcher, cluster.path), **variables}
        return sweep, sweep.submit(f"--nodes={nodes}", *sbatch, **variables)


def run(
    cluster: Cluster, folder: Path, launcher: str, nodes: int, more: str = "", **variables: str
) -> Manifest:
    """The manifest of a run of all ranks of these nodes."""
    sweep, job = submit(cluster, folder, launcher, nodes, more, **variables)
    cluster.wait(job, 600)
    (manifest,) = sweep.manifests().values()
    return manifest


@pytest.mark.parametrize("launcher", ["slurm", "mpirun"])
def test_they_meet_and_end_and_are_recorded(large, tmp_path, launcher):
    if launcher == "mpirun":
        need_mpirun()
    manifest = run(large, tmp_path, launcher, NODES)
    (log,) = tmp_path.glob("results/s/run_*/log.txt")
    assert manifest.done, log.read_text()[-10_000:]
    assert [report.rank for report in manifest.ranks] == list(range(RANKS))
    assert {report.parameter_digest for report in manifest.ranks} == {"same"}
    hosts = [report.hostname for report in manifest.ranks]
    assert len(set(hosts)) == NODES and len(set(hosts[:RANKS_PER_NODE])) == 1


@pytest.fixture(scope="module")
def losing(large, tmp_path_factory) -> Iterator[tuple[Sweep, str]]:
    """A run one of whose nodes has lost its power, and that node: Slurm takes some 20 s to see it."""
    last = f"n[{NODES - FEWER + 1}-{NODES}]"  # others find the first ones free
    words = ["--no-kill", f"--nodelist={last}"]
    sweep, job = submit(large, tmp_path_factory.mktemp("lost"), "slurm", FEWER, sbatch=words, BATCH_S="3")
    large.until(lambda: "step 2/" in sweep.log_of_running(), 300)
    node = expand_nodes(large.job(job)["NodeList"])[-1]
    large.control("kill-node", node)
    yield sweep, node
    large.control("boot-node", node)


@pytest.mark.usefixtures("losing")  # which goes on meanwhile
@pytest.mark.parametrize("launcher", ["slurm", "mpirun"])
def test_a_killed_rank_is_named(large, tmp_path, launcher):
    if launcher == "mpirun":
        need_mpirun()
    manifest = run(large, tmp_path, launcher, FEWER, MISBEHAVE=f"die {FEWER} {ODD}")
    node = f"n{ODD // RANKS_PER_NODE + 1}"
    assert (manifest.failure, manifest.failed_nodes) == ("rank crash", [node])
    assert f"rank {ODD} on {node} " in manifest.reason and manifest.exit_code == -9


def test_a_lost_node_is_named(large, losing):
    sweep, node = losing
    # Before Slurm has the job ended, which takes a minute more: steps on its other nodes do not end as asked.
    large.until(lambda: bool(sweep.manifests()))
    (manifest,) = sweep.manifests().values()
    assert (manifest.failure, manifest.failed_nodes) == ("node failure", [node])


def test_a_rank_that_never_comes_is_named(large, tmp_path):
    misbehave = f"stay-away {FEWER} {ODD}"
    manifest = run(large, tmp_path, "slurm", FEWER, "hang_limit_s: 30\n", MISBEHAVE=misbehave)
    assert manifest.failure == "hang"
    assert f"not started: ranks {ODD}" in manifest.reason
    (log,) = tmp_path.glob("results/s/run_*/log.txt")
    assert f"\nranks {ODD}:\n(not started)" in log.read_text()
    assert log.stat().st_size < 100_000  # one stack for each place, not for each rank
