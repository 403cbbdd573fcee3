"""A virtual cluster for a thousand ranks that train nothing, and how they are started on it."""

import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.scripted_ranks import few_open_files, many
from tests.cluster.sweeps import Sweep
from tests.cluster.virtual import Cluster

NODES, RANKS_PER_NODE = 64, 16


def start(home: Path) -> Cluster:
    """A cluster of 64 nodes with 16 processors each, whatever the machine has."""
    cluster = Cluster(home, {"VIRTUAL_CLUSTER_OWNER": str(os.getpid())})
    cluster.control("start", str(NODES), str(RANKS_PER_NODE))
    return cluster


def submit(
    cluster: Cluster,
    folder: Path,
    launcher: str,
    nodes: int = NODES,
    more: str = "",
    sbatch: Sequence[str] = (),
    **variables: str,
) -> tuple[Sweep, str]:
    """A sweep of one run, on all processors of its nodes, that is tried once; and its job."""
    in_all = nodes * RANKS_PER_NODE
    sweep = Sweep(cluster, folder, keep_off=()).write(
        f"nodes: {nodes}", f"repetitions: 1\nretries: 0\n{more}", RANKS_PER_NODE, in_all
    )
    with few_open_files():
        variables = {**many(folder, launcher, cluster.path), **variables}
        return sweep, sweep.submit(f"--nodes={nodes}", *sbatch, **variables)
