"""How does an answer look in a terminal? As tables that a person reads, with what failed and was noted below.

Columns are few, right-aligned, with short headers that end in the unit, and as many digits as one reads.
"""

import io
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

from jobs.run import Run

Rows = list[dict[str, Any]]

# How many failed points and findings are shown before they are only counted.
_MOST_LINES = 12


class LeftOut(Protocol):
    """A run that does not count: why, and in what way."""

    @property
    def point(self) -> str: ...

    @property
    def reason(self) -> str: ...

    @property
    def kind(self) -> str: ...


class Results(Protocol):
    """What is shown below an answer: the runs that do not count, and what was noted of the others."""

    @property
    def failed(self) -> Sequence[LeftOut]: ...

    def notes(self) -> list[str]: ...


@dataclass(frozen=True)
class Column:
    """A column of the terminal's table.

    Attributes:
        header: short, with the unit; "\\n" breaks it.
        value: of a row; "" and None are shown as a dash.
        left: text, not a number.
        key: it tells the rows apart, so that it is in each piece of a table too wide for the terminal; by
            default the first columns of text are.
    """

    header: str
    value: Callable[[Mapping[str, Any]], Any]
    left: bool = False
    key: bool = False


@dataclass(frozen=True)
class Part:
    """A table of the terminal: title, rows, columns, and what is said below it."""

    title: str
    rows: Rows
    columns: Sequence[Column]
    caption: str = ""


@dataclass(frozen=True)
class Answer:
    """What a command has to say.

    Attributes:
        rows: the data.
        columns: the names of the data's columns, in order.
        parts: the terminal's tables; by default one with all columns that are not empty.
        title, caption: above and below that one.
        notes: lines below the tables, or on standard error beside data (explanations).
    """

    rows: Rows
    columns: Sequence[str]
    parts: Sequence[Part] = ()
    title: str = ""
    caption: str = ""
    notes: Sequence[str] = ()


def sortable(key: Sequence[Any]) -> tuple:
    """A sort key for fields: numbers by value, what is not known last."""
    return tuple((value is None, isinstance(value, str), value if value is not None else 0) for value in key)


def plain(value: Any) -> Any:
    """A value that CSV and JSON know; what is not a number is empty."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def as_terminal(answer: Answer, study: "Results | None", output: Path | None) -> str:
    from rich.console import Console
    from rich.text import Text

    buffer = io.StringIO()
    terminal = output is None and sys.stdout.isatty()
    colours = terminal and "NO_COLOR" not in os.environ
    width = _width(terminal)
    console = Console(file=buffer, width=width, force_terminal=colours, highlight=False)
    for number, part in enumerate([by_repetition(part) for part in answer.parts] or [_whole(answer)]):
        if number:
            console.print()
        # A pipe or a file has no width: the table is as wide as it is.
        for piece in pieces(part, width) if terminal else [part]:
            made = _table(piece)
            wide = max(width, _wanted_width(made))
            Console(file=buffer, width=wide, force_terminal=colours, highlight=False).print(made)
        if part.caption:
            console.print(Text(part.caption), style="dim")
    for line in answer.notes:
        console.print(Text(line))
    for line in plain_notes(study, _MOST_LINES) if study else []:
        console.print(Text(line), style="yellow")
    # What rich pads with blanks need not be: lines are copied, compared and mailed.
    return buffer.getvalue() if colours else re.sub(r" +\n", "\n", buffer.getvalue())


def by_repetition(part: Part) -> Part:
    """A table with the repetition of each row's run, where rows of several would look alike without it."""
    said = {name for column in part.columns for name in column.header.split()}
    repetitions = [_ID.match(str(row.get("id"))) for row in part.rows]
    if said & {"rep", "repetition", "id"} or len({found[1] for found in repetitions if found}) < 2:
        return part
    place = next((n for n, column in enumerate(part.columns) if not column.left), len(part.columns))
    column = Column("rep", lambda row: str(row.get("id")).split("_")[1], key=True)
    return replace(part, columns=[*part.columns[:place], column, *part.columns[place:]])


_ID = re.compile(r"run_(\d+)_config_")


def pieces(part: Part, width: int) -> list[Part]:
    """A table as several below each other, none wider than ``width``: no figure is cut.

    Each has the columns that tell the rows apart. One column too wide by itself stays whole.
    """
    if _wanted_width(_table(part)) <= width:
        return [part]
    keys, others = _keys(part.columns)
    found: list[list[Column]] = []
    for column in others:
        if found and _wanted_width(_table(_with(part, [*keys, *found[-1], column]))) <= width:
            found[-1].append(column)
        else:
            found.append([column])
    size = -(-len(others) // max(1, len(found)))
    even = [others[start : start + size] for start in range(0, len(others), size)] if size else []
    if all(_wanted_width(_table(_with(part, [*keys, *columns]))) <= width for columns in even):
        found = even
    made = [_with(part, [*keys, *columns]) for columns in found] or [part]
    return [made[0], *(Part("", piece.rows, piece.columns) for piece in made[1:])]


def _keys(columns: Sequence[Column]) -> tuple[list[Column], list[Column]]:
    keys = [column for column in columns if column.key]
    if not keys:
        keys = list(takewhile(lambda column: column.left, columns))
    return keys, [column for column in columns if column not in keys]


def _with(part: Part, columns: Sequence[Column]) -> Part:
    return Part(part.title, part.rows, columns, part.caption)


def _wanted_width(made: Any) -> int:
    from rich.console import Console
    from rich.measure import Measurement

    wide = Console(width=1000)
    return Measurement.get(wide, wide.options, made).maximum


def _width(terminal: bool) -> int:
    if terminal:
        return max(60, os.get_terminal_size().columns)
    wished = os.environ.get("COLUMNS", "")
    return int(wished) if wished.isdigit() and int(wished) >= 60 else 120


def _whole(answer: Answer) -> Part:
    shown = [
        _default_column(name, answer.rows)
        for name in answer.columns
        if not answer.rows or any(plain(row.get(name)) is not None for row in answer.rows)
    ]
    return Part(answer.title, answer.rows, shown, answer.caption)


def _table(part: Part) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=part.title or None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    for column in part.columns:
        table.add_column(
            Text(column.header),
            justify="left" if column.left else "right",
            no_wrap=True,
            overflow="ellipsis",
            vertical="bottom",
        )
    for row in part.rows:
        table.add_row(*(Text(shown(column.value(row))) for column in part.columns))
    return table


def _default_column(name: str, rows: Rows) -> Column:
    is_text = any(isinstance(row.get(name), str) for row in rows)
    return Column(header(name), lambda row: row.get(name), left=is_text, key=name in Run.model_fields)


# How a column's name ends, and its unit as one reads it.
_UNITS = {
    "_pct": "%", "_ms": "ms", "_us": "us", "_ns": "ns", "_gb_per_s": "GB/s", "tflops_per_s": "TFLOP/s",
    "flops_per_s": "FLOP/s", "_per_s": "/s", "_s": "s",
}  # fmt: skip


def header(name: str) -> str:
    """A column's name in a few short lines, its unit last: ``bandwidth_efficiency_pct`` ..."""
    unit = ""
    for end, written in _UNITS.items():
        if name.endswith(end):
            name, unit = name.removesuffix(end), written
            break
    lines: list[str] = []
    for word in name.split("_"):
        if lines and len(lines[-1]) + len(word) < 10:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return "\n".join([*lines, unit] if unit else lines)


def shown(value: Any) -> str:
    value = plain(value)
    if value is None or value == "":
        return "-"
    return digits(value) if isinstance(value, float) else str(value)


def digits(value: float | None, significant: int = 4) -> str:
    """A figure with as many digits as one reads: ``12.34``, ``1234``, ``0.01234``; a dash for none."""
    if value is None or not math.isfinite(value):
        return "-"
    if value == 0:
        return "0"
    before = math.floor(math.log10(abs(value))) + 1
    places = significant - max(before, 1) if before > 0 else significant - before
    return f"{value:z.{min(8, max(0, places))}f}"


def with_places(value: float | None, places: int) -> str:
    """A figure with a fixed number of decimals, 0 without a sign; a dash for none."""
    return "-" if value is None or not math.isfinite(value) else f"{value:z.{places}f}"


def with_interval(
    value: float | None, low: float | None, high: float | None, places: int | None = None
) -> str:
    """``12.3 [12.1, 12.6]``, or ``12.3`` alone where there is no interval."""
    if value is None or not math.isfinite(value):
        return "-"
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return digits(value) if places is None else with_places(value, places)
    if places is None:
        largest = max(abs(value), abs(low), abs(high))
        before = math.floor(math.log10(largest)) + 1 if largest else 3
        places = max(0, 4 - before) if before > 0 else 3 - before
    return f"{value:z.{places}f} [{low:z.{places}f}, {high:z.{places}f}]"


def plain_notes(study: "Results", most: int | None = None) -> list[str]:
    """Failed points and findings as lines, the most important first.

    Args:
        most: show so many of each kind and count the rest; by default all are shown.
    """
    bad = [failure for failure in study.failed if failure.kind != "excluded"]
    lines = _first([f"{failure.kind}: {failure.point}: {failure.reason}" for failure in bad], most)
    reasons = Counter(failure.reason for failure in study.failed if failure.kind == "excluded")
    lines += _first([f"left out: {count} points: {reason}" for reason, count in reasons.items()], most)
    lines += _first([f"note: {finding}" for finding in study.notes()], most)
    # Names of files are whatever their maker wrote: no line break and no control character gets out.
    return ["".join(sign if sign.isprintable() else "?" for sign in line) for line in lines]


def _first(lines: list[str], most: int | None) -> list[str]:
    if most is None or len(lines) <= most:
        return lines
    return [*lines[:most], f"... and {len(lines) - most} more of these (all with --format csv, on stderr)"]
