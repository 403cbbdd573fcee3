"""Which folder does a job take, and what of it is replaced?

A job that was converted before takes its folder again. What an earlier conversion wrote there is replaced;
jobs of other files, and what a user or another command put there, are left alone.
"""

import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from profiling.errors import UserError
from profiling.schemas import SCHEMAS
from profiling.tables import table_path
from profiling.traced_job import JOB, TracedJob, read_job
from profiling.traces.records import SCRATCH

CONVERTED = ".converted"  # the folder beside tables with the records of what they were made of


def jobs_in(out: Path) -> dict[Path, TracedJob]:
    """The jobs that earlier conversions have left in ``out``, by their folders."""
    found = {}
    for record in sorted(out.glob(f"*/{JOB}")):
        with suppress(UserError):  # a file of the user's may be called so
            found[record.parent] = read_job(record.parent)
    return {directory: job for directory, job in found.items() if job.ranks}


def files_of(job: TracedJob) -> list[str]:
    """The files that a job was made of."""
    return [str(Path(job.root) / one.source) for one in job.ranks]


def are_of_one_job(one: TracedJob, other: TracedJob) -> bool:
    """Whether they share a file: by its path, or, where it was moved, by its name and times."""
    if not set(files_of(one)).isdisjoint(files_of(other)):
        return True
    return not _recordings(one).isdisjoint(_recordings(other))


def _recordings(job: TracedJob) -> set[tuple]:
    return {
        (Path(one.source).name, one.written_ns, one.started_ns)
        for one in job.ranks
        if one.written_ns is not None
    }


def folders_of(
    jobs: Sequence[tuple[str, TracedJob]], out: Path, overwrite: bool = False
) -> list[tuple[Path, str]]:
    """The folder of each job, given with its name, below ``out``; and what is to be said of it, or "".

    Args:
        overwrite: a job of other files in the folder of this name is replaced.
    """
    before = jobs_in(out)
    answer: list[tuple[Path, str]] = []
    taken: set[Path] = set()
    for name, job in jobs:
        again = [path for path, one in before.items() if path not in taken and are_of_one_job(one, job)]
        replaceable = before if overwrite else ()
        directory = again[0] if again else _free(out / name, taken, replaceable)
        taken.add(directory)
        there = None if again or directory == out / name else before.get(out / name)
        answer.append((directory, _said(out / name, there, directory) if there else ""))
    return answer


def _free(directory: Path, taken: set[Path], replaceable: Iterable[Path]) -> Path:
    """A folder of this name, and a number where that is not free."""
    free, number = directory, 2
    while free in taken or (free.exists() and free not in replaceable):
        free = directory.with_name(f"{directory.name}-{number}")
        number += 1
    return free


def _said(wanted: Path, there: TracedJob, directory: Path) -> str:
    return (
        f"{wanted} holds a job of other files (e.g. {files_of(there)[0]}): this one is in {directory.name} "
        "(--overwrite replaces the other)"
    )


def clear(directory: Path) -> None:
    """Remove what an earlier conversion left of a job but its record, and nothing else."""
    shutil.rmtree(directory / CONVERTED, ignore_errors=True)
    for rank in directory.glob("rank_*"):
        for name in SCHEMAS:
            table_path(rank, name).unlink(missing_ok=True)
        with suppress(OSError):  # the user has files in it
            rank.rmdir()


def place_of_unused(directory: Path, scratch: Path) -> Path:
    """Where a job's folder keeps the tables of a trace that is not used, as it may be the next time.

    Args:
        scratch: where they are, in the folder of a unit (:attr:`profiling.traces.records.Unit.scratch`).
    """
    return directory / CONVERTED / scratch.parent.name.removeprefix(SCRATCH) / scratch.name


def folder_of(tables: Path) -> Path:
    """The folder of the job that keeps the tables of a rank, be its trace used or not."""
    return tables.parents[2] if tables.parents[1].name == CONVERTED else tables.parent


def move(tables: Path, directory: Path) -> None:
    """Move the tables of a rank into its folder."""
    directory.mkdir(parents=True, exist_ok=True)
    for path in tables.iterdir():
        path.rename(directory / path.name)
    tables.rmdir()


def others_in(out: Path, paths: Iterable[Path]) -> dict[Path, TracedJob]:
    """The jobs in ``out`` that none of these files is of."""
    given = {str(path.resolve()) for path in paths}
    return {path: job for path, job in jobs_in(out).items() if given.isdisjoint(files_of(job))}
