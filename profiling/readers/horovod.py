"""Horovod's timeline: its collectives, one event a line."""

import codecs
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from profiling.attribution.checks import malformed_finding
from profiling.cost.shapes import element_bytes
from profiling.errors import UserError
from profiling.readers.origin import UNKNOWN, Origin, rank_in
from profiling.readers.printed import read_lines
from profiling.tables import as_table
from profiling.traced_job import TraceFacts
from profiling.wording import how_many, verb

_ROWS = 1 << 16
_LATEST_US = 4e15
_COLLECTIVES = ("ALLREDUCE", "ALLGATHER", "BROADCAST", "ALLTOALL", "REDUCESCATTER", "ADASUM")
_BARRIER = "NEGOTIATE_BARRIER"
_START = "start_time_since_epoch_in_micros"  # of releases from 0.21 on
_SHAPE = re.compile(r"\d+")

Open = tuple[str, int]  # name and start in ns of a range that has begun


class Timeline:
    """Reads a timeline event by event; only what is open is held."""

    def __init__(self, path: Path, rank: int) -> None:
        self.path, self.rank = path, rank
        self.malformed = self.unended = self.backwards = 0
        self.ranks: set[int] = set()  # that were seen to be ready
        self.collectives = 0
        self._tensors: dict[Any, str] = {}
        self._open: dict[Any, list[Open]] = {}
        self._cut = False
        self._start_ns = 0
        self._barriers: set[Any] = set()
        self._kernels: list[tuple[Any, ...]] = []
        self._markers: list[tuple[Any, ...]] = []

    def pieces(self) -> Iterator[tuple[str, pa.Table]]:
        """Pieces of tables ``kernels`` and ``markers``, some thousand rows at a time.

        Raises:
            UserError: unreadable, or no event is in it.
        """
        seen = 0
        for event in self._events():
            seen += "ph" in event  # JSON of something else has no phases
            self._take(event)
            if len(self._kernels) + len(self._markers) >= _ROWS:
                yield from self._tables()
        if not seen:
            raise UserError(f"{self.path} holds no event of Horovod's timeline; is it the right file?")
        self.unended = sum(map(len, self._open.values()))
        yield from self._tables()

    def findings(self) -> list[str]:
        """What is to be said of it."""
        texts = []
        if self._cut:
            texts.append("its last line is incomplete: Horovod was still writing, or was killed")
        if self.malformed:
            texts.append(malformed_finding(self.malformed))
        if self.backwards:
            texts.append(
                f"{how_many(self.backwards, 'range')} {verb(self.backwards, 'end')} before the beginning: "
                "the clock went backwards"
            )
        if self.unended:
            texts.append(f"{how_many(self.unended, 'range')} never ended: left out")
        if not self.collectives:
            texts.append("no collective was completed: one rank, or the timeline was cut short")
        missing = sorted(set(range(max(self.ranks, default=-1) + 1)) - self.ranks)
        if missing:
            texts.append(f"rank {', '.join(map(str, missing))} was never ready")
        return texts

    def _events(self) -> Iterator[dict[str, Any]]:
        for line in read_lines(self.path):
            text = line.strip().removeprefix("[").removesuffix("]").strip().removesuffix(",")
            self._cut = False
            if not text:
                continue
            try:
                event = orjson.loads(text)
            except orjson.JSONDecodeError:
                yield from self._several(text)
                continue
            if isinstance(event, dict):
                yield event
            else:
                self.malformed += 1

    def _several(self, text: str) -> Iterator[dict[str, Any]]:
        """The events of a line with more than one, as a program that rewrote the file would leave it."""
        try:
            events = json.loads(f"[{text}]")
        except (json.JSONDecodeError, RecursionError):
            self._cut = True
            self.malformed += 1
            return
        yield from (event for event in events if isinstance(event, dict))

    def _take(self, event: dict[str, Any]) -> None:
        phase, tensor, name, at = event.get("ph"), event.get("pid"), event.get("name"), event.get("ts")
        if phase == "M":
            args = event.get("args")
            if name == "process_name" and isinstance(args, dict):
                if _START in args:
                    self._begin(args[_START])
                else:
                    self._tensors[_key(tensor)] = str(args.get("name"))
            return
        sound = isinstance(at, int | float) and math.isfinite(at) and abs(at) < _LATEST_US
        if not sound or (phase != "E" and not isinstance(name, str)):
            self.malformed += 1
            return
        time_ns, key = self._start_ns + round(float(at) * 1000), _key(tensor)  # type: ignore[arg-type]
        if phase == "B":
            self._open.setdefault(key, []).append((str(name), time_ns))
        elif phase == "E":
            self._end(key, time_ns, event.get("args"))
        elif phase == "X" and str(name).isdecimal() and len(str(name)) < 8:
            self.ranks.add(int(str(name)))
        elif phase in ("i", "X"):
            self._markers.append((str(name), "mark", time_ns, time_ns, _number(key)))

    def _begin(self, start_us: Any) -> None:
        """Horovod's first event says when it began; all times count from there."""
        if type(start_us) is int and 0 < start_us < _LATEST_US:
            self._start_ns = start_us * 1000
        else:
            self.malformed += 1

    def _end(self, key: Any, time_ns: int, args: Any) -> None:
        begun = self._open.get(key)
        if not begun:
            self.malformed += key not in self._barriers  # Horovod ends them twice
            return
        name, start_ns = begun.pop()
        if name == _BARRIER:
            self._barriers.add(key)
        if time_ns < start_ns:
            self.backwards += 1
        elif name in _COLLECTIVES and not begun:
            self.collectives += 1
            size = _bytes(args) if isinstance(args, dict) else math.nan
            row = (f"hvd:{name.lower()}", start_ns, time_ns - start_ns, self._tensors.get(key), size)
            self._kernels.append((*row, _number(key)))
        else:
            self._markers.append((name, "range", start_ns, time_ns, _number(key)))

    def _tables(self) -> Iterator[tuple[str, pa.Table]]:
        kernels, markers = list(zip(*self._kernels, strict=True)), list(zip(*self._markers, strict=True))
        if kernels:
            count = len(kernels[0])
            columns = {
                "rank": np.full(count, self.rank, dtype=np.int32), "start_ns": kernels[1],
                "duration_ns": kernels[2], "name": kernels[0], "short_name": kernels[0],
                "class": ["communication"] * count, "direction": ["none"] * count, "operator": kernels[0],
                "layer": kernels[3], "device": np.full(count, -1, dtype=np.int32), "stream": kernels[5],
                "flops": np.zeros(count), "bytes": np.array(kernels[4], dtype=np.float64),
            }  # fmt: skip
            yield "kernels", as_table("kernels", columns)
        if markers:
            names = ("name", "kind", "start_ns", "end_ns", "thread")
            columns = dict(zip(names, markers, strict=True))
            columns["rank"] = np.full(len(markers[0]), self.rank, dtype=np.int32)
            yield "markers", as_table("markers", columns)
        self._kernels, self._markers = [], []


def _key(tensor: Any) -> Any:
    return tensor if isinstance(tensor, int | str) else str(tensor)


def _number(key: Any) -> int:
    return key if isinstance(key, int) and 0 <= key < 1 << 62 else -1


def _bytes(args: dict[str, Any]) -> float:
    """The size of the tensor that an event's dtype and shape tell; NaN if they do not."""
    element = element_bytes(str(args.get("dtype")))
    sizes = [int(size) for size in _SHAPE.findall(str(args.get("shape", "x"))) if len(size) < 18]
    return float(element * math.prod(sizes)) if element and "shape" in args else math.nan


_OURS = re.compile(rb'"name"\s*:\s*"(NEGOTIATE_[A-Z]+|CYCLE_START|WAIT_FOR_(DATA|OTHER_TENSOR_DATA))"')


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is a timeline of Horovod, by its events' names."""
    return head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"[" and _OURS.search(head) is not None


def facts(path: Path) -> TraceFacts:
    """What a timeline says of its job: rank 0 writes it."""
    return TraceFacts(rank=rank_in(path) or 0, backend="horovod", shapes=False)


def stream(path: Path, findings: list[str], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """A timeline as pieces of tables.

    Each collective is a row of ``kernels`` (``bytes`` is its tensor's size, ``layer`` its tensor's name);
    its negotiation and what it was made of are ranges of ``markers``. Times of releases before 0.21 count
    from a moment of Horovod's own.
    """
    timeline = Timeline(path, origin.rank_of(path) or 0)
    yield from timeline.pieces()
    findings += [f"{path.name}: {finding}" for finding in timeline.findings()]
