"""Which configurations do the page's filters leave? Every choice of levels, with what it leaves.

A choice is one level of a factor, or all of them, for each filter. It leaves the configurations that have
all its levels. What leaves none is no choice. Of many factors only the choices of few filters at once are
listed.
"""

import itertools
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jobs.run_fields import FACTOR
from jobs.run_values import as_text

# Different sets of configurations that are listed: what the page says of one takes a few milliseconds.
MOST = 2000

Key = tuple[str, ...]
"""A configuration's level of each factor, as text; empty: it has none."""

Choice = tuple[int, ...]
"""Of each filter the number of the chosen level, from 1; 0: all of them."""


@dataclass(frozen=True)
class Filter:
    """A factor by which the reader narrows what the page shows and says.

    Attributes:
        called: what it is called, if not as in the sweep file.
    """

    name: str
    choices: Sequence[str]
    called: str = ""

    @property
    def label(self) -> str:
        """What the page calls it."""
        return self.called or self.name.removeprefix(FACTOR)


@dataclass(frozen=True)
class Choices:
    """What can be chosen.

    Attributes:
        left: by choice the configurations that it leaves; without the choice of everything.
        depth: with so many filters at once a level can be chosen; of more, nothing is listed.
    """

    left: Mapping[Choice, frozenset[Key]]
    depth: int


def key_of(fields: Mapping[str, Any], factors: Sequence[str]) -> Key:
    """The levels of the factors in a row, or in a run's fields."""
    return tuple([as_text(fields.get(name)) for name in factors])


class Coverage:
    """Of which configurations is a row? Of the one that has its levels.

    A row that names no level of a factor is of all configurations with the levels that it names: what more
    ranks would give follows from all numbers of ranks that were measured.

    Attributes:
        factors: whose levels tell configurations apart.
        keys: all configurations.
    """

    def __init__(self, factors: Sequence[str], configurations: Iterable[Mapping[str, Any]]) -> None:
        self.factors = factors
        self.keys = frozenset(key_of(fields, factors) for fields in configurations)
        self._of_key: dict[Key, frozenset[Key]] = {}
        self._of_rows: dict[Hashable, list[frozenset[Key]]] = {}

    def of(self, row: Mapping[str, Any]) -> frozenset[Key]:
        """The configurations of a row, or of a run's fields; none: of what the page has no other figures."""
        key = key_of(row, self.factors)
        if key not in self._of_key:
            self._of_key[key] = frozenset([key]) if key in self.keys else self._alike(key)
        return self._of_key[key]

    def _alike(self, key: Key) -> frozenset[Key]:
        return frozenset(
            one for one in self.keys if all(level in ("", its) for level, its in zip(key, one, strict=True))
        )

    def of_rows(self, name: Hashable, rows: Sequence[Mapping[str, Any]]) -> list[frozenset[Key]]:
        """The configurations of each row of a table, which are found once a table.

        Args:
            name: of the table.
        """
        if name not in self._of_rows:
            self._of_rows[name] = [self.of(row) for row in rows]
        return self._of_rows[name]


def choices_of(filters: Sequence[Filter], coverage: Coverage, most: int = MOST) -> Choices:
    """All choices that leave a configuration, as deep as there are no more sets of these than ``most``.

    The choices of a single level are always among them.
    """
    numbered = {key: _numbers(key, filters, coverage.factors) for key in coverage.keys}
    left: dict[Choice, frozenset[Key]] = {}
    for depth in range(1, len(filters) + 1):
        deeper = {**left, **_of_depth(numbered, depth)}
        if depth > 1 and len(set(deeper.values())) > most:
            return Choices(left, depth - 1)
        left = deeper
    return Choices(left, len(filters))


def _numbers(key: Key, filters: Sequence[Filter], factors: Sequence[str]) -> Choice:
    """The choice of all levels that a configuration has."""
    levels = dict(zip(factors, key, strict=True))
    return tuple([one.choices.index(levels[one.name]) + 1 if levels[one.name] else 0 for one in filters])


def _of_depth(numbered: Mapping[Key, Choice], depth: int) -> dict[Choice, frozenset[Key]]:
    """The choices of so many levels."""
    found: dict[Choice, set[Key]] = {}
    for key, numbers in numbered.items():
        known = [place for place, number in enumerate(numbers) if number]
        for places in itertools.combinations(known, depth):
            choice = tuple([number if place in places else 0 for place, number in enumerate(numbers)])
            found.setdefault(choice, set()).add(key)
    return {choice: frozenset(of) for choice, of in found.items()}
