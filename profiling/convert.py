"""Convert the files of profilers: traces become results, other files tables.

    python -m profiling.convert PATH... [--tool NAME] [--out DIR] [--overwrite] [--jobs N]

Files are recognised by their content; folders are searched. With --out, traces of PyTorch's profiler, nsys
and nvprof become results that most analysis commands take: the traces of all ranks of a job are in one
folder, OUT/<job>/rank_0000/kernels.parquet and so on, with facts about the job in OUT/<job>/job.json. What
a trace does not hold (images, cost, counters, durations without the profiler) is not answered.
Launches of ncu, profiles of TAU and timelines of Horovod become results without step times. Other files
(VTune, printed tables) become tables in OUT/<name>. PyProf's kernel tables are not converted: analysis reads
them as they are. Without --out, the tables of each file go into a folder next to it.

Steps are found by ProfilerStep, "End of Batch", the optimizer's steps, the ranges of --batch-marker, or the
period of the kernels, if it is certain. Several processes share the files: under mpirun or srun, its ranks.

The same command again resumes a conversion that was interrupted, and converts what has changed since. It
replaces what it wrote before, and no other file. A job of other files keeps its folder: the new one becomes
OUT/<job>-2. With --overwrite all files are converted again, and that job is replaced.

Exit code 0: all profiles were converted, or need not be; 1: some, or other files that were named, could not
be read; 2: none could. Other files in the folders that are searched (images, notes) are counted.
"""

import os
import re
import shutil
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

from profiling.arguments import Help, Parser
from profiling.completion import with_values
from profiling.errors import EXIT_DONE, EXIT_FAILED, Interrupted, UserError, run_command
from profiling.identity import Identity, launch_of, read_identity
from profiling.tools import TOOLS, tool
from profiling.traces.conversion import convert_share, kept_before, not_kept, share_of, wait_for_others
from profiling.traces.jobs import Placed, place_jobs
from profiling.traces.one_unit import convert_with
from profiling.traces.records import Outcome, Unit, kept
from profiling.traces.summary import (
    Counts,
    complaints,
    counts_of,
    named,
    next_command,
    of_tables,
    what_is_unchanged,
)
from profiling.traces.together import said_once, together
from profiling.traces.unchanged import forget, leave_record, records_left, taken_back
from profiling.traces.units import displaced, units_of
from profiling.wording import first_of, how_many, verb
from profiling.workers import open_workers

_STDERR = 2  # the file descriptor


def convert(
    paths: Iterable[Path],
    name: str | None = None,
    out: Path | None = None,
    jobs: int | None = None,
    batch_marker: str = "",
    suggest: bool = True,
    overwrite: bool = False,
) -> Counts | None:
    """Convert files; how many were, and how many were not, which is said on stderr.

    Args:
        out: where the jobs go that traces are of, and other tables; None: tables go beside each file.
        jobs: processes; None: as many as there are cores, where that is worth it.
        batch_marker: see :class:`profiling.readers.origin.Origin`.
        suggest: say which command to call next, or again.
        overwrite: convert also what has not changed; and see :func:`profiling.traces.folders.folders_of`.

    Returns:
        None on a rank other than 0: it has converted its share.

    Raises:
        UserError: a path does not exist, the only file cannot be converted, or a rank was lost.
    """
    units = units_of(list(paths), name, out, batch_marker, overwrite)
    me = read_identity(os.environ)
    launch = (launch_of(os.environ) or me.launcher) if me.size > 1 else ""
    if overwrite:
        forget(share_of(me, units))
    if me.rank:
        convert_share(me, units, launch)
        return None
    if before := kept_before(units, launch):
        files = how_many(len(units), "file")
        print(f"scaleprof: resuming: {before} of {files} {verb(before, 'are')} converted", file=sys.stderr)
    with _naming_what_is_left(units, launch) if suggest else nullcontext():
        outcomes = _convert_with_others(me, units, launch) if me.size > 1 else _convert_here(units, jobs)
    placed = _place(units, outcomes, out, overwrite)
    tables = [outcome for outcome in outcomes if outcome.has_tables and not outcome.ranks]
    for line in (*what_is_unchanged(outcomes, suggest), *_findings(units, outcomes, placed, out)):
        print(f"scaleprof: {line}", file=sys.stderr)
    for directory in (*(outcome.target for outcome in tables), *(one.directory for one in placed)):
        print(directory)
    if suggest and (line := next_command(placed, tables, out)):
        print(f"scaleprof: next: {line}", file=sys.stderr)
    return counts_of(units, outcomes, [path for one in placed for path in one.unused])


def _place(
    units: Sequence[Unit], outcomes: Sequence[Outcome], out: Path | None, overwrite: bool
) -> list[Placed]:
    """Move the tables of traces to the folders of their jobs, with records of what they were made of."""
    outcomes = [taken_back(*pair) for pair in zip(units, outcomes, strict=True)]
    recorded = [one for outcome in outcomes for one in outcome.ranks]
    of_files = {unit.path: outcome.findings for unit, outcome in zip(units, outcomes, strict=True)}
    placed = place_jobs(recorded, out, of_files, overwrite) if out is not None and recorded else []
    moved = {before: now for one in placed for before, now in one.moved.items()}
    for unit in units:
        leave_record(unit, moved)
        shutil.rmtree(unit.scratch, ignore_errors=True)
    return placed


def _findings(
    units: Sequence[Unit], outcomes: Sequence[Outcome], placed: Sequence[Placed], out: Path | None
) -> list[str]:
    """What is to be said of files and jobs, a line each."""
    tables = [outcome for outcome in outcomes if not outcome.ranks]
    pairs = zip(units, outcomes, strict=True)
    return [
        *complaints(units, outcomes),
        *displaced(unit for unit, outcome in pairs if outcome.has_tables and not outcome.ranks),
        *together((line, None) for outcome in tables for line in outcome.findings),
        *_of_folders(placed),
        *(one.said for one in placed if one.said),
        *said_once((one.directory.name, str(line)) for one in placed for line in one.job.findings),
        *of_tables(units, outcomes, out),
    ]


def _convert_with_others(me: Identity, units: Sequence[Unit], launch: str) -> list[Outcome]:
    """As rank 0 of several, what became of each unit.

    Raises:
        RanksLost: those that had the rest to do do not live any more.
    """
    convert_share(me, units, launch)
    if left := wait_for_others(units, launch):
        raise RanksLost(_what_is_left(left, len(units)))
    return [outcome for unit in units if (outcome := kept(unit, launch)) is not None]


class RanksLost(UserError):
    """Some files were converted, and others not, since ranks have ended before their time."""

    exit_code = EXIT_FAILED


def _what_is_left(left: Sequence[Unit], of: int) -> str:
    files = f"{len(left)} of {how_many(of, 'file')} {verb(len(left), 'were')}"
    line = f"ended before {files} converted: {named([one.path for one in left])}"
    return f"{line}; run the same command again to resume"


@contextmanager
def _naming_what_is_left(units: Sequence[Unit], launch: str) -> Iterator[None]:
    """What Ctrl-C leaves is said, and what a launcher does that has lost a node: it ends all ranks."""

    def say_and_leave(*_: object) -> None:
        # No more than this: the launcher is about to kill this process.
        line = _what_is_left(not_kept(units, launch), len(units))
        os.write(_STDERR, f"scaleprof: error: {line}\n".encode())
        os._exit(EXIT_FAILED)

    before = signal.signal(signal.SIGTERM, say_and_leave)
    try:
        yield
    except KeyboardInterrupt:
        done = f"{kept_before(units)} of {how_many(len(units), 'file')}"
        again = "run the same command again to resume"
        raise Interrupted(f"interrupted: {done} are converted; {again}") from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _convert_here(units: Sequence[Unit], jobs: int | None) -> list[Outcome]:
    """Convert each, by some processes, with a bar on a terminal.

    Raises:
        UserError: there is one only, and it cannot be converted.
    """
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    console = Console(stderr=True)
    outcomes = []
    with (
        open_workers([unit.size for unit in units], jobs) as workers,
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        bar = progress.add_task("convert", total=len(units))
        pairs = list(zip(units, records_left(units), strict=True))
        for unit, outcome in zip(units, workers.map(convert_with, pairs), strict=True):
            if outcome.error and len(units) == 1:
                raise UserError(outcome.error)
            outcomes.append(outcome)
            progress.update(bar, advance=1, description=escape(unit.path.name))
    return outcomes


def _of_folders(placed: Sequence[Placed]) -> list[str]:
    """A line for each folder that holds the traces of several of the jobs."""
    jobs: dict[Path, list[str]] = {}
    for one in placed:
        name = f"{one.directory.name} (e.g. {one.job.ranks[0].source})"
        jobs.setdefault(one.came_from, []).append(name)
    return [
        f"{folder} holds traces of {len(names)} jobs{_in_all(len(names), len(placed))}: {first_of(names)}"
        for folder, names in jobs.items()
        if len(names) > 1
    ]


def _in_all(some: int, of: int) -> str:
    """How many are printed where these are not all; not that some are missing."""
    return "" if some == of else f" ({of} in all)"


def _check_marker(marker: str, out: Path | None) -> None:
    try:
        re.compile(marker)
    except re.error as error:
        raise UserError(f"--batch-marker {marker!r} is no regular expression: {error}") from None
    if marker and out is None:
        raise UserError("--batch-marker says what the steps of a job are: it goes with --out DIR")


def _parser() -> Parser:
    parser = Parser(
        prog="python -m profiling.convert", description=__doc__,
        formatter_class=Help,
    )  # fmt: skip
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="files or folders")
    tools = parser.add_argument(
        "--tool",
        metavar="NAME",
        help=f"the profiler that wrote the files, if not recognised: {', '.join(TOOLS)}",
    )
    with_values(tools, TOOLS.keys)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the tables go [beside each file]")
    parser.add_argument(
        "--batch-marker", default="", metavar="REGEX",
        help="with --out: ranges (NVTX, record_function) with such names are the steps",
    )  # fmt: skip
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="processes [as many as cores; under mpirun or srun its ranks]"
    )
    parser.add_argument(
        "--overwrite", action="store_true",
        help="convert unchanged files again; with --out, a job takes the folder of its name also where that "
        "holds a job of other files",
    )  # fmt: skip
    return parser


def main(arguments: list[str] | None = None) -> int:
    """The command; see the module's docstring."""
    given = _parser().parse_args(arguments)
    if given.jobs is not None and given.jobs < 1:
        raise UserError(f"--jobs {given.jobs}: at least 1")
    if given.tool is not None:
        tool(given.tool)
    if given.out is not None and given.out.exists() and not given.out.is_dir():
        raise UserError(f"--out {given.out} is a file; name a folder")
    _check_marker(given.batch_marker, given.out)
    converted = convert(
        given.paths, given.tool, given.out, given.jobs, given.batch_marker, overwrite=given.overwrite
    )
    if converted is None:  # a rank that has done its share
        return EXIT_DONE
    if not (converted.converted or converted.as_they_are):
        unread = converted.failed + converted.foreign
        raise UserError(
            f"nothing was converted: {how_many(unread, 'file')} cannot be read"
            if unread
            else "nothing to convert: no files there"
        )
    print(f"scaleprof: {converted}", file=sys.stderr)
    return EXIT_FAILED if converted.failed else EXIT_DONE


if __name__ == "__main__":
    run_command(main)
