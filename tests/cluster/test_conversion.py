"""Traces of many ranks are converted by ranks of MPI on several nodes; a damaged one costs only itself."""

import sys
from pathlib import Path

import pytest

from profiling.tables import rank_directory
from profiling.traced_job import read_job
from tests.cluster.test_training import MPIRUN, need_mpirun
from tests.cluster.virtual import ROOT, Cluster
from tests.profiling.traced_jobs import Planted, trace_of

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
