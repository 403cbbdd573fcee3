"""Run a whole sweep, or print what it would do: first the machine's peaks, then one run after the other.

A run that fails for a reason that may be temporary goes to the end of the queue; a node that fails too often
is excluded. ``sweep.json`` records all runs, so that those that never started are known. If several calls run
parts of a sweep (``--only``), it records the runs of all of them.
"""

import os
import re
import secrets
import shlex
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, cast

from pydantic import BaseModel
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from jobs import failures, store
from jobs.failures import Ended, Failure, Kind, explain, gather_stacks, log_tail, make_manifest
from jobs.launchers.base import Launcher
from jobs.processes import Limits, TimeIsUp, run_processes, stopped_in_order, unheard
from jobs.run import Run
from jobs.run_fields import ROLES, as_text, is_default, to_flags
from jobs.store import Beat, Claim, Manifest, Owner, claim, release, this_owner
from jobs.sweep_file import Sweep, SweepRun, command_of, name_of, ordered, unknown_fields
from profiling import tables
from profiling.errors import EXIT_FAILED, Mistakes, Unsuccessful, UserError
from profiling.findings import Finding, lines
from profiling.wrap import wrapped

SCATTER = 1.1  # ratio of two repetitions above which they show nothing
RESTARTS = 5  # how often a job that has lost nodes is started again to get others
# Most sweeps set these once for all their runs; of those that they vary some are in a run's words anyway.
_OF_ALL_RUNS = (
    "nodes", "gpus_per_node", "model", "loader", "batch", "grad", "batches", "attribute_from", "device",
    "data", "data_format", "workers", "threads", "image_size", "network",
)  # fmt: skip
_BATCH_LINE = re.compile(rb"(?:^|\r)step (\d+)/(\d+)\b", re.MULTILINE)
_REDRAW_S = 0.2


@dataclass
class Result:
    """How a sweep ended, and whether the same job, started again, could do more."""

    refused: int = 0  # runs that cannot start, where these are failures
    done: int = 0
    # After all tries: by reason, the runs and their logs.
    failures: dict[str, list[tuple[SweepRun, Path]]] = field(default_factory=dict)
    elsewhere: list[SweepRun] = field(default_factory=list)  # another sweep is running them
    left: list[SweepRun] = field(default_factory=list)  # this job has lost the nodes for them
    again: bool = False

    @property
    def failed(self) -> int:
        return sum(map(len, self.failures.values())) + len(self.left) + self.refused


def describe(run: Run, varied: Sequence[str] = ()) -> str:
    """A run in a few words: ``1 node x 2 ranks, resnet50, dali-cpu, batch 4, fp16 gradients``."""
    unit = "rank" if run.gpus_per_rank == 1 else "GPU"  # one process of DataParallel drives all of a node
    nodes, ranks = run.nodes, run.gpus_per_node
    words = [f"{nodes} node{'s' * (nodes != 1)} x {ranks} {unit}{'s' * (ranks != 1)}"]
    if run.program:
        factors = [name for name in varied if name in run.factors]
        words += [name_of(run), *(f"{name}: {as_text(run.factors[name])}" for name in factors)]
    else:
        words += [run.model, run.loader, f"batch {run.batch}"]
        words += [f"{run.grad} gradients"] if run.world_size > 1 else []
    for name in (each for each in ROLES if each not in ("program", "factors")):
        value, label = getattr(run, name), ROLES[name].label
        if name in varied or (name not in _OF_ALL_RUNS and not is_default(name, value)):
            words.append(label.format(value) if label != "{}" else f"{name}: {value}")
    return ", ".join(words)


def say(console: Console, text: str, style: str = "") -> None:
    """A line as it is: no markup, no wrapping."""
    console.print(Text(text, style=style), soft_wrap=True)


class Bar(Progress):
    """A bar over runs that names the one under way and its step; without a terminal, a line a run.

    It redraws only when told to (no thread of its own): processes are forked while it is shown.
    """

    def __init__(self, console: Console, total: int, done: int) -> None:
        text = TextColumn("{task.description}", style="bold", markup=False)
        columns = (text, BarColumn(bar_width=24), MofNCompleteColumn(), TimeElapsedColumn())
        super().__init__(*columns, console=console, auto_refresh=False, disable=not console.is_terminal)
        self._runs = self.add_task("", total=total, completed=done)
        self._done_before, self._since, self._last = done, time.monotonic(), 0.0

    def show(self, sweep_run: SweepRun, log: Path | None = None) -> None:
        """Name the run that is under way, and the batch that ``log`` says it is at."""
        if log and (self.disable or time.monotonic() - self._last < _REDRAW_S):
            return
        self._last = time.monotonic()
        what, left = describe(sweep_run.configuration, sweep_run.outside), ""
        total, done = round(self.tasks[0].total or 0), round(self.tasks[0].completed)
        if ended := done - self._done_before:  # the others may take as long
            seconds = (self._last - self._since) / ended * (total - done)
            left = f"; about {timedelta(seconds=round(seconds))} left"
        if self.disable:
            say(self.console, f"[{done + 1}/{total}] {what}{left} ({sweep_run.id})")
            return
        step = f"  step {batch}" if log and (batch := last_batch(log)) else ""
        self.update(self._runs, description=f"{what} #{sweep_run.repetition}{step}{left}", refresh=True)

    def ended(self) -> None:
        self.update(self._runs, advance=1, refresh=True)


def last_batch(log: Path) -> str:
    """The last ``12/24`` of the lines ``step 12/24 ...`` that rank 0 prints; "" before the first."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            steps = _BATCH_LINE.findall(file.read())
    except FileNotFoundError:
        return ""
    return b"/".join(steps[-1]).decode() if steps else ""


def count_reasons(excluded: Sequence[SweepRun]) -> list[str]:
    """``["12 runs: one rank sends no gradients", ...]``, in the order of their first run."""
    counts = Counter(left.reason for left in excluded)
    return [f"{count} run{'s' * (count > 1)}: {reason}" for reason, count in counts.items()]


def pasteable(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """A command as a shell takes it, its environment in a line of its own."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    return (shlex.join(["env", *variables]) + " \\\n  " if variables else "") + shlex.join(argv)


def step_of(directory: Path) -> tuple[float, int] | None:
    """The median duration of a step, ns, and of how many; None: the table has no times.

    Of the later half of rank 0's steps, unprofiled ones where there are any.
    """
    table = tables.read(tables.rank_directory(directory, 0), "batches", ["start_ns", "end_ns", "attributed"])
    rows = [row for row in table.to_pylist() if None not in (row["start_ns"], row["end_ns"])]
    counted = [row for row in rows if not row["attributed"]] or rows
    later = counted[len(counted) // 2 :]
    return (median(row["end_ns"] - row["start_ns"] for row in later), len(later)) if later else None


def speed_of(directory: Path, run: Run) -> str:
    """``421 ms/step, 76.1 images/s (median of 12)``, for the user who watches a sweep; "" if unknown."""
    if (step := step_of(directory)) is None:
        return ""
    # How many samples a step of a program has is in its table, where it is known.
    rate = "" if run.program else f", {_digits(run.batch * run.world_size * 1e9 / step[0])} images/s"
    return f"{_digits(step[0] / 1e6)} ms/step{rate} (median of {step[1]})"


def _digits(value: float) -> str:
    """Three digits, and all before the decimal point: ``0.0345``, ``76.1``, ``1214``."""
    return f"{value:#.3g}" if value < 99.95 else f"{value:.0f}"


@dataclass(frozen=True)
class Execution:
    """What a user asks for: a sweep, its chosen runs, where their results go, and what starts the ranks."""

    sweep: Sweep
    directory: Path
    launcher: Launcher
    sweep_runs: Sequence[SweepRun] = ()
    excluded: Sequence[SweepRun] = ()
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
            profile = [f"--profile={run.profile}", f"--attribute-from={run.first_attributed}"]
            profile = [] if run.profile == "none" else [*profile, f"--profile-mode={run.profile_mode}"]
            rank = ["-m", "profiling.watch", f"--batches={run.batches}", *profile, *command_of(run)]
        raw = ["--keep-raw"] if self.keep_raw else []
        python, *words = wrapped(
            run.profile, [sys.executable, *rank[:2], f"--out={out}", *raw, *rank[2:]], out, run.device,
            run.first_attributed, self.keep_raw, run.profile_mode, run.profile_kernels, run.profile_metrics,
        )  # fmt: skip
        if not run.program:
            return [python, *words]
        # A program's ranks start in the folder of the user, and find each other by torchrun's variables.
        flags = [f"--folder={Path.cwd()}", f"--device={run.device}", f"--network={run.network}"]
        return [python, "-m", "train.torchrun", *flags, "--", *words]

    def state(self, sweep_run: SweepRun) -> store.State:
        if (state := store.state_of(self.running(sweep_run))) != "done":
            return state
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
    impossible: list[SweepRun]
    refused: int  # impossible ones, where these are failures

    def print_excluded(self, console: Console, execution: Execution) -> None:
        """The runs left out, and those that cannot start, counted by reason."""
        why_not = f"cannot start {execution.launcher.place}" if self.refused else store.LEFT_OUT
        lines = [f"{store.LEFT_OUT}: {each}" for each in count_reasons(execution.excluded)]
        for line in [*lines, *(f"{why_not}: {each}" for each in count_reasons(self.impossible))]:
            say(console, line, "yellow")


def plan(execution: Execution, checked: bool = True) -> Plan:
    """What a sweep has to do; with ``checked``, what the launcher says cannot start is set apart."""
    why_not = execution.launcher.why_not if checked else lambda _: ""
    looked_at = [replace(each, reason=why_not(each.configuration)) for each in execution.sweep_runs]
    possible = [each for each in looked_at if not each.reason]
    impossible = [each for each in looked_at if each.reason]
    if not possible:
        first, *others = count_reasons(impossible)
        raise Mistakes([f"no run can start {execution.launcher.place}: {first}", *others])
    todo = [sweep_run for sweep_run in possible if execution.state(sweep_run) != "done"]
    refused = 0 if execution.sweep.unavailable == "skip" else len(impossible)
    return Plan(possible, todo, impossible, refused)


def run_sweep(execution: Execution) -> Result:
    """Run what is not done yet and say what happened; TimeIsUp leaves the rest in order."""
    console = Console(stderr=True)
    possible, todo, impossible, refused = planned = plan(execution)
    seed = record_sweep(execution, impossible)
    planned.print_excluded(console, execution)
    result, me = Result(refused), this_owner(os.environ)
    if todo:
        try:
            calibrate(execution, todo, console, me)
            with Bar(console, len(possible), len(possible) - len(todo)) as bar:
                Queue(execution, bar, me, result).run(ordered(todo, execution.sweep, seed))
        except TimeIsUp:
            if me.restarts and not (result.done or result.failures):
                text = f"the time limit of job {me.job} is too short for one run; submit with a longer --time"
                raise Unsuccessful(text) from None  # another start would end in the same place
            raise
    result.again = bool(result.left and me.job) and me.restarts < RESTARTS
    if not result.again:
        attempts_file(execution.directory, me).unlink(missing_ok=True)
    counts = {"running elsewhere": len(result.elsewhere), "left, nodes lost": len(result.left)}
    counts |= {"cannot start": refused, "failed": sum(map(len, result.failures.values()))}
    others = [f"{what}: {count}" for what, count in counts.items() if count]
    done = len(possible) - len(todo) + result.done
    text = ", ".join([f"{execution.directory}: done: {done} of {len(possible)}", *others])
    say(console, text, "bold red" if others else "green")
    for reason, failed in result.failures.items():
        (first, log), more = failed[0], f"{len(failed)} runs, first " * (len(failed) > 1)
        say(console, f"  {more}{first.id}: {reason}\n    log: {log}")
    return result


def print_plan(execution: Execution) -> int:
    """Print the runs that are not done, and the command of each configuration; how many cannot start."""
    console, planned = Console(stderr=True), plan(execution)
    done = len(planned.possible) - len(planned.todo)
    say(console, f"{execution.directory}: to do: {len(planned.todo)}, done: {done}", "bold")
    planned.print_excluded(console, execution)
    repetitions: dict[str, list[SweepRun]] = {}
    for sweep_run in planned.todo:
        repetitions.setdefault(sweep_run.of_all_repetitions, []).append(sweep_run)
    for number, (sweep_run, *repeated) in enumerate(repetitions.values(), start=1):
        run, directory = sweep_run.configuration, execution.running(sweep_run)
        first, *others = execution.launcher.processes(run, execution.command(run, directory), directory)
        runs = f"{1 + len(repeated)} run{'s' * bool(repeated)}, {sweep_run.id}"
        print(f"\n# {number} of {len(repetitions)}: {describe(run, sweep_run.outside)} ({runs})")
        print(pasteable(first.argv, first.environment))
        for process in others:  # they differ in their environment alone
            different = sorted(process.environment.items() - first.environment.items())
            print(f"# and with {' '.join(f'{name}={value}' for name, value in different)}")
        if repeated:
            folders = ", ".join(f"run_{other.repetition}_..." for other in repeated)
            print(f"# repetitions, in --out: {folders}")
    return planned.refused


class Attempts(BaseModel):
    """What a job of the batch system knows of its earlier starts, in a file of its own."""

    runs: dict[str, Counter[str]] = {}  # failures by run and kind
    nodes: Counter[str] = Counter()  # failures by node

    def failed(self, run: str, kind: Kind, nodes: Sequence[str], limit: int) -> bool:
        """Note a failure of a run; whether to try again, at most ``limit`` times."""
        counts = self.runs.setdefault(run, Counter())
        counts[kind] += 1
        self.nodes.update(nodes if kind in failures.BLAMES_NODE else ())
        return counts[kind] <= min(limit, failures.RETRIES.get(kind, 0))

    def left_out(self) -> frozenset[str]:
        return frozenset(node for node, count in self.nodes.items() if count >= failures.NODE_FAILURES)


def attempts_file(sweep: Path, me: Owner) -> Path:
    return sweep / f".job-{me.job}.json"


class Queue:
    """The runs of a sweep that are to do, one after the other; what became of them goes to ``result``."""

    def __init__(self, execution: Execution, bar: Bar, me: Owner, result: Result) -> None:
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
                say(self._bar.console, f"damaged, repeated: {sweep_run.id} (kept as {kept})", "yellow")
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
            limits = Limits(sweep.time_limit_s, sweep.hang_limit_s, lambda: last_batch(log))

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
            kinds = {"n": failed.total(), "kinds": list(failed)}
            manifest.findings.append(Finding("retried", data=kinds))
        if beside := beside | store.other_sweeps():
            manifest.findings.append(Finding("disturbed", data={"sweeps": beside}))
        for line in lines(self._scatter(sweep_run, directory) if manifest.done else []):
            say(self._bar.console, line, "yellow")
        # Ours until it has its whole name: without an owner another sweep would take it over before that.
        result = store.finish(directory, manifest)
        release(result)
        return manifest, result

    def _scatter(self, sweep_run: SweepRun, directory: Path) -> list[Finding]:
        """Whether the first two repetitions differ too much to show anything."""
        durations = self._durations_ms.setdefault(sweep_run.of_all_repetitions, [])
        if step := step_of(directory):
            durations.append(step[0] / 1e6)
        if len(durations) != 2 or max(durations) <= SCATTER * min(durations):
            return []
        what = describe(sweep_run.configuration, sweep_run.outside)
        data = {"n": 1, "of": 1, "factor": max(durations) / min(durations)}
        return [Finding("runs_differ", configuration=what, data=data)]

    def _note(self, sweep_run: SweepRun, manifest: Manifest, result: Path) -> bool:
        """Count and show how a run ended; whether it is to be tried again."""
        if manifest.done:
            if speed := speed_of(result, sweep_run.configuration):
                say(self._bar.console, f"  {speed}")
            self._result.done += 1
            self._bar.ended()
            return False
        kind, limit = cast(Kind, manifest.failure), self._execution.sweep.retries
        again = self._attempts.failed(sweep_run.id, kind, manifest.failed_nodes, limit)
        if self._me.job:
            store.write_record(self._file, self._attempts)
        if kind in failures.RETRIES:  # the batch system may have taken nodes from us
            self._launcher = self._launcher.refreshed().without(self._attempts.left_out())
        if again:
            say(self._bar.console, f"failed, retried: {sweep_run.id}: {manifest.reason}", "yellow")
            return True
        self._result.failures.setdefault(manifest.reason, []).append((sweep_run, result / store.LOG))
        say(self._bar.console, f"failed: {sweep_run.id}: {manifest.reason}", "red")
        self._bar.ended()
        return False


class SweepRecord(BaseModel):
    """``sweep.json``: what was asked, in which order, and what was left out."""

    sweep: dict[str, Any]
    order_seed: int
    launcher: str
    order: list[str] = []
    excluded: list[dict[str, str]] = []  # id and reason


def record_sweep(execution: Execution, impossible: Sequence[SweepRun]) -> int:
    """Write sweep.json and return the seed of the order: the sweep's, else the one of an earlier call."""
    execution.directory.mkdir(parents=True, exist_ok=True)
    path = execution.directory / store.SWEEP
    earlier = store.read_record(path, SweepRecord) if path.exists() else None
    new = earlier.order_seed if earlier else secrets.randbelow(2**31)
    seed = new if execution.sweep.order_seed is None else execution.sweep.order_seed
    record = SweepRecord(
        sweep=execution.sweep.model_dump(),
        order_seed=seed,
        launcher=execution.launcher.name,
        order=[sweep_run.id for sweep_run in ordered(execution.sweep_runs, execution.sweep, seed)],
        excluded=[{"id": left.id, "reason": left.reason} for left in (*execution.excluded, *impossible)],
    )
    if earlier is not None and record.sweep["run"] == earlier.sweep.get("run"):
        asked = {*record.order, *(left["id"] for left in record.excluded)}
        record.order += [run_id for run_id in earlier.order if run_id not in asked]
        record.excluded += [left for left in earlier.excluded if left["id"] not in asked]
    store.write_record(path, record)
    return seed


def calibrate(execution: Execution, todo: Sequence[SweepRun], console: Console, me: Owner) -> None:
    """Measure the machine's peaks, once a sweep, and the allreduces that its profiled runs need."""
    runs = [sweep_run.configuration for sweep_run in todo]
    path = execution.directory / store.CALIBRATION
    known = store.read_calibration(path)
    # The largest run, if nothing is known; then profiled ones of several ranks of unknown allreduce.
    largest = max(runs, key=lambda run: (run.world_size, run.ranks))
    chosen = [] if known else [largest]
    done = {each.exchange for each in (known.allreduces if known else chosen)}
    for run in sorted(runs, key=lambda run: run.ranks, reverse=True):
        if run.profile != "none" and run.ranks > 1 and run.exchange not in done:
            chosen.append(run)
            done.add(run.exchange)
    for run in chosen:
        peaks = known is None and run is largest
        name = "peaks" if peaks else f"{run.nodes}x{run.ranks_per_node}-{run.network}"
        scratch = execution.directory / f"{store.CALIBRATING}{name}"
        if not claim(scratch, me).ours:
            continue  # another sweep of this folder measures it
        say(console, f"measuring {name if peaks else f'allreduce {name}'} ...", "dim")
        try:
            failure = _measure(execution, run, peaks, scratch)
            if failure and failure.kind in failures.RETRIES:
                failure = _measure(execution, run, peaks, scratch)
            if failure:
                say(console, f"calibration failed: {failure.text} (log: {scratch / store.LOG})", "yellow")
                return
            measured = store.read_record(scratch / store.CALIBRATION, store.Calibration)
            store.write_record(path, measured.beside(store.read_calibration(path)))
            store.remove(scratch)
        finally:
            release(scratch)
        for line in lines(measured.findings if peaks else ()):
            say(console, f"{line} ({path})", "yellow")


def _measure(execution: Execution, run: Run, peaks: bool, scratch: Path) -> Failure | None:
    """Measure with the ranks of a run; what has gone wrong, if anything (``scratch`` keeps its log)."""
    measured = scratch / store.CALIBRATION
    command = [sys.executable, "-m", "train.calibrate", "--out", str(measured.absolute())]
    command += ["--device", run.device, "--precision", run.compute, "--threads", str(run.threads)]
    command += ["--network", run.network, *([] if peaks else ["--allreduce"])]
    processes = execution.launcher.processes(run, command, scratch)
    log = scratch / store.LOG
    ended = run_processes(processes, log, Limits(time_s=120.0), on_tick=Beat(scratch))
    if ended.exit_code or not store.read_calibration(measured):
        return explain(ended.exit_code, ended.reason, log_tail(log, run.ranks), ended.kind)
    return None
