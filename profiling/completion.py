"""What does the shell's Tab key offer: a command's flags, their values, the folders and files below here?"""

import argparse
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from profiling.errors import UserError

# Positional arguments that are results: their folders are offered before any file.
_RESULTS = ("DIR", "A", "B", "P=DIR")


def is_asked() -> bool:
    """Whether it is the shell that calls, for what may follow on its command line."""
    return "_ARGCOMPLETE" in os.environ


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer the shell with what the parser takes, and leave."""
    import argcomplete

    # Flags are offered after a dash alone, or results would be lost among them.
    by_default: Any = places  # it takes any function that is called so
    argcomplete.autocomplete(parser, always_complete_options=False, default_completer=by_default)


def with_values(action: argparse.Action, values: Callable[[], Iterable[str]]) -> None:
    """Let the shell offer an argument's values, where not all that are valid are known as its choices."""
    action.completer = lambda **_: values()  # type: ignore[attr-defined]


def with_answers(
    action: argparse.Action, values: Callable[[argparse.Namespace], Iterable[str]], several: bool = False
) -> None:
    """Let the shell offer values that depend on what stands before on the line.

    Args:
        values: of what has been read of the line; none, if what it names cannot be read.
        several: the argument is a list of them with commas between.
    """

    def offered(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
        begun = prefix.rpartition(",")[0] if several else ""
        try:
            return in_list(begun, values(parsed_args))
        except UserError:
            return []

    action.completer = offered  # type: ignore[attr-defined]


def in_list(begun: str, values: Iterable[str]) -> list[str]:
    """``a,b`` with each of the values that it does not have yet: ``a,b,c``, ``a,b,d``."""
    before = begun.split(",") if begun else []
    return [",".join([*before, value]) for value in values if value not in before]


def places(prefix: str, action: argparse.Action, **_: Any) -> list[str]:
    """The folders and files that begin with ``prefix``; for results, files only where no folder does.

    Of a folder of results with its number of ranks (``4=DIR``) what follows the number is completed.
    """
    number, sep, path = prefix.partition("=")
    before, path = (number + sep, path) if sep and number.isdecimal() else ("", prefix)
    begun = path.rpartition("/")[2]
    folder = path.removesuffix(begun)
    try:
        inside = sorted(Path(folder).expanduser().iterdir())
    except OSError:
        return []
    begins = [one for one in inside if one.name.startswith(begun) and (begun or one.name[0] != ".")]
    folders = [one for one in begins if one.is_dir()]
    shown = folders if folders and action.metavar in _RESULTS else begins
    return [f"{before}{folder}{one.name}{'/' if one.is_dir() else ''}" for one in shown]
