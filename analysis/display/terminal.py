"""Answers in a terminal: tables, with findings below.

Columns are few, right-aligned, with short headers that end in the unit, and as many digits as one reads.
"""

import io
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from analysis.display.fitting import fit, width_of
from analysis.display.metrics import (
    FIELDS,
    FIELDS_OF_RUNS,
    RANKS_PER_NODE,
    Column,
    Metric,
    Rows,
    columns,
    fields,
    filled,
    records,
    telling,
)
from jobs.run_fields import own_names, repetition_of
from profiling.findings import Finding, lines

if TYPE_CHECKING:
    import pandas as pd

_WIDTH_OF_TEXT = 120  # in a file or a pipe


class Results(Protocol):
    """What an answer is of, and what was found of it: the runs that do not count first."""

    @property
    def missing(self) -> Sequence[object]: ...

    @property
    def findings(self) -> Sequence[Finding]: ...

    @property
    def on_cpus(self) -> bool: ...


@dataclass(frozen=True)
class Part:
    """A table of the terminal: title, rows, columns, and what is said below it."""

    title: str
    table: "Rows | pd.DataFrame"
    columns: Sequence[Column]
    caption: str = ""

    @cached_property
    def rows(self) -> Rows:
        return records(self.table)


@dataclass(frozen=True)
class Answer:
    """What a command has to say.

    Attributes:
        rows: the data.
        columns: of the data, in order.
        parts: the terminal's tables; by default one with all columns that are not empty. Empty: no table.
        title, caption: above and below that one.
        notable: the rows that it shows, as it shows them; None, and with ``--wide``: all.
        verdict: stands above the tables, as a line for each code.
        regressed: the command ends with the exit code of a regression.
        notes: lines below the tables, or on standard error beside data (explanations).
    """

    rows: "Rows | pd.DataFrame"
    columns: Sequence[Metric]
    parts: Sequence[Part] | None = None
    title: str = ""
    caption: str = ""
    notable: "pd.DataFrame | None" = None
    verdict: Sequence[Finding] = ()
    notes: Sequence[str] = ()
    regressed: bool = False

    @cached_property
    def tables(self) -> Sequence[Part]:
        """The terminal's and the report's tables: the parts, or one of the columns that tables show.

        That one has the fields in which its rows differ, and the figures that are known of any.
        """
        if self.parts is not None:
            return self.parts
        rows = records(self.rows)
        same = {*FIELDS_OF_RUNS, "run", "repetition"} - set(telling(rows))
        names = [one for one in self.columns if one.table and not one.detail and one.name not in same]
        also = [name for name in ("job", *own_names(*rows)) if name in telling(rows)]
        shown = columns([*fields(also), *names])
        some = rows if self.notable is None else records(self.notable)
        count = f"{len(some)} of {len(rows)} rows (--wide: all)" if len(some) < len(rows) else ""
        caption = "\n".join(filter(None, [self.caption, count]))
        return [Part(self.title, some, filled(shown, some), caption)]


def as_terminal(
    answer: Answer,
    study: "Results | None",
    output: Path | None,
    most: int | None = None,
    wide: bool = False,
) -> str:
    """The tables as text, and below them the findings on the results, the most severe first.

    Args:
        most: so many findings, and the number of the others; None: all.
        wide: all columns, however narrow the terminal.
    """
    from rich.console import Console
    from rich.text import Text

    buffer = io.StringIO()
    colours = output is None and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = _width(output)

    def console(columns: int) -> Console:
        return Console(file=buffer, width=columns, force_terminal=colours, highlight=False)

    text = console(width or _WIDTH_OF_TEXT)
    parts = [by_repetition(part) for part in answer.tables]
    if study and study.on_cpus:
        parts = [with_ranks(part) for part in parts]
    above = lines(answer.verdict)
    for line in above:
        text.print(Text(_clean(line)), style="bold")
    for number, part in enumerate(parts):
        if number or above:
            text.print()
        shown = part.columns if wide or width is None else fit(part.rows, part.columns, width)
        if part.title:
            text.print(Text(_clean(part.title), style="italic"), soft_wrap=True)
        console(width_of(part.rows, shown)).print(_table(part.rows, shown))
        if part.caption:
            text.print(Text(_clean(part.caption)), style="dim")
    for line in answer.notes:
        text.print(Text(_clean(line)))
    for line in lines(study.findings, most) if study else []:
        text.print(Text(line), style="yellow")
    # What rich pads with blanks need not be: lines are copied, compared and mailed.
    return buffer.getvalue() if colours else re.sub(r" +\n", "\n", buffer.getvalue())


def by_repetition(part: Part) -> Part:
    """A table with the repetition of each row's run, where rows of several would look alike without it."""
    headings = {name for column in part.columns for name in column.header.split()}
    repetitions = {repetition_of(str(row.get("run"))) for row in part.rows} - {None}
    if headings & {"rep", "repetition", "run", "configuration"} or len(repetitions) < 2:
        return part
    place = next((n for n, column in enumerate(part.columns) if not column.left), len(part.columns))
    column = replace(
        FIELDS["repetition"].column(), value=lambda row: repetition_of(str(row.get("run"))), printed=None
    )
    return replace(part, columns=[*part.columns[:place], column, *part.columns[place:]])


def with_ranks(part: Part) -> Part:
    """A table of runs without GPUs: what a node has of them is ranks."""
    per_node = FIELDS["gpus_per_node"].header
    named = [replace(one, header=RANKS_PER_NODE) if one.header == per_node else one for one in part.columns]
    return replace(part, columns=named)


def _width(output: Path | None) -> int | None:
    """Of the terminal, or what COLUMNS says; None: a file or a pipe, which has no width."""
    wished = os.environ.get("COLUMNS", "")
    if output is not None or not (sys.stdout.isatty() or (wished.isdigit() and int(wished))):
        return None
    return max(60, shutil.get_terminal_size().columns)


def _table(rows: Rows, columns: Sequence[Column]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    lines = max((column.header.count("\n") for column in columns), default=0)
    for column in columns:
        table.add_column(
            # Headings end in the same line, cells of several lines begin in the same one.
            Text("\n" * (lines - column.header.count("\n")) + column.header),
            justify="left" if column.left else "right",
            no_wrap=column.width is None,
            width=column.width,
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(_clean(column.text(row))) for column in columns))
    return table


def _printable(lines: Sequence[str]) -> list[str]:
    """Names of files are whatever their maker wrote: no line break and no control character gets out."""
    return ["".join(sign if sign.isprintable() else "?" for sign in line) for line in lines]


def _clean(text: str) -> str:
    """Text of several lines without control characters: names of kernels and files are anybody's."""
    return "\n".join(_printable(text.split("\n")))
