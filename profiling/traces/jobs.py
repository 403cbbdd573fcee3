"""How do the recordings of ranks become the folders of their jobs?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiling.findings import Finding
from profiling.tables import rank_directory
from profiling.traced_job import TracedJob, write_job
from profiling.traces.folders import clear, folders_of, move, place_of_unused
from profiling.traces.grouping import jobs_of, names_of, record_of
from profiling.traces.recorded import Recorded
from profiling.traces.together import together


@dataclass(frozen=True)
class Placed:
    """A job in its folder.

    Attributes:
        directory: where its tables are.
        came_from: where its traces lie.
        moved: from where, and to where, the tables of its traces were.
        unused: traces of ranks of which another is used.
        said: why it is not in the folder of its name; or "".
    """

    directory: Path
    job: TracedJob
    came_from: Path
    moved: Mapping[Path, Path]
    unused: tuple[Path, ...] = ()
    said: str = ""


def place_jobs(
    recorded: Sequence[Recorded], out: Path, findings: Mapping[Path, Sequence[str]], overwrite: bool = False
) -> list[Placed]:
    """Move the tables of recordings to the folders of their jobs below ``out``; what is known of each.

    Args:
        findings: of each file, ``file: sentence`` each.
        overwrite: see :func:`profiling.traces.folders.folders_of`.
    """
    jobs = jobs_of(recorded)
    named = [(name, record_of(name, job)) for job, name in zip(jobs, names_of(jobs), strict=True)]
    folders = folders_of(named, out, overwrite)
    placed: list[Placed] = []
    for job, (_, record), (directory, said) in zip(jobs, named, folders, strict=True):
        files = {one.root / one.source: one.rank if one.alone else None for one in job.ranks}
        record.name = directory.name
        record.findings += map(
            Finding.from_json,
            together((finding, rank) for file, rank in files.items() for finding in findings[file]),
        )
        clear(directory)
        moved = {one.directory: rank_directory(directory, one.rank) for one in job.ranks}
        moved |= {one.directory: place_of_unused(directory, one.directory) for one in job.unused}
        for tables, place in moved.items():
            move(tables, place)
        write_job(directory, record)
        unused = tuple(one.root / one.source for one in job.unused)
        came_from = job.ranks[0].root / job.ranks[0].folder
        placed.append(Placed(directory, record, came_from, moved, unused, said))
    return placed
