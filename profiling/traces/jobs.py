"""Group the recordings of ranks into jobs, and store their tables with a record of the job.

The traces of a job come from one tool and one folder (subfolders of single ranks or hosts do not count),
agree on world size and process groups, and were recorded at the same time.

A job that was converted before gets the same folder. Files of the earlier conversion are replaced; jobs of
other files, and files of users or other commands, are kept.
"""

import os
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from profiling.attribution.checks import missing_ranks
from profiling.errors import UserError, printable
from profiling.findings import Finding
from profiling.readers.files import rank_in
from profiling.schemas import SCHEMAS
from profiling.tables import rank_directory, table_path
from profiling.traced_job import JOB, ProcessGroup, TracedJob, TracedRank, read_job, write_job
from profiling.traces.units import ENDINGS, Recorded

# Traces that begin at a larger distance are of different jobs; the clocks of a cluster's hosts are not.
_LARGEST_GAP_NS = 600 * 10**9


@dataclass
class Job:
    """Recordings of one job, each rank once, and others of the same ranks."""

    ranks: list[Recorded]
    unused: list[Recorded] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def jobs_of(recorded: Sequence[Recorded]) -> list[Job]:
    """The jobs, in the order of their first recordings."""
    groups: dict[tuple, dict[Path, list[Recorded]]] = {}
    for one in recorded:
        # A file that says no rank could be anybody's; several ranks of one report are the report's, and what
        # says that it is alone is a job of its own.
        shared = one.rank_known and one.alone and one.facts.world_size != 1
        shapes = {tuple(group.ranks) for group in one.facts.groups if len(group.ranks) > 2}
        has_whole_group = any(len(ranks) == one.facts.world_size for ranks in shapes)
        job = one.tool, one.root, one.facts.world_size, has_whole_group, "" if shared else str(one.source)
        groups.setdefault(job, {}).setdefault(one.folder, []).append(one)
    jobs: list[Job] = []
    for (_, _, size, *_), folders in groups.items():
        parts = list(folders.values())
        # Folders (a host each) that together are a whole job are one.
        together = [one for members in parts for one in members]
        if size and sorted(one.rank for one in together) == list(range(size)):
            parts = [together]
        jobs += [job for members in parts for job in _by_time(members)]
    return jobs


def _by_time(members: Sequence[Recorded]) -> list[Job]:
    """Recordings of ranks that are there several times, or at distant times, as jobs of their own."""
    by_stem: dict[str, list[Recorded]] = {}
    for one in members:
        by_stem.setdefault(one.stem, []).append(one)
    # The recordings of all ranks at several steps have names of their own: step_10, step_20. Where one rank
    # alone is there twice, that is not another job.
    ranks = [sorted(one.rank for one in part) for part in by_stem.values()]
    several = all(one == ranks[0] for one in ranks) and len(set(ranks[0])) == len(ranks[0])
    parts = list(by_stem.values()) if several else [list(members)]
    if members[0].facts.world_size is None and len({one.rank for one in members}) == 1:
        parts = [[one] for one in members]  # nothing says that they are of one job
    return [job for part in parts for job in _at_once(part)]


def _at_once(members: Sequence[Recorded]) -> list[Job]:
    order = sorted(members, key=lambda one: one.started_ns)
    parts: list[list[Recorded]] = [[order[0]]]
    for before, one in pairwise(order):
        gap_ns = one.started_ns - max(each.ended_ns for each in parts[-1])
        if before.dated_ns and gap_ns > _LARGEST_GAP_NS:
            parts.append([])
        parts[-1].append(one)
    return [_job(part) for part in parts]


def _job(members: Sequence[Recorded]) -> Job:
    ranks: dict[int, list[Recorded]] = {}
    for one in sorted(members, key=lambda one: (one.rank, str(one.source))):
        ranks.setdefault(one.rank, []).append(one)
    job = Job([])
    for duplicates in ranks.values():
        used = max(duplicates, key=lambda one: _preference(one, members))
        job.ranks.append(used)
        if unused := [one for one in duplicates if one is not used]:
            job.unused += unused
            data = {"what": used.source.name, "unused": [one.source.name for one in unused]}
            job.findings.append(Finding("recorded_twice", rank=used.rank, data=data))
    return job


def _preference(one: Recorded, members: Sequence[Recorded]) -> tuple[int, int, int, int, int]:
    """How well one of several traces of a rank fits the job, the weightiest first.

    It is named as those of other ranks are (rank1.json beside rank0.json, not again_rank1.json); was recorded
    while they were; its name says the rank; it is the newest.
    """
    others = [other for other in members if other.rank != one.rank]
    named_so = {other.rank for other in others if other.stem == one.stem}
    at_once = {
        other.rank
        for other in others
        if one.dated_ns and other.dated_ns
        if one.started_ns < other.ended_ns and other.started_ns < one.ended_ns
    }
    says_rank = rank_in(Path(one.source.name)) == one.rank
    return len(named_so), len(at_once), says_rank, one.dated_ns, one.written_ns


def record_of(name: str, job: Job) -> TracedJob:
    """What the traces of a job say of it."""
    first, numbers = job.ranks[0], [one.rank for one in job.ranks]
    facts = [one.facts for one in job.ranks]
    hosts = {one.host for one in facts}
    size, size_from = max((one.world_size or 0 for one in facts), default=0) or None, ""
    if size is None and len(numbers) > 1:
        size, size_from = max(numbers) + 1, "the available traces"
    elif size is None and numbers == [0] and not first.rank_known and not first.facts.groups:
        size = 1
    groups: dict[tuple, ProcessGroup] = {}
    for group in (group for one in facts for group in one.groups):
        groups.setdefault((group.name, tuple(group.ranks), group.size), group)
    findings = list(job.findings)
    if size is None:
        findings.append(Finding("not_recorded", data={"what": "number of ranks"}))
    elif size > 1:
        findings += missing_ranks({rank for rank in numbers if rank < size}, size)
    steps = {one.batches for one in job.ranks}
    if len(steps) > 1:
        findings.append(Finding("steps_differ", data={"least": min(steps), "most": max(steps)}))
    return TracedJob(
        name=name,
        tool=first.tool,
        root=str(first.root.resolve()),
        world_size=size,
        world_size_from=size_from,
        nodes=len(hosts) if "" not in hosts and len(facts) == size else None,
        backend=next((one.backend for one in facts if one.backend), ""),
        groups=list(groups.values()),
        versions={key: value for one in reversed(facts) for key, value in one.versions.items()},
        batches_from=next((one.batches_from for one in job.ranks if one.batches_from), ""),
        batches_confidence=min(one.confidence for one in job.ranks),
        ranks=[
            TracedRank(
                rank=one.rank, source=str(one.source), host=one.facts.host, device=one.facts.device,
                batches=one.batches, started_ns=one.started_ns, written_ns=one.written_ns,
            )
            for one in job.ranks
        ],
        findings=findings,
        unused=[str(one.source) for one in job.unused],
    )  # fmt: skip


def names_of(jobs: Sequence[Job]) -> list[str]:
    """What each job's folder is called: as its file, if it is one that names itself; else as its folder.

    Where two would be called the same, folders above that differ are named, too; of one folder, what the
    names of its files share.
    """
    roots = [job.ranks[0].root for job in jobs]
    folders = [Path(os.path.commonpath({str(one.folder) for one in job.ranks})) for job in jobs]
    counts = Counter(zip(roots, folders, strict=True))
    names = []
    for job, root, folder in zip(jobs, roots, folders, strict=True):
        first = job.ranks[0]
        of_file = len({one.source for one in job.ranks}) == 1 and (first.stem or counts[root, folder] > 1)
        of_folder = folder.name or root.resolve().name or "job"
        file = first.source.name
        names.append((ENDINGS.sub("", file) or file) if of_file else of_folder)
    for name in {name for name in names if names.count(name) > 1}:
        clashing = [place for place, one in enumerate(names) if one == name]
        paths = [Path(roots[place].resolve().name, jobs[place].ranks[0].folder) for place in clashing]
        shared = len(Path(os.path.commonpath(paths)).parts)
        for place, path in zip(clashing, paths, strict=True):
            parts = [*path.parts[shared:], *([] if path.name == name else [name])]
            names[place] = "_".join(parts) or name
    stems = [{one.stem.strip() for one in job.ranks} for job in jobs]
    return [
        name if names.count(name) == 1 or len(stem) > 1 else "_".join(filter(None, [name, *stem]))
        for name, stem in zip(names, stems, strict=True)
    ]


def jobs_in(out: Path) -> dict[Path, TracedJob]:
    """The jobs that earlier conversions have left in ``out``, by their folders."""
    found = {}
    for record in sorted(out.glob(f"*/{JOB}")):
        with suppress(UserError):  # a file of the user's may be called so
            found[record.parent] = read_job(record.parent)
    return {directory: job for directory, job in found.items() if job.ranks}


def place_jobs(
    recorded: Sequence[Recorded],
    out: Path,
    findings: Mapping[Path, Sequence[Finding]],
    overwrite: bool = False,
) -> list[tuple[Path, TracedJob]]:
    """Move recordings' tables to their jobs' folders; ``overwrite``: also where other files' jobs are."""
    jobs = jobs_of(recorded)
    before = jobs_in(out)
    placed: dict[Path, TracedJob] = {}
    for job, name in zip(jobs, (printable(name, "_") for name in names_of(jobs)), strict=True):
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
