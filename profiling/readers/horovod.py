"""Read Horovod's timeline: collectives, one event per line."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from profiling.attribution.windows import missing_ranks
from profiling.cost.operators import element_bytes
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.readers.files import UNKNOWN, Origin, load, rank_in, read_chunks, read_head, read_lines
from profiling.tables import as_table
from profiling.traced_job import TraceFacts

_OURS = re.compile(rb'"name"\s*:\s*"(NEGOTIATE_[A-Z]+|CYCLE_START|WAIT_FOR_(DATA|OTHER_TENSOR_DATA))"')
_ROWS = 1 << 16
_LATEST_US = 4e15
_COLLECTIVES = ("ALLREDUCE", "ALLGATHER", "BROADCAST", "ALLTOALL", "REDUCESCATTER", "ADASUM")
_BARRIER = "NEGOTIATE_BARRIER"
_START = "start_time_since_epoch_in_micros"  # of releases from 0.21 on
_SHAPE = re.compile(r"\d+")


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is a timeline of Horovod, by its events' names."""
    return head.lstrip()[:1] == b"[" and _OURS.search(head) is not None


def facts(path: Path) -> TraceFacts:
    """What a timeline says of its job: rank 0 writes it."""
    return TraceFacts(rank=rank_in(path) or 0, backend="horovod")


def stream(path: Path, findings: list[Finding], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """A timeline as pieces of tables, some thousand rows at a time; UserError: unreadable, or without events.

    Each collective is a row of ``kernels`` (``bytes`` is its tensor's size, ``layer`` its tensor's name);
    its negotiation and what it was made of are ranges of ``markers``. Times of releases before 0.21 count
    from a moment of Horovod's own.
    """
    timeline = _Timeline(path, origin.rank_of(path) or 0)
    seen = 0
    for event in timeline.events():
        seen += "ph" in event  # JSON of something else has no phases
        timeline.take(event)
        if len(timeline.kernels) + len(timeline.markers) >= _ROWS:
            yield from timeline.tables()
    if not seen:
        raise UserError(f"{path} holds no event of Horovod's timeline; is it the right file?")
    yield from timeline.tables()
    findings += timeline.findings()


class _Timeline:
    def __init__(self, path: Path, rank: int) -> None:
        self._path, self._rank = path, rank
        self._malformed = self._backwards = self._collectives = 0
        self._ready: set[int] = set()  # ranks
        self._tensors: dict[Any, str] = {}
        self._open: dict[Any, list[tuple[str, int]]] = {}  # name and start in ns of ranges that have begun
        self._cut = False
        self._start_ns = 0
        self._barriers: set[Any] = set()
        self.kernels: list[tuple[Any, ...]] = []
        self.markers: list[tuple[Any, ...]] = []

    def findings(self) -> list[Finding]:
        unended = sum(map(len, self._open.values()))
        of = max(self._ready, default=-1) + 1
        found = {
            Finding("recording_cut_short"): self._cut,
            Finding("records_damaged", data={"n": self._malformed, "what": "events"}): self._malformed,
            Finding("records_damaged", data={"n": self._backwards, "what": "ranges"}): self._backwards,
            Finding("not_recorded", data={"n": unended, "what": "ends of ranges"}): unended,
            Finding("recording_empty"): not self._collectives,
        }
        return [finding for finding, holds in found.items() if holds] + missing_ranks(self._ready, of)

    def events(self) -> Iterator[dict[str, Any]]:
        """The events; a line may hold several, or all, where a program rewrote the file."""
        rewritten = b"\n" not in read_head(self._path).strip()
        for events in read_chunks(self._path, {}) if rewritten else self._lines():
            sound = [event for event in events if isinstance(event, dict)]
            self._malformed += len(events) - len(sound)
            yield from sound

    def _lines(self) -> Iterator[list[Any]]:
        for line in read_lines(self._path):
            text = line.strip().removeprefix("[").removesuffix("]").strip().removesuffix(",")
            self._cut = False
            try:
                yield load(f"[{text}]".encode())
            except (json.JSONDecodeError, RecursionError):
                self._cut = True
                yield [None]

    def take(self, event: dict[str, Any]) -> None:
        """Add an event; a range when it ends."""
        phase, name, at = event.get("ph"), event.get("name"), event.get("ts")
        tensor = event.get("pid")
        key = tensor if isinstance(tensor, int | str) else str(tensor)
        args = event.get("args")
        if phase == "M":
            if name == "process_name" and isinstance(args, dict):
                start_us = args.get(_START)
                if _START not in args:
                    self._tensors[key] = str(args.get("name"))
                elif type(start_us) is int and 0 < start_us < _LATEST_US:  # all times count from there
                    self._start_ns = start_us * 1000
                else:
                    self._malformed += 1
            return
        sound = isinstance(at, int | float) and math.isfinite(at) and abs(at) < _LATEST_US
        if not sound or (phase != "E" and not isinstance(name, str)):
            self._malformed += 1
            return
        time_ns, number = self._start_ns + round(float(at) * 1000), _number(key)  # type: ignore[arg-type]
        if phase == "B":
            self._open.setdefault(key, []).append((str(name), time_ns))
        elif phase == "E":
            self._end(key, time_ns, args)
        elif phase == "X" and str(name).isdecimal() and len(str(name)) < 8:
            self._ready.add(int(str(name)))
        elif phase in ("i", "X"):
            self.markers.append((str(name), "mark", time_ns, time_ns, number))

    def _end(self, key: Any, time_ns: int, args: Any) -> None:
        begun = self._open.get(key)
        if not begun:
            self._malformed += key not in self._barriers  # Horovod ends them twice
            return
        name, start_ns = begun.pop()
        if name == _BARRIER:
            self._barriers.add(key)
        if time_ns < start_ns:
            self._backwards += 1
        elif name in _COLLECTIVES and not begun:
            self._collectives += 1
            size = _bytes(args) if isinstance(args, dict) else math.nan
            duration_ns, layer = time_ns - start_ns, self._tensors.get(key)
            self.kernels.append((f"hvd:{name.lower()}", start_ns, duration_ns, layer, size, _number(key)))
        else:
            self.markers.append((name, "range", start_ns, time_ns, _number(key)))

    def tables(self) -> Iterator[tuple[str, pa.Table]]:
        """What has been read since the last time."""
        if self.kernels:
            count = len(self.kernels)
            names, start_ns, duration_ns, layers, sizes, streams = zip(*self.kernels, strict=True)
            columns = {
                "rank": np.full(count, self._rank, dtype=np.int32), "start_ns": start_ns,
                "duration_ns": duration_ns, "name": names, "short_name": names,
                "class": ["communication"] * count, "direction": ["none"] * count, "operator": names,
                "layer": layers, "device": np.full(count, -1, dtype=np.int32), "stream": streams,
                "flops": np.zeros(count), "bytes": np.array(sizes, dtype=np.float64),
            }  # fmt: skip
            yield "kernels", as_table("kernels", columns)
        if self.markers:
            fields = ("name", "kind", "start_ns", "end_ns", "thread")
            of_markers = dict(zip(fields, zip(*self.markers, strict=True), strict=True))
            rank = np.full(len(self.markers), self._rank, dtype=np.int32)
            yield "markers", as_table("markers", {**of_markers, "rank": rank})
        self.kernels, self.markers = [], []


def _number(key: Any) -> int:
    return key if isinstance(key, int) and 0 <= key < 1 << 62 else -1


def _bytes(args: dict[str, Any]) -> float:
    """The size of the tensor that an event's dtype and shape tell; NaN if they do not."""
    element = element_bytes(str(args.get("dtype")))
    sizes = [int(size) for size in _SHAPE.findall(str(args.get("shape", "x"))) if len(size) < 18]
    return float(element * math.prod(sizes)) if element and "shape" in args else math.nan
