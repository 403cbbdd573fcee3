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

LIMIT_S = 120.0


def calibrate(execution: Execution, todo: Sequence[SweepRun], console: Console, me: Owner) -> None:
    """Measure this machine's peaks, once a sweep, with as many ranks as its largest run has."""
    if (execution.directory / store.CALIBRATION).exists():
        return

    def say(text: str, style: str) -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    say(
        "measuring this machine's peak rates (FLOPS, memory bandwidth, allreduce): a few seconds, longer "
        "over a slow network ...",
        "dim",
    )
    largest = max(
        (sweep_run.configuration for sweep_run in todo), key=lambda run: (run.world_size, run.ranks)
    )
    scratch = execution.directory / f"{CALIBRATING}{me.host}-{me.pid}"
    start = time.monotonic()
    failure = _measure(execution, largest, scratch, me)
    if failure and failure.kind in RETRIES:  # it may not come again
        say(f"calibration failed, will be repeated: {failure.text}", "yellow")
        start = time.monotonic()
        failure = _measure(execution, largest, scratch, me)
    if failure is None:
        say(f"  it took {progress.in_words(time.monotonic() - start)}", "dim")
        return
    say(
        f"calibration failed: {failure.text}. Log: {scratch / store.LOG}. Without measured peaks, "
        "efficiencies are relative to the datasheet only. The next start of the sweep that has runs to do "
        "repeats it",
        "yellow",
    )


def _measure(execution: Execution, run: Run, scratch: Path, me: Owner) -> Failure | None:
    """Measure with the ranks of a run; what has gone wrong, if anything (``scratch`` keeps its log)."""
    path = execution.directory / store.CALIBRATION
    scratch.mkdir(exist_ok=True)
    store.write_record(scratch / OWNER, me)  # by which readers know that the sweep is at work
    command = [sys.executable, "-m", "train.calibrate", "--out", str(path.absolute())]
    command += ["--device", run.device, "--precision", run.compute, "--threads", str(run.threads)]
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
