"""How does an answer reach the user? As a table to read, or as CSV, JSON or Parquet, whole.

In CSV, JSON and Parquet standard output is the data and nothing else; notes, findings and failed points go to
standard error. The terminal shows the columns that a reader wants first, the other formats hold all.
"""

import argparse
import csv
import io
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobs.run import Run, make_parser
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, did_you_mean

if TYPE_CHECKING:
    import pandas as pd

    from analysis.load import Study

FORMATS = ("table", "csv", "json", "parquet")
Rows = list[dict[str, Any]]

# How many failed points and findings the terminal shows before it only counts them.
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
class Answer:
    """What a command has to say.

    Attributes:
        rows: the data.
        columns: the names of the data's columns, in order.
        shown: the terminal's columns; by default all.
        title, caption: above and below the terminal's table.
        notes: lines for standard error in every format (explanations).
        left_out: rows that the terminal does not show but counts.
    """

    rows: Rows
    columns: Sequence[str]
    shown: Sequence[Column] = ()
    title: str = ""
    caption: str = ""
    notes: Sequence[str] = ()


def parser(module: str, description: str | None, what: str = "DIR") -> argparse.ArgumentParser:
    """A command's parser with the flags that all analyses share."""
    made = make_parser(f"python -m {module}", description)
    made.add_argument(
        "path",
        type=Path,
        metavar=what,
        help="a sweep's results, a run, a folder of reference files, or a file",
    )
    return add_output_flags(made)


def add_output_flags(made: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """``--format``, ``--output`` and ``--peaks``."""
    made.add_argument("--format", choices=FORMATS, default="table", help="of the answer [table]")
    made.add_argument("--output", type=Path, metavar="FILE", help="write the answer there, not to stdout")
    made.add_argument(
        "--peaks", type=Path, metavar="FILE", help="datasheet peaks of your devices (as analysis/peaks.yaml)"
    )
    return made


def parse_fields(text: str | None, others: Sequence[str] = ()) -> list[str]:
    """``"batch,nodes"`` as a list of Run's fields.

    Raises:
        UserError: no such field; the nearest is named.
    """
    names = [name.strip() for name in text.split(",") if name.strip()] if text else []
    known = [*Run.model_fields, *others]
    for name in names:
        if name not in known:
            raise UserError(f"--group-by: unknown field {name!r}{did_you_mean(name, known)}")
    if text is not None and not names:
        raise UserError("--group-by needs a field of a run, e.g. --group-by batch,nodes")
    return list(dict.fromkeys(names))


def emit(answer: Answer, study: "Study | None", arguments: argparse.Namespace) -> int:
    """Write the answer as the flags ask, and what failed; returns the exit code.

    Raises:
        UserError: the output file cannot be written.
    """
    if arguments.format == "table":
        _write_text(_as_terminal(answer, study, arguments.output), arguments.output)
    else:
        _write(answer, arguments.format, arguments.output)
        for line in [*answer.notes, *(_plain_notes(study) if study else [])]:
            print(line, file=sys.stderr)
    failed = study is not None and any(failure.kind != "excluded" for failure in study.failed)
    return EXIT_FAILED if failed else EXIT_DONE


# --- data ---------------------------------------------------------------------------------------------


def _write(answer: Answer, form: str, output: Path | None) -> None:
    rows = [{name: _plain(row.get(name)) for name in answer.columns} for row in answer.rows]
    if form == "csv":
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, answer.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        _write_text(buffer.getvalue(), output)
    elif form == "json":
        _write_text(json.dumps(rows, indent=1, allow_nan=False) + "\n", output)
    else:
        _write_bytes(_as_parquet(rows, answer.columns), output)


def _plain(value: Any) -> Any:
    """A value that CSV and JSON know; what is not a number is empty."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _as_parquet(rows: Rows, columns: Sequence[str]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table({name: [row[name] for row in rows] for name in columns}), buffer)
    return buffer.getvalue()


def _write_text(text: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(text)
    else:
        _write_bytes(text.encode(), output)


def _write_bytes(content: bytes, output: Path | None) -> None:
    if output is None:
        if sys.stdout.isatty():
            raise UserError("Parquet is not for a terminal; give --output FILE, or pipe it")
        sys.stdout.buffer.write(content)
        return
    partial = output.with_name(output.name + ".partial")
    try:
        partial.write_bytes(content)
        partial.replace(output)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise UserError(
            f"cannot write {output}: {error.strerror}; name a file in a folder that exists"
        ) from None
    finally:
        if partial.exists():
            partial.unlink()


def to_frame(rows: Rows, columns: Iterable[str]) -> "pd.DataFrame":
    """Rows as a DataFrame with these columns."""
    import pandas as pd

    return pd.DataFrame(rows, columns=list(columns))


# --- the terminal -------------------------------------------------------------------------------------


def _as_terminal(answer: Answer, study: "Study | None", output: Path | None) -> str:
    from rich.console import Console
    from rich.text import Text

    buffer = io.StringIO()
    colours = output is None and sys.stdout.isatty() and "NO_COLOR" not in os.environ
    width = _width(output)
    console = Console(file=buffer, width=width, force_terminal=colours, highlight=False, soft_wrap=False)
    console.print(_table(answer))
    if answer.caption:
        console.print(Text(answer.caption), style="dim")
    for line in answer.notes:
        console.print(Text(line))
    for line in _plain_notes(study) if study else []:
        console.print(Text(line), style="yellow")
    return buffer.getvalue()


def _width(output: Path | None) -> int:
    # A pipe has no width: wide enough that no figure is cut. A terminal has its own.
    if output is None and sys.stdout.isatty():
        return max(60, os.get_terminal_size().columns)
    return int(os.environ.get("COLUMNS", "120"))


def _table(answer: Answer) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=answer.title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    shown = answer.shown or [
        _default_column(name, answer.rows)
        for name in answer.columns
        if not answer.rows or any(_plain(row.get(name)) is not None for row in answer.rows)
    ]
    for column in shown:
        table.add_column(
            Text(column.header),
            justify="left" if column.left else "right",
            no_wrap=not column.left,
            overflow="fold",
            vertical="bottom",
        )
    for row in answer.rows:
        table.add_row(*(Text(_shown(column.value(row))) for column in shown))
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


def _shown(value: Any) -> str:
    value = _plain(value)
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


def _plain_notes(study: "Study") -> list[str]:
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
