"""Report the progress of a sweep on standard error: before it starts, while it runs, and at its end."""

import re
import shlex
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from jobs.processes import Process
from jobs.run import Run
from jobs.run_fields import ROLES, as_text, is_default
from jobs.store import LEFT_OUT
from jobs.sweep_file import Excluded, SweepRun, name_of
from profiling import tables

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


# Most sweeps set these once for all their runs; of those that they vary some are in a run's words anyway.
_OF_ALL_RUNS = (
    "nodes", "gpus_per_node", "model", "loader", "batch", "grad", "batches", "attribute_from", "device",
    "data", "data_format", "workers", "threads", "image_size", "network",
)  # fmt: skip
_BATCH_LINE = re.compile(rb"(?:^|\r)step (\d+)/(\d+)\b", re.MULTILINE)


def describe(run: Run, varied: Sequence[str] = ()) -> str:
    """A run in a few words: ``1 node x 2 ranks, resnet50, dali-cpu, batch 4, fp16 gradients``."""
    # One process of DataParallel drives all GPUs of its node.
    unit = "rank" if run.gpus_per_rank == 1 else "GPU"
    nodes, ranks = run.nodes, run.gpus_per_node
    words = [f"{nodes} node{'s' * (nodes != 1)} x {ranks} {unit}{'s' * (ranks != 1)}"]
    if run.program:
        factors = [name for name in varied if name in run.factors]
        words += [name_of(run), *(f"{name}: {as_text(run.factors[name])}" for name in factors)]
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
        self._total, self._done, self._done_before = total, done, done
        self._since, self._last = time.monotonic(), 0.0

    def show(self, sweep_run: SweepRun, log: Path | None = None) -> None:
        """Name the run that is under way, and the batch that ``log`` says it is at."""
        if log and (self.disable or time.monotonic() - self._last < _REDRAW_S):
            return
        self._last = time.monotonic()
        what, left = describe(sweep_run.configuration, sweep_run.outside), ""
        if ended := self._done - self._done_before:  # the others may take as long
            each = (self._last - self._since) / ended
            left = f"; {in_words(each * (self._total - self._done))} left"
        if self.disable:
            self.say(f"[{self._done + 1}/{self._total}] {what}{left} ({sweep_run.id})")
            return
        batch = last_batch(log) if log else ""
        step = f"  step {batch}" if batch else ""
        self.update(self._runs, description=f"{what} #{sweep_run.repetition}{step}{left}", refresh=True)

    def ended(self) -> None:
        """A run has ended."""
        self._done += 1
        self.update(self._runs, completed=self._done, refresh=True)

    def say(self, text: str, style: str = "") -> None:
        """Print a line above the bar."""
        say(self.console, text, style)


def last_batch(log: Path, tail_bytes: int = 4096) -> str:
    """The last ``12/24`` of the lines ``step 12/24 ...`` that rank 0 prints; "" before the first."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - tail_bytes))
            lines = _BATCH_LINE.findall(file.read())
    except FileNotFoundError:
        return ""
    return b"/".join(lines[-1]).decode() if lines else ""


def count_reasons(excluded: Sequence[Excluded]) -> list[str]:
    """``["12 runs: one rank sends no gradients", ...]``, in the order of their first run."""
    counts = Counter(left.reason for left in excluded)
    return [f"{count} run{'s' * (count > 1)}: {reason}" for reason, count in counts.items()]


def print_excluded(console: Console, excluded: Sequence[Excluded], place: str = "") -> None:
    """The runs left out, or those that cannot start at a ``place``, counted by reason."""
    for line in count_reasons(excluded):
        say(console, f"{f'cannot start {place}' if place else LEFT_OUT}: {line}", "yellow")


def print_commands(commands: Sequence[tuple[SweepRun, Sequence[Process]]]) -> None:
    """A dry run: the processes of each configuration's first run, to be pasted, on standard output."""
    repetitions: dict[str, list[tuple[SweepRun, Sequence[Process]]]] = {}
    for sweep_run, processes in commands:
        repetitions.setdefault(sweep_run.of_all_repetitions, []).append((sweep_run, processes))
    for number, ((sweep_run, (first, *others)), *repeated) in enumerate(repetitions.values(), start=1):
        runs = f"{1 + len(repeated)} run{'s' * bool(repeated)}, {sweep_run.id}"
        what = describe(sweep_run.configuration, sweep_run.outside)
        print(f"\n# {number} of {len(repetitions)}: {what} ({runs})")
        print(pasteable(first.argv, first.environment))
        for process in others:  # they differ in their environment alone
            different = sorted(process.environment.items() - first.environment.items())
            print(f"# and with {' '.join(f'{name}={value}' for name, value in different)}")
        if repeated:
            folders = ", ".join(f"run_{other.repetition}_..." for other, _ in repeated)
            print(f"# repetitions, in --out: {folders}")


def pasteable(argv: Sequence[str], environment: Mapping[str, str]) -> str:
    """A command as a shell takes it, its environment in a line of its own."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    return (shlex.join(["env", *variables]) + " \\\n  " if variables else "") + shlex.join(argv)


def print_end(console: Console, directory: Path, done: int, possible: int, result: Result) -> None:
    """How a sweep ended; the failed runs by reason, with the first one's log."""
    counts = {
        "running elsewhere": len(result.elsewhere),
        "left, nodes lost": len(result.left),
        "cannot start": result.refused,
        "failed": sum(map(len, result.failures.values())),
    }
    others = [f"{what}: {count}" for what, count in counts.items() if count]
    text = ", ".join([f"{directory}: done: {done} of {possible}", *others])
    say(console, text, "bold red" if others else "green")
    for reason, failed in result.failures.items():
        first, log = failed[0]
        runs = f"{len(failed)} runs, first " if len(failed) > 1 else ""
        say(console, f"  {runs}{first.id}: {reason}\n    log: {log}")


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
