"""How is a sweep run: what is left to do, and then one run after the other?"""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from jobs import progress
from jobs.attempts import Attempts, forget_attempts, read_attempts, save_attempts
from jobs.calibration import LIMIT_S, calibrate
from jobs.execution import Execution
from jobs.owner import Owner, this_owner
from jobs.processes import TimeIsUp
from jobs.queue import Queue
from jobs.sweep_record import record_sweep
from jobs.sweep_runs import Excluded, Result, SweepRun, ordered
from jobs.time_limit import too_short
from profiling.errors import Mistakes

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
        TooShort: and it came no further than in its start before.
    """
    console = Console(stderr=True)
    possible, impossible = split_possible(execution, sweep_runs)
    todo = [sweep_run for sweep_run in possible if execution.state(sweep_run) != "done"]
    seed = record_sweep(execution, sweep_runs, [*excluded, *impossible])
    skipped = execution.sweep.unavailable == "skip"
    refused = [] if skipped else impossible
    if not todo and not refused:
        text = f"nothing to do: every run of {execution.directory} is done ({len(possible)})"
        console.print(Text(text), soft_wrap=True)
        return Outcome()
    progress.print_excluded(console, excluded)
    progress.print_impossible(console, impossible, skipped, execution.launcher.place)
    result = Result()
    me = this_owner(os.environ)
    if todo:
        attempts = read_attempts(execution.directory, me)
        _calibrate(execution, todo, console, me, attempts)
        with progress.Bar(console, len(possible), len(possible) - len(todo)) as bar:
            queue = ordered(todo, execution.sweep, seed)
            result = Queue(execution, queue, bar, me, attempts).run()
    again = bool(result.left) and bool(me.job) and me.restarts < RESTARTS
    if not again:
        forget_attempts(execution.directory, me)
    done = len(possible) - len(todo) + result.done
    progress.print_end(console, execution.directory, (done, len(possible)), result, len(refused))
    return Outcome(len(result.failed) + len(result.left) + len(refused), again)


def _calibrate(
    execution: Execution, todo: Sequence[SweepRun], console: Console, me: Owner, attempts: Attempts
) -> None:
    """Measure the machine's peaks before the first run.

    Raises:
        TimeIsUp: as of the runs.
        TooShort: as of the runs.
    """
    begin = time.monotonic()
    try:
        calibrate(execution, todo, console, me)
    except TimeIsUp:
        again = attempts.cut_at("calibration", 0)
        save_attempts(execution.directory, me, attempts)
        if again:
            what = "measuring the machine's peaks"
            raise too_short(me, what, time.monotonic() - begin, LIMIT_S) from None
        raise


def print_plan(execution: Execution, sweep_runs: Sequence[SweepRun], excluded: Sequence[Excluded]) -> int:
    """What a sweep would do: the runs that are not done, with their exact commands.

    Returns:
        How many runs cannot start here, where the sweep does not accept that.
    """
    console = Console(stderr=True)
    possible, impossible = split_possible(execution, sweep_runs)
    todo: list[SweepRun] = []
    done_s: list[float] = []
    for sweep_run in possible:
        if execution.state(sweep_run) == "done":
            done_s.append(execution.manifest_of_done(sweep_run).seconds)
        else:
            todo.append(sweep_run)
    progress.print_outlook(console, execution.directory, len(todo), done_s)
    skipped = execution.sweep.unavailable == "skip"
    progress.print_excluded(console, excluded)
    progress.print_impossible(console, impossible, skipped, execution.launcher.place)
    commands = []
    for sweep_run in todo:
        directory = execution.running(sweep_run)
        command = execution.command(sweep_run.configuration, directory)
        processes = execution.launcher.processes(sweep_run.configuration, command, directory)
        commands.append((sweep_run, processes))
    progress.print_commands(commands)
    refused = 0 if skipped else len(impossible)
    progress.print_refused(console, refused, execution.launcher.place)
    return refused


def split_possible(
    execution: Execution, sweep_runs: Iterable[SweepRun]
) -> tuple[list[SweepRun], list[Excluded]]:
    """The runs that the launcher can run here, and the others with the reason.

    Raises:
        Mistakes: it can run none of them; a line a reason.
    """
    possible, impossible = [], []
    for sweep_run in sweep_runs:
        reason = execution.launcher.cannot(sweep_run.configuration)
        if reason is None:
            possible.append(sweep_run)
        else:
            impossible.append(Excluded(sweep_run, reason))
    if not possible:
        first, *others = progress.count_reasons(impossible)
        raise Mistakes([f"no run can start {execution.launcher.place}: {first}", *others])
    return possible, impossible
