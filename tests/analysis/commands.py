"""Runs a command of the analysis: in this process, or as a user does, in one of its own."""

import importlib
import io
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from csv import DictReader
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiling.errors import run_command

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Ran:
    """Exit code and what was printed."""

    code: int
    out: str
    err: str

    @property
    def csv(self) -> list[dict[str, str]]:
        return list(DictReader(io.StringIO(self.out)))

    @property
    def json(self) -> list[dict[str, Any]]:
        return json.loads(self.out)


def run(module: str, *arguments: str | Path) -> Ran:
    """``python -m module arguments``, in this process."""
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with (
        _argv([module, *(str(argument) for argument in arguments)]),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            run_command(importlib.import_module(module).main)
        except SystemExit as left:
            code = int(left.code or 0)
    return Ran(code, out.getvalue(), err.getvalue())


def answered(module: str, *arguments: str | Path) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
    """An answer's rows with all their columns, and the findings beside them: code -> data."""
    answer = json.loads(run(module, *arguments, "--format", "json", "--all", "--notes").out)
    return answer["rows"], {finding["code"]: finding.get("data", {}) for finding in answer["findings"]}


def found(module: str, *arguments: str | Path) -> dict[str, dict[str, Any]]:
    """The findings beside an answer: code -> data."""
    return answered(module, *arguments)[1]


def one_line_error(ran: Ran) -> str:
    """The error of a command that was used wrongly: one line, exit code 2, nothing on standard output."""
    assert (ran.code, ran.out) == (2, ""), ran
    lines = ran.err.strip().splitlines()
    assert len(lines) == 1, ran.err
    assert lines[0].startswith("scaleprof: error: ")
    return lines[0]


@contextmanager
def _argv(words: list[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = words
    try:
        yield
    finally:
        sys.argv = before
