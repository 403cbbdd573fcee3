"""What is to be converted of files and folders, and where do the tables go?"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from profiling.errors import UserError
from profiling.tools.recognition import bundle_of
from profiling.traced_job import JOB
from profiling.traces.records import Unit
from profiling.traces.unchanged import sources_of

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
        for path in files_of([named]):
            whole, of = bundle_of(path) if named.is_dir() else (path, None)
            if of is None or name not in (None, of):
                whole, of = path, name
            found = named.is_dir()
            if whole not in units:
                root = named if found else named.parent
                wanted = _target(whole, named, out)
                target = _unused(wanted, used, whole if not overwrite else None)
                is_new = not sources_of(target)
                taken = wanted if is_new and not overwrite and _is_of_others(wanted, whole) else None
                units[whole] = Unit(whole, of, target, root, marker, out, found, taken)
            elif not found:  # in a folder, and also by its name
                units[whole] = replace(units[whole], found=False)
    return list(units.values())


def _target(path: Path, named: Path, out: Path | None) -> Path:
    """Where the tables of a file in ``named`` go: with --out, below the names of the folders it is in."""
    if out is None or not named.is_dir():
        return target_of(path, out)
    return target_of(path, out / named.resolve().name / path.relative_to(named).parent)


def _unused(target: Path, used: set[Path], path: Path | None) -> Path:
    """A folder of this name, or with a number: two files of one name must not share a folder of tables.

    Args:
        used: the folders of the files before.
        path: the file, whose tables do not replace those of another; None: they do.
    """
    number, free = 2, target
    while free in used or (path is not None and _is_of_others(free, path)):
        free = target.with_name(f"{target.name}-{number}")
        number += 1
    used.add(free)
    return free


def _is_of_others(folder: Path, path: Path) -> bool:
    sources = sources_of(folder)
    return bool(sources) and str(path.resolve()) not in sources


def displaced(units: Iterable[Unit]) -> list[str]:
    """A line for each file whose tables are not in the folder of its name, as another's are."""
    return [
        f"{unit.taken} holds the tables of {source}: those of {unit.path.name} are in {unit.target.name} "
        "(--overwrite replaces the other)"
        for unit in units
        if unit.taken is not None
        for source in sources_of(unit.taken)[:1]
    ]
