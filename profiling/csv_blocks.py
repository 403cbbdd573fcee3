"""How is a CSV read that a tool printed among other lines, perhaps several tables one after the other?"""

import csv
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from profiling.chunks import open_text
from profiling.errors import UserError


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
        for number, line in enumerate(read_lines(self.path), 1):
            if not line.strip() or line.startswith("=="):
                header = header if line.startswith("==") else []
                continue
            cells = cells_of(line, self._delimiter)
            if self._is_header(cells):
                header = [cell.strip() for cell in cells]
            elif header and len(cells) == len(header):
                yield Row(header, cells, number)
            elif header:
                self.damaged += 1
