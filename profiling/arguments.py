"""A parser of a command's flags: wrong use is one line, with the near miss named."""

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from profiling.errors import Mistakes, UserError, did_you_mean

_FLAG = re.compile(r"-+[A-Za-z][^\s=]*")
_CHOICE = re.compile(
    r"argument (?P<name>\S+): invalid choice: '(?P<given>.*)' \(choose from (?P<choices>.*)\)"
)
_REQUIRED = "the following arguments are required: "


class Parser(argparse.ArgumentParser):
    """argparse, but wrong use is a :class:`UserError`; abbreviations of flags are not taken."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **named})

    @property
    def flags(self) -> tuple[str, ...]:
        """``--help`` and all others."""
        return tuple(self._option_string_actions)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        arguments, mistakes = self.parse_all(args, namespace)
        if mistakes:
            raise Mistakes(mistakes)
        return arguments

    def parse_all(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """What is known of the arguments, and what is wrong with the others, in lines."""
        arguments, rest = self.parse_known_args(args, namespace)
        return arguments, self._mistakes(rest)

    def _mistakes(self, rest: Sequence[str]) -> list[str]:
        flags = [match[0] for match in map(_FLAG.match, rest) if match]
        unknown = [f"unknown flag {flag}{did_you_mean(flag, self.flags)}" for flag in flags]
        return unknown or ([f"unexpected argument: {' '.join(rest)} (see --help)"] if rest else [])

    def error(self, message: str) -> NoReturn:
        if choice := _CHOICE.search(message):
            choices = [word.strip().strip("'") for word in choice["choices"].split(",")]
            raise UserError(
                f"invalid {choice['name']} {choice['given']!r}{did_you_mean(choice['given'], choices)}"
            )
        if message.startswith(_REQUIRED):
            message = f"missing argument: {message.removeprefix(_REQUIRED)}"
        raise UserError(f"{message} (see --help)")
