"""How is a CSV read that a tool printed among other lines, perhaps several tables one after the other?"""

import csv
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from profiling.errors import UserError
from profiling.readers.chunks import open_text

_LINES_OF_A_ROW = 64  # a quoted text has fewer; beyond that its end is missing


@dataclass
class Row:
    """A row with the names of its table's columns.

    Attributes:
        header: the same object for all rows of a table.
        line: where the row stands, from 1.
    """

    header: list[str]
    cells: list[str]
    line: int

    @property
    def values(self) -> dict[str, str]:
        """The cells by column."""
        return dict(zip(self.header, self.cells, strict=True))


def read_lines(path: Path) -> Iterator[str]:
    """The lines of a text, decompressed if it is gzip, without their ends.

    Raises:
        UserError: unreadable, truncated or no text.
    """
    with open_text(path) as stream:
        try:
            for line in stream:
                yield line.decode("utf-8", "replace").rstrip("\r\n").removeprefix("\ufeff").replace("\0", "")
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"{path} is truncated or damaged ({error}); fetch it again") from None


def cells_of(line: str, delimiter: str = ",") -> list[str]:
    """The cells of a line; none if it is no CSV."""
    try:
        return next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:  # a line end within, or a cell longer than any is
        return []


class Blocks:
    """The rows of all tables in a text.

    Args:
        is_header: whether these cells name the columns of a table.
        delimiter: between cells.

    Attributes:
        damaged: rows with more or fewer cells than their table has columns.
    """

    def __init__(self, path: Path, is_header: Callable[[list[str]], bool], delimiter: str = ",") -> None:
        self.path, self._is_header, self._delimiter = path, is_header, delimiter
        self.damaged = 0

    def __iter__(self) -> Iterator[Row]:
        header: list[str] = []
        lines = _Lines(self.path)
        for number, line in lines:
            if not line.strip() or line.startswith("=="):
                header = header if line.startswith("==") else []
                continue
            cells = cells_of(line, self._delimiter)
            if self._is_header(cells):
                header = [cell.strip() for cell in cells]
                continue
            if header and line.count('"') % 2:
                cells = self._with_breaks(line, len(header), lines) or cells
            if header and len(cells) == len(header):
                yield Row(header, cells, number)
            elif header:
                self.damaged += 1

    def _with_breaks(self, line: str, width: int, lines: "_Lines") -> list[str]:
        """The cells of a row whose quoted text goes on over the next lines; none if it is not that."""
        for count, (_, more) in enumerate(lines.ahead(_LINES_OF_A_ROW), 1):
            odd = more.count('"') % 2
            if not odd and len(cells_of(more, self._delimiter)) == width:
                return []  # the next row: this one is cut
            line += "\n" + more
            if odd:
                cells = cells_of(line, self._delimiter)
                if len(cells) != width:
                    return []
                lines.skip(count)
                return cells
        return []


class _Lines:
    """The numbered lines of a text; one may look at those to come."""

    def __init__(self, path: Path) -> None:
        self._numbered = enumerate(read_lines(path), 1)
        self._ahead: deque[tuple[int, str]] = deque()

    def __iter__(self) -> Iterator[tuple[int, str]]:
        while self._ahead or list(self.ahead(1)):
            yield self._ahead.popleft()

    def ahead(self, most: int) -> Iterator[tuple[int, str]]:
        """Up to so many of the lines to come; they stay to come."""
        for place in range(most):
            if place == len(self._ahead):
                line = next(self._numbered, None)
                if line is None:
                    return
                self._ahead.append(line)
            yield self._ahead[place]

    def skip(self, count: int) -> None:
        """Pass over lines that were looked at."""
        for _ in range(count):
            self._ahead.popleft()
