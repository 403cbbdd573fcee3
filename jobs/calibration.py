"""What can this machine do at best? Before the runs of a sweep, ranks measure it (:mod:`train.calibrate`)."""

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from jobs import claims, progress, store
from jobs.execution import Execution
from jobs.failures import RETRIES, Failure, explain
from jobs.outcome import log_tail
from jobs.owner import OWNER, Owner
from jobs.processes import Limits, run_processes
from jobs.run import Run
from jobs.states import CALIBRATING
from jobs.sweep_runs import SweepRun
from profiling.wording import how_many

LIMIT_S = 120.0


def calibrate(execution: Execution, todo: Sequence[SweepRun], console: Console, me: Owner) -> None:
    """Measure the machine's peaks, once a sweep, and the allreduces that its profiled runs need."""

    def say(text: str, style: str) -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    runs = [sweep_run.configuration for sweep_run in todo]
    scratch = execution.directory / f"{CALIBRATING}{me.host}-{me.pid}"
    known = store.read_calibration(execution.directory / store.CALIBRATION)
    for run in to_measure(runs, known):
        peaks = known is None and run is largest(runs)
        say(f"measuring {_what(run, peaks)}: a few seconds, longer over a slow network ...", "dim")
        start = time.monotonic()
        failure = _measure(execution, run, peaks, scratch, me)
        if failure and failure.kind in RETRIES:  # it may not come again
            say(f"calibration failed, will be repeated: {failure.text}", "yellow")
            start = time.monotonic()
            failure = _measure(execution, run, peaks, scratch, me)
        if failure:
            say(_failed(failure, scratch / store.LOG, peaks), "yellow")
            return
        say(f"  it took {progress.in_words(time.monotonic() - start)}", "dim")


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


def _what(run: Run, peaks: bool) -> str:
    if peaks:
        return "this machine's peak rates (FLOPS, memory bandwidth, allreduce)"
    ranks = how_many(run.ranks_per_node, "rank")
    return f"an allreduce of {how_many(run.nodes, 'node')} x {ranks}, for the bandwidth of profiled runs"


def _failed(failure: Failure, log: Path, peaks: bool) -> str:
    without = (
        "Without measured peaks, efficiencies are relative to the datasheet only"
        if peaks
        else "Without it, bandwidths have no % of measured"
    )
    repeated = "The next start of the sweep that has runs to do repeats it"
    return f"calibration failed: {failure.text}. Log: {log}. {without}. {repeated}"


def _measure(execution: Execution, run: Run, peaks: bool, scratch: Path, me: Owner) -> Failure | None:
    """Measure with the ranks of a run; what has gone wrong, if anything (``scratch`` keeps its log)."""
    path = execution.directory / store.CALIBRATION
    scratch.mkdir(exist_ok=True)
    store.write_record(scratch / OWNER, me)  # by which readers know that the sweep is at work
    command = [sys.executable, "-m", "train.calibrate", "--out", str(path.absolute())]
    command += ["--device", run.device, "--precision", run.compute, "--threads", str(run.threads)]
    command += ["--network", run.network, *([] if peaks else ["--allreduce"])]
    processes = execution.launcher.processes(run, command, scratch)
    log = scratch / store.LOG
    try:
        ended = run_processes(processes, log, Limits(LIMIT_S), execution.root, claims.Beat(scratch))
    finally:
        claims.release(scratch)
    if ended.exit_code or not path.exists():
        return explain(ended.exit_code, ended.reason, log_tail(log, run.ranks), ended.kind)
    store.remove(scratch)
    return None
