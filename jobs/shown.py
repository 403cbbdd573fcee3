"""How do rows of words look on a terminal? As a table or, if that would break a word (a path), as a list."""

import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console
from rich.table import Table
from rich.text import Text

_GAP = 2  # columns between two columns
_WIDE = 1000  # columns in a file or a pipe, where no line need be wrapped; the table takes what it needs


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        group: stands once above its rows.
        sign: of one column, before the others.
    """

    cells: Sequence[str]
    group: str = ""
    sign: Text | None = None


def show_rows(title: str, headings: Sequence[str], rows: Sequence[Row]) -> None:
    """Rows on standard output. In a list, a cell from the third on has its heading before it."""
    console = Console()
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDE
    signs = any(row.sign for row in rows)
    cells = [headings, *(row.cells for row in rows)]
    widths = widths_of(cells, console.width - signs - _GAP * (len(headings) - (not signs)))
    if widths is None:
        _show_list(title, headings, rows, console)
        return
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold")
    if signs:
        table.add_column("", width=1)
    for heading, width in zip(headings, widths, strict=True):
        table.add_column(heading, width=width)
    for group, inside in groupby(rows, lambda row: row.group):
        if group:
            table.add_row(*[""] * signs, Text(group, style="bold"))
        for row in inside:
            # Text: of a plain string, "pip install -e '.[mpi]'", its "[mpi]" would be read as markup.
            table.add_row(*[row.sign or Text("")] * signs, *map(Text, row.cells))
    with console.capture() as drawn:
        console.print(table)
    # A table is drawn as wide as its widest line, and blanks fill the others.
    print("\n".join(line.rstrip() for line in drawn.get().splitlines()))


def widths_of(rows: Sequence[Sequence[str]], room: int) -> list[int] | None:
    """Widths of a table's columns in which no word is broken; None: there is not so much room.

    What is left beyond the longest words goes to the columns by how much wider their cells are.
    """
    columns = list(zip(*rows, strict=True))
    least = [max((len(word) for cell in cells for word in cell.split()), default=0) for cells in columns]
    more = [max(map(len, cells)) - words for cells, words in zip(columns, least, strict=True)]
    left = room - sum(least)
    if left < 0:
        return None
    share = min(1.0, left / (sum(more) or 1))
    return [words + int(share * wider) for words, wider in zip(least, more, strict=True)]


def _show_list(title: str, headings: Sequence[str], rows: Sequence[Row], console: Console) -> None:
    """Each row in lines of its own; a word that is wider than the terminal stays one."""

    def say(words: str, indent: str, sign: Text | None = None, style: str = "") -> None:
        first = Text(indent) if sign is None else sign + Text(" ")
        wrapped = textwrap.wrap(
            words, max(1, console.width - len(indent)), break_long_words=False, break_on_hyphens=False
        )
        for number, line in enumerate(wrapped):
            console.print((Text(indent) if number else first) + Text(line, style=style), soft_wrap=True)

    say(title, "", style="italic")
    for group, inside in groupby(rows, lambda row: row.group):
        say(group, "  ", style="bold")
        for row in inside:
            name, what, *others = row.cells
            say(f"{name}: {what}", "  ", row.sign)
            for heading, cell in zip(headings[2:], others, strict=True):
                say(f"{heading}: {cell}" if cell else "", "    ")
