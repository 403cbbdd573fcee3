"""How does an answer look in a terminal? As tables that a person reads, with what failed and was noted below.

Columns are few, right-aligned, with short headers that end in the unit, and as many digits as one reads.
"""

import io
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from analysis.study import Study

Rows = list[dict[str, Any]]

# How many failed points and findings are shown before they are only counted.
_MOST_LINES = 12


@dataclass(frozen=True)
class Column:
    """A column of the terminal's table.

    Attributes:
        header: short, with the unit; "\\n" breaks it.
        value: of a row; "" and None are shown as a dash.
        left: text, not a number.
    """

    header: str
    value: Callable[[Mapping[str, Any]], Any]
    left: bool = False


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


def plain(value: Any) -> Any:
    """A value that CSV and JSON know; what is not a number is empty."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def as_terminal(answer: Answer, study: "Study | None", output: Path | None) -> str:
    from rich.console import Console
    from rich.text import Text

    buffer = io.StringIO()
    terminal = output is None and sys.stdout.isatty()
    colours = terminal and "NO_COLOR" not in os.environ
    width = _width(terminal)
    console = Console(file=buffer, width=width, force_terminal=colours, highlight=False)
    for number, part in enumerate(answer.parts or [_whole(answer)]):
        if number:
            console.print()
        made = _table(part)
        # A pipe or a file has no width: no figure is cut there.
        wide = width if terminal else max(width, _wanted_width(made))
        Console(file=buffer, width=wide, force_terminal=colours, highlight=False).print(made)
        if part.caption:
            console.print(Text(part.caption), style="dim")
    for line in answer.notes:
        console.print(Text(line))
    for line in plain_notes(study) if study else []:
        console.print(Text(line), style="yellow")
    return buffer.getvalue()


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
    return Column(header(name), lambda row: row.get(name), left=is_text)


# How a column's name ends, and its unit as one reads it.
_UNITS = {"_pct": "%", "_ms": "ms", "_us": "us", "_gb_per_s": "GB/s", "_per_s": "/s", "_s": "s"}


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
    return f"{value:.{min(8, max(0, significant - max(before, 1) if before > 0 else significant - before))}f}"


def with_places(value: float | None, places: int) -> str:
    """A figure with a fixed number of decimals; a dash for none."""
    return "-" if value is None or not math.isfinite(value) else f"{value:.{places}f}"


def with_interval(
    value: float | None, low: float | None, high: float | None, places: int | None = None
) -> str:
    """``12.3 [12.1, 12.6]``, or ``12.3`` alone where there is no interval."""
    if value is None or not math.isfinite(value):
        return "-"
    if low is None or high is None or not (math.isfinite(low) and math.isfinite(high)):
        return digits(value) if places is None else f"{value:.{places}f}"
    if places is None:
        places = max(0, 4 - max(1, math.floor(math.log10(abs(value))) + 1)) if value else 1
    return f"{value:.{places}f} [{low:.{places}f}, {high:.{places}f}]"


def plain_notes(study: "Study") -> list[str]:
    """Failed points and findings as lines, the most important first."""
    bad = [failure for failure in study.failed if failure.kind != "excluded"]
    lines = [f"{failure.kind}: {failure.point}: {failure.reason}" for failure in bad[:_MOST_LINES]]
    if len(bad) > _MOST_LINES:
        lines.append(f"... and {len(bad) - _MOST_LINES} more points that failed")
    reasons: dict[str, int] = {}
    for failure in study.failed:
        if failure.kind == "excluded":
            reasons[failure.reason] = reasons.get(failure.reason, 0) + 1
    lines += [f"left out: {count} points: {reason}" for reason, count in reasons.items()]
    lines += [f"note: {finding}" for finding in study.findings[:_MOST_LINES]]
    if len(study.findings) > _MOST_LINES:
        lines.append(f"... and {len(study.findings) - _MOST_LINES} more notes")
    return lines
