"""How does a command read its flags? Those of a run are the fields of Run; wrong use is one line."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo

from jobs.run import Run, make_run
from jobs.run_values import as_text, parse_value, wrong_values
from jobs.validation import literal_options
from profiling.arguments import Help, Parser
from profiling.errors import Mistakes, UserError


class _Parser(Parser):
    """A parser whose flags the shell's Tab key completes."""

    def parse_all(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        if "_ARGCOMPLETE" in os.environ:
            complete_flags(self)
        return super().parse_all(args, namespace)


def complete_flags(parser: argparse.ArgumentParser) -> None:
    """Answer the shell's Tab key with what the parser takes, and leave."""
    import argcomplete

    argcomplete.autocomplete(parser)


def make_parser(prog: str, description: str | None) -> Parser:
    """A parser of a command's flags whose errors are :class:`UserError`; abbreviations are not taken."""
    return _Parser(prog=prog, description=description, formatter_class=Help)


FORMATS = ("table", "csv", "json", "parquet")


def add_format_flags(parser: argparse.ArgumentParser) -> None:
    """``--format`` and ``--output`` of a command that answers."""
    parser.add_argument("--format", choices=FORMATS, default="table", help="output format [table]")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write to FILE instead of standard output"
    )


# What our own training loop has no flag for: it is no program of a user's.
_NO_FLAGS = ("program", "factors")


def _flags() -> dict[str, FieldInfo]:
    return {name: info for name, info in Run.model_fields.items() if name not in _NO_FLAGS}


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """One flag for each field of Run (``--gpus-per-node``), with its description and default as help."""
    for name, info in _flags().items():
        options = literal_options(info.annotation)
        text = (info.description or "") + (f" ({', '.join(options)})" if options else "")
        default = "" if info.default is None else f" [{as_text(info.default)}]"
        flag = "--" + name.replace("_", "-")
        metavar = name.upper()
        if info.annotation is bool or bool in get_args(info.annotation):
            values = "|".join(("true", "false", *options))
            help_text = (info.description or "") + default
            parser.add_argument(flag, nargs="?", const="true", metavar=values, help=help_text)
        else:
            parser.add_argument(flag, metavar=metavar, help=(text + default).replace("%", "%%"))


def run_from_flags(arguments: argparse.Namespace, mistakes: Sequence[str] = ()) -> Run:
    """The Run that parsed flags say.

    Args:
        mistakes: what is wrong with other flags, to be said with what is wrong with these.

    Raises:
        Mistakes: all that is wrong; whether values go together shows only where each is right.
    """
    wrong, values = list(mistakes), {}
    for name in _flags():
        text = getattr(arguments, name)
        if text is None:
            continue
        try:
            value = parse_value(name, text)
            wrong += wrong_values({name: value})
            values[name] = value
        except UserError as error:
            wrong.append(str(error))
    if wrong:
        raise Mistakes(wrong)
    return make_run(values)


def to_flags(run: Run) -> list[str]:
    """The flags that say ``run``, each one word, ``--name=value``; fields at their default are left out.

    TAU up to 2.35.1 takes ``--profile WORD`` of any program for its own flag, "time only the group WORD".
    """
    changed = [name for name, info in Run.model_fields.items() if getattr(run, name) != info.default]
    return [f"--{name.replace('_', '-')}={as_text(getattr(run, name))}" for name in changed]
