"""The fields of a run: their roles, their values as text, the run id made of them, and flags of commands.

An id contains the ten fields of :data:`ID_FIELDS`, the repetition and the exit code, e.g.
``run_0_config_8_2_ib_nvprof_2_resnet50_dali-gpu_32_fp16_fp32_ret_0``, and can be parsed without loss.
"""

import argparse
import hashlib
import os
import re
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, get_args
from urllib.parse import quote, unquote

from pydantic import TypeAdapter, ValidationError

from jobs.run import Role, Run, literal_options, make_run, problems_of
from profiling.arguments import Parser
from profiling.errors import Mistakes, UserError, did_you_mean
from profiling.tables import file_to_write

ROLES: Mapping[str, Role] = {
    name: next(role for role in info.metadata if isinstance(role, Role))
    for name, info in Run.model_fields.items()
}


def fields_of(*kinds: str) -> tuple[str, ...]:
    """The fields of such roles (:class:`Role`), in their order."""
    return tuple(name for name, role in ROLES.items() if role.kind in kinds)


# The fields that make the id, in its order.
ID_FIELDS = (
    "nodes", "gpus_per_node", "network", "profile", "workers", "model", "loader", "batch", "grad", "compute",
)  # fmt: skip
# Fields that are not in the id; a sweep that varies one appends it.
OUTSIDE_FIELDS = tuple(name for name in Run.model_fields if name not in (*ID_FIELDS, "factors"))

# Those in the id of a run of a program: our own training loop's would say what is not so.
PROGRAM_ID_FIELDS = ID_FIELDS[:4]
# What a run of a program has of them. These take effect whatever it is: how it is started, ended, recorded.
STARTING = (
    *fields_of("size", "length"),
    *("network", "device", "threads", "profile", "profile_mode", "profile_kernels", "profile_metrics"),
    "attribute_from",
)
# And these, if its command names them. All others are our own training loop's.
FILLING = ("batch", "data", "workers", "seed")
# What tells rows of configurations apart: each is of profiled and unprofiled runs.
APART = tuple(name for name in Run.model_fields if name not in ("profile", "data"))
# How an answer names a factor of a program's own: nothing that is measured is called so.
FACTOR = "factors."


def is_own(name: str) -> bool:
    """Whether a name below ``run:`` of a program, or in its id, is a factor of the user's own."""
    return name not in (*STARTING, *FILLING, "program")


def own_names(*fields: Iterable[str]) -> list[str]:
    """The factors of programs' own among the fields of runs, as answers name them; each once."""
    return list(dict.fromkeys(name for each in fields for name in each if name.startswith(FACTOR)))


def is_default(name: str, value: Any) -> bool:
    """Whether a field has the value that it has where nobody sets it."""
    return name in Run.model_fields and bool(Run.model_fields[name].default == value)


def as_text(value: Any) -> str:
    """A value as ids and flags write it; the inverse of :func:`parse_value`."""
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


@cache
def parse_value(name: str, text: str) -> Any:
    """``text`` (a flag's value, a part of an id) as a value of the type of Run's field ``name``."""
    if name not in Run.model_fields:
        raise UserError(f"unknown field {name!r}{did_you_mean(name, Run.model_fields)}")
    annotation: Any = Run.model_fields[name].annotation
    if text == "" and type(None) in get_args(annotation):
        return None
    try:
        return TypeAdapter(annotation).validate_strings(text)
    except ValidationError:
        options = literal_options(annotation)
        hint = did_you_mean(text, options) if options else f": {Run.model_fields[name].description}"
        raise UserError(f"invalid {name} {text!r}{hint}") from None


def parse_only(pairs: Sequence[str], factors: Collection[str] = ()) -> dict[str, list[str]]:
    """``["loader=synthetic", "batch=32,64"]`` as field -> values, as text; ``factors``: a program's own."""
    only: dict[str, list[str]] = {}
    wrong, known = [], (*factors, *Run.model_fields)
    for pair in pairs:
        name, equals, values = pair.partition("=")
        try:
            if not equals:
                raise UserError("use FIELD=VALUE")
            if name not in known:
                raise UserError(f"unknown field {name!r}{did_you_mean(name, known)}")
            own = name in factors
            texts = [text if own else as_text(parse_value(name, text)) for text in values.split(",")]
            only.setdefault(name, []).extend(texts)
        except UserError as error:
            wrong.append(f"--only {pair}: {error}")
    if wrong:
        raise Mistakes(wrong)
    return only


_SIZED = r"(?P<nodes>\d+)_(?P<gpus_per_node>\d+)_(?P<network>[A-Za-z]+)_(?P<profile>[a-z]+)"
_OUTSIDE = r"(?P<outside>(\+[A-Za-z_][A-Za-z0-9_.-]*=[A-Za-z0-9.%~-]*)*)"
_ENDED = rf"{_OUTSIDE}(_ret_(?P<exit_code>-?\d+)(_(?P<rank>\d+))?)?"
_ID = re.compile(
    rf"run_(?P<repetition>\d+)_config_{_SIZED}"
    r"_(?P<workers>\d+)_(?P<model>[a-z][a-z0-9_]*)_(?P<loader>[a-z-]+)_(?P<batch>\d+)"
    rf"_(?P<grad>[a-z0-9]+)_(?P<compute>[a-z0-9]+){_ENDED}"
)
_PROGRAM_ID = re.compile(rf"run_(?P<repetition>\d+)_program_{_SIZED}{_ENDED}")
_BEGIN = re.compile(r"run_(\d+)_(?=config_|program_)")
_ENDED_WITH = re.compile(r"_ret_(-?\d+)$")
_NUMBER = re.compile(r"(\d+(?:\.\d+)?)")
_LONGEST_VALUE = 64  # bytes of a factor's value in an id; of a longer one, its beginning and a hash


@dataclass(frozen=True)
class RunId:
    """A run id taken apart: the fields it says, the repetition, and, once it ended, exit code (and rank)."""

    fields: Mapping[str, Any]
    run: Run
    repetition: int = 0
    exit_code: int | None = None
    rank: int | None = None
    factors: Mapping[str, str] | None = None  # a program's own, as text; None: of our own training loop


def id_fields(run: Run) -> tuple[str, ...]:
    return PROGRAM_ID_FIELDS if run.program else ID_FIELDS


def format_id(
    run: Run, repetition: int = 0, exit_code: int | None = None, outside: Iterable[str] = ()
) -> str:
    """The id of a run; without ``exit_code``, of one that has not ended.

    ``outside``, which the sweep varies beyond :func:`id_fields`, is appended as ``+image_size=64``.
    """
    kind = "program" if run.program else "config"
    point = "_".join(str(getattr(run, name)) for name in id_fields(run))
    extra = "".join(f"+{name}={_in_id(name, run)}" for name in sorted(outside))
    ended = "" if exit_code is None else f"_ret_{exit_code}"
    return f"run_{repetition}_{kind}_{point}{extra}{ended}"


def attempted(name: str) -> str:
    """The point (and repetition) that a run was an attempt at: its id without the exit code."""
    return _ENDED_WITH.sub("", name)


def exit_code_of(name: str) -> int | None:
    """The exit code that the name of a run's folder says; None: it is of a run that has not ended."""
    match = _ENDED_WITH.search(name)
    return int(match[1]) if match else None


def in_order(text: str) -> tuple:
    """A sort key for ids: by configuration, numbers by their value, and then by repetition."""
    configuration = _NUMBER.split(_BEGIN.sub("", text))
    values = [float(part) if place % 2 else part for place, part in enumerate(configuration)]
    return values, int(begin[1]) if (begin := _BEGIN.match(text)) else 0, text


def parse_id(text: str) -> RunId:
    """Take a run id apart (the reference's ids too)."""
    match = _ID.fullmatch(text) or _PROGRAM_ID.fullmatch(text)
    if not match:
        raise UserError(f"{text!r} is not a run id (run_REP_config_NODES_..._ret_CODE)")
    of_program = match.re is _PROGRAM_ID
    names = PROGRAM_ID_FIELDS if of_program else ID_FIELDS
    values = {name: parse_value(name, match[name]) for name in names}
    factors: dict[str, str] = {}
    for pair in match["outside"].split("+")[1:]:
        name, _, value = pair.partition("=")
        if of_program and is_own(name):
            factors[name] = unquote(value)
        else:
            values[name] = parse_value(name, unquote(value))
    code, rank = (int(match[name]) if match[name] else None for name in ("exit_code", "rank"))
    run, repetition = make_run(values), int(match["repetition"])
    return RunId(values, run, repetition, code, rank, factors if of_program else None)


def _in_id(name: str, run: Run) -> str:
    value = as_text(run.value(name))
    encoded = quote(value, safe="").replace("_", "%5F")  # "_" separates the parts of an id
    if name not in run.factors or len(encoded) <= _LONGEST_VALUE:
        return encoded
    digest = hashlib.sha256(value.encode()).hexdigest()[:8]
    return re.sub(r"[^A-Za-z0-9.]+", "-", value)[:40] + f"~{digest}"


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
    command = [sys.executable, "-m", module, str(directory), "--format", arguments.format, *written, *words]
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, command)


# Our own training loop is no program of a user's.
_FLAGS = {name: info for name, info in Run.model_fields.items() if name not in ("program", "factors")}


def add_run_flags(parser: argparse.ArgumentParser) -> None:
    """One flag for each field of Run (``--gpus-per-node``), with its description and default as help."""
    for name, info in _FLAGS.items():
        options, text = literal_options(info.annotation), info.description or ""
        default = "" if info.default is None else f" [{as_text(info.default)}]"
        flag = "--" + name.replace("_", "-")
        if info.annotation is bool or bool in get_args(info.annotation):
            values = "|".join(("true", "false", *options))
            parser.add_argument(flag, nargs="?", const="true", metavar=values, help=text + default)
        else:
            text += (f" ({', '.join(options)})" if options else "") + default
            parser.add_argument(flag, metavar=name.upper(), help=text.replace("%", "%%"))


def run_from_flags(arguments: argparse.Namespace, mistakes: Sequence[str] = ()) -> Run:
    texts = {name: text for name in _FLAGS if (text := getattr(arguments, name)) is not None}
    # An empty text is the default of an optional field (``--data "$DATA"``).
    given = {name: text for name, text in texts.items() if text or _FLAGS[name].default is not None}
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
