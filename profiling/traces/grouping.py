"""Which traces are of one job, and what do they say of it together?

The traces of a job are those of one tool in one folder (folders of single ranks or hosts left out) that say
the same of their world size and process groups and were recorded at the same time. What is missing, or there
twice, is said.
"""

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from profiling.findings import Finding
from profiling.number_ranges import listed
from profiling.traced_job import RECORDED_ONLY, ProcessGroup, TracedJob, TracedRank, TraceFacts
from profiling.traces.recorded import Recorded, with_rank_folders, without_ending
from profiling.traces.twice import used_of

# Traces that begin further apart are of different jobs; the clocks of a cluster's hosts are not.
_APART_NS = 600 * 10**9
# The clocks of hosts that differ by more are worth a line.
_CLOCKS_NS = 10**9


@dataclass
class Job:
    """Recordings of one job, each rank once; others of the same ranks; and what is to be said of it."""

    ranks: list[Recorded]
    unused: list[Recorded] = field(default_factory=list)
    findings: list[str] = field(default_factory=list)


def jobs_of(recorded: Sequence[Recorded]) -> list[Job]:
    """The jobs, in the order of their first recordings."""
    groups: dict[tuple, list[Recorded]] = {}
    for one in with_rank_folders(recorded):
        groups.setdefault(_said(one), []).append(one)
    whole = _joined(groups)
    return [job for members in whole for job in _by_time(members)]


def _said(one: Recorded) -> tuple:
    """What recordings of one job have in common."""
    # A file that says no rank could be anybody's; several ranks of one report are the report's, and what says
    # that it is alone is a job of its own.
    shared = one.rank_known and one.alone and one.facts.world_size != 1
    unknown = "" if shared else str(one.source)
    shape = frozenset((group.size, tuple(group.ranks)) for group in one.facts.groups if len(group.ranks) > 2)
    full = any(len(ranks) == one.facts.world_size for _, ranks in shape)
    return (one.tool, one.root, one.folder, one.facts.world_size, full, unknown)


def _joined(groups: dict[tuple, list[Recorded]]) -> list[list[Recorded]]:
    """Groups of different folders (a host each) that together are a whole job are one."""
    several: dict[tuple, list[list[Recorded]]] = {}
    for (tool, root, _, size, full, unknown), members in groups.items():
        several.setdefault((tool, root, size, full, unknown), []).append(members)
    answer: list[list[Recorded]] = []
    for (_, _, size, _, _), parts in several.items():
        ranks = [one.rank for members in parts for one in members]
        if size and len(parts) > 1 and sorted(ranks) == list(range(size)):
            answer.append([one for members in parts for one in members])
        else:
            answer += parts
    return answer


def _by_time(members: Sequence[Recorded]) -> list[Job]:
    """Recordings of ranks that are there several times, or far apart in time, as jobs of their own."""
    by_stem: dict[str, list[Recorded]] = {}
    for one in members:
        by_stem.setdefault(one.stem, []).append(one)
    # The recordings of all ranks at several steps have names of their own: step_10, step_20. Where one rank
    # alone is there twice, that is not another job.
    alike = len({tuple(sorted(one.rank for one in part)) for part in by_stem.values()}) == 1
    several = len(by_stem) > 1 and alike and all(map(_each_once, by_stem.values()))
    parts = list(by_stem.values()) if several else [list(members)]
    if members[0].facts.world_size is None and len({one.rank for one in members}) == 1:
        parts = [[one] for one in members]  # nothing says that they are of one job
    return [job for part in parts for job in _at_once(part)]


def _each_once(members: Sequence[Recorded]) -> bool:
    ranks = [one.rank for one in members]
    return len(set(ranks)) == len(ranks)


def _at_once(members: Sequence[Recorded]) -> list[Job]:
    order = sorted(members, key=lambda one: one.started_ns)
    parts: list[list[Recorded]] = [[order[0]]]
    for before, one in pairwise(order):
        apart = one.started_ns - max(each.ended_ns for each in parts[-1])
        if before.dated_ns and apart > _APART_NS:
            parts.append([])
        parts[-1].append(one)
    jobs = [_job(part) for part in parts]
    if len(jobs) > 1:
        for job in jobs:
            job.findings.append(
                f"the traces of its folder were recorded "
                f"{_duration(order[-1].started_ns - order[0].started_ns)} apart: they are of different jobs"
            )
    return jobs


def _job(members: Sequence[Recorded]) -> Job:
    ranks: dict[int, list[Recorded]] = {}
    for one in sorted(members, key=lambda one: (one.rank, str(one.source))):
        ranks.setdefault(one.rank, []).append(one)
    job = Job([])
    for same in ranks.values():
        used, said = used_of(same, members)
        job.ranks.append(used)
        job.unused += [one for one in same if one is not used]
        job.findings += [said] if said else []
    return job


def record_of(name: str, job: Job) -> TracedJob:
    """What the traces of a job say of it."""
    first = job.ranks[0]
    told = [one.facts for one in job.ranks]
    numbers = [one.rank for one in job.ranks]
    size, size_from = _world_size(told, numbers, all(one.rank_known for one in job.ranks))
    hosts = list(dict.fromkeys(facts.host for facts in told if facts.host))
    findings = [*job.findings, *_findings(job, size)]
    return TracedJob(
        name=name,
        tool=first.tool,
        root=str(first.root.resolve()),
        world_size=size,
        world_size_from=size_from,
        nodes=len(hosts) if len(hosts) and all(facts.host for facts in told) and len(told) == size else None,
        backend=next((facts.backend for facts in told if facts.backend), ""),
        groups=_groups(told),
        versions={key: value for facts in reversed(told) for key, value in facts.versions.items()},
        batches_from=next((one.batches_from for one in job.ranks if one.batches_from), ""),
        batches_confidence=min(one.confidence for one in job.ranks),
        ranks=[
            TracedRank(
                rank=one.rank,
                source=str(one.source),
                host=one.facts.host,
                device=one.facts.device,
                batches=one.batches,
                started_ns=one.started_ns,
                written_ns=one.written_ns,
            )
            for one in job.ranks
        ],
        findings=[Finding.from_json(finding) for finding in findings],
    )


def _world_size(told: Sequence[TraceFacts], ranks: Sequence[int], known: bool) -> tuple[int | None, str]:
    """How many ranks the job has, and from what that was taken where no trace says it."""
    sizes = [facts.world_size for facts in told if facts.world_size]
    if sizes:
        return max(sizes), ""
    if len(ranks) > 1:
        return max(ranks) + 1, "the available traces"
    return (1, "") if not known and ranks == [0] and not told[0].groups else (None, "")


def _findings(job: Job, size: int | None) -> Iterable[str]:
    present = {one.rank for one in job.ranks}
    if size and size > 1 and len(present) < size:
        absent = [rank for rank in range(size) if rank not in present]
        yield (f"traces of {len(present)} of {size} ranks (missing: {listed(absent)}): {RECORDED_ONLY}")
    elif size is None:
        yield f"number of ranks unknown: {RECORDED_ONLY}"
    counts = {one.batches for one in job.ranks}
    if len(counts) > 1:
        yield f"{min(counts)} to {max(counts)} steps were recorded, depending on the rank"
    dated = [one.dated_ns for one in job.ranks if one.dated_ns]
    apart = max(dated, default=0) - min(dated, default=0)
    if apart > _CLOCKS_NS:
        yield (
            f"the traces of its ranks begin {_duration(apart)} apart by their hosts' clocks; clocks are "
            "aligned on collectives where all ranks of a group recorded them"
        )


def _groups(told: Sequence[TraceFacts]) -> list[ProcessGroup]:
    """The process groups of all ranks, each once."""
    distinct: dict[tuple, ProcessGroup] = {}
    for facts in told:
        for group in facts.groups:
            distinct.setdefault((group.name, tuple(group.ranks), group.size), group)
    return list(distinct.values())


def _duration(ns: int) -> str:
    seconds = ns / 1e9
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def names_of(jobs: Sequence[Job]) -> list[str]:
    """What each job's folder is called: as its file, if it is one that names itself; else as its folder.

    A folder that holds several jobs gives its name to none that is of one file.

    Where two would be called alike, the folders above that differ are named too; of one folder, what the
    names of a job's files share.
    """
    folders = Counter(_folder(job) for job in jobs)
    names = [_name(job, folders[_folder(job)] == 1) for job in jobs]
    for name in {name for name in names if names.count(name) > 1}:
        alike = [place for place, one in enumerate(names) if one == name]
        longer = _told_apart([_path(jobs[place], name) for place in alike])
        for place, parts in zip(alike, longer, strict=True):
            names[place] = "_".join(parts)
    return [
        name if names.count(name) == 1 else "_".join([name, *_stem(job)])
        for job, name in zip(jobs, names, strict=True)
    ]


def _told_apart(paths: Sequence[Sequence[str]]) -> list[list[str]]:
    """Of paths with one last part, that, and as few of those above it as tell them apart.

    exp/n4/traces/run, exp/n8/traces/run   ->   n4/run, n8/run
    """
    distinct = len(set(map(tuple, paths)))
    lengths = range(1, max(map(len, paths)) + 1)
    ends = next(ends for k in lengths if len(set(ends := [tuple(path[-k:]) for path in paths])) == distinct)
    width = max(map(len, ends))
    columns = list(zip(*(("",) * (width - len(end)) + end for end in ends), strict=True))
    told = [column for column in columns[:-1] if len(set(column)) > 1] + columns[-1:]
    return [list(filter(None, row)) for row in zip(*told, strict=True)]


def _stem(job: Job) -> list[str]:
    """What the names of all its files are without their ranks; nothing if they differ in more."""
    stems = {one.stem.strip() for one in job.ranks}
    return list(filter(None, stems)) if len(stems) == 1 else []


def _name(job: Job, alone: bool) -> str:
    """A job's own name, of the only one in its folder or of one of several."""
    first = job.ranks[0]
    one_file = len({one.source for one in job.ranks}) == 1
    if one_file and (first.stem or not alone):
        return without_ending(first.source.name)
    root, folder = _folder(job)
    return folder.name or root.resolve().name or "job"


def _folder(job: Job) -> tuple[Path, Path]:
    """Where all its traces are: the folder that was searched, and the one below it."""
    folders = {one.folder for one in job.ranks}
    return job.ranks[0].root, Path(os.path.commonpath(folders)) if len(folders) > 1 else folders.pop()


def _path(job: Job, name: str) -> list[str]:
    """The folders in which a job's traces are, and its name."""
    first = job.ranks[0]
    parts = [first.root.resolve().name, *first.folder.parts]
    return [*parts, *([] if parts[-1] == name else [name])]
