"""Which run is next, on which nodes, and what becomes of it?

One run at a time; with ``pack``, as many side by side as there are nodes for. A run that fails for a
reason that may not come again goes to the end of the queue; a node that fails is asked no more.
"""

import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from jobs import claims, progress, store
from jobs.attempts import Attempts, save_attempts
from jobs.execution import Execution
from jobs.failures import RETRIES, Failure, Kind
from jobs.hangs import gather_stacks
from jobs.launchers.base import Launcher, Process
from jobs.outcome import make_manifest, speed_of
from jobs.owner import STALE_S, Owner, beat_of, is_gone, last_beat_s, owner_of
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
from jobs.program import unknown_fields
from jobs.store import Manifest
from jobs.sweep_runs import Failed, Result, SweepRun
from jobs.time_limit import needed_s, too_short
from profiling.findings import Finding


@dataclass
class Active:
    """A run that is under way."""

    sweep_run: SweepRun
    directory: Path
    running: Running
    process: Process
    command: list[str]
    beat: claims.Beat
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
        # The sort is stable: the order is that of the sweep but for those.
        self._waiting: deque[SweepRun] = deque(sorted(todo, key=self._comes_last))
        self._active: list[Active] = []
        # Run by other sweeps: their last beat, when we saw it.
        self._others: dict[SweepRun, float | None] = {}
        self._told: list[Owner] = []  # whose sweeps the user knows of
        self.result = Result()

    def _comes_last(self, sweep_run: SweepRun) -> bool:
        return sweep_run.of_all_repetitions in self._attempts.last

    def run(self) -> Result:
        """Start all runs; a stop from outside ends the running ones and leaves them to be done."""
        with stopped_in_order():
            try:
                self._tell_of_others()
                while self._waiting or self._active or self._others:
                    stop_if_asked()
                    if not (self._waiting or self._active):
                        self._look_at_others()
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
                        claims.release(active.directory)
                save_attempts(self._execution.directory, self._me, self._attempts)
        return self.result

    def _tell_of_others(self) -> None:
        """Before the first run: which other sweeps are at work on these, or on others of the sweep file?"""
        for directory in claims.claimed(self._execution.directory):
            owner = owner_of(directory)
            if owner is not None and not is_gone(directory, owner, self._me):
                self._tell_of(owner)

    def _tell_of(self, other: Owner | None) -> None:
        if other is not None and other not in self._told:
            self._told.append(other)
            self._bar.say(progress.also_at_work(other, self._me), "yellow")

    def _start_what_fits(self) -> None:
        for sweep_run in list(self._waiting):
            if self._active and not self._execution.pack:
                return
            launcher = self._launcher.on(self._free_nodes())
            if launcher.cannot(sweep_run.configuration) is not None:
                if self._launcher.cannot(sweep_run.configuration) is not None:
                    self._waiting.remove(sweep_run)
                    self.result.left.append(sweep_run)
                continue
            self._waiting.remove(sweep_run)
            # A stop between the claim and the last process would leave a directory that nobody releases.
            with unheard():
                self._start(sweep_run, launcher)

    def _free_nodes(self) -> tuple[str, ...]:
        busy = {node for active in self._active for node in active.nodes}
        return tuple(node for node in self._launcher.nodes if node not in busy)

    def _start(self, sweep_run: SweepRun, launcher: Launcher) -> None:
        execution = self._execution
        directory = execution.running(sweep_run)
        claim = claims.claim(directory, self._me)
        if not claim.ours:
            self._others[sweep_run] = beat_of(directory)
            self._tell_of(claim.before)
            return
        if execution.state(sweep_run) == "done":  # by another sweep, meanwhile
            store.remove(directory)
            self._count_done()
            return
        if self._ended_this_job(claim.before):
            failure = Failure("node failure", "the job was restarted while it ran", 1)
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
            Active(sweep_run, directory, running, processes[0], command, claims.Beat(directory), nodes)
        )
        for active in self._active:
            active.beside = max(active.beside, len(self._active) - 1)

    def _ended_this_job(self, before: Owner | None) -> bool:
        """Whether the directory was that of an earlier start of this job, which did not end in order."""
        return before is not None and before.job == self._me.job != "" and before.restarts < self._me.restarts

    def _look_at(self, active: Active) -> bool:
        """Whether a run has ended; if so, it is finished."""
        ended = active.running.poll()
        if ended is None:
            active.beat()
            self._bar.show(active.sweep_run, active.directory / store.LOG)
            return False
        active.running.end()
        self._active.remove(active)
        if ended.kind in ("hang", "time limit"):
            odd = gather_stacks(active.directory, active.sweep_run.configuration.ranks)
            ended = replace(ended, reason=ended.reason + odd)
        manifest = make_manifest(
            active.sweep_run.configuration, active.sweep_run.repetition, active.directory, ended,
            active.command, active.process.environment, active.started, self._execution.root,
            unknown_fields(active.sweep_run.configuration),
        )  # fmt: skip
        if active.beside:
            finding = Finding("ran_beside", data={"n": active.beside})
            manifest = manifest.model_copy(update={"findings": [*manifest.findings, finding]})
        self._finish(active.sweep_run, active.directory, manifest)
        return True

    def _finish(self, sweep_run: SweepRun, directory: Path, manifest: Manifest) -> None:
        ended = self._leave(directory, manifest)
        if manifest.done:
            self._bar.tell(sweep_run, speed_of(ended, sweep_run.configuration))
            self._count_done()
            return
        if self._try_again(sweep_run, cast(Kind, manifest.failure), manifest.failed_nodes):
            self._bar.say(f"failed, will be retried: {sweep_run.id}: {manifest.reason}", "yellow")
            self._waiting.append(sweep_run)
        else:
            self._give_up(sweep_run, manifest, ended)

    def _give_up(self, sweep_run: SweepRun, manifest: Manifest, ended: Path) -> None:
        """Count a run as failed, and say why, of several that failed alike once."""
        said = any(failed.reason == manifest.reason for failed in self.result.failed)
        why = "for the same reason as before" if said else manifest.reason
        self.result.failed.append(Failed(sweep_run, manifest.failure, manifest.reason, ended / store.LOG))
        self._bar.say(f"failed: {sweep_run.id}: {why}", "red")
        self._bar.advance(failed=True)

    def _try_again(self, sweep_run: SweepRun, kind: Kind, nodes: Sequence[str] = ()) -> bool:
        self._attempts.failed(sweep_run.id, kind, nodes)
        save_attempts(self._execution.directory, self._me, self._attempts)
        if kind in RETRIES:
            # The batch system may have taken nodes from us.
            self._launcher = self._launcher.refreshed().without(self._attempts.left_out())
        return self._attempts.again(sweep_run.id, kind, self._execution.sweep.retries)

    def _finish_unrun(self, sweep_run: SweepRun, directory: Path, failure: Failure) -> None:
        """Give up on a run that has ended its job too often."""
        manifest = Manifest(
            run=sweep_run.configuration, repetition=sweep_run.repetition, exit_code=failure.exit_code,
            reason=failure.reason, failure=failure.kind, command=[],
            started=(now := datetime.now(UTC).isoformat()), ended=now, seconds=0,
        )  # fmt: skip
        (directory / store.LOG).touch()
        self._give_up(sweep_run, manifest, self._leave(directory, manifest))

    @staticmethod
    def _leave(directory: Path, manifest: Manifest) -> Path:
        # Ours until it has its whole name: without an owner another sweep would take it over before that.
        ended = store.finish(directory, manifest)
        claims.release(ended)
        return ended

    def _end_too_long(self) -> None:
        """Time is up: a run that was also cut in the start before, with none finished since, needs more.

        Runs of other configurations come first from then on, as long as some are finished.

        Raises:
            TooShort: it says how long the job would have to be.
        """
        active = self._active[0] if self._active else None
        if active is None:
            self._attempts.cut_at("", self.result.done)
            return
        its = active.sweep_run.of_all_repetitions
        others = any(one.of_all_repetitions != its and not self._comes_last(one) for one in self._waiting)
        after = self._attempts.after_cut(active.sweep_run.id, its, others, self.result.done)
        if after == "others first":
            self._bar.say(f"cut twice, the other runs come first: {active.sweep_run.id}", "yellow")
        if after != "end":
            return
        had_s = (datetime.now(UTC) - active.started).total_seconds()
        at = progress.last_batch(active.directory / store.LOG)
        what = f"{active.sweep_run.id} ({f'step {at}' if at else 'its first step'})"
        needs_s = needed_s(had_s, at, self._execution.sweep.time_limit_s)
        self._active.remove(active)
        active.running.end()
        why = f"cut by the end of job {self._me.job}'s time, as in its start before"
        self._finish_unrun(active.sweep_run, active.directory, Failure("time limit", why, EXIT_TIME_LIMIT))
        raise too_short(self._me, what, had_s, needs_s) from None

    def _count_done(self) -> None:
        self.result.done += 1
        self._bar.advance()

    def _look_at_others(self) -> None:
        """With nothing else to do: do other sweeps whose runs we left to them still live?"""
        for sweep_run, beat in list(self._others.items()):
            directory = self._execution.running(sweep_run)
            now = beat_of(directory)
            if now is None or last_beat_s(directory) > STALE_S:
                self._waiting.append(sweep_run)  # ended, in order or not: it is done now, or ours to do
            elif now != beat:
                self.result.elsewhere.append(sweep_run)
            else:
                continue
            del self._others[sweep_run]
