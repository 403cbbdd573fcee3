"""Run a whole sweep, or print what it would do: the machine's peaks, then one run after another.

Its record ``sweep.json`` tells readers which runs never started. Several calls may ask for parts of a sweep
(``--only``): it holds what all of them asked for.
"""

import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from rich.console import Console

from jobs import progress, store
from jobs.failures import RETRIES, Failure, explain, log_tail
from jobs.processes import Limits, TimeIsUp, run_processes
from jobs.progress import Result
from jobs.queue import Attempts, Execution, Queue, TooShort
from jobs.run import Run
from jobs.store import Beat, Owner, claim, release, this_owner
from jobs.sweep_file import Excluded, SweepRun, ordered
from profiling.errors import Mistakes, UserError
from profiling.findings import lines

RESTARTS = 5  # how often a job that has lost nodes is started again to get others
CALIBRATION_S = 120.0


@dataclass(frozen=True)
class Outcome:
    """How a sweep ended: how many runs failed, and whether the same job, started again, could do more."""

    failed: int = 0
    again: bool = False


@dataclass(frozen=True)
class Plan:
    """The runs of a sweep that can start here, those of them that are not done, and those that cannot."""

    possible: list[SweepRun]
    todo: list[SweepRun]
    impossible: list[Excluded]
    refused: int  # impossible ones, where these are failures


def plan(execution: Execution, sweep_runs: Sequence[SweepRun], checked: bool = True) -> Plan:
    """What a sweep has to do; with ``checked``, what the launcher says cannot start is set apart."""
    possible, impossible = [], []
    for sweep_run in sweep_runs:
        if checked and (why := execution.launcher.why_not(sweep_run.configuration)):
            impossible.append(Excluded(sweep_run, why))
        else:
            possible.append(sweep_run)
    if not possible:
        first, *others = progress.count_reasons(impossible)
        raise Mistakes([f"no run can start {execution.launcher.place}: {first}", *others])
    todo = [sweep_run for sweep_run in possible if execution.state(sweep_run) != "done"]
    return Plan(possible, todo, impossible, 0 if execution.sweep.unavailable == "skip" else len(impossible))


def print_impossible(console: Console, execution: Execution, planned: Plan) -> None:
    progress.print_excluded(console, planned.impossible, execution.launcher.place if planned.refused else "")


def run_sweep(execution: Execution, sweep_runs: Sequence[SweepRun], excluded: Sequence[Excluded]) -> Outcome:
    """Run what is not done yet of ``sweep_runs`` and say what happened; TimeIsUp leaves the rest in order."""
    console = Console(stderr=True)
    planned = plan(execution, sweep_runs)
    possible, todo = planned.possible, planned.todo
    seed = record_sweep(execution, sweep_runs, [*excluded, *planned.impossible])
    progress.print_excluded(console, excluded)
    print_impossible(console, execution, planned)
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
    progress.print_end(console, execution.directory, (done, len(possible)), result, planned.refused)
    return Outcome(len(result.failed) + len(result.left) + planned.refused, again)


def print_plan(execution: Execution, sweep_runs: Sequence[SweepRun], excluded: Sequence[Excluded]) -> int:
    """Print the runs that are not done, with their exact commands; returns how many cannot start."""
    console = Console(stderr=True)
    planned = plan(execution, sweep_runs)
    done = [each for each in planned.possible if each not in planned.todo]
    done_s = [execution.manifest_of_done(each).seconds for each in done]
    progress.print_outlook(console, execution.directory, len(planned.todo), done_s)
    progress.print_excluded(console, excluded)
    print_impossible(console, execution, planned)
    commands = []
    for sweep_run in planned.todo:
        directory = execution.running(sweep_run)
        command = execution.command(sweep_run.configuration, directory)
        commands.append(
            (sweep_run, execution.launcher.processes(sweep_run.configuration, command, directory))
        )
    progress.print_commands(commands)
    return planned.refused


# --- the record of a sweep ------------------------------------------------------------------------------


class SweepRecord(BaseModel):
    """``sweep.json``: what was asked, in which order, and what was left out."""

    sweep: dict[str, Any]
    order_seed: int
    launcher: str
    order: list[str] = []
    excluded: list[dict[str, str]] = []  # id and reason
    why_not_started: dict[str, str] = {}  # by id: what ended the job that was to start the run


def record_sweep(execution: Execution, sweep_runs: Sequence[SweepRun], excluded: Sequence[Excluded]) -> int:
    """Write sweep.json and return the seed of the order: the sweep's, else the one of an earlier call."""
    execution.directory.mkdir(parents=True, exist_ok=True)
    path = execution.directory / store.SWEEP
    earlier = store.read_record(path, SweepRecord) if path.exists() else None
    seed = execution.sweep.order_seed
    if seed is None:
        seed = secrets.randbelow(2**31) if earlier is None else earlier.order_seed
    record = SweepRecord(
        sweep=execution.sweep.model_dump(),
        order_seed=seed,
        launcher=execution.launcher.name,
        order=[sweep_run.id for sweep_run in ordered(sweep_runs, execution.sweep, seed)],
        excluded=[{"id": left.sweep_run.id, "reason": left.reason} for left in excluded],
    )
    if earlier is not None and record.sweep["run"] == earlier.sweep.get("run"):
        asked = {*record.order, *(left["id"] for left in record.excluded)}
        record.order += [run_id for run_id in earlier.order if run_id not in asked]
        record.excluded += [left for left in earlier.excluded if left["id"] not in asked]
        whys = earlier.why_not_started
        record.why_not_started = {run_id: why for run_id, why in whys.items() if run_id not in asked}
    store.write_record(path, record)
    return seed


@contextmanager
def noting_why_not_started(directory: Path, sweep_runs: Sequence[SweepRun], me: Owner) -> Iterator[None]:
    """Note in the sweep's record what ends this job, if something does that the user can put right."""
    try:
        yield
    except UserError as error:
        path = directory / store.SWEEP
        if path.exists():  # else no record asks for the runs, and nobody waits for them
            record = store.read_record(path, SweepRecord)
            why = f"{f'job {me.job}' if me.job else 'the sweep'} ended: {error}"
            record.why_not_started |= {each.id: why for each in sweep_runs if each.id in record.order}
            store.write_record(path, record)
        raise


# --- calibration ----------------------------------------------------------------------------------------


def calibrate(execution: Execution, todo: Sequence[SweepRun], console: Console, me: Owner) -> None:
    """Measure the machine's peaks, once a sweep, and the allreduces that its profiled runs need."""
    runs = [sweep_run.configuration for sweep_run in todo]
    path = execution.directory / store.CALIBRATION
    known = store.read_calibration(path)
    for run in to_measure(runs, known):
        peaks = known is None and run is largest(runs)
        name = "peaks" if peaks else f"{run.nodes}x{run.ranks_per_node}-{run.network}"
        scratch = execution.directory / f"{store.CALIBRATING}{name}"
        if not claim(scratch, me).ours:
            continue  # another sweep of this folder measures it
        progress.say(console, f"measuring {name if peaks else f'allreduce {name}'} ...", "dim")
        try:
            failure = _measure(execution, run, peaks, scratch)
            if failure and failure.kind in RETRIES:
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
    done = (
        {measured.exchange for measured in known.allreduces} if known else {_exchange(run) for run in chosen}
    )
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
