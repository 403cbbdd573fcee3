"""Find the traces to convert, group them into jobs, and store their tables with a record of the job.

The traces of a job come from one tool and one folder (subfolders of ranks or hosts count as the same one),
agree on world size and process groups, and were recorded at the same time.

A job that was converted before gets the same folder. Files of the earlier conversion are replaced; jobs of
other files, and files of users or other commands, are kept.
"""

import hashlib
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count, pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from profiling.attribution.batch_rows import CONFIDENCE_KEY, SOURCE_KEY
from profiling.attribution.windows import missing_ranks
from profiling.errors import UserError, printable
from profiling.findings import Finding
from profiling.readers.files import Origin, rank_in
from profiling.schemas import SCHEMAS
from profiling.tables import Writer, rank_directory, table_path
from profiling.tools import Profiler, Unrecognised, bundle_of, reader_of, recognise
from profiling.traced_job import JOB, ProcessGroup, TracedJob, TracedRank, TraceFacts, read_job, write_job

SOURCE = ".source"  # beside tables that are of no job: the file that they were made of
_SCRATCH = ".converting-"
ENDINGS = re.compile(
    r"(\.(json|gz|gzip|parquet|csv|sqlite|sql|db|nsys-rep|xml|pt|trace|txt))+$", re.IGNORECASE
)
# What we write ourselves is not to be converted again.
_OUR_TABLES = re.compile(
    r"^(batches|markers|kernels|synchronizations|memory|intervals|atomics)\.parquet$|^(manifest|rank|sweep|calibration)\.json$"
    r"|^log\.txt$|^(report|compared-with-.*)\.html$|.*\.pftrace\.gz$"
)


@dataclass(frozen=True)
class Unit:
    """What is converted at once: a file, or a folder whose files are one result."""

    path: Path
    name: str | None  # of the tool; None: to be recognised
    target: Path  # the folder of its tables
    root: Path = Path()  # the folder in which it was found
    # see profiling.readers.files.Origin; None: its tables are for themselves, and not a rank's of a job
    batch_marker: str | None = None
    out: Path | None = None  # --out
    found: bool = False  # in a folder that was searched; else it was named itself

    def _stats(self) -> list[os.stat_result]:
        if not self.path.is_dir():
            return [self.path.stat()]
        return [file.stat() for file in self.path.iterdir() if file.is_file() and not _is_ours(file)]

    @property
    def size_bytes(self) -> int:
        return sum(stat.st_size for stat in self._stats())

    @property
    def changed_ns(self) -> int:
        """When its files came here or were changed last: copies bring along their time of modification."""
        return max((stat.st_ctime_ns for stat in self._stats()), default=0)

    @property
    def scratch(self) -> Path:
        """Where a trace's tables are until it is known of which job it is."""
        base = self.out or self.target.parent
        code = hashlib.sha256(os.fsencode(self.target.relative_to(base))).hexdigest()[:16]
        return base / f"{_SCRATCH}{code}"


def is_unfinished(out: Path) -> bool:
    return any(out.glob(f"{_SCRATCH}*"))


def files_of(paths: Iterable[Path]) -> Iterator[Path]:
    """The files that are named, and those in the folders named, tables of ours left out."""
    for path in paths:
        if path.is_dir():
            for file in sorted(file for file in path.rglob("*") if file.is_file()):
                hidden = any(part[0] == "." for part in file.relative_to(path).parts)
                if not hidden and not _is_ours(file):
                    yield file
        elif path.exists():
            yield path
        else:
            raise UserError(f"{path} does not exist")


def _is_ours(path: Path) -> bool:
    """Whether a file is a table or record of ours; a trace may be called as the record of a job is."""
    beside_ranks = path.name == JOB and any(path.parent.glob("rank_*"))
    return beside_ranks or path.name == SOURCE or _OUR_TABLES.match(path.name) is not None


def target_of(path: Path, out: Path | None) -> Path:
    """Where the tables of a file go."""
    stem = printable(ENDINGS.sub("", path.name) or path.name, "_")
    folder = (out or path.parent) / stem
    return folder.with_name(stem + ".tables") if folder.is_file() else folder


def units_of(
    paths: Iterable[Path], name: str | None, out: Path | None, batch_marker: str = "", overwrite: bool = False
) -> list[Unit]:
    """What is to be converted of files and folders; ``overwrite``: tables of other files are replaced."""
    marker = batch_marker if out is not None else None
    units: dict[Path, Unit] = {}
    used: set[Path] = set()
    for given in paths:
        found = given.is_dir()
        for file in files_of([given]):
            path, tool_name = bundle_of(file) if found else (file, None)
            if tool_name is None or name not in (None, tool_name):
                path, tool_name = file, name
            if path not in units:
                folder = out
                if out is not None and found:  # below the names of the folders that it is in
                    below = given.resolve().name / path.relative_to(given).parent
                    folder = out / printable(str(below), "_")
                first_choice = target = target_of(path, folder)
                numbers = count(2)
                while target in used or not (overwrite or source_of(target) in ("", str(path.resolve()))):
                    target = first_choice.with_name(f"{first_choice.name}-{next(numbers)}")
                used.add(target)
                root = given if found else given.parent
                units[path] = Unit(path, tool_name, target, root, marker, out, found)
            elif not found:  # in a folder, and also by its name
                units[path] = replace(units[path], found=False)
    return list(units.values())


def source_of(folder: Path) -> str:
    """The file that a folder's tables were made of, if they are of no job; else ""."""
    path = folder / SOURCE
    return path.read_text() if path.is_file() else ""


def changed(units: Iterable[Unit], jobs: Iterable[tuple[Path, TracedJob]]) -> list[Unit]:
    """The units whose tables are not there, or older.

    Those of a job are all new if one file below the folder of its traces is newer than the job's record, or a
    file came there: it may be of the same job.
    """
    done: set[str] = set()
    times = {str(unit.path.resolve()): unit.changed_ns for unit in units}
    for folder, job in jobs:
        if not times.keys() >= set(job.files):
            continue
        folders = [Path(file).parent for file in job.files]
        below = os.path.commonpath(folders)
        newest_ns = max(
            *(ns for file, ns in times.items() if Path(file).is_relative_to(below)),
            *(each.stat().st_mtime_ns for each in folders),  # a file may have been moved there
        )
        if newest_ns < (folder / JOB).stat().st_mtime_ns:
            done.update(job.files)
    for unit in units:
        path = str(unit.path.resolve())
        if source_of(unit.target) == path and (unit.target / SOURCE).stat().st_mtime_ns > unit.changed_ns:
            done.add(path)
    return [unit for unit in units if str(unit.path.resolve()) not in done]


_RANK = re.compile(r"[_.-]?(?:rank|worker)[_.-]?\d+|^\d+$", re.IGNORECASE)
_EPOCH_NS = 10**18  # times before it count from another moment, and say nothing of other hosts'
_LATEST = (1 << 63) - 1


@dataclass(frozen=True)
class Recorded:
    """The recording of one rank, as it was converted."""

    source: Path  # its file, below ``root``
    root: Path
    tool: str  # that wrote it
    facts: TraceFacts  # what the file says of its job
    rank: int  # as its rows say it
    rank_known: bool  # whether the file says its rank, or its name
    alone: bool  # whether its file holds no other rank
    directory: Path  # where its tables are
    started_ns: int  # of its first and last activity
    ended_ns: int
    written_ns: int  # when its file was changed last
    batches: int  # how many; ``batches_from``, ``confidence``: see :class:`profiling.traced_job.TracedJob`
    batches_from: str = ""
    confidence: float = 1.0

    @property
    def dated_ns(self) -> int:
        return self.started_ns if self.started_ns > _EPOCH_NS else 0

    @property
    def folder(self) -> Path:
        """Its folder below the root, without the parts that name a rank."""
        names = self.source.parent.parts
        return Path(*(name for name in names if name.isdecimal() or not _RANK.fullmatch(name)))

    @cached_property
    def stem(self) -> str:
        """Its file's name without the rank and the ending."""
        return _RANK.sub("", ENDINGS.sub("", self.source.name) or self.source.name).strip("_.-")


@dataclass(frozen=True)
class Outcome:
    target: Path
    findings: tuple[Finding, ...] = ()
    error: str = ""
    # that a trace of a job holds, whose tables are not yet where they belong
    ranks: tuple[Recorded, ...] = ()
    unrecognised: bool = False  # no tool known here has written the file, or it is empty
    as_it_is: bool = False  # analysis reads the file itself


def convert_unit(unit: Unit) -> Outcome:
    """Write the tables of one file, a piece at a time where its tool can."""
    shutil.rmtree(unit.scratch, ignore_errors=True)  # of a call that was killed
    outcome = _convert(unit)
    if outcome.error:
        shutil.rmtree(unit.scratch, ignore_errors=True)
    return outcome


def _convert(unit: Unit) -> Outcome:
    findings: list[Finding] = []
    try:
        name = unit.name or recognise(unit.path)
        reader = reader_of(unit.path, name)
        if reader.analysed_as_it_is:
            if unit.name:  # not recognised by what is in it: whether it is one is to be seen
                reader.read(unit.path)
            return Outcome(unit.target, as_it_is=True)
        facts = None if unit.batch_marker is None else reader.facts(unit.path)
        if facts is not None and (ranks := _ranks(unit, reader, name or "", facts, findings)):
            return Outcome(unit.target, tuple(findings), ranks=ranks)
        with Writer(unit.target) as writer:
            for table, piece in reader.stream(unit.path, findings):
                writer.add(table, piece)
        if source_of(unit.target):  # by an earlier call, of another file or as it was
            for table in SCHEMAS.keys() - writer.names:
                table_path(unit.target, table).unlink(missing_ok=True)
        if unit.target.is_dir():
            (unit.target / SOURCE).write_text(str(unit.path.resolve()))
    except UserError as error:
        return Outcome(unit.target, error=str(error), unrecognised=isinstance(error, Unrecognised))
    except OSError as error:
        do = "name another place (profiling.convert --out DIR, analysis.report --output FILE)"
        return Outcome(unit.target, error=f"cannot write to {unit.target}: {error.strerror or error}; {do}")
    of_file = (finding.of(run=unit.path.name) for finding in findings)
    return Outcome(unit.target, tuple(of_file))


@dataclass
class _Rank:
    writer: Writer
    started_ns: int = _LATEST
    ended_ns: int = 0
    batches: int = 0
    batches_from: str = ""
    confidence: float = 1.0
    on_device: bool = False

    def add(self, table: str, piece: pa.Table) -> None:
        if not len(piece):
            return
        self.writer.add(table, piece)
        if table == "kernels":
            begun = pc.min(piece["start_ns"]).as_py()
            ended = pc.max(pc.add(piece["start_ns"], piece["duration_ns"])).as_py()
            self.started_ns = min(self.started_ns, begun if begun is not None else _LATEST)
            self.ended_ns = max(self.ended_ns, ended or 0)
            self.on_device |= bool(pc.any(pc.greater_equal(piece["device"], 0)).as_py())
        elif table == "batches":
            metadata = piece.schema.metadata or {}
            self.batches = len(piece)
            self.batches_from = metadata.get(SOURCE_KEY, b"").decode()
            self.confidence = float(metadata.get(CONFIDENCE_KEY, b"1"))


def _ranks(
    unit: Unit, reader: Profiler, name: str, facts: TraceFacts, findings: list[Finding]
) -> tuple[Recorded, ...]:
    """Write the tables of a trace's ranks, each into a folder of its own."""
    path = unit.path
    root = unit.root.parent if path == unit.root else unit.root
    known = facts.rank if facts.rank is not None else rank_in(path.relative_to(root))
    origin = Origin(
        known, world_size=facts.world_size or 1, batches=True, batch_marker=unit.batch_marker or ""
    )
    ranks: dict[int, _Rank] = {}
    with ExitStack() as writers:
        for table, piece in reader.stream(path, findings, origin):
            numbers = pc.unique(piece["rank"]).to_pylist()
            for number in numbers:
                rows = piece if len(numbers) == 1 else piece.filter(pc.equal(piece["rank"], number))
                if (number := number or 0) not in ranks:
                    writer = Writer(rank_directory(unit.scratch, number))
                    ranks[number] = _Rank(writers.enter_context(writer))
                ranks[number].add(table, rows)
    # A trace may hold kernels of a device, and no properties of it (XPU).
    nameless = facts.model_copy(update={"device": ""})
    return tuple(
        Recorded(
            source=path.relative_to(root), root=root, tool=name, rank=number,
            facts=nameless if one.on_device and facts.device == "cpu" else facts,
            rank_known=known is not None, alone=len(ranks) == 1, directory=one.writer.directory,
            started_ns=one.started_ns if one.ended_ns else 0, ended_ns=one.ended_ns,
            written_ns=path.stat().st_mtime_ns, batches=one.batches,
            batches_from=one.batches_from, confidence=one.confidence,
        )
        for number, one in sorted(ranks.items())
    )  # fmt: skip


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
