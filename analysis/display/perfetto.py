"""How is a timeline written so that Perfetto opens it? As its own trace format, whole columns at a time.

A trace is a sequence of protobuf packets (perfetto.dev/docs/reference/trace-packet-proto): tracks, words that
are numbered once (names, classes, layers), and for each slice a packet where it begins and one where it ends.
Times are whole nanoseconds. The JSON that Perfetto also opens has decimals of microseconds, and each word
again in every event: it is larger, and slower to write and to open.

Numbers are written at one width (protobuf allows leading zeros in its variable-length integers), so that a
column of a packet is a column of bytes: numpy fills a table of them, absent fields are cut out, and what is
left is the file. No event is ever an object of Python.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

# Field numbers of perfetto/trace/perfetto_trace.proto.
_PACKET = 1  # of Trace
_TIMESTAMP, _TRACK_EVENT, _TRACK_DESCRIPTOR, _CLOCK_SNAPSHOT, _INTERNED = 8, 11, 60, 6, 12
_SEQUENCE_ID, _SEQUENCE_FLAGS = 10, 13
_TYPE, _TRACK, _NAME, _CATEGORY, _ANNOTATION, _FLOW = 9, 11, 10, 3, 4, 47  # of TrackEvent
_BEGIN, _END, _INSTANT = 1, 2, 3  # of TrackEvent.Type
_WORDS = {"category": 1, "name": 2, "argument": 3, "text": 29}  # of InternedData
_BOOT_TIME, _REAL_TIME = 6, 1  # of BuiltinClock
_IN_GIVEN_ORDER = 3  # of TrackDescriptor.ChildTracksOrdering
_VARINT, _FIXED_64, _BYTES = 0, 1, 2  # wire types

_ROWS = 1 << 16  # that are made into bytes at a time
_TIME_BYTES, _TRACK_BYTES, _WORD_BYTES, _LENGTH_BYTES = 9, 3, 4, 3  # 7 bits each


@dataclass(frozen=True)
class Words:
    """A column of text: a place in ``known`` for each row, -1 where it has none."""

    codes: np.ndarray
    known: Sequence[str]

    @classmethod
    def same(cls, word: str, rows: int) -> "Words":
        return cls(np.zeros(rows, np.int32), [word])


@dataclass(frozen=True)
class Slices:
    """What happened on some tracks; arrays have one element a slice.

    On one track slices are in the order of time and do not overlap; tracks may alternate.

    Attributes:
        track: as :meth:`TraceWriter.track` numbered it.
        start_ns, end_ns: since the epoch, end >= start >= 0; None for ends: instants.
        arguments: what is shown of a selected slice; of numbers NaN is absent, integers are shown whole.
        flow: slices with the same number, 0 is none, are joined by arrows in the order of time.
    """

    track: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray | None
    name: Words
    category: Words | None = None
    arguments: dict[str, Words | np.ndarray] = field(default_factory=dict)
    flow: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.start_ns)


# --- protobuf, one message ----------------------------------------------------------------------------


def _varint(value: int) -> bytes:
    content = bytearray()
    while value > 127:
        content.append(value & 127 | 128)
        value >>= 7
    content.append(value)
    return bytes(content)


def _number(number: int, value: int) -> bytes:
    return _varint(number << 3 | _VARINT) + _varint(value)


def _content(number: int, content: bytes | str) -> bytes:
    content = content.encode("utf-8", "replace") if isinstance(content, str) else content
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


# --- protobuf, a column of messages -------------------------------------------------------------------


@dataclass(frozen=True)
class _Piece:
    """Some bytes of each row, shape (rows, width) or (1, width); which rows have them (None: all)."""

    bytes: np.ndarray
    present: np.ndarray | None = None

    @property
    def lengths(self) -> np.ndarray:
        width = self.bytes.shape[1]
        return np.array([width]) if self.present is None else width * self.present


def _constant(content: bytes, present: np.ndarray | None = None) -> _Piece:
    return _Piece(np.frombuffer(content, np.uint8)[None, :], present)


def _varints(values: np.ndarray, width: int) -> np.ndarray:
    """Integers from 0 to 2^(7 x width), each as a varint of ``width`` bytes, shape (values, width)."""
    digits = (values.astype(np.int64)[:, None] >> (7 * np.arange(width))) & 127
    digits[:, :-1] |= 128
    return digits.astype(np.uint8)


def _eights(values: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(values.astype(values.dtype.newbyteorder("<"))).view(np.uint8).reshape(-1, 8)


def _numbers(number: int, values: np.ndarray, width: int, present: np.ndarray | None = None) -> list[_Piece]:
    tag = _varint(number << 3 | _VARINT)
    return [_constant(tag, present), _Piece(_varints(values, width), present)]


def _message(number: int, pieces: Sequence[_Piece], present: np.ndarray | None = None) -> list[_Piece]:
    lengths = sum((piece.lengths for piece in pieces), np.zeros(1, np.int64))
    head = [
        _constant(_varint(number << 3 | _BYTES), present),
        _Piece(_varints(lengths, _LENGTH_BYTES), present),
    ]
    return [*head, *pieces]


def _joined(pieces: Sequence[_Piece], rows: int) -> bytes:
    """All pieces of the first row, then all of the second, and so on."""
    width = sum(piece.bytes.shape[1] for piece in pieces)
    table = np.empty((rows, width), np.uint8)
    kept = np.ones((rows, width), bool)
    at = 0
    for piece in pieces:
        place = slice(at, at := at + piece.bytes.shape[1])
        table[:, place] = piece.bytes
        if piece.present is not None:
            kept[:, place] = piece.present[:, None]
    return table[kept].tobytes()


# --- the trace ----------------------------------------------------------------------------------------


class Sink(Protocol):
    """Where a trace goes: a file, compressed or not."""

    def write(self, data: bytes, /) -> object: ...


class TraceWriter:
    """Writes a trace to ``file``, piece by piece; what it keeps is the words that were used."""

    def __init__(self, file: Sink) -> None:
        self._file = file
        self._tracks = 0
        self._words: dict[str, dict[str, int]] = {kind: {} for kind in _WORDS}
        # 1: words are numbered anew from here on; 2 (of the packets that use them): they are needed.
        self._packet(_number(_SEQUENCE_FLAGS, 1))

    def start(self, start_ns: int) -> None:
        """Say that the trace's clock is the time since the epoch, and when it starts."""
        clocks = b"".join(
            _content(1, _number(1, clock) + _number(2, start_ns)) for clock in (_BOOT_TIME, _REAL_TIME)
        )
        self._packet(_number(_TIMESTAMP, start_ns) + _content(_CLOCK_SNAPSHOT, clocks))

    def process(self, number: int, name: str) -> int:
        """A group of tracks, shown in the order in which they are added; its own track's number."""
        process = _content(3, _number(1, number) + _content(6, name))
        return self._descriptor(process + _number(11, _IN_GIVEN_ORDER))

    def track(self, parent: int | None, name: str) -> int:
        """A track for slices; the number by which :class:`Slices` call it."""
        below = b"" if parent is None else _number(5, parent)
        return self._descriptor(_content(2, name) + below + _number(12, self._tracks))

    def slices(self, slices: Slices) -> None:
        """Add slices; see :class:`Slices` for their order."""
        for at in range(0, len(slices), _ROWS):
            rows = slice(at, at + _ROWS)
            self._file.write(self._chunk(slices, rows, len(slices.start_ns[rows])))

    def _descriptor(self, content: bytes) -> int:
        self._tracks += 1
        self._packet(_content(_TRACK_DESCRIPTOR, _number(1, self._tracks) + content))
        return self._tracks

    def _packet(self, content: bytes) -> None:
        self._file.write(_content(_PACKET, content + _number(_SEQUENCE_ID, 1)))

    def _chunk(self, slices: Slices, rows: slice, count: int) -> bytes:
        track = _numbers(_TRACK, slices.track[rows], _TRACK_BYTES)
        kind = _BEGIN if slices.end_ns is not None else _INSTANT
        event = [_constant(_number(_TYPE, kind)), *track, *self._word(_NAME, "name", slices.name, rows)]
        if slices.category is not None:
            event += self._word(_CATEGORY, "category", slices.category, rows)
        for name, values in slices.arguments.items():
            event += self._argument(name, values, rows)
        if slices.flow is not None:
            flow = slices.flow[rows].astype(np.uint64)
            event += [_constant(_varint(_FLOW << 3 | _FIXED_64), flow > 0), _Piece(_eights(flow), flow > 0)]
        pieces = _event_packet(slices.start_ns[rows], event)
        if slices.end_ns is not None:
            # An end stands behind its own beginning and before the next: of one moment they stay in order.
            pieces += _event_packet(slices.end_ns[rows], [_constant(_number(_TYPE, _END)), *track])
        return _joined(pieces, count)

    def _argument(self, name: str, values: Words | np.ndarray, rows: slice) -> list[_Piece]:
        called = _constant(_number(1, self._numbered("argument", [name])[0]))
        if isinstance(values, Words):
            present = values.codes[rows] >= 0
            value = self._word(17, "text", values, rows)
        elif values.dtype.kind == "f":
            present = ~np.isnan(values[rows])
            value = [_constant(_varint(5 << 3 | _FIXED_64)), _Piece(_eights(values[rows].astype(np.float64)))]
        else:
            present = values[rows] >= 0
            value = _numbers(4, np.maximum(values[rows], 0), _TIME_BYTES)
        inside = [_Piece(piece.bytes, present) for piece in (called, *value)]
        return _message(_ANNOTATION, inside, present)

    def _word(self, number: int, kind: str, words: Words, rows: slice) -> list[_Piece]:
        codes = words.codes[rows]
        used = np.unique(codes[codes >= 0])
        numbers = np.zeros(len(words.known) + 1, np.int64)  # one more: -1 is the last
        numbers[used] = self._numbered(kind, [words.known[code] for code in used])
        return _numbers(number, numbers[codes], _WORD_BYTES, codes >= 0)

    def _numbered(self, kind: str, words: Sequence[str]) -> list[int]:
        """The numbers of words; new ones are written first."""
        numbers = self._words[kind]
        new = [word for word in dict.fromkeys(words) if word not in numbers]
        for word in new:
            numbers[word] = len(numbers) + 1
        if new:
            content = b"".join(
                _content(_WORDS[kind], _number(1, numbers[word]) + _content(2, word)) for word in new
            )
            self._packet(_content(_INTERNED, content) + _number(_SEQUENCE_FLAGS, 2))
        return [numbers[word] for word in words]


def _event_packet(times_ns: np.ndarray, event: Sequence[_Piece]) -> list[_Piece]:
    head = _numbers(_TIMESTAMP, times_ns, _TIME_BYTES)
    of_sequence = _constant(_number(_SEQUENCE_ID, 1) + _number(_SEQUENCE_FLAGS, 2))
    return _message(_PACKET, [*head, of_sequence, *_message(_TRACK_EVENT, event)])
