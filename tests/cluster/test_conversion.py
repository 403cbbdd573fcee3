"""Traces of many ranks are converted on several nodes; a node that is lost costs what it was at."""

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from profiling.tables import rank_directory
from profiling.traced_job import read_job
from tests.cluster.test_training import MPIRUN, need_mpirun
from tests.cluster.virtual import FOREGROUND, ROOT, Cluster
from tests.profiling.traced_jobs import Planted, trace_of

RANKS, DAMAGED = 8, 5  # of the traces
# Of each launcher: the node that is kept, and the one that is lost.
NODES = {"srun": FOREGROUND, "mpirun": ("n29", "n30")}


def srun(nodes: Sequence[str]) -> str:
    return f"srun --no-kill --nodes={len(nodes)} --ntasks-per-node=2 --overlap"


def mpirun(nodes: Sequence[str]) -> str:
    hosts = ",".join(f"{node}:2" for node in nodes)
    ranks = f"-np {2 * len(nodes)} --host {hosts} --map-by ppr:2:node:OVERSUBSCRIBE"
    return f"{MPIRUN} --allow-run-as-root {ranks}"


@pytest.fixture(scope="module")
def conversions(cluster: Cluster, tmp_path_factory, request) -> Iterator[dict[str, Future]]:
    """What the tests look at, of all launchers at once: Slurm takes its time to see that a node is lost."""
    wanted = [item.callspec.params["launcher"] for item in request.session.items if LOSING in item.nodeid]
    with ThreadPoolExecutor(len(wanted)) as pool:
        yield {one: pool.submit(lose, cluster, tmp_path_factory.mktemp(one.__name__), one) for one in wanted}


@pytest.mark.wide
@pytest.mark.parametrize("launcher", [srun, mpirun])
def test_what_a_lost_node_was_at_is_done_by_the_next_call(conversions, launcher):
    conversions[launcher].result()


LOSING = test_what_a_lost_node_was_at_is_done_by_the_next_call.__name__


def lose(cluster: Cluster, tmp_path: Path, launcher) -> None:
    """Convert on two nodes until one is lost; then again."""
    if launcher is mpirun:
        need_mpirun()
    kept, lost = NODES[launcher.__name__]
    raw, out = tmp_path / "raw", tmp_path / "out"
    raw.mkdir()
    for rank in range(RANKS):
        trace_of(Planted(ranks=RANKS), rank).write(raw / f"rank_{rank}.json")
    damaged = raw / f"rank_{DAMAGED}.json"
    damaged.write_bytes(damaged.read_bytes()[:1000])
    stops = ["tests/cluster/stops_here.py", lost, str(raw), "--out", str(out)]
    job, said = start(cluster, tmp_path / "first", (kept, lost), launcher, stops)
    # What the ranks on the other node have converted is kept.
    cluster.until(lambda: len(list(out.glob(".converting-*/outcome.json"))) == RANKS // 2, 60)
    cluster.control("kill-node", lost)
    try:
        ended = cluster.wait(job, 60)
    finally:
        cluster.control("boot-node", lost)
    if launcher is srun:
        assert ended["ExitCode"] == "1:0"
        (line,) = [line for line in said.read_text().splitlines() if "scaleprof: error:" in line]
        assert f"ended before {RANKS // 2} of {RANKS} files were converted: rank_" in line
    else:  # Open MPI ends all ranks, and lets them say nothing
        assert f"on node {lost}" in said.read_text()
    answer = cluster.run(sys.executable, "-m", "analysis.batches", str(out))
    assert answer.returncode == 2 and f"{out} is not complete: the conversion was ended" in answer.stderr

    convert = ["-m", "profiling.convert", str(raw), "--out", str(out)]
    job, said = start(cluster, tmp_path / "again", [kept], launcher, convert)
    ended, text = cluster.wait(job, 60), said.read_text()
    assert f"resuming: {RANKS // 2} of {RANKS} files are converted" in text
    assert f"{RANKS - 1} converted, 1 not" in text and damaged.name in text
    assert ended["ExitCode"] == "1:0", text  # one file cannot be read
    (record,) = out.glob("*/job.json")
    assert [one.rank for one in read_job(record.parent).ranks] == sorted(set(range(RANKS)) - {DAMAGED})
    assert not rank_directory(record.parent, DAMAGED).exists() and not list(out.glob(".*"))


def start(cluster: Cluster, folder: Path, nodes: Sequence[str], launcher, arguments) -> tuple[str, Path]:
    """A job, which goes on if a node fails, with two ranks on each node; and what it says."""
    folder.mkdir()
    script, said = folder / "job.sh", folder / "out.txt"
    command = " ".join([launcher(nodes), sys.executable, *arguments])
    script.write_text(f"#!/bin/bash\nexport TMPDIR=/dev/shm PYTHONPATH={ROOT}\nexec {command}\n")
    where = [f"--nodes={len(nodes)}", f"--nodelist={','.join(nodes)}", "--exclusive", "--no-kill"]
    return cluster.sbatch(*where, f"--output={said}", str(script)), said
