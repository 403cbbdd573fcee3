"""Parse TAU's formats: text profiles (``profile.N.C.T``), merged XML and snapshots.

A text profile is one file per thread and metric: the number of functions and a row for each, the number of
aggregates, the number of user events and a row for each. Numbers may be fractional, negative in old tables,
or have more digits than a float.

No XML parser accepts TAU's XML: several documents are in one file, separated by control characters, one may
begin before the last has ended, and most of the text is lines of numbers. The text is therefore cut at the
relevant tags, and the rest is skipped. Documents that define entities are refused.
"""

import html
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

import numpy as np

from profiling.errors import UserError
from profiling.readers.files import open_text, read_lines, read_some

Thread = tuple[int, int, int]  # node, context and thread, as TAU numbers them

NAME = re.compile(r"^profile\.(\d{1,9})\.(\d{1,9})\.(\d{1,9})$")
_TEXT_HEAD = re.compile(rb"^\s*\d{1,9} templated_functions(?:_MULTI_(\S+))?\s*\n")
_COUNT = re.compile(r"^\s*(\d{1,9}) (aggregates|userevents)")
_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf))"
_FUNCTION = re.compile(r'^"(.*)" ' + " ".join([_NUMBER] * 5) + r'\s+GROUP="(.*)"\s*$')
_EVENT = re.compile(r'^"(.*)" ' + " ".join([_NUMBER] * 5) + r"\s*$")


@dataclass
class TextProfile:
    """One thread's profile in one metric."""

    metric: str  # ``TIME`` where the file does not say
    functions: list[str]
    intervals: np.ndarray  # a row a function: calls, subcalls, exclusive, inclusive (us, if a time)
    events: list[str]
    atomics: np.ndarray  # a row an event: count, maximum, minimum, mean, sum of squares


def metric_of(head: bytes) -> str | None:
    """The metric of the text profile that begins with ``head``; None if it is none."""
    match = _TEXT_HEAD.match(head)
    return None if match is None else (match[1] or b"TIME").decode("utf-8", "replace")


def read_text(path: Path) -> TextProfile:
    """Read one file; UserError: damaged or truncated; the message names the line."""
    lines = _Lines(path)
    metric = metric_of("\n".join([*lines.lines[:20], ""]).encode())
    if metric is None:
        raise UserError(f"{path} is not a text profile of TAU: it does not begin with a count of functions")
    functions, intervals = lines.rows(int(lines.next().split()[0]), _FUNCTION)
    events: list[str] = []
    atomics = np.empty((0, 5))
    line = lines.next()
    if _COUNT.match(line) is None:
        lines.fail("expected a count of aggregates or of user events")
    while (match := _COUNT.match(line)) is not None:
        if match[2] == "userevents":
            events, atomics = lines.rows(int(match[1]), _EVENT)
        else:
            lines.at += int(match[1])
        line = lines.next()
    if line:
        lines.fail(f"{line[:60]!r} after the last row")
    return TextProfile(metric, functions, intervals[:, :4], events, atomics)


class _Lines:
    def __init__(self, path: Path) -> None:
        self._path, self.lines, self.at = path, list(read_lines(path)), 0

    def fail(self, what: str) -> NoReturn:
        raise UserError(f"{self._path} is truncated or damaged at line {self.at}: {what}; fetch it again")

    def next(self) -> str:
        """The next line that is no comment; "" at the end."""
        while self.at < len(self.lines):
            line = self.lines[self.at]
            self.at += 1
            if line.strip() and not line.startswith("#"):
                return line
        return ""

    def rows(self, count: int, pattern: re.Pattern[str]) -> tuple[list[str], np.ndarray]:
        names: list[str] = []
        numbers: list[tuple[str, ...]] = []
        for _ in range(count):
            match = pattern.match(line := self.next())
            if match is None:
                self.fail(f"{count} rows expected, and row {len(names) + 1} is {line[:60]!r}")
            names.append(" ".join(match[1].split()))
            numbers.append(match.groups()[1:6])
        return names, np.array(numbers, dtype=np.float64).reshape(-1, 5)


_CHUNK_BYTES = 4 << 20
_TAG = re.compile(
    rb"<(?:(definitions|interval_data|atomic_data)\b([^<>]*)>"
    rb"|profile\s+thread=\"([^\"<>]*)\"[^<>]*>|(!DOCTYPE|!ENTITY))"
)
_ENDS = {name: b"</" + name + b">" for name in (b"definitions", b"interval_data", b"atomic_data")}
_DEFINED = re.compile(rb"<(event|userevent|metric)\s+id=\"(\d{1,9})\"[^<>]*>\s*<name>")
_NAME_BYTES = 1 << 16  # of a name at most
_CDATA = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.DOTALL)
_HEAD = re.compile(rb"\s*(?:<name>(.*?)</name>)?\s*(?:<timestamp>\s*(\d{1,18})\s*</timestamp>)?", re.DOTALL)
_LONGEST_TAG = 1 << 12
_LONGEST_SECTION = 128 << 20  # a million timers: 100 bytes each
_END = b"</profile_xml>"
_BETWEEN = bytes(range(33))  # white space and control characters


Names = dict[tuple[str, int], str]  # of timers ("event"), events ("userevent") and metrics, by number


@dataclass
class Section:
    """Lines of numbers, as they stand in the file."""

    text: bytes = b""
    at: int = 0  # where its tag begins in the file's text, in bytes

    def __bool__(self) -> bool:
        return bool(self.text.strip())


@dataclass
class Profile:
    """What one thread had done up to a moment."""

    thread: Thread
    own: Names  # for this thread only; never changed, but exchanged, as ``common``
    common: Names
    metrics: list[int] = field(default_factory=lambda: [0])  # their numbers, in the order of the columns
    # Rows of number, calls, subcalls, then exclusive and inclusive for each metric.
    intervals: Section = field(default_factory=Section)
    # Rows of number, count, maximum, minimum, mean, sum of squares.
    atomics: Section = field(default_factory=Section)

    def name(self, kind: str, number: int) -> str:
        """A name, the thread's own before the common one."""
        key = (kind, number)
        return self.own.get(key) or self.common.get(key) or f"({kind} {number})"


class Reader:
    """Reads a file of XML thread by thread; ``unended``: it ends in the middle, behind whole snapshots."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._common: Names = {}
        self._own: tuple[Thread | None, Names] = (None, {})
        self.snapshots: list[tuple[Thread, str, int]] = []
        self.unended = False

    def __iter__(self) -> Iterator[Profile]:
        """The last profile of each thread."""
        current: Profile | None = None
        before: Profile | None = None  # the snapshot before that, of the same thread
        for kind, attributes, text, at in _sections(self.path):
            if kind == b"end":
                current = before if current is not None and not current.intervals else current
                # A process that was killed leaves the snapshots that it had finished. A merged profile, which
                # has definitions for all threads, is written at the end: of that a part is missing.
                if current is None or any(of == "event" for of, _ in self._common):
                    raise UserError(f"{self.path} is truncated at byte {at} of its text; fetch it again")
                self.unended = True
            elif kind == b"definitions":
                match = re.search(rb'thread="([^"]*)"', attributes)
                whose = None if match is None or match[1] == b"*" else self._thread(match[1], at)
                if current is not None and whose not in (None, current.thread):
                    yield self._defined(current)
                    current = None
                defined = dict(_defined_in(text))
                if whose is None:
                    self._common = self._common | defined
                else:
                    self._own = whose, (self._own[1] if whose == self._own[0] else {}) | defined
            elif kind == b"profile":
                thread = self._thread(attributes, at)
                if (match := _HEAD.match(text)) and int(match[2] or 0):
                    self.snapshots.append((thread, _text(match[1] or b""), int(match[2])))
                if self._own[0] != thread:
                    self._own = thread, {}
                # A later snapshot of a thread holds all that an earlier one did.
                if current is not None and current.thread != thread:
                    yield self._defined(current)
                before = current if current is not None and current.thread == thread else None
                current = Profile(thread, self._own[1], self._common)
            elif current is None:
                raise UserError(f"{self.path} is damaged at byte {at} of its text: numbers without a thread")
            elif kind == b"interval_data":
                current.metrics = [int(one) for one in re.findall(rb"\d{1,6}", attributes)] or [0]
                current.intervals = Section(text, at)
            else:
                current.atomics = Section(text, at)
        if current is not None:
            yield self._defined(current)

    def _defined(self, profile: Profile) -> Profile:
        profile.common = self._common
        profile.own = self._own[1] if self._own[0] == profile.thread else profile.own
        return profile

    def _thread(self, text: bytes, at: int) -> Thread:
        numbers = re.findall(rb"\d{1,9}", text)
        if len(numbers) < 3:
            raise UserError(f"{self.path} is damaged at byte {at} of its text: {text[:40]!r} is not a thread")
        return int(numbers[0]), int(numbers[1]), int(numbers[2])


def _defined_in(text: bytes) -> Iterator[tuple[tuple[str, int], str]]:
    """Kind and number, and name, of all that a section defines, in time that grows as its length."""
    at = 0
    while (match := _DEFINED.search(text, at)) and (end := text.find(b"</name>", match.end())) >= 0:
        name = text[match.end() : end][:_NAME_BYTES]
        yield (match[1].decode(), int(match[2])), _text(name)
        at = end


@lru_cache(maxsize=1 << 14)
def _text(written: bytes) -> str:
    parts = _CDATA.split(written.decode("utf-8", "replace"))  # what stands in CDATA is every second one
    plain = "".join(part if place % 2 else html.unescape(part) for place, part in enumerate(parts))
    return " ".join(plain.split())


def _sections(path: Path) -> Iterator[tuple[bytes, bytes, bytes, int]]:
    """(kind, attributes, text, place) of each section; of kind ``end``: the file ends in the middle."""
    buffer, before, ended, closed = b"", 0, False, False
    with open_text(path) as stream:
        while True:
            position = 0
            while (match := _TAG.search(buffer, position)) is not None:
                if match[4]:
                    raise UserError(f"{path} defines entities, which TAU never does; it is not read")
                if match[1] is None:
                    end = match.end()
                    if len(buffer) - end < _LONGEST_TAG and not ended:
                        break
                    yield b"profile", match[3], buffer[end : end + _LONGEST_TAG], before + match.start()
                else:
                    end = buffer.find(_ENDS[match[1]], match.end())
                    if end < 0:
                        break
                    yield match[1], match[2], buffer[match.end() : end], before + match.start()
                position = end
            # A tag may be cut in two.
            position = match.start() if match is not None else max(position, len(buffer) - _LONGEST_TAG)
            if ended:
                if match is not None or not closed or buffer.rpartition(_END)[2].strip(_BETWEEN):
                    yield b"end", b"", b"", before + len(buffer)
                return
            buffer, before = buffer[position:], before + position
            if len(buffer) > _LONGEST_SECTION:
                raise UserError(f"{path} is damaged at byte {before} of its text: a section without an end")
            piece = read_some(path, stream.read, max(_CHUNK_BYTES, len(buffer)))
            ended = not piece
            buffer += piece
            closed = closed or _END in buffer
