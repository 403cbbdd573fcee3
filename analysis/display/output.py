"""Write an answer: as a table to read, or as CSV, JSON or Parquet.

In CSV, JSON and Parquet standard output is the data and nothing else; notes, findings and failed points go to
standard error. The terminal shows the columns that a reader wants first, the other formats hold all.
"""

import argparse
import csv
import io
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.display.metrics import FIELDS_OF_RUNS, Metric, Rows, data_columns, explain_columns, records
from analysis.display.numbers import plain
from analysis.display.terminal import Answer, Results, as_terminal
from jobs.flags import add_format_flags, make_parser
from jobs.run_fields import FACTOR
from profiling.arguments import Explain, Parser
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, did_you_mean
from profiling.findings import MOST_SHOWN, Finding, as_data, lines
from profiling.whole_file import whole_file

if TYPE_CHECKING:
    import pandas as pd


Columns = Mapping[str, Sequence[Metric]]
_DIGITS = 12  # of a figure in data


def parser(
    module: str,
    description: str | None,
    what: str = "DIR",
    columns: "Columns | Callable[[], Columns] | None" = None,
    optional: str = "",
) -> Parser:
    """A command's parser with the flags that all analyses share.

    Args:
        optional: what stands for a path that is not given; "": it has to be.
        columns: of its answers, by what they are of, for ``--columns``; or what gives them.
    """
    command_line = make_parser(f"python -m {module}", description)
    command_line.add_argument(
        "path",
        type=Path,
        metavar=what,
        nargs="?" if optional else None,
        help="a sweep's results, a run, a folder of reference files, or a file"
        + (optional and f" [{optional}]"),
    )
    return add_output_flags(command_line, columns or {})


def add_output_flags(command_line: Parser, columns: "Columns | Callable[[], Columns]") -> Parser:
    """``--format``, ``--output``, ``--all``, ``--wide``, ``--notes``, ``--peaks`` and ``--columns``."""
    add_format_flags(command_line)
    command_line.add_argument(
        "--all", action="store_true",
        help="in CSV, JSON and Parquet all columns, also the fields in which no rows differ",
    )  # fmt: skip
    command_line.add_argument(
        "--wide", action="store_true", help="show all columns and all ranks, however narrow the terminal"
    )
    command_line.add_argument(
        "--notes", action="store_true",
        help=f"all findings, not only the {MOST_SHOWN} most severe; JSON then is {{rows, findings}}",
    )  # fmt: skip
    add_peaks_flag(command_line)
    if columns:
        command_line.add_argument(
            "--columns", action=Explain, text=lambda names: explain_columns(_given(columns), names),
            metavar="NAME", help="explain the columns of the results, or those named, and exit",
        )  # fmt: skip
    return command_line


def _given(columns: "Columns | Callable[[], Columns]") -> Columns:
    return columns() if callable(columns) else columns


def add_peaks_flag(command_line: argparse.ArgumentParser) -> None:
    command_line.add_argument(
        "--peaks",
        type=Path,
        metavar="FILE",
        help="datasheet peaks of your devices (format: analysis/measures/peaks.yaml)",
    )


def parse_fields(
    text: str | None, others: Sequence[str] = (), flag: str = "--group-by", own: Sequence[str] = ()
) -> list[str]:
    """``"batch,nodes"`` as a list of Run's fields.

    Args:
        own: factors of programs' own that are among the results; ``lr`` stands for ``factors.lr``.

    Raises:
        UserError: no such field; the nearest is named.
    """
    names = [name.strip() for name in text.split(",") if name.strip()] if text else []
    choices = [*FIELDS_OF_RUNS, *others, *(name.removeprefix(FACTOR) for name in own)]
    names = [name.removeprefix(FACTOR) if name in own else name for name in names]
    for name in names:
        if name not in choices:
            raise UserError(f"{flag}: unknown field {name!r}{did_you_mean(name, choices)}")
    if text is not None and not names:
        raise UserError(f"{flag} needs a field of a run, e.g. {flag} batch,nodes")
    return list(dict.fromkeys(FACTOR + name if FACTOR + name in own else name for name in names))


def parse_levels(text: str | None, choices: Sequence[str]) -> list[str]:
    """``"rank,stage"`` of ``--by`` as a list of levels, each once.

    Raises:
        UserError: no such level; the nearest is named.
    """
    levels = [name.strip() for name in (text or "").split(",") if name.strip()]
    for name in levels:
        if name not in choices:
            raise UserError(f"--by: unknown level {name!r}{did_you_mean(name, choices)}")
    return list(dict.fromkeys(levels))


# Where answers go instead, while somebody wants them as they are.
_Caught = list[tuple[Answer, list[Finding]]]
_caught: ContextVar[_Caught | None] = ContextVar("caught", default=None)


@contextmanager
def caught() -> Iterator[_Caught]:
    """Within it answers are put into this list, not written: a notebook wants them as they are.

    With each stand the findings on its results, those of runs that do not count first.
    """
    answers: _Caught = []
    token = _caught.set(answers)
    try:
        yield answers
    finally:
        _caught.reset(token)


def emit(answer: Answer, study: Results | None, arguments: argparse.Namespace) -> int:
    """Write the answer as the flags ask, and what failed; returns the exit code.

    Raises:
        UserError: the output file cannot be written.
    """
    findings = [*answer.verdict, *(study.findings if study else [])]
    most = None if arguments.notes else MOST_SHOWN
    if (answers := _caught.get()) is not None:
        answers.append((answer, findings))
    elif arguments.format == "table":
        answer = replace(answer, notable=None) if arguments.wide else answer
        _write_text(as_terminal(answer, study, arguments.output, most, arguments.wide), arguments.output)
    else:
        noted = findings if arguments.notes else None
        _write(answer, arguments.format, arguments.output, noted, arguments.all)
        for line in [*answer.notes, *lines(findings, most)]:
            print(line, file=sys.stderr)
    failed = answer.regressed or (study is not None and bool(study.missing))
    return EXIT_FAILED if failed else EXIT_DONE


# --- data ---------------------------------------------------------------------------------------------


def _write(
    answer: Answer, form: str, output: Path | None, findings: Sequence[Finding] | None, every: bool
) -> None:
    of_answer = records(answer.rows)
    names = data_columns(answer.columns, of_answer, every)
    rows = [{name: _rounded(plain(row.get(name))) for name in names} for row in of_answer]
    if form == "csv":
        buffer = io.StringIO()
        writer = csv.DictWriter(buffer, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        _write_text(buffer.getvalue(), output)
    elif form == "json":
        whole = rows if findings is None else {"rows": rows, "findings": as_data(findings)}
        _write_text(json.dumps(whole, indent=1, allow_nan=False) + "\n", output)
    else:
        write_bytes(_as_parquet(rows, names), output)


def _rounded(value: Any) -> Any:
    # Sums over many launches are made in parallel, so that their last digits differ from call to call.
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def _as_parquet(rows: Rows, columns: Sequence[str]) -> bytes:
    table = pa.table({name: _of_one_type([row[name] for row in rows]) for name in columns})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def _of_one_type(values: list[Any]) -> list[Any]:
    """A column of Parquet has one type: where some values are text, all are (seeds that differ: 0+1)."""
    if not any(isinstance(value, str) for value in values):
        return values
    return [value if value is None else str(value) for value in values]


def _write_text(text: str, output: Path | None) -> None:
    if output is None:
        sys.stdout.write(text)
    else:
        write_bytes(text.encode(), output)


def write_bytes(content: bytes, output: Path | None) -> None:
    """Write to a file, whole or not at all, or to standard output.

    Raises:
        UserError: binary data would go to a terminal.
    """
    if output is None:
        if sys.stdout.isatty():
            raise UserError("Parquet is binary: give --output FILE, or redirect standard output")
        sys.stdout.buffer.write(content)
        return
    with whole_file(output) as file:
        file.write(content)


def to_frame(rows: "Rows | pd.DataFrame", columns: Iterable[Metric]) -> "pd.DataFrame":
    """Rows as a DataFrame with these columns."""
    import pandas as pd

    return pd.DataFrame(rows, columns=data_columns(columns, records(rows), every=True))
