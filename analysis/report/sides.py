"""Two sets of runs side by side: their configurations by name, and what was tested of them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from analysis.display.metrics import Rows
from analysis.measures.scaling.compare_rows import SHOWN, Key, least_runs
from analysis.measures.scaling.compared import Compared
from analysis.measures.scaling.point import point_names
from analysis.report import choices
from analysis.report.base import Context
from analysis.report.per_point import labels_of
from analysis.report.views import facts, varied


@dataclass(frozen=True)
class Sides:
    """Two sets of runs, what they are called, and what differs.

    Attributes:
        whole: of all configurations, where this is of those that filters leave; else None.
        left: those that filters leave.
    """

    a: Context
    b: Context
    names: tuple[str, str]
    compared: Compared
    whole: "Sides | None" = None
    left: frozenset[choices.Key] = frozenset()
    _rows: dict[Callable[..., Rows], Rows] = field(default_factory=dict, repr=False, compare=False)

    @property
    def folders(self) -> list[Path]:
        """Where the results of both are."""
        return [*self.a.folders, *self.b.folders]

    @property
    def factors(self) -> list[str]:
        """By which the page is filtered: of both sides the same."""
        return (self.whole or self).b.factors

    @cached_property
    def coverage(self) -> choices.Coverage:
        """Of which configurations, of either side, a row is."""
        return choices.Coverage(self.factors, [*self.a.configurations, *self.b.configurations])

    def only(self, left: frozenset[choices.Key]) -> "Sides":
        """The same of some configurations. No test is made again: of what was found, some rows are left."""
        return replace(self, a=self.a.only(left), b=self.b.only(left), whole=self, left=left, _rows={})

    def rows_of(self, measure: Callable[["Sides"], Rows]) -> Rows:
        """The rows of a measure of all configurations, of those that filters leave."""
        if self.whole is None:
            if measure not in self._rows:
                self._rows[measure] = measure(self)
            return self._rows[measure]
        rows = self.whole.rows_of(measure)
        of = self.whole.coverage.of_rows(measure, rows)
        return [row for row, covered in zip(rows, of, strict=True) if covered and covered <= self.left]

    def telling(self, rows: Rows) -> list[str]:
        """The factors by which rows are called: of some configurations those that tell these apart."""
        return varied(rows, self.factors) if self.whole else self.factors


def by_key(rows: Iterable[Mapping[str, Any]], across: Sequence[str]) -> dict[Key, Mapping[str, Any]]:
    """Rows by the configuration that analysis.compare knows them by."""
    return {key_of(row, across): row for row in rows}


def key_of(row: Mapping[str, Any], across: Sequence[str]) -> Key:
    """A row's configuration as analysis.compare has it, where fields ``across`` may differ."""
    return tuple((name, str(row.get(name))) for name in point_names(row) if name not in across)


def fields_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a row that make its configuration."""
    return {name: row.get(name) for name in point_names(row)}


def of_test(tested: Mapping[str, Any], tests: int) -> dict[str, Any]:
    """What tables and charts show of a row of analysis.compare; ``judged`` is its verdict in one word.

    Args:
        tests: how many rows its kind has, for which its p value is corrected.
    """
    names = ("kind", "quantity", "a", "b", "effect_pct", "effect_pct_low", "effect_pct_high")
    return {name: tested[name] for name in names} | {
        "judged": tested["verdict"], "verdict": SHOWN.get(tested["verdict"], tested["verdict"])
    }  # fmt: skip


def least_runs_of(kind: str, sides: Sides) -> str:
    """How many runs a verdict on a row of this kind takes, where some have fewer."""
    return ", ".join(map(str, least_runs(sides.compared.rows, kind)))


def most_changed(rows: Rows, change: str) -> dict[str, Any]:
    """Of the configurations on most ranks the row that changed most, either way, in column ``change``."""
    return max(rows, key=lambda row: (row["nodes"] * row["gpus_per_node"], abs(row[change])))


def rows_of_kind(kind: str, sides: Sides) -> Rows:
    """The rows of a kind, each with its configuration's name and facts."""
    found = sides.compared.by_configuration(kind)
    sources = by_key([source.fields for source in sides.b.study.sources], sides.compared.across)
    rows = []
    for key, row in found:
        fields = sources[key]
        rows.append({**fields_of(fields), "facts": facts(fields, sides.factors), **of_test(row, len(found))})
    return rows


def with_names(rows: Rows, sides: Sides) -> Rows:
    """Rows of a configuration each, with its name."""
    return [
        {**row, "configuration": label}
        for row, label in zip(rows, labels_of(rows, sides.telling(rows)), strict=True)
    ]


def with_names_of_points(rows: Rows, sides: Sides) -> Rows:
    """Rows of which several are of one configuration, with its name."""
    points: dict[Key, dict[str, Any]] = {key_of(row, ()): row for row in rows}
    alone = list(points.values())
    names = dict(zip(points, labels_of(alone, sides.telling(alone)), strict=True))
    return [{**row, "configuration": names[key_of(row, ())]} for row in rows]
