"""Sweeps whose ranks are scripted: they train nothing, and misbehave as they are told."""

import sys
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest

from jobs import store
from jobs.execute import Execution, run_sweep
from jobs.launchers.base import Local
from jobs.machine import Machine
from jobs.processes import Process
from jobs.store import Manifest
from jobs.sweep_file import Sweep, expand
from profiling import tables
from tests.builders import ended_runs

HERE = Machine("here", "os", "cpu", cores=2, memory_bytes=1, gpus=(), driver=None, has_dali=True)


@pytest.fixture(scope="module", autouse=True)
def batches_of_ranks(tmp_path_factory):
    """What scripted ranks leave as their batches, made once."""
    folder = tmp_path_factory.mktemp("batches")
    for rank, batches in product(range(2), range(1, 5)):
        rows = {
            "rank": [rank] * batches, "batch_index": list(range(batches)), "loss": [1.0] * batches,
            "start_ns": [index * 250_000_000 for index in range(batches)],
            "end_ns": [index * 250_000_000 + 250_000_000 for index in range(batches)],
            "attributed": [False] * batches,
        }  # fmt: skip
        written = tables.write(tables.as_table("batches", rows), folder, "batches")
        written.rename(folder / f"{batches}_of_{rank}.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BATCHES_OF_RANKS", str(folder))
        yield


@dataclass(frozen=True)
class Scripted(Local):
    """The local launcher, with tests/jobs/scripted_rank.py in the place of ``python -m train``."""

    machine: Machine = HERE
    misbehave: str = ""

    def processes(self, run, command, directory):
        if "train.calibrate" in command:
            command = [sys.executable, "-c", "raise SystemExit(1)"]
        scripted = ["tests.jobs.scripted_rank" if token == "train" else token for token in command]
        ranks = super().processes(run, scripted, directory)
        return [Process(r.argv, {**r.environment, "MISBEHAVE": self.misbehave}) for r in ranks]


def make_sweep(**values) -> Sweep:
    run = {"batches": 3, "batch": 2, "data": ".", "loader": ["synthetic", "pytorch"], "gpus_per_node": [1, 2]}
    return Sweep.model_validate({"name": "s", "repetitions": 1, "run": run, "order_seed": 1, **values})


def execution(directory: Path, misbehave: str = "", **values) -> Execution:
    return Execution(make_sweep(**values), directory / "s", Scripted(misbehave=misbehave))


def whole(work: Execution) -> Execution:
    """With all runs of its sweep."""
    sweep_runs, excluded = expand(work.sweep)
    return replace(work, sweep_runs=sweep_runs, excluded=excluded)


def run_all(work: Execution) -> int:
    return run_sweep(whole(work)).failed


def manifests(work: Execution) -> dict[str, Manifest]:
    return {path.name: store.read_record(path / "manifest.json", Manifest)
            for path in ended_runs(work.directory)}  # fmt: skip
