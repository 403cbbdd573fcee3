"""What does a text profile of TAU say (``profile.N.C.T``, one file a thread and metric)?

A count of functions, a row for each, a count of aggregates, a count of user events, a row for each. Numbers
may be fractional, negative in old tables, or of more digits than a float holds.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from profiling.errors import UserError
from profiling.readers.chunks import open_text

NAME = re.compile(r"^profile\.(\d{1,9})\.(\d{1,9})\.(\d{1,9})$")
HEAD = re.compile(rb"^\s*\d{1,9} templated_functions(?:_MULTI_(\S+))?\s*\n")
_COUNT = re.compile(r"^\s*(\d{1,9}) (aggregates|userevents)")
_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?(?:nan|inf))"
_FUNCTION = re.compile(r'^"(.*)" ' + " ".join([_NUMBER] * 5) + r'\s+GROUP="(.*)"\s*$')
_EVENT = re.compile(r'^"(.*)" ' + " ".join([_NUMBER] * 5) + r"\s*$")


@dataclass
class TextProfile:
    """One thread's profile in one metric.

    Attributes:
        metric: ``TIME`` where the file does not say.
        functions: names.
        intervals: a row a function: calls, subcalls, exclusive, inclusive (microseconds, if a time).
        events: names.
        atomics: a row an event: count, maximum, minimum, mean, sum of squares.
    """

    metric: str
    functions: list[str]
    intervals: np.ndarray
    events: list[str]
    atomics: np.ndarray


def metric_of(head: bytes) -> str | None:
    """The metric of the text profile that begins with ``head``; None if it is none."""
    match = HEAD.match(head)
    return None if match is None else (match[1] or b"TIME").decode("utf-8", "replace")


def read_text(path: Path) -> TextProfile:
    """Read one file.

    Raises:
        UserError: damaged or truncated; the message names the line.
    """
    with open_text(path) as stream:
        try:
            content = stream.read()
        except (OSError, EOFError) as error:
            raise UserError(f"{path} is truncated or damaged ({error}); fetch it again") from None
    metric = metric_of(content)
    if metric is None:
        raise UserError(f"{path} is not a text profile of TAU: it does not begin with a count of functions")
    lines = _Lines(path, content.decode("utf-8", "replace").split("\n"))
    functions, intervals = lines.rows(int(lines.next().split()[0]), _FUNCTION, 5)
    events: list[str] = []
    atomics = np.empty((0, 5))
    line = lines.next()
    if _COUNT.match(line) is None:
        lines.fail("expected a count of aggregates or of user events")
    while (match := _COUNT.match(line)) is not None:
        if match[2] == "userevents":
            events, atomics = lines.rows(int(match[1]), _EVENT, 5)
        else:
            lines.skip(int(match[1]))
        line = lines.next()
    if line:
        lines.fail(f"{line[:60]!r} after the last row")
    return TextProfile(metric, functions, intervals[:, :4], events, atomics)


class _Lines:
    def __init__(self, path: Path, lines: list[str]) -> None:
        self.path, self.lines, self.at = path, lines, 0

    def fail(self, what: str) -> None:
        raise UserError(f"{self.path} is truncated or damaged at line {self.at}: {what}; fetch it again")

    def next(self) -> str:
        """The next line that is no comment."""
        while self.at < len(self.lines):
            line = self.lines[self.at]
            self.at += 1
            if line.strip() and not line.startswith("#"):
                return line
        return ""

    def skip(self, count: int) -> None:
        self.at = min(self.at + count, len(self.lines))

    def rows(self, count: int, pattern: re.Pattern[str], width: int) -> tuple[list[str], np.ndarray]:
        names: list[str] = []
        numbers: list[tuple[str, ...]] = []
        for _ in range(min(count, len(self.lines))):
            match = pattern.match(line := self.next())
            if match is None:
                self.fail(f"{count} rows expected, and row {len(names) + 1} is {line[:60]!r}")
                break
            names.append(" ".join(match[1].split()))
            numbers.append(match.groups()[1 : 1 + width])
        if len(names) < count:
            self.fail(f"{count} rows expected, {len(names)} found")
        return names, np.array(numbers, dtype=np.float64).reshape(-1, width)
