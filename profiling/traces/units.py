"""What is to be converted of files and folders, and where do the tables go?"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from profiling.errors import UserError
from profiling.tools.recognition import bundle_of
from profiling.traced_job import JOB
from profiling.traces.records import Unit

_ENDINGS = re.compile(
    r"(\.(json|gz|gzip|parquet|csv|sqlite|sql|db|nsys-rep|xml|pt|trace|txt))+$", re.IGNORECASE
)
# What we write ourselves is not to be converted again.
_OUR_TABLES = re.compile(
    r"^(batches|markers|kernels|synchronizations|memory|intervals|atomics)\.parquet$|^(manifest|rank|sweep|calibration)\.json$"
    r"|^log\.txt$|^(report|compared-with-.*)\.html$|.*\.pftrace\.gz$"
)


def files_of(paths: Iterable[Path]) -> Iterator[Path]:
    """The files to convert: those named, and those in the folders named, tables of ours left out.

    Raises:
        UserError: a path does not exist.
    """
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.is_file())
            yield from (file for file in inside if not _is_ours(file) and not _is_hidden(file, path))
        elif path.exists():
            yield path
        else:
            raise UserError(f"{path} does not exist")


def _is_hidden(file: Path, below: Path) -> bool:
    return any(part[0] == "." for part in file.relative_to(below).parts)


def _is_ours(path: Path) -> bool:
    """Whether a file is a table or record of ours; a trace may be called as the record of a job is."""
    beside_ranks = path.name == JOB and any(path.parent.glob("rank_*"))
    return beside_ranks or _OUR_TABLES.match(path.name) is not None


def target_of(path: Path, out: Path | None) -> Path:
    """Where the tables of a file go."""
    stem = _ENDINGS.sub("", path.name) or path.name
    folder = (out or path.parent) / stem
    return folder.with_name(stem + ".tables") if folder.is_file() else folder


def units_of(paths: Iterable[Path], name: str | None, out: Path | None, batch_marker: str = "") -> list[Unit]:
    """What is to be converted of files and folders; see :func:`files_of`."""
    marker = batch_marker if out is not None else None
    units: dict[Path, Unit] = {}
    used: set[Path] = set()
    for named in paths:
        for path in files_of([named]):
            whole, of = bundle_of(path) if named.is_dir() else (path, None)
            if of is None or name not in (None, of):
                whole, of = path, name
            found = named.is_dir()
            if whole not in units:
                root = named if found else named.parent
                target = _unused(_target(whole, named, out), used)
                units[whole] = Unit(whole, of, target, root, marker, out, found)
            elif not found:  # in a folder, and also by its name
                units[whole] = replace(units[whole], found=False)
    return list(units.values())


def _target(path: Path, named: Path, out: Path | None) -> Path:
    """Where the tables of a file in ``named`` go: with --out, below the names of the folders it is in."""
    if out is None or not named.is_dir():
        return target_of(path, out)
    return target_of(path, out / named.resolve().name / path.relative_to(named).parent)


def _unused(target: Path, used: set[Path]) -> Path:
    # Two files of one name from different folders must not share a folder of tables.
    number, free = 2, target
    while free in used:
        free = target.with_name(f"{target.name}-{number}")
        number += 1
    used.add(free)
    return free
