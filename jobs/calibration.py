"""What can this machine do at best? Before the runs of a sweep, ranks measure it (:mod:`train.calibrate`)."""

import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.text import Text

from jobs import claims, progress, store
from jobs.execution import Execution
from jobs.failures import RETRIES, Failure, explain
from jobs.outcome import log_tail
from jobs.owner import Owner
from jobs.processes import Limits, run_processes
from jobs.run import Run
from jobs.states import CALIBRATING
from jobs.sweep_runs import SweepRun
from profiling.wording import how_many

LIMIT_S = 120.0
_LOOK_S = 0.5
_ADDING = ".adding-to-calibration"  # the folder that whoever writes to the sweep's record owns meanwhile


def calibrate(execution: Execution, todo: Sequence[SweepRun], console: Console, me: Owner) -> None:
    """Measure the machine's peaks, once a sweep, and the allreduces that its profiled runs need."""

    def say(text: str, style: str) -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    runs = [sweep_run.configuration for sweep_run in todo]
    path = execution.directory / store.CALIBRATION
    known = store.read_calibration(path)
    for run in to_measure(runs, known):
        peaks = known is None and run is largest(runs)
        scratch = execution.directory / f"{CALIBRATING}{_name(run, peaks)}"
        if not _is_ours(scratch, me, partial(_is_missing, run, runs, path), say):
            continue
        say(f"measuring {_what(run, peaks)}: some seconds, longer over a slow network ...", "dim")
        start = time.monotonic()
        try:
            failure = _measure(execution, run, peaks, scratch)
            if failure and failure.kind in RETRIES:  # it may not come again
                say(f"calibration failed, will be repeated: {failure.text}", "yellow")
                start = time.monotonic()
                failure = _measure(execution, run, peaks, scratch)
            if not failure:  # first the record, then the folder: who waits looks whether it is missing still
                _add(store.read_record(scratch / store.CALIBRATION, store.Calibration), path, me)
                store.remove(scratch)
        finally:
            claims.release(scratch)
        if failure:
            say(_failed(failure, scratch / store.LOG, peaks), "yellow")
            return
        measured = store.read_calibration(path)
        took = progress.in_words(time.monotonic() - start)
        of_it = f", of which {measured.seconds:.1f} s to measure" if measured and peaks else ""
        say(f"  it took {took}{of_it}", "dim")
        for finding in measured.findings if measured and peaks else ():
            say(
                f"{finding}. To measure them again, stop the sweep, remove {path} and start it again",
                "yellow",
            )


def _name(run: Run, peaks: bool) -> str:
    return "peaks" if peaks else f"{run.nodes}x{run.ranks_per_node}-{run.network}"


def _is_missing(run: Run, runs: Sequence[Run], path: Path) -> bool:
    """Whether nobody has measured it by now, also of those who have started at the same moment."""
    return run in to_measure(runs, store.read_calibration(path))


def _is_ours(
    scratch: Path, me: Owner, is_missing: Callable[[], bool], say: Callable[[str, str], None]
) -> bool:
    """Whether this sweep is to measure it; while another one of this folder does, it is waited for."""
    waited = False
    while is_missing():
        claim = claims.claim(scratch, me)
        if claim.ours:
            if is_missing():
                return True
            store.remove(scratch)  # another one was faster
            return False
        if not waited and claim.before:
            waited = True
            say(
                f"another start of this sweep, on {claim.before.host}, measures this: waiting for it ...",
                "dim",
            )
        time.sleep(_LOOK_S)
    return False


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


def _measure(execution: Execution, run: Run, peaks: bool, scratch: Path) -> Failure | None:
    """Measure with the ranks of a run; what has gone wrong, if anything (``scratch`` keeps its log).

    Args:
        scratch: a folder of this process, by whose owner readers know that the sweep is at work. What was
            measured is written there.
    """
    measured = scratch / store.CALIBRATION
    command = [sys.executable, "-m", "train.calibrate", "--out", str(measured.absolute())]
    command += ["--device", run.device, "--precision", run.compute, "--threads", str(run.threads)]
    command += ["--network", run.network, *([] if peaks else ["--allreduce"])]
    processes = execution.launcher.processes(run, command, scratch)
    log = scratch / store.LOG
    ended = run_processes(processes, log, Limits(LIMIT_S), execution.root, claims.Beat(scratch))
    if ended.exit_code or not store.read_calibration(measured):
        return explain(ended.exit_code, ended.reason, log_tail(log, run.ranks), ended.kind)
    return None


def _add(measured: store.Calibration, path: Path, me: Owner) -> None:
    """Add to the sweep's record, one after the other: its jobs on other nodes may do so at that moment."""
    lock = path.with_name(_ADDING)
    while not claims.claim(lock, me).ours:
        time.sleep(_LOOK_S)
    try:
        store.write_record(path, measured.beside(store.read_calibration(path)))
    finally:
        store.remove(lock)
