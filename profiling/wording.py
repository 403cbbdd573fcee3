"""How does a number read in a sentence (``1 run is left``, ``2 runs are left``), and a command?"""

import shlex
from collections.abc import Collection, Sequence
from typing import Any

from profiling.number_ranges import listed

_MOST_NAMED = 6  # files, or jobs
_OF_ONE = {"are": "is", "were": "was", "have": "has", "do": "does"}


def how_many(count: int, of_one: str) -> str:
    """``1 run``, ``2 runs``, ``0 batches``, ``3 damaged lines``."""
    return f"{count} {noun(count, of_one)}"


def noun(count: int, of_one: str) -> str:
    """A noun as it follows a count or a list: ``run`` of 1, else ``runs``."""
    return of_one if count == 1 else plural(of_one)


def verb(count: int, of_several: str) -> str:
    """A verb as it follows a count, given as for several: ``are`` (1: ``is``), ``reach`` (1: ``reaches``)."""
    return (_OF_ONE.get(of_several) or plural(of_several)) if count == 1 else of_several


def three_digits(value: float) -> str:
    """``0.0345``, ``1.20``, ``76.1``, ``421``, ``1214``: no digits are cut off before the decimal point."""
    return f"{value:#.3g}" if 0 < value < 99.95 else f"{value:.0f}"


def left_out(count: int, of_one: str) -> str:
    """``1 damaged line is left out``, ``2 damaged lines are left out``."""
    return f"{how_many(count, of_one)} {verb(count, 'are')} left out"


def in_a_row(values: Sequence[Any], separator: str = ", ") -> str:
    """``1``, ``1 and 2``, ``1, 2 and 4``."""
    *others, last = map(str, values)
    return f"{separator.join(others)} and {last}" if others else last


def first_of(names: Sequence[str]) -> str:
    """The first of some names, in a line."""
    return ", ".join(names[:_MOST_NAMED]) + (", ..." if len(names) > _MOST_NAMED else "")


def which_ranks(ranks: Collection[int], most: int = 8) -> str:
    """``rank 3``, ``ranks 0-2, 8``: of many, at most so many ranges."""
    return f"{noun(len(ranks), 'rank')} {listed(ranks, most)}"


def command(module: str, *words: object) -> str:
    """A command to type, quoted as a shell needs it: ``python -m profiling.convert 'my traces'``."""
    return shlex.join(["python", "-m", module, *map(str, words)])


def plural(word: str) -> str:
    """``runs``, ``classes``; a verb takes the same ending for one: ``reaches``."""
    return word + ("es" if word.endswith(("s", "x", "ch", "sh")) else "s")
