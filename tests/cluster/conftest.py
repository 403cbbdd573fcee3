"""One virtual cluster for all tests of this folder; skipped with the reason where it cannot be."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.virtual import NEEDS, Cluster

NODES = 32


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What happens to sweeps is set going early and looked at last; other tests of the cluster run meanwhile.

    What needs no cluster comes first: it is done in a second while nothing else wants the processors.
    """

    def turn(item: pytest.Item) -> int:
        said = item.get_closest_marker("turn")
        return said.args[0] if said else 3 if "cluster" in getattr(item, "fixturenames", ()) else 0

    items.sort(key=turn)


class OnDisk:
    """Folders that all nodes see: of /dev/shm, where other tests write, each node has its own."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def mktemp(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.root))


@pytest.fixture(scope="session")
def tmp_path_factory(request) -> Iterator[OnDisk]:
    root = Path(tempfile.mkdtemp(prefix="scaleprof-cluster-tests-"))
    yield OnDisk(root)
    if not request.session.testsfailed:
        shutil.rmtree(root)


@pytest.fixture
def tmp_path(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("test")


@pytest.fixture(scope="session")
def able() -> None:
    """Skips what needs a virtual cluster, with the reason, where there can be none."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    missing = [name for name in NEEDS if shutil.which(name, path=path) is None]
    if missing:
        pytest.skip(f"no virtual cluster: {missing[0]} is missing (apt-get install slurm-wlm munge iproute2)")
    if os.geteuid() != 0:
        pytest.skip("no virtual cluster: it needs root")


@pytest.fixture(scope="session")
def cluster(able, tmp_path_factory) -> Iterator[Cluster]:
    """A cluster of 32 nodes with 2 processors each; it ends with the tests, however these end."""
    cluster = Cluster(
        tmp_path_factory.mktemp("cluster") / "home", {"VIRTUAL_CLUSTER_OWNER": str(os.getpid())}
    )
    cluster.control("start", str(NODES))
    yield cluster
    cluster.control("stop")
