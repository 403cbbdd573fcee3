"""How do the recordings of ranks become the folders of their jobs?"""

import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from profiling.tables import rank_directory
from profiling.traced_job import JOB, TracedJob, write_job
from profiling.traces.grouping import Recorded, jobs_of, names_of, record_of


@dataclass(frozen=True)
class Placed:
    """A job in its folder.

    Attributes:
        directory: where its tables are.
        came_from: where its traces lie.
    """

    directory: Path
    job: TracedJob
    came_from: Path


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
        files = dict.fromkeys(one.root / one.source for one in job.ranks)
        record = record_of(directory.name, job)
        record.findings += together(finding for file in files for finding in findings[file])
        if directory.exists():
            shutil.rmtree(directory)
        directory.mkdir(parents=True)
        for one in job.ranks:
            one.directory.rename(rank_directory(directory, one.rank))
        write_job(directory, record)
        placed.append(Placed(directory, record, job.ranks[0].root / job.ranks[0].folder))
    return placed


def _free(directory: Path, taken: set[Path]) -> Path:
    """A folder of this name (and a number) that is free, or that an earlier conversion made."""
    free, number = directory, 2
    while free in taken or (free.exists() and not (free / JOB).is_file()):
        free = directory.with_name(f"{directory.name}-{number}")
        number += 1
    taken.add(free)
    return free


def together(findings: Iterable[str], things: str = "traces") -> list[str]:
    """Findings ``file: sentence``; what is said of several files once, with how many they are.

    Args:
        things: what is before the colon, if not the name of a trace.
    """
    texts: dict[str, list[str]] = {}
    for finding in findings:
        file, _, text = finding.partition(": ")
        texts.setdefault(text or file, []).append(file if text else "")
    lines = []
    for text, files in texts.items():
        of = f"{len(files)} {things}" if len(files) > 1 else files[0]
        lines.append(f"{of}: {text}" if files[0] else text)
    return lines
