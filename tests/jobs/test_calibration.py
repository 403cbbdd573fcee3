"""When are a machine's peaks measured, and with the ranks of which runs?"""

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from jobs import store
from jobs.execute import Execution, calibrate, to_measure
from jobs.launchers.base import Local
from jobs.processes import Process
from jobs.run import make_run
from jobs.store import Allreduce, Calibration, claim, this_owner
from jobs.sweep_file import Sweep, SweepRun
from profiling.findings import Finding

WAITED = Finding("calibration_disturbed", data={"pct": 12.0})
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
        made.findings = earlier.findings if earlier else [WAITED]
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
    assert said.count("measuring peaks") == said.count("measuring allreduce 2x1-ib") == 1
    assert "".join(said.split()).count("".join(str(WAITED).split())) == 1


def test_what_another_sweep_measures_is_left_to_it(tmp_path):
    launcher = Noting()
    work = Execution(Sweep.model_validate({"name": "s", "run": {}}), tmp_path, launcher)
    assert claim(tmp_path / ".calibration-peaks", this_owner({})).ours
    calibrate(work, [SweepRun(run, 0) for run in runs_of(1)], Console(stderr=True), this_owner({}))
    assert launcher.asked == []
