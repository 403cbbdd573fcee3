"""Group the recordings of ranks into jobs, and say what those of a job say together.

The traces of a job are those of one tool in one folder (folders of single ranks or hosts left out) that say
the same of their world size and process groups and were recorded at the same time.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

from profiling.findings import Finding
from profiling.readers.origin import rank_in
from profiling.traced_job import ProcessGroup, TracedJob, TracedRank, TraceFacts
from profiling.traces.ranks import Recorded
from profiling.traces.units import ENDINGS

# Traces that begin further apart are of different jobs; the clocks of a cluster's hosts are not.
_APART_NS = 600 * 10**9
# The clocks of hosts that differ by more are worth a line.
_CLOCKS_NS = 10**9
_NUMBER = re.compile(r"\d+")


@dataclass
class Job:
    """Recordings of one job, each rank once; others of the same ranks; and what is to be said of it."""

    ranks: list[Recorded]
    unused: list[Recorded] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)


def jobs_of(recorded: Sequence[Recorded]) -> list[Job]:
    """The jobs, in the order of their first recordings."""
    groups: dict[tuple, list[Recorded]] = {}
    for one in _with_rank_folders(recorded):
        groups.setdefault(_said(one), []).append(one)
    whole = _joined(groups)
    return [job for members in whole for job in _by_time(members)]


def _with_rank_folders(recorded: Sequence[Recorded]) -> list[Recorded]:
    """The same, where it is known which folders with a bare number for a name are single ranks'.

    ``1``, ``2`` and ``4`` may be ranks, but also numbers of ranks or repetitions: of a rank each are those
    beside each other that hold one rank each, and no two of them the same.
    """
    inside: dict[tuple[Path, Path], dict[str, set[int]]] = {}
    for one in recorded:
        for _, above, name in _numbers_in(one):
            inside.setdefault((one.root, above), {}).setdefault(name, set()).add(one.rank)
    of_ranks = {above for above, ranks in inside.items() if _are_of_ranks(ranks)}
    return [
        replace(
            one, rank_folders=tuple(p for p, above, _ in _numbers_in(one) if (one.root, above) in of_ranks)
        )
        for one in recorded
    ]


def _numbers_in(one: Recorded) -> Iterator[tuple[int, Path, str]]:
    """Of the folders with a bare number for a name: the place in the path, the folder above, and the name."""
    parts = one.source.parent.parts
    return (
        (place, Path(*parts[:place]), part) for place, part in enumerate(parts) if _NUMBER.fullmatch(part)
    )


def _are_of_ranks(ranks: Mapping[str, AbstractSet[int]]) -> bool:
    """Whether folders with these names, and these ranks inside, are a rank's each."""
    if len(ranks) == 1:
        return all({int(name)} == there for name, there in ranks.items())
    return len(set().union(*ranks.values())) == sum(map(len, ranks.values())) == len(ranks)


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
            apart_ns = order[-1].started_ns - order[0].started_ns
            job.findings.append(Finding("folder_recorded_apart", data={"ns": apart_ns}))
    return jobs


def _job(members: Sequence[Recorded]) -> Job:
    ranks: dict[int, list[Recorded]] = {}
    for one in sorted(members, key=lambda one: (one.rank, str(one.source))):
        ranks.setdefault(one.rank, []).append(one)
    job = Job([])
    for same in ranks.values():
        used = max(same, key=lambda one: _claim(one, members))
        job.ranks.append(used)
        unused = [one for one in same if one is not used]
        job.unused += unused
        if unused:
            data = {"used": used.source.name, "unused": [one.source.name for one in unused]}
            job.findings.append(Finding("duplicate_traces", rank=used.rank, data=data))
    return job


def _claim(one: Recorded, members: Sequence[Recorded]) -> tuple[int, int, int, int, int]:
    """How good one of several traces of a rank is to be used, the weightiest first.

    It is named as those of other ranks are (rank1.json beside rank0.json, not again_rank1.json); was recorded
    while they were; its name says the rank; it is the newest.
    """
    others = [other for other in members if other.rank != one.rank]
    alike = len({other.rank for other in others if other.stem == one.stem})
    at_once = {
        other.rank
        for other in others
        if one.dated_ns and other.dated_ns
        if one.started_ns < other.ended_ns and other.started_ns < one.ended_ns
    }
    says_rank = rank_in(Path(one.source.name)) == one.rank
    return alike, len(at_once), says_rank, one.dated_ns, one.written_ns


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
        findings=findings,
        unused=[str(one.source) for one in job.unused],
    )


def _world_size(told: Sequence[TraceFacts], ranks: Sequence[int], known: bool) -> tuple[int | None, str]:
    """How many ranks the job has, and from what that was taken where no trace says it."""
    sizes = [facts.world_size for facts in told if facts.world_size]
    if sizes:
        return max(sizes), ""
    if len(ranks) > 1:
        return max(ranks) + 1, "the available traces"
    return (1, "") if not known and ranks == [0] and not told[0].groups else (None, "")


def _findings(job: Job, size: int | None) -> Iterator[Finding]:
    present = {one.rank for one in job.ranks}
    if size and size > 1 and len(present) < size:
        absent = [rank for rank in range(size) if rank not in present]
        yield Finding("traces_missing", data={"n": len(absent), "of": size, "ranks": absent})
    elif size is None:
        yield Finding("world_size_unknown", data={"n": len(present)})
    counts = {one.batches for one in job.ranks}
    if len(counts) > 1:
        yield Finding("steps_differ", data={"least": min(counts), "most": max(counts)})
    dated = [one.dated_ns for one in job.ranks if one.dated_ns]
    apart = max(dated, default=0) - min(dated, default=0)
    if apart > _CLOCKS_NS:
        yield Finding("hosts_clocks_apart", data={"ns": apart})


def _groups(told: Sequence[TraceFacts]) -> list[ProcessGroup]:
    """The process groups of all ranks, each once."""
    distinct: dict[tuple, ProcessGroup] = {}
    for facts in told:
        for group in facts.groups:
            distinct.setdefault((group.name, tuple(group.ranks), group.size), group)
    return list(distinct.values())


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
        return ENDINGS.sub("", first.source.name) or first.source.name
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
