"""Measure what this machine can do at best, once a sweep: ranks do it (:mod:`train.calibrate`)."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from jobs import progress, store
from jobs.execution import Execution
from jobs.failures import RETRIES, Failure, explain
from jobs.outcome import log_tail
from jobs.owner import Beat, Owner, claim, release
from jobs.processes import Limits, run_processes
from jobs.run import Run
from jobs.states import CALIBRATING
from jobs.sweep_runs import SweepRun
from profiling.findings import lines

LIMIT_S = 120.0


def calibrate(execution: Execution, todo: Sequence[SweepRun], console: Console, me: Owner) -> None:
    """Measure the machine's peaks, once a sweep, and the allreduces that its profiled runs need."""
    runs = [sweep_run.configuration for sweep_run in todo]
    path = execution.directory / store.CALIBRATION
    known = store.read_calibration(path)
    for run in to_measure(runs, known):
        peaks = known is None and run is largest(runs)
        name = "peaks" if peaks else f"{run.nodes}x{run.ranks_per_node}-{run.network}"
        scratch = execution.directory / f"{CALIBRATING}{name}"
        if not claim(scratch, me).ours:
            continue  # another sweep of this folder measures it
        progress.say(console, f"measuring {name if peaks else f'allreduce {name}'} ...", "dim")
        try:
            failure = _measure(execution, run, peaks, scratch)
            if failure and failure.kind in RETRIES:  # it may not come again
                failure = _measure(execution, run, peaks, scratch)
            if failure:
                text = f"calibration failed: {failure.text} (log: {scratch / store.LOG})"
                progress.say(console, text, "yellow")
                return
            measured = store.read_record(scratch / store.CALIBRATION, store.Calibration)
            store.write_record(path, measured.beside(store.read_calibration(path)))
            store.remove(scratch)
        finally:
            release(scratch)
        for line in lines(measured.findings if peaks else ()):
            progress.say(console, f"{line} ({path})", "yellow")


def to_measure(runs: Sequence[Run], known: store.Calibration | None) -> list[Run]:
    """The runs with whose ranks it is measured.

    The largest, if nothing is known; then profiled ones of several ranks of which no allreduce is known.
    """
    chosen = [] if known else [largest(runs)]
    done = {one.exchange for one in known.allreduces} if known else {_exchange(run) for run in chosen}
    for run in sorted(runs, key=lambda run: run.ranks, reverse=True):
        if run.profile != "none" and run.ranks > 1 and _exchange(run) not in done:
            chosen.append(run)
            done.add(_exchange(run))
    return chosen


def largest(runs: Sequence[Run]) -> Run:
    """The run whose ranks measure the peaks."""
    return max(runs, key=lambda run: (run.world_size, run.ranks))


def _exchange(run: Run) -> store.Exchange:
    return store.exchange_of(run.nodes, run.ranks_per_node, run.network)


def _measure(execution: Execution, run: Run, peaks: bool, scratch: Path) -> Failure | None:
    """Measure with the ranks of a run; what has gone wrong, if anything (``scratch`` keeps its log)."""
    measured = scratch / store.CALIBRATION
    command = [sys.executable, "-m", "train.calibrate", "--out", str(measured.absolute())]
    command += ["--device", run.device, "--precision", run.compute, "--threads", str(run.threads)]
    command += ["--network", run.network, *([] if peaks else ["--allreduce"])]
    processes = execution.launcher.processes(run, command, scratch)
    log = scratch / store.LOG
    ended = run_processes(processes, log, Limits(LIMIT_S), execution.root, Beat(scratch))
    if ended.exit_code or not store.read_calibration(measured):
        return explain(ended.exit_code, ended.reason, log_tail(log, run.ranks), ended.kind)
    return None
