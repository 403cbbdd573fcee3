"""What is converted at once, and what became of it?

The tables of a trace lie in a hidden folder until those of all ranks of its job are there, with a record of
what became of the trace. By these records the next call knows what one that was ended has done.
"""

import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from profiling.schemas import SCHEMAS
from profiling.tables import table_path
from profiling.traces.recorded import Recorded
from profiling.whole_file import whole_file

SCRATCH, _RECORD = ".converting-", "outcome.json"
_CODE = Path(__file__).resolve().parents[1]
# Of files: path, size, time of change in ns.
State = list[tuple[str, int, int]]


@dataclass(frozen=True)
class Unit:
    """What is converted at once: a file, or a folder whose files are one result.

    Attributes:
        name: of the tool; None: to be recognised.
        target: the folder of its tables.
        root: the folder in which it was found.
        batch_marker: see :class:`profiling.readers.origin.Origin`; None: its tables are for themselves, and
            not a rank's of a job.
        out: --out.
        found: in a folder that was searched; else it was named itself.
        taken: the folder of its name, in which an earlier call has left the tables of another file.
    """

    path: Path
    name: str | None
    target: Path
    root: Path = Path()
    batch_marker: str | None = None
    out: Path | None = None
    found: bool = False
    taken: Path | None = field(default=None, compare=False)

    @property
    def files(self) -> list[Path]:
        return [file for file in self.path.iterdir() if file.is_file()] if self.path.is_dir() else [self.path]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(file.stat().st_size for file in self.files if file.is_file())

    @property
    def base(self) -> Path:
        """The folder below which its tables go."""
        return self.out or self.target.parent

    @property
    def code(self) -> str:
        """A name for its target, however deep and long that is: not that of a/b-c for a-b/c."""
        return hashlib.sha256(os.fsencode(self.target.relative_to(self.base))).hexdigest()[:16]

    @property
    def scratch(self) -> Path:
        """Where a trace's tables are until it is known of which job it is; in no folder that a job takes."""
        return self.base / f"{SCRATCH}{self.code}"


@dataclass(frozen=True)
class Outcome:
    """What became of a unit: where its tables are, or why there are none.

    Attributes:
        ranks: that a trace of a job holds, whose tables are not yet where they belong.
        unrecognised: no tool known here has written the file, or it is empty.
        unchanged: an earlier call has converted the file, which has not changed since.
        as_it_is: analysis reads the file itself.
        tool: that has written it; "": none known here.
    """

    target: Path
    findings: tuple[str, ...] = ()
    error: str = ""
    ranks: tuple[Recorded, ...] = ()
    unrecognised: bool = False
    unchanged: bool = False
    as_it_is: bool = False
    tool: str = ""

    @property
    def has_tables(self) -> bool:
        return not (self.error or self.as_it_is)

    @property
    def folders(self) -> list[Path]:
        """Where its tables are."""
        return [one.directory for one in self.ranks] or [self.target]


@dataclass(frozen=True)
class Record:
    """What became of a unit.

    Attributes:
        source: its path, from the top.
        state: of its files, before they were read.
        tables: the state of its tables.
        launch: that tried it (:func:`profiling.identity.launch_of`).
        made_by: see :func:`_code`.
    """

    unit: Unit
    source: str
    state: State
    tables: State
    outcome: Outcome
    launch: str
    made_by: str

    @property
    def is_whole(self) -> bool:
        """Whether its tables are there, as this code would make them."""
        there = self.outcome.has_tables and all(folder.is_dir() for folder in self.outcome.folders)
        return there and self.made_by == _code() and self.tables == state_of_tables(self.outcome)


_RECORDS = TypeAdapter(Record)


@cache
def _code() -> str:
    """What tells the code that makes tables of files from that of another release, or as it was before."""
    digest = hashlib.sha256()
    for path in sorted(_CODE.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def state_of(unit: Unit) -> State:
    """By which it is seen that the files of a unit have changed."""
    return _state(unit.files)


def state_of_tables(outcome: Outcome) -> State:
    """By which it is seen that tables are not those any more that were written."""
    paths = [table_path(folder, name) for folder in outcome.folders for name in SCHEMAS]
    return _state(path for path in paths if path.exists())


def _state(files: Iterable[Path]) -> State:
    stats = sorted((str(file), file.stat()) for file in files if file.is_file())
    # Not the time of modification, which copies (cp -p, rsync, tar) bring along.
    return [(name, stat.st_size, stat.st_ctime_ns) for name, stat in stats]


def keep(unit: Unit, outcome: Outcome, launch: str = "", state: State | None = None) -> None:
    """Record what became of a unit; its tables are whole.

    Args:
        state: of its files before they were read; None: as they are now.
    """
    source, before, tables = str(unit.path.resolve()), state or state_of(unit), state_of_tables(outcome)
    write_record(unit.scratch / _RECORD, Record(unit, source, before, tables, outcome, launch, _code()))


def keep_moved(unit: Unit, outcome: Outcome) -> None:
    """Record where the tables of a unit are now. Its files may have changed since they were made."""
    path = unit.scratch / _RECORD
    if record := read_record(path):
        write_record(path, replace(record, outcome=outcome, tables=state_of_tables(outcome)))


def kept(unit: Unit, launch: str = "") -> Outcome | None:
    """What was made of a unit that has not changed since; None if nothing.

    By this launch, or an earlier call of the same kind: what that one made no tables of is not in it.
    """
    record = kept_record(unit)
    if record is None:
        return None
    this_launch = bool(launch) and record.launch == launch
    without = this_launch and not record.outcome.has_tables
    return record.outcome if record.is_whole or without else None


def kept_record(unit: Unit) -> Record | None:
    """The record of a unit that is in conversion."""
    return record_of(unit, unit.scratch / _RECORD)


def record_of(unit: Unit, path: Path) -> Record | None:
    """What a file records of a unit that has not changed since."""
    record = read_record(path)
    return record if record and (record.unit, record.state) == (unit, state_of(unit)) else None


def read_record(path: Path) -> Record | None:
    """A record; None: a conversion was ended before it was written."""
    try:
        return _RECORDS.validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def write_record(path: Path, record: Record) -> None:
    """Write a record, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(_RECORDS.dump_json(record))
