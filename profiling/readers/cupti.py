"""Our own file of CUPTI's records: its layout, and its tables.

A text, one JSON object a line: what the file is and how CUPTI's clock stands to the epoch; then groups of
records as columns (``{"kernel": {"start": [...], "end": [...], ...}}``), each after the names that it is the
first to use (``{"names": [...]}``); last what is to be said of the recording. Names are numbers from 0, in
order of their first sight. Times are CUPTI's, in ns. Nothing of the process's environment is in it.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from profiling.attribution.attribute import attribute
from profiling.attribution.events import Builder, Trace
from profiling.cost.classify import full_name
from profiling.cost.shapes import Inputs
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.readers import gpu_records as gpu
from profiling.readers.chunks import read_lines
from profiling.readers.origin import UNKNOWN, Origin
from profiling.tables import Converted

WHAT, VERSION = "CUPTI records of scaleprof", 1
_TIMES = ("start", "end")
_ON_DEVICE = (*_TIMES, "device", "stream", "correlation")
_SIZES = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
# The columns of each group.
GROUPS: dict[str, tuple[str, ...]] = {
    "kernel": (*_ON_DEVICE, "name", *_SIZES),
    "memcpy": (*_ON_DEVICE, "bytes", "copy_kind", "src_kind", "dst_kind"),
    "memset": (*_ON_DEVICE, "bytes", "memory_kind"),
    "runtime": (*_TIMES, "thread", "correlation", "call"),
    "driver": (*_TIMES, "thread", "correlation", "call"),
    "range": (*_TIMES, "thread", "name"),  # ours; a mark ends where it begins
}
_CALLS = ("runtime", "driver")
_LIMIT = 4 * 10**18  # ns; the sum of two such times fits 63 bits

Columns = dict[str, np.ndarray]


class Reading(NamedTuple):
    """Both clocks at one moment: CUPTI's, the epoch's, and by how much they may miss each other, in ns."""

    cupti_ns: int
    epoch_ns: int
    error_ns: int

    @property
    def shift_ns(self) -> int:
        """What is to be added to CUPTI's time."""
        return self.epoch_ns - self.cupti_ns


class RecordsWriter:
    """Writes records as they come, so that no recording need be in memory.

    Args:
        rank: whose they are; ``world_size``: of how many ranks.
        first_batch: with which the recording begins.
    """

    def __init__(
        self, file: BinaryIO, rank: int, first_batch: int, clock: Reading, world_size: int = 1
    ) -> None:
        self._file = file
        self._names: dict[str, int] = {}
        self._lock = threading.Lock()  # CUPTI hands records over in threads of its own
        place = {"rank": rank, "world_size": world_size, "first_batch": first_batch}
        self._say({"what": WHAT, "version": VERSION, **place, "clock": list(clock)})

    def add(self, group: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """Write records of a group: its columns of :data:`GROUPS`, ``name`` as texts."""
        with self._lock:
            numbered = dict(columns)
            if "name" in numbered:
                count = len(self._names)
                setdefault, names = self._names.setdefault, self._names
                numbered["name"] = [setdefault(name, len(names)) for name in numbered["name"]]
                if len(names) > count:
                    self._say({"names": list(names)[count:]})
            self._say({group: numbered})

    def end(self, clock: Reading, dropped: int, problems: Sequence[str]) -> None:
        """Write the last line.

        Args:
            dropped: records that CUPTI had no room for.
            problems: one line each.
        """
        self._say({"end": {"dropped": dropped, "problems": list(problems), "clock": list(clock)}})

    def _say(self, line: dict[str, Any]) -> None:
        self._file.write(orjson.dumps(line) + b"\n")


# --- reading ------------------------------------------------------------------------------------------


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is our own of CUPTI's records, by its first bytes."""
    return head.startswith(b'{"what":"' + WHAT.encode() + b'"')


def stream(path: Path, findings: list[Finding], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """A file of records as tables ``kernels`` and ``markers``, each in one piece.

    The file says its rank, its first batch and how many ranks there are.
    """
    recording = converted(path, origin.rank)
    findings += recording.findings
    yield from recording.tables.items()


def converted(path: Path, rank: int | None) -> Converted:
    """A file of records as whole tables."""
    trace, first_batch = read_records(path)
    return attribute(trace, rank, first_batch)


def read_records(path: Path) -> tuple[Trace, int]:
    """(the events of a file, with times since the epoch, the batch with which they begin).

    Raises:
        UserError: unreadable, damaged, or no such file; the message names file and line.
    """
    reader = _Reader(path)
    for number, line in enumerate(read_lines(path), 1):
        reader.take(number, line)
    return reader.finish()


class _Reader:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.builder = Builder(lambda _: Inputs())
        self.names: list[str] = []
        self.head: dict[str, Any] = {}
        self.last: dict[str, Any] | None = None
        self.cut = 0  # the line that is no JSON; it may only be the last
        self.activities = 0

    def fail(self, number: int, why: str) -> UserError:
        return UserError(f"{self.path} is damaged at line {number} ({why}); convert another copy of it")

    def take(self, number: int, line: str) -> None:
        if self.cut or (self.last is not None and line):
            raise self.fail(self.cut or number, "more follows")
        try:
            value = orjson.loads(line)
        except orjson.JSONDecodeError:
            value = None
        if number == 1:
            self.enter(value)
        elif value is None:
            self.cut = number
        elif not isinstance(value, dict) or len(value) != 1:
            raise self.fail(number, "no group of records")
        else:
            self.take_group(number, *next(iter(value.items())))

    def enter(self, head: Any) -> None:
        if not isinstance(head, dict) or head.get("what") != WHAT:
            raise UserError(f"{self.path} holds no CUPTI records of scaleprof; is it the right file?")
        if head.get("version") != VERSION:
            raise UserError(
                f"{self.path} was written by another release (version {str(head.get('version'))[:20]})"
            )
        if not all(_is_index(head.get(key)) for key in ("rank", "first_batch")):
            raise self.fail(1, "invalid rank or first batch")
        self.head = head

    def take_group(self, number: int, group: str, content: Any) -> None:
        if group == "end" and isinstance(content, dict):
            self.last = content
        elif group == "names" and isinstance(content, list) and all(isinstance(one, str) for one in content):
            self.names += content
        elif group in GROUPS and isinstance(content, dict):
            columns = _columns(content, GROUPS[group])
            if columns is None:
                raise self.fail(number, f"columns of {group} are not numbers, or differ in length")
            name = columns.get("name", np.zeros(0))
            if len(name) and not (name.min() >= 0 and name.max() < len(self.names)):
                raise self.fail(number, "a name that is not in the file")
            self.add(group, columns)
        else:
            raise self.fail(number, f"unknown group: {group[:20]!r}")

    def add(self, group: str, columns: Columns) -> None:
        sound = np.ones(len(columns["start"]), dtype=bool)
        for name, column in columns.items():
            most = 2**31 if name == "device" else _LIMIT
            sound &= (column < most) & (column > -most)
        if group != "range":  # CUPTI's way to say that it could not tell a time
            sound &= (columns["start"] != 0) | (columns["end"] != 0)
        self.builder.malformed += len(sound) - int(sound.sum())
        rows = {name: column[sound] for name, column in columns.items()}
        if group in _CALLS:
            names = gpu.call_names(self.builder, rows["call"], group == "runtime")
            gpu.add_launches(
                self.builder, rows["start"], rows["end"], rows["thread"], rows["correlation"], names
            )
        elif group == "range":
            texts = [self.names[name] for name in rows["name"].tolist()]
            gpu.add_ranges(self.builder, texts, rows["start"], rows["end"], rows["thread"])
        else:
            self.add_activities(group, rows)

    def add_activities(self, group: str, rows: Columns) -> None:
        self.activities += len(rows["start"])
        builder, size, sizes = self.builder, rows.get("bytes"), [rows[one] for one in _SIZES if one in rows]
        if group == "kernel":
            name = gpu.coded(builder, rows["name"], lambda key: full_name(self.names[key]) or gpu.UNNAMED)
        elif group == "memcpy":
            name = gpu.copy_names(builder, rows["copy_kind"], rows["src_kind"], rows["dst_kind"])
        else:
            name = gpu.set_names(builder, rows["memory_kind"])
        gpu.add_device(builder, name, (rows[one] for one in _ON_DEVICE), size, sizes)

    def finish(self) -> tuple[Trace, int]:
        if not self.head:
            raise UserError(f"{self.path} is empty; it holds no CUPTI records of scaleprof")
        last = self.last or {}
        readings = [_reading(fields) for fields in (self.head, last)]
        if readings[0] is None:
            raise self.fail(1, "the offset of its clock from the epoch was not recorded")
        clocks = [reading for reading in readings if reading is not None]
        shift = sum(reading.shift_ns for reading in clocks) // len(clocks)
        world_size = self.head.get("world_size", 1)  # older files do not say
        ranks = int(world_size) if _is_index(world_size) else 1
        trace = self.builder.finish(self.head["rank"], ranks, shift_ns=shift)
        if self.last is None or self.cut:
            trace.findings.append(Finding("recording_cut_short"))
        dropped, problems = last.get("dropped"), last.get("problems")
        if _is_index(dropped) and dropped:
            trace.findings.append(Finding("records_dropped", data={"n": dropped}))
        for problem in problems if isinstance(problems, list) else ():
            trace.findings.append(
                Finding("tool_reported", data={"text": " ".join(str(problem).split())[:300]})
            )
        apart = abs(clocks[-1].shift_ns - clocks[0].shift_ns)
        residual = apart // 2 + max(clock.error_ns for clock in clocks)
        trace.findings.append(Finding("clock_aligned", data={"tool": "CUPTI", "residual_ns": residual}))
        if not self.activities:
            trace.findings.append(Finding("recording_empty"))
        return trace, self.head["first_batch"]


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _columns(content: Mapping[str, Any], names: Iterable[str]) -> Columns | None:
    """Columns of 64-bit integers of one length; None if they are not that."""
    columns = {}
    for name in names:
        try:
            column = np.array(content[name])
        except (KeyError, ValueError, OverflowError):
            return None
        if column.ndim != 1 or (len(column) and column.dtype != np.int64):
            return None
        columns[name] = column.astype(np.int64)
    return columns if len({len(column) for column in columns.values()}) == 1 else None


def _reading(fields: Mapping[str, Any]) -> Reading | None:
    values = fields.get("clock")
    if not isinstance(values, list) or len(values) != 3:
        return None
    if not all(isinstance(value, int) and abs(value) < _LIMIT // 2 for value in values):
        return None
    return Reading(*values)
