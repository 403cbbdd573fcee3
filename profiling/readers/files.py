"""Context of a profiler's file from outside it; reading text and large JSON traces, plain or gzip, in pieces.

A trace is cut between two events, and each piece is parsed by a fast parser. A cut is a guess (``},{`` may be
part of a string or a list inside an event), which is confirmed if the piece is valid JSON: only whole events
are.
"""

import gzip
import json
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson

from profiling.errors import UserError
from profiling.tables import refuse_pipe


@dataclass(frozen=True)
class Origin:
    """What is known of a file from outside it."""

    # that it is of, for the tables' rows; None: what the file says, or its name (``rank3``), else 0
    rank: int | None = None
    # index of the batch with which the recording began; None: not known, taken for 0
    first_batch: int | None = None
    world_size: int = 1  # of how many ranks it is one, so that missing collectives are found
    mode: str = "auto"  # in which of the tool's ``modes`` it was recorded
    batches: bool = False  # whether the table ``batches`` is to be made of it, because nobody else kept one
    # a regular expression; ranges whose names it is found in are the batches. "": none are
    batch_marker: str = ""

    def rank_of(self, path: Path) -> int | None:
        """The rank that is known, else what the name of ``path`` or of a folder it lies in says."""
        return rank_in(path) if self.rank is None else self.rank


UNKNOWN = Origin()  # of a file about which nothing else is known
NSYS_REPORT = b"NVIDIA Tegra Profiler Report"  # the first bytes of a report of Nsight Systems
# TAU's files of a thread, and the folders of a run with several metrics.
TAU_THREAD_FILE = re.compile(r"^(profile|snapshot)\.\d{1,9}\.\d{1,9}\.\d{1,9}$")
TAU_METRIC_FOLDER = "MULTI__"

# A word of its own: frank2 is no rank.
_RANK = re.compile(r"(?<![a-z])(?:rank|worker)[_.-]?(\d{1,9})", re.IGNORECASE)


def rank_in(path: Path) -> int | None:
    """The rank that a file's name, or that of a folder it lies in, says (``rank3``, ``rank_0003``)."""
    matches = [match for name in (path.name, *reversed(path.parent.parts)) if (match := _RANK.search(name))]
    return int(matches[0][1]) if matches else None


CHUNK_BYTES = 8 << 20
# Of what stands before a trace's events, or behind them; of an event; of a line of a text. Traces may be one
# line of any length, and no tool writes an event of 1 MB, or prints a launch and its metrics in 100 KB.
MOST_BYTES = 64 << 20
_GUESSES = 8
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')
# Of a file that is truncated, or no gzip though it begins as one.
BROKEN = (EOFError, gzip.BadGzipFile, zlib.error)


def open_text(path: Path) -> BinaryIO:
    """A file's bytes, decompressed if it is gzip; UserError: it is absent, a folder, or may not be read."""
    try:
        refuse_pipe(path)
        with path.open("rb") as file:
            compressed = file.read(2) == b"\x1f\x8b"
        return cast(BinaryIO, gzip.open(path, "rb")) if compressed else path.open("rb")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None


def read_head(path: Path, size: int = 1 << 20) -> bytes:
    """The first bytes of a file, decompressed, without a byte order mark; as many as can be read."""
    head = bytearray()
    with open_text(path) as stream, suppress(*BROKEN):
        while len(head) < size and (more := stream.read(min(size - len(head), 1 << 16))):
            head += more
    return bytes(head).removeprefix(BOM_UTF8)


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text without their ends; UserError: unreadable, truncated or no text."""
    with open_text(path) as stream:
        while line := read_some(path, stream.readline, MOST_BYTES):
            if len(line) == MOST_BYTES:
                raise UserError(f"{path} has a line of over {MOST_BYTES >> 20} MB; is it the right file?")
            yield line.decode("utf-8", "replace").rstrip("\r\n").removeprefix("\ufeff").replace("\0", "")


def read_some(path: Path, read: Callable[[int], bytes], size: int) -> bytes:
    """What an opened text reads next; UserError: it ends too early, or its data or checksum are wrong."""
    try:
        return read(size)
    except BROKEN as error:
        raise UserError(f"{path} is truncated or damaged ({error}); write or fetch it again") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None


def why_unreadable(path: Path) -> str:
    """What is wrong with a file's first bytes, as the end of an error; "" if nothing is."""
    if path.stat().st_size == 0:
        return "is empty; write or fetch it again"
    with open_text(path) as stream:
        try:
            head = stream.read(1 << 20)
        except BROKEN as error:
            return f"is truncated or damaged ({error}); write or fetch it again"
    utf16 = head[:2] in (b"\xff\xfe", b"\xfe\xff")
    return "is UTF-16, as PowerShell writes it; convert it (iconv -f UTF-16 -t UTF-8)" if utf16 else ""


def read_chunks(path: Path, facts: dict[str, Any]) -> Iterator[list[Any]]:
    """The events of a trace, some thousand at a time; ``facts`` receives its other fields.

    Raises:
        UserError: unreadable, truncated, or no trace; the message says where.
    """
    with open_text(path) as stream:
        text = _Text(path, stream)
        is_object = text.enter(facts)
        size = CHUNK_BYTES
        while not text.ended:
            text.fill(size)
            events = next(filter(None, map(text.events_until, _cuts(text.buffer))), None)
            if not events and not text.ended and len(text.buffer) > MOST_BYTES:
                raise text.fail(0)
            size = CHUNK_BYTES if events else 2 * len(text.buffer) + CHUNK_BYTES
            if events:
                yield events
        yield text.finish(facts, is_object)


def read_facts(path: Path) -> dict[str, Any]:
    """The fields of a trace that stand before its events; UserError: unreadable, or no trace."""
    facts: dict[str, Any] = {}
    with open_text(path) as stream:
        _Text(path, stream).enter(facts)
    return facts


class _Text:
    def __init__(self, path: Path, stream: BinaryIO) -> None:
        self.path, self.stream = path, stream
        self.buffer = b""
        self.before = 0  # bytes of text that have been handed on
        self.ended = False

    def fail(self, at: int, error: Exception | None = None) -> UserError:
        what = "nested too deeply" if isinstance(error, RecursionError) else "truncated or damaged"
        place = f"byte {self.before + at} of its text"
        return UserError(f"{self.path} is {what} at {place}; write or fetch it again")

    def fill(self, size: int) -> None:
        """Read until the buffer holds ``size`` bytes or the file ends."""
        buffer = bytearray(self.buffer)
        while len(buffer) < size and not self.ended:
            piece = read_some(self.path, self.stream.read, min(size - len(buffer), CHUNK_BYTES))
            self.ended = not piece
            buffer += piece
        self.buffer = bytes(buffer)

    def skip(self, size: int) -> None:
        self.buffer = self.buffer[size:]
        self.before += size

    def enter(self, facts: dict[str, Any]) -> bool:
        """Go to the first event; whether the trace is an object (else it is a bare list)."""
        self.fill(1 << 16)
        start = self.buffer.removeprefix(BOM_UTF8).lstrip()
        if start.startswith(b"["):
            self.skip(len(self.buffer) - len(start) + 1)
            return False
        if not start.startswith(b"{"):
            raise UserError(f"{self.path} is not a JSON trace: it does not begin with {{ or [")
        while True:
            for match in _EVENTS.finditer(self.buffer):
                head = _parse(self.buffer[: match.start()].removeprefix(BOM_UTF8) + b'"":0}')
                if isinstance(head, dict):  # else the words stand inside a text
                    facts.update(head)
                    self.skip(match.end())
                    return True
            if self.ended or len(self.buffer) >= MOST_BYTES:
                raise UserError(f'{self.path} is not a trace of PyTorch\'s profiler: it has no "traceEvents"')
            self.fill(2 * len(self.buffer))

    def events_until(self, cut: int) -> list[Any] | None:
        """The events before ``cut``; None if that is not between two events."""
        try:
            events: list[Any] = load(b"[" + self.buffer[:cut] + b"]")
        except json.JSONDecodeError as error:
            # A wrong cut leaves a text unterminated, an event's list open at the end, or data behind the
            # events; all else is damage, wherever the cut.
            if not error.msg.startswith(("Unterminated", "Extra data")) and error.pos < len(error.doc) - 2:
                raise self.fail(error.pos - 1) from None
            return None
        except RecursionError as error:
            raise self.fail(0, error) from None
        self.skip(cut + 1)
        return events

    def finish(self, facts: dict[str, Any], is_object: bool) -> list[Any]:
        try:
            events, text, end = _first_value("[" + self.buffer.decode("utf-8", "replace"))
        except (json.JSONDecodeError, RecursionError) as error:
            raise self.fail(max(0, getattr(error, "pos", 0) - 1), error) from None
        rest = text[end:].strip().removeprefix(",").encode()
        after = _parse(b"{" + rest) if is_object else {}
        if not isinstance(after, dict) or (not is_object and rest):
            raise self.fail(end - 1)
        facts.update(after)
        return cast(list[Any], events)


def _cuts(text: bytes) -> Iterator[int]:
    """Where commas between two objects stand, from the end; at most a few."""
    position, count = len(text), 0
    while count < _GUESSES:
        position = text.rfind(b"{", 0, position)
        if position < 0:
            return
        before = text[max(0, position - 256) : position].rstrip()
        if before.endswith(b",") and before[:-1].rstrip().endswith(b"}"):
            count += 1
            yield max(0, position - 256) + len(before) - 1


def _parse(text: bytes) -> Any:
    """Parsed JSON; None if it is none."""
    try:
        return load(text)
    except (json.JSONDecodeError, RecursionError):
        return None


def load(text: bytes) -> Any:
    """Parsed JSON; what PyTorch's writers let through is read too (:func:`_repaired`)."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        readable = text.decode("utf-8", "replace")
    try:
        return json.loads(readable, strict=False)  # not strict: texts may hold line ends
    except json.JSONDecodeError:
        return json.loads(_repaired(readable), strict=False)


def _first_value(text: str) -> tuple[Any, str, int]:
    """(the JSON value at the head of ``text``, the text as it had to be read, where in it the value ends)."""
    decoder = json.JSONDecoder(strict=False)
    try:
        value, end = decoder.raw_decode(text)
    except json.JSONDecodeError as error:
        text = _repaired(text)
        try:
            value, end = decoder.raw_decode(text)
        except json.JSONDecodeError:
            raise error from None
    return value, text, end


_ESCAPE = re.compile(r'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_NO_NUMBER = re.compile(r"(?<=[:\[,])(\s*)[-+]?(?:nan|inf)(?:inity)?(?:\(\w*\))?(?=\s*[,}\]])", re.IGNORECASE)
_LAST_COMMA = re.compile(r",(\s*[\]}])")


def _repaired(text: str) -> str:
    """JSON without faults of real writers: single backslashes, C++'s ``inf`` and ``-nan``, a last comma."""
    text = _ESCAPE.sub(lambda found: found[0] if found[1] else r"\\", text)
    text = _NO_NUMBER.sub(r"\1null", text)
    return _LAST_COMMA.sub(r"\1", text)
