"""scaleprof's file of CUPTI records (cupti.jsonl): its layout, and its conversion to tables.

The file has one JSON object per line: first its type and the offset of CUPTI's clock from the epoch; then
groups of records as columns (``{"kernel": {"start": [...], "end": [...], ...}}``), each preceded by the names
that it uses for the first time (``{"names": [...]}``); finally facts about the recording. Names are numbered
from 0 in order of first use. Times are CUPTI's, in ns. The process's environment is not included.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
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
    """Writes records as they come; ``first_batch``: with which the recording begins."""

    def __init__(
        self, file: BinaryIO, rank: int, first_batch: int, clock: Reading, world_size: int = 1
    ) -> None:
        self._file = file
        self._names: dict[str, int] = {}
        self._lock = threading.Lock()  # CUPTI hands records over in threads of its own
        head = {"rank": rank, "world_size": world_size, "first_batch": first_batch, "clock": list(clock)}
        self._write({"what": WHAT, "version": VERSION, **head})

    def add(self, group: str, columns: Mapping[str, Sequence[Any]]) -> None:
        """Write records of a group: its columns of :data:`GROUPS`, ``name`` as texts."""
        with self._lock:
            numbered = dict(columns)
            if "name" in numbered:
                count = len(self._names)
                setdefault, names = self._names.setdefault, self._names
                numbered["name"] = [setdefault(name, len(names)) for name in numbered["name"]]
                if len(names) > count:
                    self._write({"names": list(names)[count:]})
            self._write({group: numbered})

    def end(self, clock: Reading, dropped: int, problems: Sequence[str]) -> None:
        """Write the last line; ``dropped``: records that CUPTI had no room for; ``problems``: a line each."""
        self._write({"end": {"dropped": dropped, "problems": list(problems), "clock": list(clock)}})

    def _write(self, line: dict[str, Any]) -> None:
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
    """(the events of a file, times since the epoch; its first batch); UserError: unreadable or damaged."""
    reader, head, last, is_cut = _Reader(), {}, None, False
    for number, line in enumerate(read_lines(path), 1):
        try:
            if is_cut or (last is not None and line):
                raise ValueError("more follows")
            try:
                value = orjson.loads(line)
            except orjson.JSONDecodeError:
                value, is_cut = None, number > 1  # it may only be the last line
            if number == 1:
                head = _checked_head(path, value)
            elif not is_cut:
                ((group, content),) = value.items()
                if group == "end":
                    last = content
                else:
                    reader.add_line(group, content)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            place = f"{path} is damaged at line {number - is_cut}"
            raise UserError(f"{place} ({error}); convert another copy") from None
    if not head:
        raise UserError(f"{path} is empty; it holds no CUPTI records of scaleprof")
    return reader.finish(head, last or {}, last is None or is_cut), head["first_batch"]


def _checked_head(path: Path, head: Any) -> dict[str, Any]:
    if not isinstance(head, dict) or head.get("what") != WHAT:
        raise UserError(f"{path} holds no CUPTI records of scaleprof; is it the right file?")
    if head.get("version") != VERSION:
        raise UserError(f"{path} was written by another release (version {str(head.get('version'))[:20]})")
    if not all(_is_index(head.get(key)) for key in ("rank", "first_batch")):
        raise ValueError("invalid rank or first batch")
    if _reading(head) is None:
        raise ValueError("the offset of its clock from the epoch was not recorded")
    return head


class _Reader:
    def __init__(self) -> None:
        self.builder = Builder(lambda _: Inputs())
        self.names: list[str] = []
        self.activities = 0

    def add_line(self, group: str, content: Any) -> None:
        """Add records of a group, or names; ValueError or the like where they are damaged."""
        if group == "names":
            if not all(isinstance(one, str) for one in content):
                raise ValueError("a name that is no text")
            self.names += content
            return
        columns = {name: np.array(content[name]) for name in GROUPS[group]}
        if any(len(column) and column.dtype != np.int64 for column in columns.values()):
            raise ValueError(f"columns of {group} are not numbers")
        columns = {name: column.astype(np.int64) for name, column in columns.items()}
        if len({column.shape for column in columns.values()}) > 1:
            raise ValueError(f"columns of {group} differ in length")
        name = columns.get("name", np.zeros(0))
        if len(name) and not (name.min() >= 0 and name.max() < len(self.names)):
            raise ValueError("a name that is not in the file")
        sound = np.ones(len(columns["start"]), dtype=bool)
        for key, column in columns.items():
            most = 2**31 if key == "device" else _LIMIT
            sound &= (column < most) & (column > -most)
        if group != "range":  # CUPTI's way to say that it could not tell a time
            sound &= (columns["start"] != 0) | (columns["end"] != 0)
        self.builder.malformed += len(sound) - int(sound.sum())
        self.add(group, {key: column[sound] for key, column in columns.items()})

    def add(self, group: str, rows: Columns) -> None:
        builder, start_ns, end_ns = self.builder, rows["start"], rows["end"]
        if group in _CALLS:
            names = gpu.call_names(builder, rows["call"], group == "runtime")
            gpu.add_launches(builder, start_ns, end_ns, rows["thread"], rows["correlation"], names)
            return
        if group == "range":
            texts = [self.names[name] for name in rows["name"].tolist()]
            gpu.add_ranges(builder, texts, start_ns, end_ns, rows["thread"])
            return
        self.activities += len(start_ns)
        if group == "kernel":
            name = gpu.coded(builder, rows["name"], lambda key: full_name(self.names[key]) or gpu.UNNAMED)
        elif group == "memcpy":
            name = gpu.copy_names(builder, rows["copy_kind"], rows["src_kind"], rows["dst_kind"])
        else:
            name = gpu.set_names(builder, rows["memory_kind"])
        sizes = [rows[one] for one in _SIZES if one in rows]
        gpu.add_device(builder, name, (rows[one] for one in _ON_DEVICE), rows.get("bytes"), sizes)

    def finish(self, head: dict[str, Any], last: dict[str, Any], is_cut: bool) -> Trace:
        clocks = [reading for reading in map(_reading, (head, last)) if reading is not None]
        shift = sum(reading.shift_ns for reading in clocks) // len(clocks)
        world_size = head.get("world_size", 1)  # older files do not say
        trace = self.builder.finish(head["rank"], world_size if _is_index(world_size) else 1, shift_ns=shift)
        dropped, problems = last.get("dropped"), last.get("problems")
        texts = [" ".join(str(one).split())[:300] for one in problems] if isinstance(problems, list) else []
        drift = abs(clocks[-1].shift_ns - clocks[0].shift_ns)
        residual = drift // 2 + max(clock.error_ns for clock in clocks)
        lost = {"what": "records dropped by the profiler", "n": dropped}
        trace.findings += [
            *([Finding("recording_cut_short")] if is_cut else []),
            *([Finding("records_damaged", data=lost)] if _is_index(dropped) and dropped else []),
            *(Finding("recorded", data={"text": text}) for text in texts),
            Finding("clock_aligned", data={"tool": "CUPTI", "residual_ns": residual}),
            *([] if self.activities else [Finding("recording_empty")]),
        ]
        return trace


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


def _reading(fields: Mapping[str, Any]) -> Reading | None:
    values = fields.get("clock")
    if not isinstance(values, list) or len(values) != 3:
        return None
    if not all(isinstance(value, int) and abs(value) < _LIMIT // 2 for value in values):
        return None
    return Reading(*values)
