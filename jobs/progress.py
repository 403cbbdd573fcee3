"""What does the user of a sweep see while it runs, before, and at its end? All of it on standard error."""

import re
import shlex
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from jobs.failures import RETRIES
from jobs.launchers.base import Process
from jobs.owner import Owner
from jobs.program import name_of
from jobs.run import Run
from jobs.run_fields import ROLES, is_default
from jobs.run_values import as_text
from jobs.states import LEFT_OUT, RESUME
from jobs.sweep_runs import Excluded, Failed, Result, SweepRun
from profiling.wording import how_many, in_a_row, noun, verb

_REDRAW_S = 0.2
_WIDTH_OF_COMMANDS = 100
# Most sweeps set these once for all their runs; of those that they vary some are in a run's words anyway.
_OF_ALL_RUNS = (
    "nodes", "gpus_per_node", "model", "loader", "batch", "grad", "batches", "attribute_from", "device",
    "data", "data_format", "workers", "threads", "image_size", "network",
)  # fmt: skip
_BATCH_LINE = re.compile(rb"(?:^|\r)step (\d+)/(\d+)\b", re.MULTILINE)


def describe(run: Run, varied: Sequence[str] = ()) -> str:
    """A run in a few words: ``1 node x 2 ranks, resnet50, dali-cpu, batch 4, fp16 gradients``.

    Nodes x ranks per node, and what is not as usual of the fields that most sweeps leave alone.

    Args:
        varied: fields that are named whatever they are.
    """
    # One process of DataParallel drives all GPUs of its node.
    unit = "rank" if run.gpus_per_rank == 1 else "GPU"
    words = [f"{how_many(run.nodes, 'node')} x {how_many(run.gpus_per_node, unit)}"]
    if run.program:
        words += [
            name_of(run),
            *(f"{name}: {as_text(run.factors[name])}" for name in varied if name in run.factors),
        ]
    else:
        words += [run.model, run.loader, f"batch {run.batch}"]
    if run.world_size > 1 and not run.program:
        words.append(f"{run.grad} gradients")
    for name, role in ROLES.items():
        if name in ("program", "factors"):
            continue
        value = getattr(run, name)
        if name in varied or (name not in _OF_ALL_RUNS and not is_default(name, value)):
            words.append(role.label.format(value) if role.label != "{}" else f"{name}: {value}")
    return ", ".join(words)


def in_words(seconds: float) -> str:
    """``about 40 s``, ``about 12 min``, ``about 3.5 h``."""
    if seconds < 90:
        return f"about {seconds:.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 90 * 60 else f"about {seconds / 3600:.1f} h"


class Bar:
    """A progress bar over runs that names the running one and the batch it is at.

    It redraws only when told to (no thread of its own): processes are forked while it is shown. Where there
    is no terminal (a batch job's log) it is a line a run.
    """

    def __init__(self, console: Console, total: int, done: int) -> None:
        self._bar = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            auto_refresh=False,
        )
        self._task: TaskID = self._bar.add_task("", total=total, completed=done)
        self._total, self._done = total, done
        self._done_before = done
        self._since = self._last_end = time.monotonic()
        self._shown, self._last = "", 0.0
        self._named: SweepRun | None = None  # by the last line of a log

    def __enter__(self) -> "Bar":
        if self._bar.console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def show(self, sweep_run: SweepRun, log: Path | None = None) -> None:
        """Name the run that is under way, and the batch that ``log`` says it is at."""
        if not self._bar.console.is_terminal:
            if log is None:
                self._named = sweep_run
                place = f"[{self._done + 1}/{self._total}]"
                told = (
                    f"{describe(sweep_run.configuration, sweep_run.outside)}{self._left()} ({sweep_run.id})"
                )
                self.say(f"{place} {told}")
            return
        if log and time.monotonic() - self._last < _REDRAW_S:
            return
        self._last = time.monotonic()
        batch = last_batch(log) if log else ""
        description = _with_repetition(sweep_run) + (f"  step {batch}" if batch else "") + self._left()
        if description != self._shown or not log:
            self._bar.update(self._task, description=description)
            self._shown = description
        self._bar.refresh()

    def tell(self, sweep_run: SweepRun, result: str) -> None:
        """Say what came of a run; below the line that names it, where that is the last one."""
        if result:
            self.say(
                f"  {result}" if sweep_run is self._named else f"{_with_repetition(sweep_run)}: {result}"
            )

    def _left(self) -> str:
        """How long the rest will take if its runs take as long as those done here; "" before the first."""
        done = self._done - self._done_before
        if not done:
            return ""
        each = (time.monotonic() - self._since) / done
        return f"; {in_words(each * (self._total - self._done))} left"

    def advance(self, failed: bool = False) -> None:
        """A run has ended; what one took that failed says nothing of how long the others take."""
        now = time.monotonic()
        if failed:
            self._done_before += 1
            self._since += now - self._last_end
        self._last_end = now
        self._done += 1
        if self._bar.console.is_terminal:
            self._bar.advance(self._task)
            self._bar.refresh()

    def say(self, text: str, style: str = "") -> None:
        """Print a line above the bar."""
        self._bar.console.print(Text(text, style=style), soft_wrap=True)


def _with_repetition(sweep_run: SweepRun) -> str:
    return f"{describe(sweep_run.configuration, sweep_run.outside)} #{sweep_run.repetition}"


def last_batch(log: Path, tail_bytes: int = 4096) -> str:
    """The last ``12/24`` of the lines ``step 12/24 ...`` that rank 0 prints; "" before the first."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - tail_bytes))
            lines = _BATCH_LINE.findall(file.read())
    except FileNotFoundError:
        return ""
    return b"/".join(lines[-1]).decode() if lines else ""


def also_at_work(other: Owner, me: Owner) -> str:
    """That another sweep has claimed some of these runs, and what that means for both."""
    who = f"job {other.job}" if other.job else f"process {other.pid} on {other.host}"
    shared = "this machine" if other.host == me.host else "the network"
    return (
        f"{who} works on this sweep, too: runs that it has claimed are skipped; runs at the same time share "
        f"{shared}, which disturbs the measurement"
    )


def count_reasons(excluded: Sequence[Excluded]) -> list[str]:
    """``["12 runs: one rank sends no gradients", ...]``, in the order of their first run."""
    counts = Counter(left.reason for left in excluded)
    return [f"{how_many(count, 'run')}: {reason}" for reason, count in counts.items()]


def print_excluded(console: Console, excluded: Sequence[Excluded], what: str = LEFT_OUT) -> None:
    """The runs left out, or those that ``what`` says, counted by reason."""
    for line in count_reasons(excluded):
        console.print(Text(f"{what}: {line}", style="yellow"), soft_wrap=True)


def print_impossible(console: Console, impossible: Sequence[Excluded], skipped: bool, place: str) -> None:
    """The runs that cannot start, by reason: left out only where the sweep leaves such runs out."""
    print_excluded(console, impossible, LEFT_OUT if skipped else f"cannot start {place}")


def print_outlook(console: Console, directory: Path, todo: int, done_s: Sequence[float]) -> None:
    """What a sweep would do, in a line: how many runs, where, and about how long it would take.

    Args:
        done_s: how long each run took that is done; the others are taken to be as long.
    """
    left = f" ({in_words(todo * fmean(done_s))})" if todo and done_s else ""
    text = f"{how_many(todo, 'run')} to do{left}, {len(done_s)} done, in {directory}"
    console.print(Text(text, style="bold"), soft_wrap=True)


def print_commands(commands: Sequence[tuple[SweepRun, Sequence[Process]]]) -> None:
    """A dry run: the processes of each configuration's first run that is to do, as one can paste them.

    Its repetitions differ only in the folder to which they write. On standard output.
    """
    alike: dict[tuple[Run, tuple[str, ...]], list[tuple[SweepRun, Sequence[Process]]]] = {}
    for sweep_run, processes in commands:
        alike.setdefault((sweep_run.configuration, sweep_run.outside), []).append((sweep_run, processes))
    for number, ((sweep_run, (first, *others)), *repeated) in enumerate(alike.values(), start=1):
        runs = f"{how_many(1 + len(repeated), 'run')}, {sweep_run.id}"
        what = describe(sweep_run.configuration, sweep_run.outside)
        print(f"\n# {number} of {len(alike)}: {what} ({runs})")
        print(_pasteable(first))
        for process in others:
            if process.argv == first.argv:
                own = dict(process.environment.items() - first.environment.items())
                print(f"# at the same time, the same with {' '.join(sorted(_assignments(own)))}")
            else:
                print(_pasteable(process))
        if repeated:
            folders = in_a_row([f"run_{other.repetition}_..." for other, _ in repeated])
            print(f"# {noun(len(repeated), 'repetition')}: the same with {folders} in --out")


def _assignments(environment: Mapping[str, str]) -> list[str]:
    return [f"{name}={value}" for name, value in environment.items()]


def _pasteable(process: Process) -> str:
    """A process as a shell takes it, in short lines; paths below this folder are relative to it."""
    here = f"{Path.cwd()}/"
    argv = [re.sub(rf"^(--[a-z-]+=)?{re.escape(here)}", r"\1", word) for word in process.argv]
    environment = ["env", *_assignments(process.environment)] if process.environment else []
    parts = [part for part in (environment, argv) if part]
    return " \\\n  ".join(" \\\n    ".join(_lines(map(shlex.quote, part))) for part in parts)


def _lines(words: Iterable[str]) -> list[str]:
    lines = [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + len(word) >= _WIDTH_OF_COMMANDS:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return lines


def print_refused(console: Console, refused: int, place: str = "here") -> None:
    """How many runs cannot start, where the sweep does not accept that."""
    if refused:
        how = "`unavailable: skip` in the sweep file leaves such runs out"
        text = f"{how_many(refused, 'run')} cannot start {place}, see above ({how})"
        console.print(Text(text, style="bold red"), soft_wrap=True)


def print_end(console: Console, directory: Path, done: tuple[int, int], result: Result, refused: int) -> None:
    """How a sweep ended; the failed runs with the reason and a log, of several that failed alike the first.

    Args:
        done: how many runs are, and of how many that were asked for (``--only``).
    """
    failures = result.failed
    count, of = done
    runs = how_many(count, "run") if count == of else f"{count} of the {of} requested runs"
    text = f"{runs} of {directory} {verb(count, 'are')} done"
    console.print(Text(text, style="" if failures else "green"), soft_wrap=True)
    if result.elsewhere:
        console.print(f"running in another sweep: {how_many(len(result.elsewhere), 'run')}")
    if result.left:
        left = how_many(len(result.left), "run")
        text = f"{left} left: this job has lost nodes; {RESUME}"
        console.print(Text(text, style="bold red"), soft_wrap=True)
    print_refused(console, refused)
    if failures:
        hopeless = all(failure.kind not in RETRIES for failure in failures)
        first = "correct what their lines name, then " if hopeless else ""
        text = f"{len(failures)} failed; {first}start the sweep again to retry them:"
        console.print(Text(text, style="bold red"), soft_wrap=True)
    _print_failed(console, failures)


def _print_failed(console: Console, failures: Sequence[Failed]) -> None:
    alike: dict[str, list[Failed]] = {}
    for failure in failures:
        alike.setdefault(failure.reason, []).append(failure)
    for reason, runs in alike.items():
        first = runs[0].sweep_run.id
        who = f"{how_many(len(runs), 'run')}, first {first}" if len(runs) > 1 else first
        console.print(Text(f"  {who}: {reason}\n    log: {runs[0].log}"), soft_wrap=True)
