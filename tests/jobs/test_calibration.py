"""When are a machine's peaks measured, and with the ranks of which runs?"""

import json
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from jobs import calibration, claims, store
from jobs.calibration import calibrate, to_measure
from jobs.execution import Execution
from jobs.launchers.base import Process
from jobs.launchers.local import Local
from jobs.owner import this_owner
from jobs.run import make_run
from jobs.store import Allreduce, Calibration
from jobs.sweep_file import Sweep
from jobs.sweep_runs import SweepRun

PEAKS = Calibration(gemm_flops_per_s={1: 1.0}, copy_bytes_per_s={1: 1.0}, device="cpu", seconds=1.0)


def runs_of(*nodes: int, **fields):
    return [make_run({"nodes": count, "network": "ib", **fields}) for count in nodes]


def knowing(*exchanges: tuple[int, int, str]) -> Calibration:
    made = [
        Allreduce(nodes=nodes, ranks_per_node=ranks, network=network, bus_bytes_per_s=1.0)
        for nodes, ranks, network in exchanges
    ]
    return PEAKS.model_copy(update={"allreduces": made})


def test_the_largest_run_measures_the_peaks_and_each_profiled_one_an_allreduce():
    plain, profiled = runs_of(1, 2, 4), runs_of(1, 2, 4, profile="torch")
    assert to_measure(plain, None) == [plain[2]]
    assert to_measure(plain, PEAKS) == []
    assert to_measure([*plain, *profiled], None) == [plain[2], profiled[1]]  # one rank exchanges nothing
    assert to_measure([*plain, *profiled], PEAKS) == [profiled[2], profiled[1]]
    assert to_measure(profiled, knowing((2, 1, "IB"))) == [profiled[2]]
    assert to_measure(profiled, knowing((2, 1, "eth"), (4, 1, "ib"), (1, 2, ""))) == [profiled[1]]
    # Within a node no network is used.
    within = runs_of(1, gpus_per_node=4, profile="nsys")
    assert to_measure(within, PEAKS) == within and to_measure(within, knowing((1, 4, ""))) == []


@dataclass(frozen=True)
class Noting(Local):
    """Ranks that add what they would measure to the record, as train.calibrate does."""

    asked: list = field(default_factory=list)

    def processes(self, run, command, directory):
        self.asked.append((run.nodes, run.ranks_per_node, "--allreduce" in command))
        path = Path(command[command.index("--out") + 1])
        earlier = store.read_calibration(path)
        made = knowing((run.nodes, run.ranks_per_node, run.network)).beside(earlier)
        made.findings = earlier.findings if earlier else ["threads waited"]
        write = f"open({str(path)!r}, 'w').write({made.model_dump_json()!r})"
        return [Process([sys.executable, "-c", write], {})]


def test_jobs_of_one_sweep_each_measure_what_is_missing_for_their_nodes(tmp_path, capsys):
    """As slurm/submit.sh starts them: one node first."""
    launcher = Noting()
    work = Execution(Sweep.model_validate({"name": "s", "run": {}}), tmp_path, launcher)
    for nodes in (1, 2, 2, 4):
        todo = [SweepRun(run, 0) for run in runs_of(nodes, profile="torch")]
        calibrate(work, todo, Console(stderr=True), this_owner({}))
    assert launcher.asked == [(1, 1, False), (2, 1, True), (4, 1, True)]
    found = json.loads((tmp_path / store.CALIBRATION).read_text())["allreduces"]
    assert [(one["nodes"], one["network"]) for one in found] == [(1, "ib"), (2, "ib"), (4, "ib")]
    said = capsys.readouterr().err
    assert said.count("measuring this machine's peak rates") == 1
    again = f"To measure them again, stop the sweep, remove {tmp_path / store.CALIBRATION} and start it again"
    assert said.replace("\n", " ").count(f"threads waited. {again}") == 1
    assert said.count("measuring an allreduce of 2 nodes x 1 rank") == 1


def test_jobs_that_measure_at_the_same_time_keep_what_the_others_have_measured(tmp_path, monkeypatch):
    record = tmp_path / store.CALIBRATION
    lock = tmp_path / calibration._ADDING

    @dataclass(frozen=True)
    class Meanwhile(Noting):
        """While its ranks measure, another job does, and begins to write when they have ended."""

        def processes(self, run, command, directory):
            ours = super().processes(run, command, directory)
            store.write_record(record, knowing((8, 1, "ib")))
            assert claims.claim(lock, this_owner({})).ours
            return ours

    def end(_seconds):
        store.write_record(record, knowing((16, 1, "ib")).beside(store.read_calibration(record)))
        store.remove(lock)

    monkeypatch.setattr(calibration, "time", SimpleNamespace(sleep=end, monotonic=time.monotonic))
    store.write_record(record, PEAKS)
    work = Execution(Sweep.model_validate({"name": "s", "run": {}}), tmp_path, Meanwhile())
    calibrate(work, [SweepRun(run, 0) for run in runs_of(2, profile="torch")], Console(), this_owner({}))
    found = store.read_record(record, Calibration)
    assert [one.nodes for one in found.allreduces] == [8, 16, 2]
    assert [path.name for path in tmp_path.iterdir()] == [record.name]


@pytest.mark.parametrize("succeeds", [True, False])
def test_of_two_sweeps_that_start_at_once_one_measures_and_the_other_waits(
    tmp_path, capsys, monkeypatch, succeeds
):
    launcher, first = Noting(), tmp_path / ".calibration-peaks"
    work = Execution(Sweep.model_validate({"name": "s", "run": {}}), tmp_path, launcher)
    assert claims.claim(first, this_owner({})).ours

    def end(_seconds):
        """While the second waits, the first ends."""
        if succeeds:
            store.write_record(tmp_path / store.CALIBRATION, PEAKS)
        store.remove(first)

    monkeypatch.setattr(calibration, "time", SimpleNamespace(sleep=end, monotonic=time.monotonic))
    calibrate(work, [SweepRun(run, 0) for run in runs_of(1)], Console(stderr=True), this_owner({}))
    assert launcher.asked == ([] if succeeds else [(1, 1, False)])
    assert f"on {os.uname().nodename}, measures this: waiting for it" in capsys.readouterr().err
    assert not list(tmp_path.glob(".calibration-*"))
