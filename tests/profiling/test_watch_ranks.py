"""Which rank of a watched program speaks, and how do ranks find the same name?"""

import os
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from jobs import by_hand
from profiling.identity import Identity


@pytest.mark.parametrize("environ", [Mock(return_value={}), Mock(side_effect=by_hand.psutil.AccessDenied)])
def test_ranks_that_a_shell_starts_find_the_same_name(monkeypatch, environ):
    """mpirun starts a shell for each rank, and this the rank; a daemon of Slurm's is root's."""

    def ancestors(rank: str) -> SimpleNamespace:
        mpirun = SimpleNamespace(pid=10, environ=environ, create_time=lambda: 1e9, parent=lambda: None)
        shell = SimpleNamespace(pid=20 + int(rank), create_time=lambda: 2e9, parent=lambda: mpirun)
        shell.environ = lambda: {"OMPI_COMM_WORLD_LOCAL_RANK": rank}
        return SimpleNamespace(parent=lambda: shell)

    names = set()
    for rank in "01":
        monkeypatch.setattr(by_hand.psutil, "Process", lambda rank=rank: ancestors(rank))
        me = Identity(int(rank), 2, int(rank), 2, "Open MPI")
        names.add(by_hand.new_name("train", me, {**os.environ, "OMPI_COMM_WORLD_LOCAL_RANK": rank}))
    assert len(names) == 1 and names.pop().endswith("-10")
