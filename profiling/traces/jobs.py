"""How do the recordings of ranks become the folders of their jobs?"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiling.tables import rank_directory
from profiling.traced_job import JOB, TracedJob, write_job
from profiling.traces.grouping import jobs_of, names_of, record_of
from profiling.traces.recorded import Recorded
from profiling.traces.together import together


@dataclass(frozen=True)
class Placed:
    """A job in its folder.

    Attributes:
        directory: where its tables are.
        came_from: where its traces lie.
        unused: traces of ranks of which another is used.
    """

    directory: Path
    job: TracedJob
    came_from: Path
    unused: tuple[Path, ...] = ()


def place_jobs(
    recorded: Sequence[Recorded], out: Path, findings: Mapping[Path, Sequence[str]]
) -> list[Placed]:
    """Move the tables of recordings to the folders of their jobs below ``out``; what is known of each.

    A folder of an earlier conversion is replaced, any other left alone.

    Args:
        findings: of each file, ``file: sentence`` each.
    """
    placed: list[Placed] = []
    taken: set[Path] = set()
    jobs = jobs_of(recorded)
    for job, name in zip(jobs, names_of(jobs), strict=True):
        directory = _free(out / name, taken)
        files = {one.root / one.source: one.rank if one.alone else None for one in job.ranks}
        record = record_of(directory.name, job)
        record.findings += together(
            (finding, rank) for file, rank in files.items() for finding in findings[file]
        )
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(parents=True)
        for one in job.ranks:
            one.directory.rename(rank_directory(directory, one.rank))
        write_job(directory, record)
        unused = tuple(one.root / one.source for one in job.unused)
        placed.append(Placed(directory, record, job.ranks[0].root / job.ranks[0].folder, unused))
    return placed


def _free(directory: Path, taken: set[Path]) -> Path:
    """A folder of this name (and a number) that is free, or that an earlier conversion made."""
    free, number = directory, 2
    while free in taken or (free.exists() and not (free / JOB).is_file()):
        free = directory.with_name(f"{directory.name}-{number}")
        number += 1
    taken.add(free)
    return free
