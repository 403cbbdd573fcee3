"""Command-line flags: those of a run are the fields of Run; wrong use ends in one line."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, get_args

from pydantic import ValidationError

from jobs.run import Run, literal_options, problems_of
from jobs.run_fields import as_text
from profiling.arguments import Parser
from profiling.errors import Mistakes
from profiling.tables import file_to_write


def make_parser(prog: str, description: str | None) -> Parser:
    """A parser of a command's flags whose errors are :class:`UserError`; abbreviations are not taken."""
    return Parser(prog=prog, description=description)


FORMATS = ("table", "csv", "json", "parquet")

# Of a command that only answers; where one measures as well, --out is the folder of what it measured.
OUTPUT = ("--output", "--out")


def add_format_flags(parser: argparse.ArgumentParser, names: Sequence[str] = OUTPUT) -> None:
    """``--format`` and ``--output`` of a command that answers."""
    parser.add_argument("--format", choices=FORMATS, default="table", help="output format [table]")
    parser.add_argument(
        *names, type=file_to_write, metavar="FILE", help="write the answer to FILE instead of standard output"
    )


def print_answer(module: str, directory: Path, arguments: argparse.Namespace, *words: str) -> NoReturn:
    """Become the command that prints what has been measured, as :func:`add_format_flags` has it."""
    written = ["--output", str(arguments.output)] if arguments.output else []
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, "-m", module, str(directory), "--format", arguments.format, *written, *words]
    os.execv(sys.executable, command)


# Our own training loop is no program of a user's.
_FLAGS = {name: info for name, info in Run.model_fields.items() if name not in ("program", "factors")}


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """One flag for each field of Run (``--gpus-per-node``), with its description and default as help."""
    for name, info in _FLAGS.items():
        options = literal_options(info.annotation)
        text = (info.description or "") + (f" ({', '.join(options)})" if options else "")
        default = "" if info.default is None else f" [{as_text(info.default)}]"
        flag = "--" + name.replace("_", "-")
        if info.annotation is bool or bool in get_args(info.annotation):
            options = ("true", "false", *options)
            text = (info.description or "") + default
            parser.add_argument(flag, nargs="?", const="true", metavar="|".join(options), help=text)
        else:
            parser.add_argument(flag, metavar=name.upper(), help=(text + default).replace("%", "%%"))


def run_from_flags(arguments: argparse.Namespace, mistakes: Sequence[str] = ()) -> Run:
    texts = {name: getattr(arguments, name) for name in _FLAGS}
    # An empty text is the default of an optional field (``--data "$DATA"``).
    given = {
        name: text
        for name, text in texts.items()
        if text is not None and (text or _FLAGS[name].default is not None)
    }
    try:
        run = Run.model_validate_strings(given)
    except ValidationError as error:
        raise Mistakes([*mistakes, *(text for _, text in problems_of(error, Run))]) from None
    if mistakes:
        raise Mistakes(mistakes)
    return run


def to_flags(run: Run) -> list[str]:
    """The flags that say ``run``, each one word, ``--name=value``; fields at their default are left out.

    TAU up to 2.35.1 takes ``--profile WORD`` of any program for its own flag, "time only the group WORD".
    """
    changed = [name for name, info in Run.model_fields.items() if getattr(run, name) != info.default]
    return [f"--{name.replace('_', '-')}={as_text(getattr(run, name))}" for name in changed]
