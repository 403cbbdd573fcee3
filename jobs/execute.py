"""Run a whole sweep, or print what it would do: the machine's peaks, then one run after another."""

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from jobs import progress, store
from jobs.execution import Execution, record_sweep
from jobs.failures import RETRIES, Failure, explain
from jobs.outcome import log_tail
from jobs.owner import Beat, Owner, claim, release, this_owner
from jobs.processes import Limits, TimeIsUp, run_processes
from jobs.progress import Result
from jobs.queue import Attempts, Queue, TooShort
from jobs.run import Run
from jobs.states import CALIBRATING
from jobs.sweep_file import Excluded, SweepRun, ordered
from profiling.errors import Mistakes, UserError
from profiling.findings import lines

# How often a job that has lost nodes is started again to get others.
RESTARTS = 5
CALIBRATION_S = 120.0


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended: how many runs failed, and whether the same job, started again, could do more."""

    failed: int = 0
    again: bool = False


def run_sweep(execution: Execution, sweep_runs: Sequence[SweepRun], excluded: Sequence[Excluded]) -> Outcome:
    """Run what is not done yet of ``sweep_runs`` and say what happened; TimeIsUp leaves the rest in order."""
    console = Console(stderr=True)
    possible, impossible = split_possible(execution, sweep_runs)
    todo = [sweep_run for sweep_run in possible if execution.state(sweep_run) != "done"]
    seed = record_sweep(execution, sweep_runs, [*excluded, *impossible])
    refused = 0 if execution.sweep.unavailable == "skip" else len(impossible)
    progress.print_excluded(console, excluded)
    progress.print_excluded(console, impossible, execution.launcher.place if refused else "")
    result, me = Result(), this_owner(os.environ)
    if todo:
        attempts = Attempts.read(execution.directory, me)
        try:
            calibrate(execution, todo, console, me)
        except TimeIsUp:
            again = attempts.cut("calibration", 0)
            attempts.save(execution.directory, me)
            if again:
                raise TooShort(
                    f"the time limit of job {me.job} is too short for calibration; submit with more --time"
                ) from None
            raise
        with progress.Bar(console, len(possible), len(possible) - len(todo)) as bar:
            queue = ordered(todo, execution.sweep, seed)
            result = Queue(execution, queue, bar, me, attempts).run()
    again = bool(result.left) and bool(me.job) and me.restarts < RESTARTS
    if not again:
        Attempts.path(execution.directory, me).unlink(missing_ok=True)
    done = len(possible) - len(todo) + result.done
    progress.print_end(console, execution.directory, (done, len(possible)), result, refused)
    return Outcome(len(result.failed) + len(result.left) + refused, again)


def print_plan(execution: Execution, sweep_runs: Sequence[SweepRun], excluded: Sequence[Excluded]) -> int:
    """What a sweep would do: the runs that are not done, with their exact commands."""
    console = Console(stderr=True)
    possible, impossible = split_possible(execution, sweep_runs)
    todo = [sweep_run for sweep_run in possible if execution.state(sweep_run) != "done"]
    done_s = [execution.manifest_of_done(one).seconds for one in possible if one not in todo]
    refused = 0 if execution.sweep.unavailable == "skip" else len(impossible)
    progress.print_outlook(console, execution.directory, len(todo), done_s)
    progress.print_excluded(console, excluded)
    progress.print_excluded(console, impossible, execution.launcher.place if refused else "")
    commands = []
    for sweep_run in todo:
        directory = execution.running(sweep_run)
        command = execution.command(sweep_run.configuration, directory)
        processes = execution.launcher.processes(sweep_run.configuration, command, directory)
        commands.append((sweep_run, processes))
    progress.print_commands(commands)
    return refused


def split_possible(
    execution: Execution, sweep_runs: Iterable[SweepRun]
) -> tuple[list[SweepRun], list[Excluded]]:
    """The runs that the launcher can run here, and the others with the reason."""
    possible, impossible = [], []
    for sweep_run in sweep_runs:
        try:
            execution.launcher.check(sweep_run.configuration)
            possible.append(sweep_run)
        except UserError as error:
            impossible.append(Excluded(sweep_run, str(error)))
    if not possible:
        first, *others = progress.count_reasons(impossible)
        raise Mistakes([f"no run can start {execution.launcher.place}: {first}", *others])
    return possible, impossible


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
    """The largest run, if nothing is known; then profiled ones of several ranks of unknown allreduce."""
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
    ended = run_processes(processes, log, Limits(CALIBRATION_S), execution.root, Beat(scratch))
    if ended.exit_code or not store.read_calibration(measured):
        return explain(ended.exit_code, ended.reason, log_tail(log, run.ranks), ended.kind)
    return None
