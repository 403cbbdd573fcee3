"""Run a whole sweep, or print what it would do: first the machine's peaks, then one run after the other.

A run that fails for a reason that may be temporary goes to the end of the queue; a node that fails too often
is excluded. ``sweep.json`` records all runs, so that those that never started are known. If several calls run
parts of a sweep (``--only``), it records the runs of all of them.
"""

import os
import secrets
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, cast

from pydantic import BaseModel
from rich.console import Console

from jobs import progress, store
from jobs.failures import (
    BLAMES_NODE,
    NODE_FAILURES,
    RETRIES,
    Ended,
    Failure,
    Kind,
    explain,
    gather_stacks,
    log_tail,
    make_manifest,
)
from jobs.flags import to_flags
from jobs.launchers.base import Launcher
from jobs.processes import Limits, TimeIsUp, run_processes, stopped_in_order, unheard
from jobs.progress import Result, say, speed_of
from jobs.run import Run
from jobs.store import Beat, Claim, Manifest, Owner, claim, release, this_owner
from jobs.sweep_file import Excluded, Sweep, SweepRun, command_of, ordered, unknown_fields
from profiling.errors import EXIT_FAILED, Mistakes, Unsuccessful, UserError
from profiling.findings import Finding, lines
from profiling.wrap import wrapped

SCATTER = 1.1  # ratio of two repetitions above which they show nothing
RESTARTS = 5  # how often a job that has lost nodes is started again to get others
CALIBRATION_S = 120.0


@dataclass(frozen=True)
class Execution:
    """A sweep, where its results go, and what starts its ranks."""

    sweep: Sweep
    directory: Path
    launcher: Launcher
    keep_raw: bool = False

    def running(self, sweep_run: SweepRun) -> Path:
        """Where a run writes while it is under way."""
        return self.directory / sweep_run.id

    def done(self, sweep_run: SweepRun) -> Path:
        """Where the result of a run is that has ended well."""
        return self.directory / f"{sweep_run.id}_ret_0"

    def command(self, run: Run, directory: Path) -> list[str]:
        """What every rank of a run executes, under its profiler where that watches from outside."""
        out = directory.absolute()
        rank = ["-m", "train", *to_flags(run)]
        if run.program:
            flags = [f"--batches={run.batches}"]
            if run.profile != "none":
                flags += [f"--profile={run.profile}", f"--attribute-from={run.first_attributed}"]
                flags += [f"--profile-mode={run.profile_mode}"]
            rank = ["-m", "profiling.watch", *flags, *command_of(run)]
        raw = ["--keep-raw"] if self.keep_raw else []
        python, *words = wrapped(
            run.profile, [sys.executable, *rank[:2], f"--out={out}", *raw, *rank[2:]], out, run.device,
            run.first_attributed, self.keep_raw, run.profile_mode, run.profile_kernels,
            run.profile_metrics,
        )  # fmt: skip
        if not run.program:
            return [python, *words]
        # A program's ranks start in the folder of the user, and find each other by torchrun's variables.
        flags = [f"--folder={Path.cwd()}", f"--device={run.device}", f"--network={run.network}"]
        return [python, "-m", "train.torchrun", *flags, "--", *words]

    def state(self, sweep_run: SweepRun) -> store.State:
        """What has become of a run."""
        state = store.state_of(self.running(sweep_run))
        if state == "done":
            before = store.read_record(self.done(sweep_run) / store.MANIFEST, Manifest).run
            for name in Run.model_fields:
                old, new = getattr(before, name), getattr(sweep_run.configuration, name)
                if old != new:
                    raise UserError(
                        f"{self.directory} holds runs with {name} {old}, and the sweep now says {new}: "
                        "copy the file under another name (the name is the sweep's), or give another --out"
                    )
        return state


class Plan(NamedTuple):
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
    refused = 0 if execution.sweep.unavailable == "skip" else len(impossible)
    return Plan(possible, todo, impossible, refused)


def run_sweep(execution: Execution, sweep_runs: Sequence[SweepRun], excluded: Sequence[Excluded]) -> Result:
    """Run what is not done yet of ``sweep_runs`` and say what happened; TimeIsUp leaves the rest in order."""
    console = Console(stderr=True)
    possible, todo, impossible, refused = plan(execution, sweep_runs)
    seed = record_sweep(execution, sweep_runs, [*excluded, *impossible])
    progress.print_excluded(console, excluded)
    progress.print_excluded(console, impossible, execution.launcher.place if refused else "")
    result, me = Result(refused), this_owner(os.environ)
    if todo:
        try:
            calibrate(execution, todo, console, me)
            with progress.Bar(console, len(possible), len(possible) - len(todo)) as bar:
                Queue(execution, bar, me, result).run(ordered(todo, execution.sweep, seed))
        except TimeIsUp:
            if me.restarts and not (result.done or result.failures):
                text = f"the time limit of job {me.job} is too short for one run; submit with a longer --time"
                raise Unsuccessful(text) from None  # another start would end in the same place
            raise
    result.again = bool(result.left) and bool(me.job) and me.restarts < RESTARTS
    if not result.again:
        attempts_file(execution.directory, me).unlink(missing_ok=True)
    done = len(possible) - len(todo) + result.done
    progress.print_end(console, execution.directory, done, len(possible), result)
    return result


def print_plan(execution: Execution, sweep_runs: Sequence[SweepRun], excluded: Sequence[Excluded]) -> int:
    """Print the runs that are not done, with their exact commands; returns how many cannot start."""
    console = Console(stderr=True)
    possible, todo, impossible, refused = plan(execution, sweep_runs)
    done = len(possible) - len(todo)
    say(console, f"{execution.directory}: to do: {len(todo)}, done: {done}", "bold")
    progress.print_excluded(console, excluded)
    progress.print_excluded(console, impossible, execution.launcher.place if refused else "")
    commands = []
    for sweep_run in todo:
        run, directory = sweep_run.configuration, execution.running(sweep_run)
        command = execution.command(run, directory)
        commands.append((sweep_run, execution.launcher.processes(run, command, directory)))
    progress.print_commands(commands)
    return refused


# --- the queue ------------------------------------------------------------------------------------------


class Attempts(BaseModel):
    """What a job of the batch system knows of its earlier starts, in a file of its own."""

    runs: dict[str, dict[str, int]] = {}  # failures by run and kind
    nodes: dict[str, int] = {}  # failures by node

    def failed(self, run: str, kind: Kind, nodes: Sequence[str], limit: int) -> bool:
        """Note a failure of a run; whether to try again, at most ``limit`` times."""
        counts = self.runs.setdefault(run, {})
        counts[kind] = counts.get(kind, 0) + 1
        for node in nodes if kind in BLAMES_NODE else ():
            self.nodes[node] = self.nodes.get(node, 0) + 1
        return counts[kind] <= min(limit, RETRIES.get(kind, 0))

    def left_out(self) -> frozenset[str]:
        """The nodes that have failed too often."""
        return frozenset(node for node, count in self.nodes.items() if count >= NODE_FAILURES)


def attempts_file(sweep: Path, me: Owner) -> Path:
    return sweep / f".job-{me.job}.json"


class Queue:
    """The runs of a sweep that are to do, one after the other; what became of them goes to ``result``."""

    def __init__(self, execution: Execution, bar: progress.Bar, me: Owner, result: Result) -> None:
        self._execution, self._bar, self._me, self._result = execution, bar, me, result
        self._file, self._attempts = attempts_file(execution.directory, me), Attempts()
        if me.job and me.restarts and self._file.exists():
            self._attempts = store.read_record(self._file, Attempts)
        self._durations_ms: dict[str, list[float]] = {}  # of a step, by configuration
        self._launcher = execution.launcher.without(self._attempts.left_out())

    def run(self, todo: Sequence[SweepRun]) -> None:
        """Start all runs; a stop from outside ends the running one and leaves the rest to be done."""
        waiting = deque(todo)
        with stopped_in_order():
            while waiting:
                sweep_run = waiting.popleft()
                if self._launcher.why_not(sweep_run.configuration):
                    self._result.left.append(sweep_run)
                elif self._start(sweep_run):
                    waiting.append(sweep_run)

    def _start(self, sweep_run: SweepRun) -> bool:
        """Run it, unless another sweep does; whether it is to be tried again."""
        directory, claimed = self._execution.running(sweep_run), Claim(False)
        try:
            # A stop between the claim and the first process would leave a directory that nobody releases.
            with unheard():
                claimed = claim(directory, self._me)
            if not claimed.ours:
                self._result.elsewhere.append(sweep_run)
                return False
            if self._execution.state(sweep_run) == "done":  # by another sweep, meanwhile
                store.remove(directory)
                self._result.done += 1
                self._bar.ended()
                return False
            if (damaged := self._execution.done(sweep_run)).exists():
                kept = store.set_aside(damaged)
                self._bar.say(f"damaged, repeated: {sweep_run.id} (kept as {kept})", "yellow")
            return self._note(sweep_run, *self._execute(sweep_run, directory, claimed.before))
        finally:
            if claimed.ours:
                with suppress(OSError):
                    release(directory)

    def _execute(self, sweep_run: SweepRun, directory: Path, before: Owner | None) -> tuple[Manifest, Path]:
        """Run the processes of a run; its manifest, and where its result is."""
        execution, run, log = self._execution, sweep_run.configuration, directory / store.LOG
        command = execution.command(run, directory)
        processes = self._launcher.processes(run, command, directory)
        started, beside = datetime.now(UTC), store.other_sweeps()
        # The directory of an earlier start of this job, which did not end in order.
        if before is not None and before.job == self._me.job != "" and before.restarts < self._me.restarts:
            log.touch()
            ended = Ended(EXIT_FAILED, "job restarted meanwhile", "node failure")
        else:
            self._bar.show(sweep_run)
            beat, sweep = Beat(directory), execution.sweep
            limits = Limits(sweep.time_limit_s, sweep.hang_limit_s, lambda: progress.last_batch(log))

            def on_tick() -> None:
                beat()
                self._bar.show(sweep_run, log)

            ended = run_processes(processes, log, limits, on_tick=on_tick)
        if ended.kind in ("hang", "time limit"):
            ended = replace(ended, reason=ended.reason + gather_stacks(directory, run.ranks))
        manifest = make_manifest(
            run, sweep_run.repetition, directory, ended, command, processes[0].environment, started,
            unknown_fields(run),
        )  # fmt: skip
        if failed := self._attempts.runs.get(sweep_run.id):
            kinds = {"n": sum(failed.values()), "kinds": list(failed)}
            manifest.findings.append(Finding("retried", data=kinds))
        if beside := beside | store.other_sweeps():
            manifest.findings.append(Finding("disturbed", data={"sweeps": beside}))
        for line in lines(self._scatter(sweep_run, directory) if manifest.done else []):
            self._bar.say(line, "yellow")
        # Ours until it has its whole name: without an owner another sweep would take it over before that.
        result = store.finish(directory, manifest)
        release(result)
        return manifest, result

    def _scatter(self, sweep_run: SweepRun, directory: Path) -> list[Finding]:
        """Whether the first two repetitions differ too much to show anything."""
        durations = self._durations_ms.setdefault(sweep_run.of_all_repetitions, [])
        if step := progress.step_of(directory):
            durations.append(step[0] / 1e6)
        if len(durations) != 2 or max(durations) <= SCATTER * min(durations):
            return []
        what = progress.describe(sweep_run.configuration, sweep_run.outside)
        data = {"n": 1, "of": 1, "factor": max(durations) / min(durations)}
        return [Finding("runs_differ", configuration=what, data=data)]

    def _note(self, sweep_run: SweepRun, manifest: Manifest, result: Path) -> bool:
        """Count and show how a run ended; whether it is to be tried again."""
        if manifest.done:
            if speed := speed_of(result, sweep_run.configuration):
                self._bar.say(f"  {speed}")
            self._result.done += 1
            self._bar.ended()
            return False
        kind = cast(Kind, manifest.failure)
        limit = self._execution.sweep.retries
        again = self._attempts.failed(sweep_run.id, kind, manifest.failed_nodes, limit)
        if self._me.job:
            store.write_record(self._file, self._attempts)
        if kind in RETRIES:
            # The batch system may have taken nodes from us.
            self._launcher = self._launcher.refreshed().without(self._attempts.left_out())
        if again:
            self._bar.say(f"failed, retried: {sweep_run.id}: {manifest.reason}", "yellow")
            return True
        self._result.failures.setdefault(manifest.reason, []).append((sweep_run, result / store.LOG))
        self._bar.say(f"failed: {sweep_run.id}: {manifest.reason}", "red")
        self._bar.ended()
        return False


# --- the record of a sweep ------------------------------------------------------------------------------


class SweepRecord(BaseModel):
    """``sweep.json``: what was asked, in which order, and what was left out."""

    sweep: dict[str, Any]
    order_seed: int
    launcher: str
    order: list[str] = []
    excluded: list[dict[str, str]] = []  # id and reason


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
    store.write_record(path, record)
    return seed


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
        say(console, f"measuring {name if peaks else f'allreduce {name}'} ...", "dim")
        try:
            failure = _measure(execution, run, peaks, scratch)
            if failure and failure.kind in RETRIES:
                failure = _measure(execution, run, peaks, scratch)
            if failure:
                text = f"calibration failed: {failure.text} (log: {scratch / store.LOG})"
                say(console, text, "yellow")
                return
            measured = store.read_record(scratch / store.CALIBRATION, store.Calibration)
            store.write_record(path, measured.beside(store.read_calibration(path)))
            store.remove(scratch)
        finally:
            release(scratch)
        for line in lines(measured.findings if peaks else ()):
            say(console, f"{line} ({path})", "yellow")


def to_measure(runs: Sequence[Run], known: store.Calibration | None) -> list[Run]:
    """The largest run, if nothing is known; then profiled ones of several ranks of unknown allreduce."""
    chosen = [] if known else [largest(runs)]
    done = {measured.exchange for measured in known.allreduces} if known else {run.exchange for run in chosen}
    for run in sorted(runs, key=lambda run: run.ranks, reverse=True):
        if run.profile != "none" and run.ranks > 1 and run.exchange not in done:
            chosen.append(run)
            done.add(run.exchange)
    return chosen


def largest(runs: Sequence[Run]) -> Run:
    """The run whose ranks measure the peaks."""
    return max(runs, key=lambda run: (run.world_size, run.ranks))


def _measure(execution: Execution, run: Run, peaks: bool, scratch: Path) -> Failure | None:
    """Measure with the ranks of a run; what has gone wrong, if anything (``scratch`` keeps its log)."""
    measured = scratch / store.CALIBRATION
    command = [sys.executable, "-m", "train.calibrate", "--out", str(measured.absolute())]
    command += ["--device", run.device, "--precision", run.compute, "--threads", str(run.threads)]
    command += ["--network", run.network, *([] if peaks else ["--allreduce"])]
    processes = execution.launcher.processes(run, command, scratch)
    log = scratch / store.LOG
    ended = run_processes(processes, log, Limits(CALIBRATION_S), on_tick=Beat(scratch))
    if ended.exit_code or not store.read_calibration(measured):
        return explain(ended.exit_code, ended.reason, log_tail(log, run.ranks), ended.kind)
    return None
