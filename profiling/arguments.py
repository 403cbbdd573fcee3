"""An argument parser that reports wrong use in one line and suggests the nearest flag."""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from profiling.errors import Mistakes, UserError, did_you_mean

_FLAG = re.compile(r"-+[A-Za-z][^\s=]*")
_CHOICE = re.compile(
    r"argument (?P<name>\S+): invalid choice: '(?P<given>.*)' \(choose from (?P<choices>.*)\)"
)
_REQUIRED = "the following arguments are required: "


class Explain(argparse.Action):
    """A flag that prints a text, of what the words after it name, and ends the command as ``--help`` does."""

    def __init__(
        self, option_strings: Sequence[str], dest: str, text: Callable[[Sequence[str]], str],
        metavar: str, help: str,
    ) -> None:  # fmt: skip
        none = argparse.SUPPRESS
        super().__init__(option_strings, none, nargs="*", default=none, metavar=metavar, help=help)
        self._text = text

    def __call__(self, parser: argparse.ArgumentParser, _: object, words: Any, *more: object) -> None:
        print(self._text([word for word in words if not Path(word).exists()]))
        parser.exit()


class UnknownFlags(Mistakes):
    """Flags that a command does not have, and those that it has."""

    def __init__(self, unknown: Sequence[str], known: Sequence[str]) -> None:
        super().__init__(
            [f"unknown flag {flag}{did_you_mean(flag, known, see='--help')}" for flag in unknown]
        )
        self.unknown, self.known = tuple(unknown), tuple(known)


class Parser(argparse.ArgumentParser):
    """argparse, but wrong use is a :class:`UserError`; abbreviations of flags are not taken."""

    def __init__(self, **named: Any) -> None:
        as_written = argparse.RawDescriptionHelpFormatter
        super().__init__(**{"allow_abbrev": False, "formatter_class": as_written, **named})
        self._given: list[str] = []

    @property
    def flags(self) -> tuple[str, ...]:
        return tuple(self._option_string_actions)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        arguments, mistakes = self._parse(args, namespace)
        if mistakes is not None:
            raise mistakes
        return arguments

    def parse_all(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """The arguments that are known, and what is wrong with the others, in lines."""
        arguments, mistakes = self._parse(args, namespace)
        return arguments, list(mistakes.lines) if mistakes else []

    def _parse(self, args: Any, namespace: Any) -> tuple[Any, Mistakes | None]:
        if completion_is_asked():
            complete(self)
        self._given = list(sys.argv[1:] if args is None else args)
        arguments, rest = self.parse_known_args(args, namespace)
        if unknown := self._unknown(rest):
            return arguments, UnknownFlags(unknown, self.flags)
        unexpected = f"unexpected argument: {' '.join(rest)} (see --help)"
        return arguments, Mistakes([unexpected]) if rest else None

    def _unknown(self, words: Sequence[str]) -> list[str]:
        flags = [match[0] for match in map(_FLAG.match, words) if match]
        return [flag for flag in flags if flag not in self.flags]

    def error(self, message: str) -> NoReturn:
        if choice := _CHOICE.search(message):
            choices = [word.strip().strip("'") for word in choice["choices"].split(",")]
            hint = did_you_mean(choice["given"], choices)
            raise UserError(f"invalid {choice['name']} {choice['given']!r}{hint}")
        if message.startswith(_REQUIRED):
            # argparse says so first, but who misspelled --help misses no argument.
            if unknown := self._unknown(self._given):
                raise UnknownFlags(unknown, self.flags)
            message = f"missing argument: {message.removeprefix(_REQUIRED)}"
        raise UserError(f"{message} (see --help)")


def whole(text: str, least: int = 0) -> int:
    """A flag's value that is a whole number from ``least`` on."""
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} on")
    return int(text)


def count(text: str) -> int:
    """A flag's value that is a whole number from 1 on."""
    return whole(text, 1)


def completion_is_asked() -> bool:
    """Whether the shell calls to complete a command line."""
    return "_ARGCOMPLETE" in os.environ


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell, and exit."""
    import argcomplete

    # Flags are offered after a dash alone, or results would be lost among them.
    argcomplete.autocomplete(parser, always_complete_options=False)
