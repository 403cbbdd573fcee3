"""Run a whole sweep, or print what it would do: the machine's peaks, then one run after another."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console

from jobs import progress
from jobs.calibration import calibrate
from jobs.execution import Execution, record_sweep
from jobs.owner import this_owner
from jobs.processes import TimeIsUp
from jobs.queue import Attempts, Queue, TooShort
from jobs.sweep_runs import Excluded, Result, SweepRun, ordered
from profiling.errors import Mistakes, UserError

# How often a job that has lost nodes is started again to get others.
RESTARTS = 5


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended: how many runs failed, and whether the same job, started again, could do more."""

    failed: int = 0
    again: bool = False


def run_sweep(execution: Execution, sweep_runs: Sequence[SweepRun], excluded: Sequence[Excluded]) -> Outcome:
    """Run what is not done yet of ``sweep_runs`` and say what happened.

    Raises:
        TimeIsUp: the batch system is about to end this job; what is not done is left in order.
        TooShort: and it came no further than in an earlier start.
    """
    console = Console(stderr=True)
    possible, impossible = split_possible(execution, sweep_runs)
    todo = [sweep_run for sweep_run in possible if execution.state(sweep_run) != "done"]
    seed = record_sweep(execution, sweep_runs, [*excluded, *impossible])
    refused = 0 if execution.sweep.unavailable == "skip" else len(impossible)
    progress.print_excluded(console, excluded)
    progress.print_impossible(console, impossible, refused, execution.launcher.place)
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
    progress.print_impossible(console, impossible, refused, execution.launcher.place)
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
