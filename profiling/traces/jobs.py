"""Place the tables of ranks in the folders of their jobs, each with a record of what its traces say.

A job that was converted before takes its folder again. What an earlier conversion wrote there is replaced;
jobs of other files, and what a user or another command put there, are left alone.
"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from profiling.errors import UserError
from profiling.findings import Finding
from profiling.schemas import SCHEMAS
from profiling.tables import rank_directory, table_path
from profiling.traced_job import JOB, TracedJob, read_job, write_job
from profiling.traces.grouping import jobs_of, names_of, record_of
from profiling.traces.ranks import Recorded


def jobs_in(out: Path) -> dict[Path, TracedJob]:
    """The jobs that earlier conversions have left in ``out``, by their folders."""
    found = {}
    for record in sorted(out.glob(f"*/{JOB}")):
        with suppress(UserError):  # a file of the user's may be called so
            found[record.parent] = read_job(record.parent)
    return {directory: job for directory, job in found.items() if job.ranks}


def others_in(out: Path, paths: Iterable[Path]) -> dict[Path, TracedJob]:
    """The jobs in ``out`` that none of these files is of."""
    given = {str(path.resolve()) for path in paths}
    return {path: job for path, job in jobs_in(out).items() if given.isdisjoint(job.files)}


def place_jobs(
    recorded: Sequence[Recorded],
    out: Path,
    findings: Mapping[Path, Sequence[Finding]],
    overwrite: bool = False,
) -> list[tuple[Path, TracedJob]]:
    """Move the tables of recordings to the folders of their jobs below ``out``; these, and what is known.

    Args:
        findings: of each file.
        overwrite: a job of other files in the folder of this name is replaced.
    """
    jobs = jobs_of(recorded)
    before = jobs_in(out)
    placed: dict[Path, TracedJob] = {}
    for job, name in zip(jobs, names_of(jobs), strict=True):
        record = record_of(name, job)
        again = [path for path, one in before.items() if path not in placed and _are_one(one, record)]
        directory, number = again[0] if again else out / name, 2
        while not again and (
            directory in placed or (directory.exists() and not (overwrite and directory in before))
        ):
            directory = out / f"{name}-{number}"
            number += 1
        record.name = directory.name
        files = {one.root / one.source: one.rank if one.alone else None for one in job.ranks}
        record.findings += [
            one if rank is None or one.rank is not None else one.of(rank=rank)
            for file, rank in files.items()
            for one in findings[file]
        ]
        _clear(directory)
        for one in job.ranks:
            tables = rank_directory(directory, one.rank)
            tables.mkdir(parents=True, exist_ok=True)
            for path in one.directory.iterdir():
                path.rename(tables / path.name)
        write_job(directory, record)
        placed[directory] = record
    return list(placed.items())


def _are_one(one: TracedJob, other: TracedJob) -> bool:
    """Whether jobs share a file: by its path, or, where it was moved, by its name and times."""
    recordings = [
        {(Path(rank.source).name, rank.written_ns, rank.started_ns) for rank in job.ranks if rank.written_ns}
        for job in (one, other)
    ]
    return not set(one.files).isdisjoint(other.files) or not recordings[0].isdisjoint(recordings[1])


def _clear(directory: Path) -> None:
    """Remove what an earlier conversion left of a job, and nothing else."""
    (directory / JOB).unlink(missing_ok=True)
    shutil.rmtree(directory / ".converted", ignore_errors=True)  # of earlier releases
    for rank in directory.glob("rank_*"):
        for name in SCHEMAS:
            table_path(rank, name).unlink(missing_ok=True)
        with suppress(OSError):  # the user has files in it
            rank.rmdir()
