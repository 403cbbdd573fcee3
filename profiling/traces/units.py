"""The files to convert, where the tables of each go, and which tables are newer than their files."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from profiling.errors import UserError
from profiling.tools.recognition import bundle_of
from profiling.traced_job import JOB, TracedJob

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
    # see profiling.readers.origin.Origin; None: its tables are for themselves, and not a rank's of a job
    batch_marker: str | None = None
    out: Path | None = None  # --out
    found: bool = False  # in a folder that was searched; else it was named itself

    def _stats(self) -> list[os.stat_result]:
        files = list(self.path.iterdir()) if self.path.is_dir() else [self.path]
        return [
            file.stat() for file in files if file.is_file() and not (self.path.is_dir() and _is_ours(file))
        ]

    @property
    def size(self) -> int:
        """In bytes."""
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
    """Whether a conversion into this folder was killed before it was complete."""
    return any(out.glob(f"{_SCRATCH}*"))


def files_of(paths: Iterable[Path]) -> Iterator[Path]:
    """The files to convert: those named, and those in the folders named, tables of ours left out.

    Raises:
        UserError: a path does not exist.
    """
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
    stem = ENDINGS.sub("", path.name) or path.name
    folder = (out or path.parent) / stem
    return folder.with_name(stem + ".tables") if folder.is_file() else folder


def units_of(
    paths: Iterable[Path], name: str | None, out: Path | None, batch_marker: str = "", overwrite: bool = False
) -> list[Unit]:
    """What is to be converted of files and folders; see :func:`files_of`.

    Args:
        overwrite: tables of other files are replaced.
    """
    marker = batch_marker if out is not None else None
    units: dict[Path, Unit] = {}
    used: set[Path] = set()
    for named in paths:
        found = named.is_dir()
        for path in files_of([named]):
            whole, of = bundle_of(path) if found else (path, None)
            if of is None or name not in (None, of):
                whole, of = path, name
            if whole not in units:
                below = out
                if out is not None and found:  # below the names of the folders that it is in
                    below = out / named.resolve().name / whole.relative_to(named).parent
                wanted = target = target_of(whole, below)
                number = 2
                while target in used or not (overwrite or source_of(target) in ("", str(whole.resolve()))):
                    target = wanted.with_name(f"{wanted.name}-{number}")
                    number += 1
                used.add(target)
                root = named if found else named.parent
                units[whole] = Unit(whole, of, target, root, marker, out, found)
            elif not found:  # in a folder, and also by its name
                units[whole] = replace(units[whole], found=False)
    return list(units.values())


def source_of(folder: Path) -> str:
    """The file that a folder's tables were made of, if they are of no job; else ""."""
    path = folder / SOURCE
    return path.read_text() if path.is_file() else ""


def changed(units: Iterable[Unit], jobs: Iterable[tuple[Path, TracedJob]]) -> list[Unit]:
    """The units whose tables are not there, or older.

    Those of a job are all new if one file below the folder of its traces is newer than the job's record, or a
    file came there: it may be of the same job.

    Args:
        jobs: those that are there, with their folders.
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
