"""One virtual cluster for all tests of this folder; skipped with the reason where it cannot be."""

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.cluster.virtual import NEEDS, Cluster

NODES = 32


@pytest.fixture(scope="session")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    """A cluster of 32 nodes with 2 processors each; it ends with the tests, however these end."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    missing = [name for name in NEEDS if shutil.which(name, path=path) is None]
    if missing:
        pytest.skip(f"no virtual cluster: {missing[0]} is missing (apt-get install slurm-wlm munge iproute2)")
    if os.geteuid() != 0:
        pytest.skip("no virtual cluster: it needs root")
    cluster = Cluster(
        tmp_path_factory.mktemp("cluster") / "home", {"VIRTUAL_CLUSTER_OWNER": str(os.getpid())}
    )
    cluster.control("start", str(NODES), timeout_s=180)
    yield cluster
    cluster.control("stop")
