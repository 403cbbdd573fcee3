"""What did TAU record of a run, by rank: its timers, its events, its marks of batches?

Read from TAU's own files, or from the tables that a run of ours (or ``profiling.convert``) made of them.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa

from profiling import tables
from profiling.errors import UserError
from profiling.tools import recognition
from profiling.wording import how_many

_APPLICATION = ".TAU application"
_TABLES = ("intervals", "atomics", "markers")


class Profile:
    """A run's timers and events by rank; times in ns, those of the same name on several threads summed.

    Attributes:
        timers: rank -> function -> (calls, inclusive ns).
        events: rank -> rows of table ``atomics``.
        marks: rank -> when its first thread ended each batch, ns.
        findings: what is to be said of it.

    Raises:
        UserError: no profile of TAU, or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.findings: list[str] = []
        self.timers: dict[int, dict[str, tuple[float, float]]] = {}
        self.events: dict[int, list[dict[str, Any]]] = {}
        self.marks: dict[int, list[int]] = {}
        for name, table in self._read():
            for row in table.to_pylist():
                self._add(name, row)

    def _read(self) -> "Iterator[tuple[str, pa.Table]]":
        if folders := folders_of_tables(self.path):
            for folder in folders:
                self.findings += _findings_of(folder)
                for name in _TABLES:
                    if tables.table_path(folder, name).exists():
                        yield name, tables.read(folder, name)
            return
        converted = recognition.read(self.path, "tau")
        self.findings += converted.findings
        yield from converted.tables.items()

    def _add(self, name: str, row: dict[str, Any]) -> None:
        if name == "atomics":
            self.events.setdefault(row["rank"], []).append(row)
        elif name == "markers" and row["thread"] == 0:
            self.marks.setdefault(row["rank"], []).append(row["start_ns"])
        elif name == "intervals":
            mine = self.timers.setdefault(row["rank"], {})
            if row["function"] == _APPLICATION and row["thread"]:
                return  # other threads' applications are parts of the first one's
            calls, took = mine.get(row["function"], (0.0, 0.0))
            mine[row["function"]] = (calls + (row["calls"] or 0), took + (row["inclusive_ns"] or 0))

    def application_ns(self, rank: int) -> float:
        """How long the whole run took; NaN if TAU did not say."""
        return self.timers.get(rank, {}).get(_APPLICATION, (0, math.nan))[1]


def folders_of_tables(path: Path) -> Sequence[Path]:
    """The folders of a run's ranks, or a rank's own, where TAU's tables lie in them; none: they do not.

    Raises:
        UserError: there are several runs below.
    """
    if not path.is_dir():
        return ()
    if _has_intervals(path):
        return (path,)
    ranks = sorted(folder for folder in path.glob("rank_*") if _has_intervals(folder))
    runs = sorted({file.parents[1] for file in path.glob("*/rank_*/intervals.parquet")})
    if not ranks and runs:
        raise UserError(
            f"{path} holds {how_many(len(runs), 'run')} under TAU; name one of them, e.g. {runs[0]}"
        )
    return ranks


def _has_intervals(folder: Path) -> bool:
    return tables.table_path(folder, "intervals").exists()


def _findings_of(folder: Path) -> list[str]:
    """What a rank of ours found of its profile."""
    report = folder / "rank.json"
    return orjson.loads(report.read_bytes()).get("findings", []) if report.exists() else []
