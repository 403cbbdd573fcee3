"""How does a table fit into a terminal? Shorter names, wrapped headings, and then fewer columns.

What is left out is said: the names' common parts, and the columns. No figure is cut.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

from analysis.display.metrics import Column, Rows
from analysis.display.numbers import shortened

_BETWEEN = 2  # blanks between two columns
_EDGES = 2  # blanks before the first and behind the last column
_LONG_NAME = 12  # characters from which on names lose what all begin or end with
_NAME_LENGTHS = (24, 16)  # characters to which names are cut, in the middle, where nothing else helps
_WORTH_IT = 3  # characters that a cut name has to lose
_LONG_TEXT = 30  # characters from which on text that is no name is wrapped
_INTERVAL = re.compile(r"\s*\[[^\]]*\]")
_TOKEN = re.compile(r"\[[^\]]*\]|\S+")  # of a heading: "[>=95 %]" is one
_PART_OF_A_NAME = re.compile(r"[_\-./ ]")


@dataclass(frozen=True)
class Fitted:
    """The columns that are shown, and what was left out of names and columns, a line each."""

    columns: list[Column]
    notes: list[str]


def fit(rows: Rows, columns: Sequence[Column], width: int) -> Fitted:
    """The columns of a table as they fit into ``width`` characters; all of them as they are, if they do.

    Columns of the least priority are dropped first, of equal ones the last; those that tell rows apart stay.
    """
    if width_of(rows, columns) <= width:
        return Fitted(list(columns), [])
    columns, notes = _without_common_parts(rows, _with_keys(columns))
    columns = _headings_wrapped(rows, columns, width)
    columns = _texts_wrapped(rows, columns, width)
    for most in _NAME_LENGTHS:
        if width_of(rows, columns) > width:
            columns = [_cut(one, rows, most) if one.key and one.left else one for one in columns]
    kept = _most_important(rows, columns, width)
    dropped = [one for one in columns if one not in kept]
    if dropped:
        kept = _texts_wrapped(rows, [replace(one, width=None) for one in kept], width)
        named = "; ".join(_in_a_line(one.header) for one in dropped)
        notes.append(f"Not shown in {width} columns: {named} (--wide or --format csv shows all).")
    return Fitted(kept, notes)


def _with_keys(columns: Sequence[Column]) -> list[Column]:
    """The same columns; where none is said to tell rows apart, the first ones of text do."""
    if any(one.key for one in columns):
        return list(columns)
    first = len(list(takewhile(lambda one: one.left, columns)))
    return [replace(one, key=place < first) for place, one in enumerate(columns)]


def width_of(rows: Rows, columns: Sequence[Column]) -> int:
    """Of the table, in characters."""
    return sum(_width(one, rows) for one in columns) + _BETWEEN * (len(columns) - 1) + _EDGES


def _width(column: Column, rows: Rows) -> int:
    return max(_of_heading(column.header), column.width or _of_cells(column, rows))


def _of_heading(header: str) -> int:
    return max(map(len, header.split("\n")))


def _of_cells(column: Column, rows: Rows) -> int:
    return max((len(column.text(row)) for row in rows), default=0)


def _in_a_line(header: str) -> str:
    return " ".join(_INTERVAL.sub("", header).replace("-\n", "").split())


def _headings_wrapped(rows: Rows, columns: Sequence[Column], width: int) -> list[Column]:
    """Headings in more lines, those first that give most room, until the table fits."""
    fitted = list(columns)
    over = width_of(rows, columns) - width
    narrow = [replace(one, header=_wrapped(one, rows)) for one in columns]
    gains = [_width(one, rows) - _width(less, rows) for one, less in zip(columns, narrow, strict=True)]
    for place in sorted(range(len(fitted)), key=lambda place: -gains[place]):
        if over > 0 and gains[place]:
            fitted[place] = narrow[place]
            over -= gains[place]
    return fitted


def _wrapped(column: Column, rows: Rows) -> str:
    """The heading in more lines, where it is wider than the cells."""
    cells = _of_cells(column, rows)
    lines: list[str] = []
    for line in column.header.split("\n"):
        tokens = _TOKEN.findall(line)
        most = max([cells, *map(len, tokens)])
        begun = len(lines)
        for token in tokens:
            if len(lines) > begun and len(lines[-1]) + 1 + len(token) <= most:
                lines[-1] += f" {token}"
            else:
                lines.append(token)
    return "\n".join(lines)


def _without_common_parts(rows: Rows, columns: Sequence[Column]) -> tuple[list[Column], list[str]]:
    """Names without what all of a column begin or end with, and a line that says so."""
    fitted, notes = [], []
    for column in columns:
        names = {column.text(row) for row in rows} - {"-"}
        long = column.key and column.left and max(map(len, names), default=0) > _LONG_NAME
        head, tail = _common_parts(names) if long else ("", "")
        if head or tail:
            column = _changed(column, {name: name[len(head) : len(name) - len(tail)] for name in names})
            said = " and ".join(
                [*([f"begins with {head}"] if head else []), *([f"ends with {tail}"] if tail else [])]
            )
            notes.append(f"Each {' '.join(column.header.split())} {said}, which is left out.")
        fitted.append(column)
    return fitted, notes


def _common_parts(names: set[str]) -> tuple[str, str]:
    """What several names begin and end with, up to whole parts (``run_0_``), if there is a rest of each."""
    if len(names) < 2:
        return "", ""
    head = _common_start(names)
    head = head[: max((match.end() for match in _PART_OF_A_NAME.finditer(head)), default=0)]
    rests = {name[len(head) :][::-1] for name in names}
    tail = _common_start(rests)
    tail = tail[: max((match.end() for match in _PART_OF_A_NAME.finditer(tail)), default=0)][::-1]
    return (head, tail) if all(len(rest) > len(tail) for rest in rests) else ("", "")


def _common_start(names: set[str]) -> str:
    first, last = min(names), max(names)  # all others lie between these
    alike = takewhile(lambda signs: signs[0] == signs[1], zip(first, last, strict=False))
    return first[: len(list(alike))]


def _cut(column: Column, rows: Rows, most: int) -> Column:
    """Names that are much longer without their middle, if they still differ."""
    texts = {column.text(row) for row in rows}
    names = {text: shortened(text, most) if len(text) > most + _WORTH_IT else text for text in texts}
    return _changed(column, names) if len(set(names.values())) == len(names) else column


def _changed(column: Column, names: Mapping[str, str]) -> Column:
    def printed(row: Mapping[str, Any]) -> str:
        text = column.text(row)
        return names.get(text, text)

    return replace(column, printed=printed)


def _texts_wrapped(rows: Rows, columns: Sequence[Column], width: int) -> list[Column]:
    """Long texts in several lines, in the room that the other columns leave."""
    wide = [one for one in columns if one.left and not one.key and _of_cells(one, rows) > _LONG_TEXT]
    over = width_of(rows, columns) - width
    if not wide or over <= 0:
        return list(columns)
    each = -(-over // len(wide))
    return [
        replace(one, width=max(_LONG_TEXT, _of_cells(one, rows) - each)) if one in wide else one
        for one in columns
    ]


def _most_important(rows: Rows, columns: Sequence[Column], width: int) -> list[Column]:
    widths = [_width(one, rows) + _BETWEEN for one in columns]
    room = width - _EDGES + _BETWEEN
    order = sorted(
        (place for place, one in enumerate(columns) if not one.key),
        key=lambda place: (columns[place].priority, -place),
    )
    dropped: set[int] = set()
    while sum(widths) - sum(widths[place] for place in dropped) > room and len(dropped) < len(order) - 1:
        dropped.add(order[len(dropped)])
    # What was dropped for a wide column may fit once that is gone.
    for place in sorted(dropped, key=lambda place: (-columns[place].priority, place)):
        if sum(widths) - sum(widths[one] for one in dropped - {place}) <= room:
            dropped.remove(place)
    return [one for place, one in enumerate(columns) if place not in dropped]
