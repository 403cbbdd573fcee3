"""Choose the columns of a table that fit into a terminal; rich folds the text in them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from analysis.display.metrics import Column, Rows

_BETWEEN = 2  # blanks between two columns
_EDGES = 2  # blanks before the first and behind the last column
_LEAST_TEXT = 20  # characters to which text is folded at most


def fit(rows: Rows, columns: Sequence[Column], width: int) -> list[Column]:
    """The columns that fit into ``width`` characters, text in the room that figures leave.

    Columns of the least priority are dropped first, of equal ones the last; those that tell rows apart stay.
    """
    shown = list(columns)
    keys = [one for one in shown if one.key] or list(takewhile(lambda one: one.left, shown))
    others = [place for place, one in enumerate(shown) if one not in keys]
    order = [shown[place] for place in sorted(others, key=lambda place: (shown[place].priority, -place))]
    least = {id(one): min(_width(one, rows), _LEAST_TEXT) if one.left else _width(one, rows) for one in shown}
    for one in order[:-1]:
        if _whole([least[id(column)] for column in shown]) > width:
            shown.remove(one)
    over = width_of(rows, shown) - width
    for column in sorted((one for one in shown if one.left), key=lambda one: -_width(one, rows)):
        if over > 0 and (own := _width(column, rows)) > _LEAST_TEXT:
            folded = max(_LEAST_TEXT, own - over)
            shown[shown.index(column)] = replace(column, width=folded)
            over -= own - folded
    return shown


def width_of(rows: Rows, columns: Sequence[Column]) -> int:
    """Of the table, in characters."""
    return _whole([_width(one, rows) for one in columns])


def _whole(widths: Sequence[int]) -> int:
    return sum(widths) + _BETWEEN * (len(widths) - 1) + _EDGES


def _width(column: Column, rows: Rows) -> int:
    heading = max(map(len, column.header.split("\n")))
    return column.width or max([heading, *(len(column.text(row)) for row in rows)])
