"""A parser of a command's flags: wrong use is one line, with the near miss named."""

import argparse
import re
from typing import Any, NoReturn

from profiling.errors import UserError, did_you_mean

_UNKNOWN = re.compile(r"unrecognized arguments: (-[^\s=]+)")
_CHOICE = re.compile(
    r"argument (?P<name>\S+): invalid choice: '(?P<given>.*)' \(choose from (?P<choices>.*)\)"
)
_REQUIRED = "the following arguments are required: "


class Parser(argparse.ArgumentParser):
    """argparse, but wrong use is a :class:`UserError`; abbreviations of flags are not taken."""

    def __init__(self, **named: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **named})

    @property
    def flags(self) -> frozenset[str]:
        """``--help`` and all others."""
        return frozenset(self._option_string_actions)

    def error(self, message: str) -> NoReturn:
        if unknown := _UNKNOWN.search(message):
            message = f"unknown flag {unknown[1]}{did_you_mean(unknown[1], self._option_string_actions)}"
        elif choice := _CHOICE.search(message):
            choices = [word.strip().strip("'") for word in choice["choices"].split(",")]
            raise UserError(
                f"invalid {choice['name']} {choice['given']!r}{did_you_mean(choice['given'], choices)}"
            )
        elif message.startswith(_REQUIRED):
            message = f"missing argument: {message.removeprefix(_REQUIRED)}"
        raise UserError(f"{message} (see --help)")
