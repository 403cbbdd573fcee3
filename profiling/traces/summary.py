"""What is said of the files that were converted, and of those that were not?"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from profiling.tables import table_path
from profiling.tools.recognition import supported
from profiling.traces.jobs import Placed
from profiling.traces.records import Outcome, Unit
from profiling.wording import command, first_of, how_many, verb

_NUMBER = re.compile(r"\d+")
_ACTIVITIES = ("kernels", "intervals")  # tables that analysis.activities reads, of other tools than these
_TAU = "tau"  # whose timers are sums of what ran on the host


@dataclass(frozen=True)
class Counts:
    """What became of files.

    Attributes:
        failed: named by the user or profiles, and not readable.
        foreign: in a folder that was searched, and no profiles: no failure.
        as_they_are: that analysis reads itself.
        unused: readable, but another trace of the same rank is used.
        unchanged: of the converted those that an earlier call had converted, and this one did not again.
    """

    converted: int
    failed: int = 0
    foreign: int = 0
    as_they_are: int = 0
    unused: int = 0
    unchanged: int = 0

    def __str__(self) -> str:
        others = (
            f", {self.as_they_are} read as {'it is' if self.as_they_are == 1 else 'they are'}"
            if self.as_they_are
            else "",
            f", {self.unused} not used" if self.unused else "",
            f", {self.foreign} in an unrecognised format" if self.foreign else "",
        )
        before = f", {self.unchanged} unchanged" if self.unchanged else ""
        return f"{self.converted - self.unchanged} converted{before}, {self.failed} not{''.join(others)}"


def counts_of(units: Sequence[Unit], outcomes: Sequence[Outcome], unused: Sequence[Path]) -> Counts:
    """How many files were converted, and how many were not; those that are ``unused`` were read to no end."""
    errors, others = sum(bool(outcome.error) for outcome in outcomes), len(_foreign(units, outcomes))
    pairs = zip(units, outcomes, strict=True)
    unchanged = sum(outcome.unchanged and unit.path not in unused for unit, outcome in pairs)
    as_they_are = sum(outcome.as_it_is for outcome in outcomes)
    converted = len(outcomes) - errors - as_they_are - len(unused)
    return Counts(converted, errors - others, others, as_they_are, len(unused), unchanged)


def what_is_unchanged(outcomes: Sequence[Outcome], advise: bool) -> list[str]:
    """That files were not converted again, in a line; none if all were.

    Args:
        advise: say how they are.
    """
    count = sum(outcome.unchanged for outcome in outcomes)
    they, them = ("they were", "them") if count > 1 else ("it was", "it")
    again = f"; --overwrite converts {them} again" if advise else ""
    files = f"{how_many(count, 'file')} {verb(count, 'are')}"
    return [f"{files} unchanged since {they} converted{again}"] if count else []


def complaints(units: Sequence[Unit], outcomes: Sequence[Outcome]) -> list[str]:
    """Why files were not converted, a line each; those of no known format together."""
    foreign = _foreign(units, outcomes)
    pairs = zip(units, outcomes, strict=True)
    left = [(unit, outcome) for unit, outcome in pairs if outcome.error and unit.path not in foreign]
    # An empty file has a line of its own, which says that it is empty.
    unknown = [unit.path for unit, outcome in left if outcome.unrecognised and unit.size]
    together = unknown if len(unknown) > 1 else []
    alone = [outcome.error for unit, outcome in left if unit.path not in set(together)]
    return [*alone, *(_unrecognised(paths) for paths in (together, list(foreign)) if paths)]


def _foreign(units: Sequence[Unit], outcomes: Sequence[Outcome]) -> dict[Path, Unit]:
    """The files of a searched folder that are no profiles: of no known format, or empty.

    A file that is named as a profile is, but for the numbers (rank3.json beside rank0.json), is one of which
    too little is left.
    """
    pairs = list(zip(units, outcomes, strict=True))
    profiles = {_without_numbers(unit) for unit, outcome in pairs if not outcome.unrecognised}
    return {
        unit.path: unit
        for unit, outcome in pairs
        if unit.found and outcome.unrecognised and _without_numbers(unit) not in profiles
    }


def _without_numbers(unit: Unit) -> str:
    return _NUMBER.sub("#", unit.path.name)


def _unrecognised(paths: Sequence[Path]) -> str:
    files = f"{how_many(len(paths), 'file')} {verb(len(paths), 'are')} in an unrecognised format"
    return f"{files}: {named(paths)}; {supported()}"


def named(paths: Sequence[Path]) -> str:
    """The first of some files by name, in a line; those of one name in several folders once."""
    return first_of(list(dict.fromkeys(path.name for path in paths)))


def of_tables(units: Sequence[Unit], outcomes: Sequence[Outcome], out: Path | None) -> list[str]:
    """What analysis makes of files that are no traces, a line each: of PyProf's tables, and of totals."""
    pairs = list(zip(units, outcomes, strict=True))
    lines = _as_they_are([unit.path for unit, outcome in pairs if outcome.as_it_is])
    if out is not None and (count := sum(one.has_tables and not one.ranks for one in outcomes)):
        files = f"{how_many(count, 'file')} {verb(count, 'hold')}"
        lines.append(f"{files} totals of whole runs: converted to tables, which analysis does not read")
    return lines


def _as_they_are(paths: Sequence[Path]) -> list[str]:
    if not paths:
        return []
    them, as_they_are = ("them", "as they are") if len(paths) > 1 else ("it", "as it is")
    files = how_many(len(paths), "PyProf kernel table")
    how = command("analysis.kernels", os.path.commonpath(paths))
    return [f"{files}: analysis reads {them} {as_they_are}, nothing to convert: {how}"]


def next_command(placed: Sequence[Placed], tables: Sequence[Outcome], out: Path | None) -> str:
    """What to do with what was converted; "" where that is nothing.

    Args:
        tables: what became of the files that are no job's.
    """
    ranks = [folder for one in placed for folder in sorted(one.directory.glob("rank_*"))]
    # A timeline of Horovod has collectives, and no steps.
    if any(all(table_path(folder, name).exists() for name in ("kernels", "batches")) for folder in ranks):
        return command("analysis.report", placed[0].directory if len(placed) == 1 or out is None else out)
    recorded = [one.target for one in tables if one.tool != _TAU and _holds(one.target, _ACTIVITIES)]
    recorded += [one.directory for one in placed if any(one.directory.glob("rank_*/kernels.parquet"))]
    more = "" if out else "; with --out DIR traces become results that every command takes"
    if recorded:
        return command("analysis.activities", recorded[0]) + more
    sums = [one.target for one in tables if one.tool == _TAU]
    sums += [one.directory for one in placed if one.job.tool == _TAU]
    if not sums:
        return ""
    mpi = f"; {command('analysis.report', out)}" if out else "; with --out DIR reports show what MPI cost"
    return command("analysis.tau_batches", sums[0]) + mpi


def _holds(folder: Path, names: Sequence[str]) -> bool:
    return any(table_path(folder, name).exists() for name in names)
