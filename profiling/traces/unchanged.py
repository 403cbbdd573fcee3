"""Which files were converted before, and have not changed since? Their tables are used again.

A complete conversion leaves the record of each file beside its tables, in the folder of its job. Whatever
replaces the tables or removes them makes the record void.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from profiling.schemas import SCHEMAS
from profiling.tables import rank_directory, table_path
from profiling.traces.folders import CONVERTED
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


def unchanged(unit: Unit) -> Outcome | None:
    """What a complete call made of a unit, if neither its files nor its tables have changed since."""
    for path in _left(unit):
        record = record_of(unit, path)
        if record is not None and record.is_whole:
            return replace(record.outcome, unchanged=True)
    return None


def _left(unit: Unit) -> list[Path]:
    """The records of a unit that complete calls have left; the name of its job's folder is not known."""
    inside = Path(CONVERTED, f"{unit.code}.json")
    jobs = unit.base.glob(f"[!.]*/{inside}") if unit.batch_marker is not None else ()
    return [path for path in (unit.target / inside, *jobs) if path.is_file()]


def sources_of(folder: Path) -> list[str]:
    """The files that a folder's tables were made of, from the top, as far as known."""
    records = [read_record(path) for path in sorted(folder.glob(f"{CONVERTED}/*.json"))]
    return [record.source for record in records if record]


def forget(units: Iterable[Unit]) -> None:
    """Have units converted again that have not changed."""
    for unit in units:
        for path in _left(unit):
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
        moved: from where to where the tables of ranks were; those of a trace that is not used were not.
    """
    record = kept_record(unit)
    if record is None or record.outcome.error:
        return
    if any(one.directory not in moved for one in record.outcome.ranks):
        return
    ranks = tuple(replace(one, directory=moved[one.directory]) for one in record.outcome.ranks)
    outcome = replace(record.outcome, ranks=ranks, unchanged=False)
    place = ranks[0].directory.parent if ranks else unit.target
    write_record(
        place / CONVERTED / f"{unit.code}.json",
        replace(record, outcome=outcome, tables=state_of_tables(outcome), launch=""),
    )
