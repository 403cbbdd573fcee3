"""Which rank of a watched program speaks, and how do ranks find the same name?"""

import os
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from jobs import by_hand
from profiling.errors import UserError
from profiling.identity import Identity
from profiling.watch import main


@pytest.mark.parametrize("words", [["--batchse", "5", "train.py"], ["missing.py"]])
def test_wrong_use_is_said_by_rank_0_alone(words, monkeypatch):
    monkeypatch.setattr("profiling.errors.RANK_0_FIRST_S", 0.0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UserError):
        main(words)
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


def test_a_profiler_that_cannot_record_here_is_named_by_rank_0_alone(monkeypatch, tmp_path):
    monkeypatch.setattr("profiling.errors.RANK_0_FIRST_S", 0.0)
    monkeypatch.setattr("profiling.watch.has_gpu", lambda: False)
    words = ["--out", str(tmp_path / "run"), "--profile", "nvprof", __file__]
    for name, value in (("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2"), ("RANK", "0"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="nvprof records GPU activity only"):
        main(words)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


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
