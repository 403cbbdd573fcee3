"""A virtual cluster for a thousand ranks that train nothing, and how they are started on it."""

import resource
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.sweeps import Sweep
from tests.cluster.virtual import Cluster

NODES, RANKS_PER_NODE = 64, 16
# A virtual node has more processors than the machine: what mpirun would bind a rank to is not there.
_UNBOUND = """#!/bin/bash
words=("${@/:PE=1/}")
exec "%s" "${words[@]/#core/none}"
"""


def start(home: Path, **environment: str) -> Cluster:
    """A cluster of 64 nodes with 16 processors each, whatever the machine has."""
    cluster = Cluster(home, environment)
    cluster.control("start", str(NODES), str(RANKS_PER_NODE))
    return cluster


def submit(
    cluster: Cluster,
    folder: Path,
    launcher: str,
    shape: tuple[int, int] = (NODES, RANKS_PER_NODE),
    more: str = "",
    sbatch: Sequence[str] = (),
    **variables: str,
) -> tuple[Sweep, str]:
    """A sweep of one run, on so many nodes and ranks per node, that is tried once; and its job."""
    nodes, per_node = shape
    sweep = Sweep(cluster, folder, keep_off=()).write(
        f"nodes: {nodes}", f"repetitions: 1\nretries: 0\n{more}", per_node, nodes * per_node
    )
    programs = folder / "bin"
    programs.mkdir()
    (programs / "mpirun").write_text(_UNBOUND % Path(sys.executable).with_name("mpirun"))
    (programs / "mpirun").chmod(0o755)
    variables = {
        "MEET": "yes", "LAUNCHER": launcher, "PATH": f"{programs}:{cluster.path}",
        "TMPDIR": "/dev/shm",  # that of mpirun's daemons: /tmp, unlike on a cluster, is the same on all nodes
        **variables,
    }  # fmt: skip
    with _few_open_files():
        return sweep, sweep.submit(f"--nodes={nodes}", *sbatch, **variables)


@contextmanager
def _few_open_files() -> Iterator[None]:
    """As on many systems: a process may have 1024 files open until it asks for more. Slurm hands it on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
