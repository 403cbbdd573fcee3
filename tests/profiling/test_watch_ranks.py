"""Ranks of a watched program: how they find the same name, and steps that only some of them did."""

import os
from datetime import UTC, datetime
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from jobs import by_hand, store
from jobs.failures import Ended
from profiling import tables
from profiling.identity import Identity
from profiling.watching.program import Program


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


@pytest.mark.parametrize("done", [(3, 5), (5, 3)])
def test_steps_that_only_some_ranks_did_are_left_out(tmp_path, done):
    for rank, steps in enumerate(done):
        folder = tables.rank_directory(tmp_path, rank)
        tables.write(tables.as_table("batches", {"batch_index": range(steps)}), folder, "batches")
        store.write_record(folder / store.RANK_REPORT, store.RankReport(
            rank=rank, world_size=2, hostname="h", device="cpu", backend="ddp/gloo", batches_done=steps,
            images_done=steps, losses_finite=True, parameter_digest="",
        ))  # fmt: skip
    program, me = Program("train.py"), Identity(0, 2, 0, 2, "torchrun")
    manifest = by_hand.write_program_manifest(tmp_path, me, program, "none", Ended(0), datetime.now(UTC))
    assert (manifest.run.batches, manifest.reason) == (3, "")
    assert [(one.code, one.data) for one in manifest.findings] == [("steps_differ", {"least": 3, "most": 5})]
    store.check_run(manifest.run, manifest.ranks, tmp_path)
