"""Convert profilers' files: traces become results, other files become tables.

    python -m profiling.convert PATH... [--tool NAME] [--out DIR] [--skip-existing] [--overwrite] [--jobs N]

Files are recognised by their content; folders are searched. With --out, traces of PyTorch's profiler, nsys
and nvprof become results that most analysis commands take. The traces of all ranks of a job go to one folder,
OUT/<job>/rank_0000/kernels.parquet and so on, with facts about the job in OUT/<job>/job.json. Launches of
ncu, profiles of TAU and timelines of Horovod become results without step times. Other files (VTune, printed
tables) become tables in OUT/<name>. PyProf's kernel tables are not converted: analysis reads them as they
are. Without --out, the tables of each file go into a folder next to it.

Steps are found by the ranges of --batch-marker, ProfilerStep, "End of Batch", the optimizer's steps, or the
period of the kernels, if it is certain. Files are converted by several processes, or by the ranks of mpirun
or srun (with mpi4py).

Converting again replaces earlier tables of the same files. A folder with a job of other files is kept:
the new job goes to OUT/<job>-2, or with --overwrite into that folder. With --skip-existing a job is converted
only if one of its files is newer than its tables.

Exit code 0: all profiles are converted; 1: some of them, or other files named on the command line, could not
be read; 2: none could. Files of other formats in searched folders are only counted.
"""

import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from multiprocessing import active_children, get_context, parent_process
from pathlib import Path
from typing import TypeVar

from profiling.arguments import Parser
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, printable, reported_by_rank_0, run_command
from profiling.findings import Finding, lines
from profiling.identity import check_mpi, read_identity
from profiling.process import cores
from profiling.tools import TOOLS, tool
from profiling.traces import Outcome, Unit, changed, convert_unit, jobs_in, place_jobs, units_of

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_WORTH_A_PROCESS = 4 << 20  # bytes; starting one takes as long as reading some megabytes


@dataclass(frozen=True)
class Counts:
    converted: int
    failed: int = 0  # named by the user or profiles, and not readable
    foreign: int = 0  # in a folder that was searched, and no profiles: no failure
    as_they_are: int = 0  # that analysis reads itself
    unused: int = 0  # readable, but another trace of the same rank is used
    skipped: int = 0  # converted before, and older than their tables

    def __str__(self) -> str:
        others = {
            "skipped": self.skipped, "read as they are": self.as_they_are, "not used": self.unused,
            "in an unrecognised format": self.foreign,
        }  # fmt: skip
        more = "".join(f", {count} {what}" for what, count in others.items() if count)
        return f"{self.converted} converted, {self.failed} not{more}"


def convert(
    paths: Iterable[Path],
    name: str | None = None,
    out: Path | None = None,
    jobs: int | None = None,
    batch_marker: str = "",
    overwrite: bool = False,
    skip_existing: bool = False,
    ranks: Executor | None = None,
) -> Counts:
    """Convert files, and print results and errors; how many were converted, and how many not.

    The arguments are the command's flags; ``ranks``: of MPI, which convert instead of processes. UserError: a
    path does not exist, or the only file cannot be converted.
    """
    units = units_of(list(paths), name, out, batch_marker, overwrite)
    found = len(units)
    if skip_existing:
        units = changed(units, jobs_in(out).items() if out else ())
    try:
        outcomes = _outcomes(units, jobs, ranks)
        if found == 1 and (errors := [outcome.error for outcome in outcomes if outcome.error]):
            raise UserError(errors[0])
        recorded = [one for outcome in outcomes for one in outcome.ranks]
        of_files = {unit.path: outcome.findings for unit, outcome in zip(units, outcomes, strict=True)}
        placed = place_jobs(recorded, out, of_files, overwrite) if out is not None and recorded else []
    finally:
        for unit in units:
            shutil.rmtree(unit.scratch, ignore_errors=True)
    foreign = _foreign(units, outcomes)
    tables = [outcome for outcome in outcomes if not (outcome.ranks or outcome.error or outcome.as_it_is)]
    pairs = zip(units, outcomes, strict=True)
    errors = [outcome.error for unit, outcome in pairs if outcome.error and unit not in foreign]
    findings = [one for outcome in tables for one in outcome.findings]
    if sum(one.alone and not one.rank_known for one in recorded) > 1:
        what = "rank (names such as rank0.json, rank1.json join the traces of one job)"
        findings.append(Finding("not_recorded", data={"what": what}))
    findings += [one.of(run=directory.name) for directory, job in placed for one in job.findings]
    for line in [*errors, *lines(findings)]:
        print(f"scaleprof: {printable(line)}", file=sys.stderr)
    for directory in (*(outcome.target for outcome in tables), *(directory for directory, _ in placed)):
        print(directory)
    failed = sum(bool(outcome.error) for outcome in outcomes) - len(foreign)
    as_they_are = sum(outcome.as_it_is for outcome in outcomes)
    unused = sum(len(job.unused) for _, job in placed)
    converted = len(units) - failed - len(foreign) - as_they_are - unused
    return Counts(converted, failed, len(foreign), as_they_are, unused, found - len(units))


def _foreign(units: Sequence[Unit], outcomes: Sequence[Outcome]) -> list[Unit]:
    """Files of searched folders that are no profiles (rank3.json beside a profile rank0.json is damaged)."""
    named = [
        (unit, outcome, re.sub(r"\d+", "#", unit.path.name))
        for unit, outcome in zip(units, outcomes, strict=True)
    ]
    profiles = {name for _, outcome, name in named if not outcome.unrecognised}
    return [unit for unit, one, name in named if unit.found and one.unrecognised and name not in profiles]


def _outcomes(units: Sequence[Unit], jobs: int | None, ranks: Executor | None) -> list[Outcome]:
    """What became of each unit, with a bar on a terminal while they are converted."""
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    console = Console(stderr=True)
    outcomes: dict[Path, Outcome] = {}
    sizes = {unit.path: unit.size_bytes for unit in units}
    largest_first = sorted(units, key=lambda unit: -sizes[unit.path])
    if jobs is None:
        jobs = cores() if sum(sizes.values()) >= _WORTH_A_PROCESS else 1
    with (
        Progress(console=console, transient=True, disable=not console.is_terminal) as progress,
        closing(_converted(largest_first, min(jobs, len(units)), ranks)) as pairs,
    ):
        bar = progress.add_task("convert", total=len(units))
        for unit, outcome in pairs:
            outcomes[unit.path] = outcome
            progress.update(bar, advance=1, description=escape(unit.path.name))
    return [outcomes[unit.path] for unit in units]


def _converted(
    units: list[Unit], processes: int, ranks: Executor | None
) -> Generator[tuple[Unit, Outcome], None, None]:
    """Each unit, as it is done, with what became of it; one that kills its process costs only itself."""
    if ranks is not None:
        yield from zip(units, ranks.map(_convert_alone, units), strict=True)
    elif processes <= 1:
        yield from ((unit, convert_unit(unit)) for unit in units)
    else:
        with in_processes(convert_unit, units, processes) as futures:
            for future in as_completed(futures):
                if not isinstance(future.exception(), BrokenProcessPool):
                    units = [unit for unit in units if unit is not futures[future]]
                    yield futures[future], future.result()
        # A process was killed, and with it the pool: each that is left gets a process of its own.
        yield from ((unit, _convert_alone(unit)) for unit in units)


def _convert_alone(unit: Unit) -> Outcome:
    """Convert in a process that may be killed."""
    with in_processes(convert_unit, [unit], 1) as futures:
        (future,) = futures
        if not isinstance(future.exception(), BrokenProcessPool):
            return future.result()
    shutil.rmtree(unit.scratch, ignore_errors=True)
    why = "its process was killed; if memory ran out, use fewer processes (--jobs)"
    return Outcome(unit.target, error=f"{unit.path}: {why}")


@contextmanager
def in_processes(
    work: Callable[[_Item], _Result], items: Iterable[_Item], processes: int
) -> Iterator[dict[Future[_Result], _Item]]:
    """Do the same with each item in some processes, which Ctrl-C ends at once; futures and their items."""
    # Threads of libraries that are loaded do not survive a fork: processes are started anew.
    with ProcessPoolExecutor(processes, get_context("spawn"), _end_with_parent) as pool:
        try:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                futures = {pool.submit(work, item): item for item in items}
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
            yield futures
        except BaseException:
            for process in active_children():
                process.terminate()
            raise


def _end_with_parent() -> None:
    """Have this process end when its parent has been killed: it would wait for work for ever."""

    def end() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(EXIT_FAILED)

    threading.Thread(target=end, daemon=True).start()


def _parser() -> Parser:
    parser = Parser(prog="python -m profiling.convert", description=__doc__)
    add = parser.add_argument
    add("paths", nargs="+", type=Path, metavar="PATH", help="files or folders")
    which = f"the profiler that wrote the files, if not recognised: {', '.join(TOOLS)}"
    add("--tool", metavar="NAME", help=which)
    add("--out", type=Path, metavar="DIR", help="folder for the results [next to each file]")
    add(
        "--batch-marker",
        default="",
        metavar="REGEX",
        help="with --out: ranges (NVTX, record_function) whose names match are the steps",
    )
    add("--jobs", type=int, metavar="N", help="processes [one per core; under mpirun or srun its ranks]")
    add("--skip-existing", action="store_true", help="skip files that are older than their tables")
    add(
        "--overwrite",
        action="store_true",
        help="with --out: replace a job of other files that has the same name",
    )
    return parser


def main(arguments: list[str] | None = None) -> int:
    me = read_identity(os.environ)
    with reported_by_rank_0(me.rank):
        given = _parser().parse_args(arguments)
        if given.jobs is not None and given.jobs < 1:
            raise UserError(f"--jobs {given.jobs}: at least 1")
        if given.tool is not None:
            tool(given.tool)
        if given.out is not None and given.out.exists() and not given.out.is_dir():
            raise UserError(f"--out {given.out} is a file; name a folder")
        try:
            re.compile(given.batch_marker)
        except re.error as error:
            why = f"is no regular expression: {error}"
            raise UserError(f"--batch-marker {given.batch_marker!r} {why}") from None
        if given.batch_marker and given.out is None:
            raise UserError("--batch-marker says what the steps of a job are: it goes with --out DIR")
        if me.size > 1:
            try:
                from mpi4py import MPI
                from mpi4py.futures import MPICommExecutor
            except ImportError as error:
                raise UserError(f"ranks share a conversion by mpi4py, which is not here: {error}") from None
            check_mpi(MPI.COMM_WORLD.size, me.size, "mpi4py", me.launcher)
    with MPICommExecutor(MPI.COMM_WORLD, root=0) if me.size > 1 else nullcontext() as ranks:
        if ranks is None and me.rank:
            return EXIT_DONE
        done = convert(
            given.paths, given.tool, given.out, given.jobs, given.batch_marker, given.overwrite,
            given.skip_existing, ranks,  # type: ignore[arg-type]
        )  # fmt: skip
    if not (done.converted or done.as_they_are or done.skipped):
        raise UserError(f"nothing was converted; files that cannot be read: {done.failed + done.foreign}")
    print(f"scaleprof: {done}", file=sys.stderr)
    return EXIT_FAILED if done.failed else EXIT_DONE


if __name__ == "__main__":
    run_command(main)
