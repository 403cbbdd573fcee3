"""Run what a sweep has to do: the command of each run, which is next, on which nodes, what becomes of it.

One run at a time; with ``pack``, as many side by side as there are nodes for. A run that fails for a
reason that may not come again goes to the end of the queue; a node that fails is asked no more.
"""

import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from pydantic import BaseModel

from jobs import ROOT, progress, store
from jobs.failures import BLAMES_NODE, NODE_FAILURES, RETRIES, Failure, Kind, gather_stacks, make_manifest
from jobs.flags import to_flags
from jobs.launchers.base import Launcher, Process
from jobs.processes import (
    EXIT_TIME_LIMIT,
    POLL_S,
    Limits,
    Running,
    TimeIsUp,
    stop_if_asked,
    stopped_in_order,
    unheard,
)
from jobs.program import command_of, unknown_fields
from jobs.progress import Failed, Result, speed_of
from jobs.run import Run
from jobs.store import Beat, Manifest, Owner, claim, release
from jobs.sweep_file import Sweep, SweepRun
from profiling.errors import EXIT_FAILED, UserError
from profiling.findings import Finding
from profiling.wrap import wrapped


@dataclass(frozen=True)
class Execution:
    """A sweep, where its results go, and what starts its ranks."""

    sweep: Sweep
    directory: Path
    launcher: Launcher
    keep_raw: bool = False
    pack: bool = False  # runs side by side, where there are nodes for them
    root: Path = ROOT

    def running(self, sweep_run: SweepRun) -> Path:
        return store.running_directory(
            self.directory, sweep_run.configuration, sweep_run.repetition, sweep_run.outside
        )

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
        )  # fmt: skip
        if not run.program:
            return [python, *words]
        # A program's ranks start in the folder of the user, and find each other by torchrun's variables.
        flags = [f"--folder={Path.cwd()}", f"--device={run.device}", f"--network={run.network}"]
        return [python, "-m", "train.torchrun", *flags, "--", *words]

    def state(self, sweep_run: SweepRun) -> store.State:
        """What has become of a run."""
        state = store.state_of(
            self.directory, sweep_run.configuration, sweep_run.repetition, sweep_run.outside
        )
        if state == "done":
            before = self.manifest_of_done(sweep_run).run
            for name in Run.model_fields:
                old, new = getattr(before, name), getattr(sweep_run.configuration, name)
                if old != new:
                    raise UserError(
                        f"{self.directory} holds runs with {name} {old}, and the sweep now says {new}: "
                        "copy the file under another name (the name is the sweep's), or give another --out"
                    )
        return state

    def manifest_of_done(self, sweep_run: SweepRun) -> Manifest:
        """What a run that is done says of itself."""
        ended = self.running(sweep_run).with_name(f"{sweep_run.id}_ret_0")
        return store.read_record(ended / store.MANIFEST, Manifest)


class TooShort(UserError):
    """A job's time limit is too short for one run: another start of it would end in the same place."""

    exit_code = EXIT_FAILED


class Attempts(BaseModel):
    """What a job of the batch system knows of its earlier starts, in a file of its own."""

    runs: dict[str, dict[str, int]] = {}  # failures by run and kind
    nodes: dict[str, int] = {}  # failures by node
    cut_off: list[str] = []  # configurations at which the job's time was up: they come last

    @staticmethod
    def path(sweep: Path, me: Owner) -> Path:
        return sweep / f".job-{me.job}.json"

    @classmethod
    def read(cls, sweep: Path, me: Owner) -> "Attempts":
        path = cls.path(sweep, me)
        return store.read_record(path, cls) if me.job and me.restarts and path.exists() else cls()

    def save(self, sweep: Path, me: Owner) -> None:
        if me.job:
            store.write_record(self.path(sweep, me), self)

    def failed(self, run: str, kind: Kind, nodes: Sequence[str] = ()) -> None:
        """Note a failure of a run."""
        counts = self.runs.setdefault(run, {})
        counts[kind] = counts.get(kind, 0) + 1
        for node in nodes if kind in BLAMES_NODE else ():
            self.nodes[node] = self.nodes.get(node, 0) + 1

    def again(self, run: str, kind: Kind, limit: int) -> bool:
        """Whether a run that has just failed is to be tried again; ``limit``: the most tries again."""
        return self.runs.get(run, {}).get(kind, 0) <= min(limit, RETRIES.get(kind, 0))

    def cut(self, what: str, done: int) -> bool:
        """Note what the job was at when its time was up; whether another start would come no further."""
        if what in self.cut_off:
            return not done
        self.cut_off.append(what)
        return False

    def left_out(self) -> frozenset[str]:
        """The nodes that have failed too often."""
        return frozenset(node for node, count in self.nodes.items() if count >= NODE_FAILURES)


@dataclass
class Active:
    """A run that is under way."""

    sweep_run: SweepRun
    directory: Path
    running: Running
    process: Process
    command: list[str]
    beat: Beat
    nodes: tuple[str, ...]
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    beside: int = 0  # the most runs that ran beside it


class Queue:
    """The runs of a sweep that are to do, and those that are running."""

    def __init__(
        self, execution: Execution, todo: Sequence[SweepRun], bar: progress.Bar, me: Owner, attempts: Attempts
    ) -> None:
        self._execution, self._bar, self._me, self._attempts = execution, bar, me, attempts
        self._launcher: Launcher = execution.launcher.without(attempts.left_out())
        # The sort is stable: the order is that of the sweep, but those that were cut off come last.
        self._waiting = deque(sorted(todo, key=lambda each: each.of_all_repetitions in attempts.cut_off))
        self._active: list[Active] = []
        self.result = Result()

    def run(self) -> Result:
        """Start all runs; a stop from outside ends the running ones and leaves them to be done."""
        with stopped_in_order():
            try:
                while self._waiting or self._active:
                    stop_if_asked()
                    self._start_what_fits()
                    # Where one has ended the next is not kept waiting.
                    if not any(self._look_at(active) for active in list(self._active)):
                        time.sleep(POLL_S)
            except TimeIsUp:
                self._end_too_long()
                raise
            finally:
                for active in self._active:
                    active.running.end()
                    with suppress(OSError):
                        release(active.directory)
                self._attempts.save(self._execution.directory, self._me)
        return self.result

    def _start_what_fits(self) -> None:
        for sweep_run in list(self._waiting):
            if self._active and not self._execution.pack:
                return
            busy = {node for active in self._active for node in active.nodes}
            launcher = self._launcher.on(tuple(node for node in self._launcher.nodes if node not in busy))
            if launcher.why_not(sweep_run.configuration):
                if self._launcher.why_not(sweep_run.configuration):
                    self._waiting.remove(sweep_run)
                    self.result.left.append(sweep_run)
                continue
            self._waiting.remove(sweep_run)
            # A stop between the claim and the last process would leave a directory that nobody releases.
            with unheard():
                self._start(sweep_run, launcher)

    def _start(self, sweep_run: SweepRun, launcher: Launcher) -> None:
        execution = self._execution
        directory = execution.running(sweep_run)
        ours, before = claim(directory, self._me)
        if not ours:
            self.result.elsewhere.append(sweep_run)
            return
        if execution.state(sweep_run) == "done":  # by another sweep, meanwhile
            store.remove(directory)
            self.result.done += 1
            self._bar.advance()
            return
        # The directory of an earlier start of this job, which did not end in order.
        if before is not None and before.job == self._me.job != "" and before.restarts < self._me.restarts:
            failure = Failure("node failure", "job restarted meanwhile", 1)
            if not self._try_again(sweep_run, failure.kind):
                self._finish_unrun(sweep_run, directory, failure)
                return
        self._bar.show(sweep_run)
        command = execution.command(sweep_run.configuration, directory)
        processes = launcher.processes(sweep_run.configuration, command, directory)
        log = directory / store.LOG
        limits = Limits(
            execution.sweep.time_limit_s, execution.sweep.hang_limit_s, lambda: progress.last_batch(log)
        )
        running = Running(processes, log, limits, execution.root)
        nodes = launcher.nodes[: sweep_run.configuration.nodes]
        self._active.append(
            Active(sweep_run, directory, running, processes[0], command, Beat(directory), nodes)
        )
        for active in self._active:
            active.beside = max(active.beside, len(self._active) - 1)

    def _look_at(self, active: Active) -> bool:
        """Whether a run has ended; if so, it is finished."""
        sweep_run, directory = active.sweep_run, active.directory
        ended = active.running.poll()
        if ended is None:
            active.beat()
            self._bar.show(sweep_run, directory / store.LOG)
            return False
        active.running.end()
        self._active.remove(active)
        if ended.kind in ("hang", "time limit"):
            where = gather_stacks(directory, sweep_run.configuration.ranks)
            ended = replace(ended, reason=ended.reason + where)
        manifest = make_manifest(
            sweep_run.configuration, sweep_run.repetition, directory, ended,
            active.command, active.process.environment, active.started, self._execution.root,
            unknown_fields(sweep_run.configuration),
        )  # fmt: skip
        if active.beside:
            manifest.findings.append(Finding("ran_beside", data={"n": active.beside}))
        if failed := self._attempts.runs.get(sweep_run.id):
            kinds = {"n": sum(failed.values()), "kinds": list(failed)}
            manifest.findings.append(Finding("retried", data=kinds))
        moved = self._leave(directory, manifest)
        if manifest.done:
            if speed := speed_of(moved, sweep_run.configuration):
                self._bar.say(f"  {speed} ({sweep_run.id})" if self._execution.pack else f"  {speed}")
            self.result.done += 1
            self._bar.advance()
        elif self._try_again(sweep_run, cast(Kind, manifest.failure), manifest.failed_nodes):
            self._bar.say(f"failed, retried: {sweep_run.id}: {manifest.reason}", "yellow")
            self._waiting.append(sweep_run)
        else:
            self._give_up(sweep_run, manifest, moved)
        return True

    def _give_up(self, sweep_run: SweepRun, manifest: Manifest, ended: Path) -> None:
        self.result.failed.append(Failed(sweep_run, manifest.failure, manifest.reason, ended / store.LOG))
        self._bar.say(f"failed: {sweep_run.id}: {manifest.reason}", "red")
        self._bar.advance()

    def _try_again(self, sweep_run: SweepRun, kind: Kind, nodes: Sequence[str] = ()) -> bool:
        self._attempts.failed(sweep_run.id, kind, nodes)
        self._attempts.save(self._execution.directory, self._me)
        if kind in RETRIES:
            # The batch system may have taken nodes from us.
            self._launcher = self._launcher.refreshed().without(self._attempts.left_out())
        return self._attempts.again(sweep_run.id, kind, self._execution.sweep.retries)

    def _finish_unrun(self, sweep_run: SweepRun, directory: Path, failure: Failure) -> None:
        """Give up on a run that has ended its job too often."""
        now = datetime.now(UTC).isoformat()
        manifest = Manifest(
            run=sweep_run.configuration, repetition=sweep_run.repetition, exit_code=failure.exit_code,
            reason=failure.reason, failure=failure.kind, command=[], started=now, ended=now, seconds=0,
        )  # fmt: skip
        (directory / store.LOG).touch()
        self._give_up(sweep_run, manifest, self._leave(directory, manifest))

    @staticmethod
    def _leave(directory: Path, manifest: Manifest) -> Path:
        # Ours until it has its whole name: without an owner another sweep would take it over before that.
        ended = store.finish(directory, manifest)
        release(ended)
        return ended

    def _end_too_long(self) -> None:
        active = next(iter(self._active), None)
        if active is None or not self._attempts.cut(active.sweep_run.of_all_repetitions, self.result.done):
            return
        at = progress.last_batch(active.directory / store.LOG) or "0"
        self._active.remove(active)
        active.running.end()
        failure = Failure("time limit", f"cut again, job {self._me.job}", EXIT_TIME_LIMIT)
        self._finish_unrun(active.sweep_run, active.directory, failure)
        had_s = (datetime.now(UTC) - active.started).total_seconds()
        raise TooShort(
            f"the time limit of job {self._me.job} is too short for {active.sweep_run.id}: step {at} after "
            f"{had_s:.0f} s, no run done in this start; submit with a longer --time"
        ) from None
