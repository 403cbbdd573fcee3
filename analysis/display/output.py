"""Write an answer as a terminal table, CSV, JSON or Parquet.

With CSV, JSON and Parquet, standard output contains only the data; findings and failed runs go to standard
error. Terminal tables show the most important columns; the other formats have more (with ``--all``, all).
"""

import argparse
import csv
import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.display.metrics import FIELDS_OF_RUNS, Metric, explain_columns, records
from analysis.display.numbers import cell, plain
from analysis.display.terminal import Answer, as_terminal
from jobs.flags import add_format_flags, make_parser
from jobs.run_fields import FACTOR
from profiling.arguments import Explain, Parser
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, did_you_mean
from profiling.findings import MOST_SHOWN, Finding, as_data, lines
from profiling.whole_file import whole_file

if TYPE_CHECKING:
    import pandas as pd

Columns = Mapping[str, Sequence[Metric]]  # by what they are of, as --columns lists them


def parser(
    module: str, description: str | None, columns: Callable[[], Columns], optional: str = ""
) -> Parser:
    """A command's parser with the flags that all analyses share.

    Args:
        columns: of its answers, for ``--columns``.
        optional: what stands for a path that is not given; "": it has to be.
    """
    command_line = make_parser(f"python -m {module}", description)
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
        help=f"print all findings, not only the {MOST_SHOWN} most severe; JSON: {{rows, findings}}",
    )  # fmt: skip
    add_peaks_flag(command_line)
    command_line.add_argument(
        "--columns", action=Explain, text=lambda names: explain_columns(columns(), names),
        metavar="NAME", help="explain all columns of the results, or these, and exit",
    )  # fmt: skip
    return command_line


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
    choices = [*FIELDS_OF_RUNS, *others, *(name.removeprefix(FACTOR) for name in own)]
    names = [name.removeprefix(FACTOR) if name in own else name for name in parse_list(text or "")]
    for name in names:
        if name not in choices:
            raise UserError(f"{flag}: unknown field {name!r}{did_you_mean(name, choices)}")
    if text is not None and not names:
        raise UserError(f"{flag} needs a field of a run, e.g. {flag} batch,nodes")
    return list(dict.fromkeys(FACTOR + name if FACTOR + name in own else name for name in names))


def parse_list(text: str, choices: Sequence[str] = (), what: str = "") -> list[str]:
    """``"rank,stage"`` as a list of words, each once.

    Raises:
        UserError: one is not among ``choices``; the nearest is named.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names if choices else ():
        if name not in choices:
            raise UserError(f"{what} {name!r}{did_you_mean(name, choices)}")
    return list(dict.fromkeys(names))


def emit(answer: Answer, study: Any, arguments: argparse.Namespace) -> int:
    """Write the answer as the flags ask, and what failed; returns the exit code.

    Args:
        study: what it is of: it has ``findings``, ``missing`` runs, and is ``on_cpus`` or not.

    Raises:
        UserError: the output file cannot be written.
    """
    most = None if arguments.notes else MOST_SHOWN
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


# --- data ---------------------------------------------------------------------------------------------


def _data(frame: "pd.DataFrame", form: str, findings: Sequence[Finding] | None) -> str | bytes:
    names = [str(name) for name in frame]
    # Sums over many launches are made in parallel, so that their last digits differ from call to call.
    rows = [
        {
            name: float(f"{one:.12g}") if isinstance(one := plain(value), float) else one
            for name, value in row.items()
        }
        for row in records(frame)
    ]
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
    """Write to a file, whole or not at all, or to standard output.

    Raises:
        UserError: binary data would go to a terminal.
    """
    if output is not None:
        with whole_file(output) as file:
            file.write(content.encode() if isinstance(content, str) else content)
    elif isinstance(content, str):
        sys.stdout.write(content)
    elif sys.stdout.isatty():
        raise UserError("Parquet is binary: give --output FILE, or redirect standard output")
    else:
        sys.stdout.buffer.write(content)
