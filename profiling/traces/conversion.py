"""What is converted at once, by which rank, and what became of it?

The tables of a trace lie in a hidden folder until those of all ranks of its job are there, with a record of
what became of the trace. By these records rank 0 learns what the other ranks have done, and, after a node was
lost or a job ended, the next call what this one has.
"""

import hashlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from profiling.identity import Identity
from profiling.traces.recorded import Recorded
from profiling.whole_file import whole_file

_SCRATCH, _RECORD, _BUSY = ".converting-", "outcome.json", "busy"
_BEAT_S, _LOOK_S = 5.0, 0.5
# Without a beat of any rank that has something to do; file systems of clusters show changes late.
LOST_S = 60.0


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
    """

    path: Path
    name: str | None
    target: Path
    root: Path = Path()
    batch_marker: str | None = None
    out: Path | None = None
    found: bool = False

    @property
    def files(self) -> list[Path]:
        return [file for file in self.path.iterdir() if file.is_file()] if self.path.is_dir() else [self.path]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(file.stat().st_size for file in self.files if file.is_file())

    @property
    def scratch(self) -> Path:
        """Where a trace's tables are until it is known of which job it is; in no folder that a job takes."""
        base = self.out or self.target.parent
        # One name for each target, however deep and long: not that of a/b-c for a-b/c.
        digest = hashlib.sha256(os.fsencode(self.target.relative_to(base))).hexdigest()
        return base / f"{_SCRATCH}{digest[:16]}"


@dataclass(frozen=True)
class Outcome:
    """What became of a unit: where its tables are, or why there are none.

    Attributes:
        ranks: that a trace of a job holds, whose tables are not yet where they belong.
        unrecognised: no tool known here has written the file, or it is empty.
    """

    target: Path
    findings: tuple[str, ...] = ()
    error: str = ""
    ranks: tuple[Recorded, ...] = ()
    unrecognised: bool = False


@dataclass(frozen=True)
class _Record:
    """What became of a unit.

    Attributes:
        state: of its files: name, size, time of change in ns.
        launch: that tried it (:func:`profiling.identity.launch_of`).
    """

    unit: Unit
    state: list[tuple[str, int, int]]
    outcome: Outcome
    launch: str


_RECORDS = TypeAdapter(_Record)


def _state(unit: Unit) -> list[tuple[str, int, int]]:
    stats = sorted((file.name, file.stat()) for file in unit.files)
    return [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats]


def keep(unit: Unit, outcome: Outcome, launch: str = "") -> None:
    """Record what became of a unit; its tables are whole."""
    unit.scratch.mkdir(parents=True, exist_ok=True)
    with whole_file(unit.scratch / _RECORD) as file:
        file.write(_RECORDS.dump_json(_Record(unit, _state(unit), outcome, launch)))


def kept(unit: Unit, launch: str = "") -> Outcome | None:
    """What was made of a unit that has not changed since; None if nothing.

    By this launch, or an earlier call of the same kind: what that one could not convert is not in it.
    """
    record = _record_of(unit)
    if record is None:
        return None
    this_launch = bool(launch) and record.launch == launch
    return record.outcome if _is_whole(record.outcome) or (record.outcome.error and this_launch) else None


def _is_whole(outcome: Outcome) -> bool:
    tables = [one.directory for one in outcome.ranks] or [outcome.target]
    return not outcome.error and all(folder.is_dir() for folder in tables)


def _record_of(unit: Unit) -> _Record | None:
    """What is recorded of a unit that has not changed since."""
    try:
        record = _RECORDS.validate_json((unit.scratch / _RECORD).read_bytes())
    except (OSError, ValidationError):
        return None  # it was ended before that
    return record if (record.unit, record.state) == (unit, _state(unit)) else None


def not_kept(units: Sequence[Unit], launch: str = "") -> list[Unit]:
    """Those of which nothing is known."""
    return [unit for unit in units if kept(unit, launch) is None]


def kept_before(units: Sequence[Unit], launch: str = "") -> int:
    """How many units an earlier call has converted: other ranks of this launch may be ahead of this one."""
    records = [record for unit in units if (record := _record_of(unit)) and _is_whole(record.outcome)]
    return sum(not launch or record.launch != launch for record in records)


def is_unfinished(out: Path) -> bool:
    """Whether a conversion into this folder was ended before it was complete."""
    return any(out.glob(f"{_SCRATCH}*"))


def share_of(me: Identity, units: Sequence[Unit]) -> list[Unit]:
    """The units that a rank converts: the largest are dealt first, as cards are."""
    sizes = {unit.path: unit.size for unit in units}
    return sorted(units, key=lambda unit: (-sizes[unit.path], unit.path))[me.rank :: me.size]


@contextmanager
def busy_with(unit: Unit) -> Iterator[None]:
    """While a rank works on a unit, a file in its scratch folder is touched now and then.

    The folder may not be there yet: the first rows of a large trace come late.
    """
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(_BEAT_S):
            with suppress(OSError):
                unit.scratch.mkdir(parents=True, exist_ok=True)
                (unit.scratch / _BUSY).touch()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def wait_for_others(units: Sequence[Unit], launch: str) -> list[Unit]:
    """Wait until all units have been tried by ``launch``, or none of the ranks that try them lives.

    Returns:
        Those that have not been tried.
    """
    signs: list[float] = []
    last_sign = time.monotonic()
    while left := not_kept(units, launch):
        units = left
        now = [_last_beat(unit) for unit in left]
        if now != signs:
            signs, last_sign = now, time.monotonic()
        if time.monotonic() - last_sign > LOST_S:
            break
        time.sleep(_LOOK_S)
    return left


def _last_beat(unit: Unit) -> float:
    try:
        return (unit.scratch / _BUSY).stat().st_mtime
    except OSError:
        return 0.0
