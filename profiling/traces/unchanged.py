"""Which files were converted before, and have not changed since? Their tables are used again.

A complete conversion leaves the record of each file beside its tables, in the folder of its job. Whatever
replaces the tables or removes them makes the record void.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from profiling.schemas import SCHEMAS
from profiling.tables import rank_directory, table_path
from profiling.traces.folders import CONVERTED, folder_of
from profiling.traces.records import (
    Outcome,
    Unit,
    keep_moved,
    kept_record,
    read_record,
    record_of,
    state_of_tables,
    write_record,
)


def unchanged(unit: Unit, left: Iterable[Path]) -> Outcome | None:
    """What a complete call made of a unit, if neither its files nor its tables have changed since.

    Args:
        left: its records of :func:`records_left`.
    """
    for path in left:
        record = record_of(unit, path)
        if record is not None and record.is_whole:
            return replace(record.outcome, unchanged=True)
    return None


def records_left(units: Sequence[Unit]) -> list[list[Path]]:
    """Where complete calls may have left records of each unit.

    The name of a unit's job is not known, so the folders of all jobs are searched: once, for all units.
    """
    of_jobs: dict[tuple[Path, str], list[Path]] = {}
    for base in {unit.base for unit in units if unit.batch_marker is not None}:
        for path in base.glob(f"[!.]*/{_record_named('*')}"):
            of_jobs.setdefault((base, path.stem), []).append(path)
    return [
        [unit.target / _record_named(unit.code), *of_jobs.get((unit.base, unit.code), ())] for unit in units
    ]


def _record_named(code: str) -> Path:
    """The record of a unit, below the folder of its tables."""
    return Path(CONVERTED, f"{code}.json")


def sources_of(folder: Path) -> list[str]:
    """The files that a folder's tables were made of, from the top, as far as known."""
    records = [read_record(path) for path in sorted(folder.glob(str(_record_named("*"))))]
    return [record.source for record in records if record]


def forget(units: Sequence[Unit]) -> None:
    """Have units converted again that have not changed."""
    for left in records_left(units):
        for path in left:
            if record := read_record(path):  # it still says what the tables were made of
                write_record(path, replace(record, made_by=""))


def taken_back(unit: Unit, outcome: Outcome) -> Outcome:
    """The tables of an unchanged trace are moved to where they are when it has just been converted.

    The traces beside it may have changed, and its job with them.
    """
    if not (outcome.unchanged and outcome.ranks):
        return outcome
    ranks = tuple(replace(one, directory=rank_directory(unit.scratch, one.rank)) for one in outcome.ranks)
    for before, now in zip(outcome.ranks, ranks, strict=True):
        now.directory.mkdir(parents=True, exist_ok=True)
        for name in SCHEMAS:
            with suppress(FileNotFoundError):
                table_path(before.directory, name).rename(table_path(now.directory, name))
    answer = replace(outcome, ranks=ranks)
    keep_moved(unit, answer)
    return answer


def leave_record(unit: Unit, moved: Mapping[Path, Path]) -> None:
    """Leave the record of a unit beside its tables.

    Args:
        moved: from where to where the tables of ranks were.
    """
    record = kept_record(unit)
    if record is None or not record.outcome.has_tables:
        return
    ranks = tuple(replace(one, directory=moved[one.directory]) for one in record.outcome.ranks)
    outcome = replace(record.outcome, ranks=ranks, unchanged=False)
    place = folder_of(ranks[0].directory) if ranks else unit.target
    write_record(
        place / _record_named(unit.code),
        replace(record, outcome=outcome, tables=state_of_tables(outcome), launch=""),
    )
