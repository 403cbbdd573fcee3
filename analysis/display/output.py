"""Write answers as terminal tables, CSV, JSON or Parquet; and the flags that all analyses share.

With CSV, JSON and Parquet, standard output contains only the data; findings and failed runs go to standard
error. Terminal tables have few, right-aligned columns, short headers that end in the unit, and a readable
number of digits; the other formats have more columns (with ``--all``, all).
"""

import argparse
import csv
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.display import metrics
from analysis.display.metrics import FIELDS_OF_RUNS, RANKS_PER_NODE, Metric, records, telling
from analysis.display.numbers import cell, distinct, plain
from jobs.run_fields import FACTOR, add_format_flags, make_parser, own_names
from profiling.arguments import Explain, Parser
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, did_you_mean
from profiling.findings import MOST_SHOWN, Finding, as_data, lines
from profiling.tables import whole_file

if TYPE_CHECKING:
    import pandas as pd

Columns = Mapping[str, Sequence[Metric]]  # by what they are of, as --columns lists them
_MOST_BESIDE = 2  # findings that are printed beside a table, with the verdict
_WIDTH_OF_TEXT = 120  # in a file or a pipe, where tables are as wide as they are


@dataclass(frozen=True)
class Part:
    """A table of the terminal: title, rows, columns, and what is said below it."""

    title: str
    table: "pd.DataFrame"
    columns: Sequence[Metric]
    caption: str = ""

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        return records(self.table)


@dataclass(frozen=True)
class Answer:
    """What a command has to say."""

    rows: "pd.DataFrame"
    columns: Sequence[Metric]  # of the data, in order
    # The terminal's tables; by default one with all columns that are not empty. Empty: no table.
    parts: Sequence[Part] | None = None
    title: str = ""  # above that one
    caption: str = ""  # below it
    notable: "pd.DataFrame | None" = None  # the rows that it shows, as it shows them; None, --wide: all
    verdict: Sequence[Finding] = ()  # stands above the tables, as a line for each code
    notes: Sequence[str] = ()  # lines below the tables, or on standard error beside data (explanations)
    regressed: bool = False  # the command ends with the exit code of a regression
    brief: bool = False  # findings on the results only if they are asked for, and no notes beside data

    def frame(self, every: bool = True) -> "pd.DataFrame":
        """The data; ``every``: also details, and fields of runs in which no rows differ."""
        return self.rows.reindex(columns=metrics.data_columns(self.columns, self.rows, every))

    @cached_property
    def tables(self) -> Sequence[Part]:
        """The terminal's and the report's tables: the parts, or one of the columns that tables show.

        That one has the fields in which its rows differ, and the figures that are known of any.
        """
        if self.parts is not None:
            return self.parts
        rows, telling_rows_apart = self.rows, telling(self.rows)
        same = {*FIELDS_OF_RUNS, "run", "repetition"} - {*telling_rows_apart}
        names = [one for one in self.columns if one.table and not one.detail and one.name not in same]
        also = [name for name in ("job", *own_names(rows.columns)) if name in telling_rows_apart]
        some = rows if self.notable is None else self.notable
        count = f"{len(some)} of {len(rows)} rows (--wide: all)" if len(some) < len(rows) else ""
        caption = "\n".join(filter(None, [self.caption, count]))
        return [Part(self.title, some, metrics.filled([*metrics.fields(also), *names], some), caption)]


def parser(name: str, description: str | None, columns: Callable[[], Columns], optional: str = "") -> Parser:
    """A command's parser with the flags that all analyses share.

    ``columns``: of its answers; ``optional``: what stands for a path that is not given, "": it has to be.
    """
    command_line = make_parser(f"python -m {name}", description)
    command_line.add_argument(
        "path", type=Path, metavar="DIR", nargs="?" if optional else None,
        help="results of a sweep, a run, converted traces, PyProf or TAU tables, or one such file"
        + (optional and f" [{optional}]"),
    )  # fmt: skip
    add_format_flags(command_line)
    command_line.add_argument(
        "--all", action="store_true",
        help="CSV, JSON and Parquet: all columns, with details and fields that are equal in all rows",
    )  # fmt: skip
    command_line.add_argument(
        "--wide", action="store_true", help="show all columns and ranks, even if the terminal is too narrow"
    )
    command_line.add_argument(
        "--notes", action="store_true",
        help="print all findings, not only the most severe; JSON: {rows, findings}",
    )  # fmt: skip
    add_peaks_flag(command_line)
    command_line.add_argument(
        "--only",
        action="append",
        metavar="FIELD=VALUE[,VALUE]",
        help="only runs with these values",
    )
    command_line.add_argument(
        "--columns", action=Explain, text=lambda names: metrics.explain_columns(columns(), names),
        metavar="NAME", help="explain all columns of the results, or these, and exit",
    )  # fmt: skip
    return command_line


def add_peaks_flag(command_line: argparse.ArgumentParser) -> None:
    command_line.add_argument(
        "--peaks", type=Path, metavar="FILE",
        help="datasheet peaks of your devices (format: analysis/measures/peaks.yaml)",
    )  # fmt: skip


def parse_fields(
    text: str | None, others: Sequence[str] = (), flag: str = "--group-by", own: Sequence[str] = ()
) -> list[str]:
    """``"batch,nodes"`` as a list of Run's fields; UserError: there is no such field.

    ``own``: factors of programs' own that are among the results; ``lr`` stands for ``factors.lr``.
    """
    choices = [*FIELDS_OF_RUNS, *others, *(name.removeprefix(FACTOR) for name in own)]
    names = [name.removeprefix(FACTOR) if name in own else name for name in parse_list(text or "")]
    for name in names:
        if name not in choices:
            raise UserError(f"{flag}: unknown field {name!r}{did_you_mean(name, choices)}")
    if text is not None and not names:
        raise UserError(f"{flag} needs a field of a run, e.g. {flag} batch,nodes")
    return list(dict.fromkeys(FACTOR + name if FACTOR + name in own else name for name in names))


def parse_list(text: str, choices: Sequence[str] = (), what: str = "") -> list[str]:
    """``"rank,stage"`` as a list of words, each once; UserError: one is not among ``choices``."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names if choices else ():
        if name not in choices:
            raise UserError(f"{what} {name!r}{did_you_mean(name, choices)}")
    return list(dict.fromkeys(names))


def emit(answer: Answer, study: Any, arguments: argparse.Namespace) -> int:
    """Write the answer as the flags ask, and what failed; the exit code; UserError: it cannot be written.

    ``study``: what it is of: it has ``findings``, ``missing`` runs, and is ``on_cpus`` or not.
    """
    beside = max(1, _MOST_BESIDE - len(answer.verdict)) if arguments.format == "table" else MOST_SHOWN
    most = None if arguments.notes else beside
    found = [] if answer.brief and not arguments.notes else study.findings
    if arguments.format == "table":
        answer = replace(answer, notable=None) if arguments.wide else answer
        text = as_terminal(answer, found, arguments.output, most, arguments.wide, study.on_cpus)
        write(text, arguments.output)
    else:
        findings = [*answer.verdict, *found]
        data = _data(answer.frame(arguments.all), arguments.format, findings if arguments.notes else None)
        write(data, arguments.output)
        for line in [*(() if answer.brief else answer.notes), *lines(findings, most)]:
            print(line, file=sys.stderr)
    return EXIT_FAILED if answer.regressed or study.missing else EXIT_DONE


def _data(frame: "pd.DataFrame", form: str, findings: Sequence[Finding] | None) -> str | bytes:
    names = [str(name) for name in frame]
    rows = [{name: plain(value) for name, value in row.items()} for row in records(frame)]
    if form == "json":
        whole = rows if findings is None else {"rows": rows, "findings": as_data(findings)}
        return f"{json.dumps(whole, indent=1, allow_nan=False)}\n"
    if form == "csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: cell(value) for name, value in row.items()} for row in rows)
        return text.getvalue()
    columns = {name: [row[name] for row in rows] for name in names}
    for name, values in columns.items():  # of one type: where some are text, all are (seeds that differ: 0+1)
        if any(isinstance(value, str) for value in values):
            columns[name] = [value if value is None else str(value) for value in values]
    buffer = io.BytesIO()
    pq.write_table(pa.table(columns), buffer)
    return buffer.getvalue()


def write(content: str | bytes, output: Path | None) -> None:
    """Write to a file, whole or not at all, or to standard output; UserError: binary data to a terminal."""
    if output is not None:
        with whole_file(output) as file:
            file.write(content.encode() if isinstance(content, str) else content)
    elif isinstance(content, str):
        sys.stdout.write(content)
    elif sys.stdout.isatty():
        raise UserError("Parquet is binary: give --output FILE, or redirect standard output")
    else:
        sys.stdout.buffer.write(content)


def as_terminal(
    answer: Answer, findings: Sequence[Finding] = (), output: Path | None = None, most: int | None = None,
    wide: bool = False, on_cpus: bool = False,
) -> str:  # fmt: skip
    """The tables as text, and below them the findings on the results, the most severe first.

    ``most``: so many findings, and the number of the others (None: all); ``wide``: all columns.
    """
    from rich.console import Console
    from rich.text import Text

    buffer = io.StringIO()
    colours = output is None and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    wished = os.environ.get("COLUMNS", "")
    # A file or a pipe has no width.
    sized = output is None and (sys.stdout.isatty() or (wished.isdigit() and int(wished) > 0))
    width = max(60, shutil.get_terminal_size().columns) if sized and not wide else None

    def show(something: Any, columns: int, **settings: Any) -> None:
        console = Console(file=buffer, width=columns, force_terminal=colours, highlight=False)
        console.print(something, **settings)

    above = lines(answer.verdict)
    for line in above:
        show(Text(_clean(line)), width or _WIDTH_OF_TEXT, style="bold")
    for number, part in enumerate(answer.tables):
        part = with_ranks(part) if on_cpus else part
        if number or above:
            show("", _WIDTH_OF_TEXT)
        if part.title:
            show(Text(_clean(part.title)), width or _WIDTH_OF_TEXT, style="italic", soft_wrap=True)
        cells = {one.name: _cells(part, one, wide) for one in part.columns}
        least = {one.name: _least_width(one, cells[one.name]) for one in part.columns}
        shown = part.columns if width is None else fit(part.columns, least, width)
        whole = sum(least[one.name] for one in shown) + 2 * len(shown) + 1
        show(_table(shown, cells, least), max(width or 10_000, whole))
        if part.caption:
            show(Text(_clean(part.caption)), width or _WIDTH_OF_TEXT, style="dim")
    for line in answer.notes:
        show(Text(_clean(line)), width or _WIDTH_OF_TEXT)
    for line in lines(findings, most):
        show(Text(line), width or _WIDTH_OF_TEXT, style="yellow")
    # What rich pads with blanks need not be: lines are copied, compared and mailed.
    return buffer.getvalue() if colours else re.sub(r" +\n", "\n", buffer.getvalue())


def with_ranks(part: Part) -> Part:
    """A table of runs without GPUs: what a node has of them is ranks."""
    named = [replace(of, header=RANKS_PER_NODE) if of.name == "gpus_per_node" else of for of in part.columns]
    return replace(part, columns=named)


def _cells(part: Part, column: Metric, wide: bool) -> list[str]:
    texts = [_clean(column.printed(row)) for row in part.rows]
    if column.longest is None or wide:
        return texts
    return [*map(distinct(texts, column.longest).__getitem__, texts)]


def _least_width(column: Metric, cells: Sequence[str]) -> int:
    """The characters that a column needs: figures are never folded, text is, to 20 at most."""
    longest = max(map(len, cells), default=0)
    return max(*map(len, column.heading.split("\n")), min(longest, 20) if column.text else longest)


def fit(columns: Sequence[Metric], least: dict[str, int], width: int) -> list[Metric]:
    """The columns that fit into ``width`` characters, given those that each needs at ``least``.

    Columns of the least priority are dropped first, of equal ones the last; those that tell rows apart stay.
    """
    shown = list(columns)
    keys = [one for one in shown if one.key] or list(takewhile(lambda one: one.text, shown))
    others = [one for one in reversed(shown) if one not in keys]
    for one in sorted(others, key=lambda one: one.priority)[:-1]:
        if sum(least[of.name] + 2 for of in shown) > width:
            shown.remove(one)
    return shown


def _table(columns: Sequence[Metric], cells: dict[str, list[str]], least: dict[str, int]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for one in columns:
        table.add_column(
            Text(one.heading), justify="left" if one.text else "right", no_wrap=not one.text,
            min_width=least[one.name], overflow="fold",
        )  # fmt: skip
    for row in zip(*(cells[one.name] for one in columns), strict=True):
        table.add_row(*map(Text, row))
    return table


def _clean(text: str) -> str:
    """Text of several lines without control characters: names of kernels and files are anybody's."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in text)
