"""How does a file become tables?"""

import errno
import shutil
from collections.abc import Sequence
from pathlib import Path

from profiling.errors import UserError
from profiling.schemas import SCHEMAS
from profiling.tables import Writer, table_path
from profiling.tools import Profiler
from profiling.tools.recognition import Unrecognised, reader_of, recognise
from profiling.traces.ranks import record_ranks
from profiling.traces.recorded import Recorded
from profiling.traces.records import Outcome, Unit, keep, kept, state_of
from profiling.traces.unchanged import sources_of, unchanged


def convert_unit(unit: Unit, launch: str = "", left: Sequence[Path] = ()) -> Outcome:
    """Write the tables of one file, a piece at a time where its tool can; unless an earlier call has.

    Args:
        launch: that all ranks that share the work are of; what they make no tables of is recorded, too.
        left: its records of :func:`profiling.traces.unchanged.records_left`.
    """
    if (before := kept(unit, launch)) is not None:
        return before
    shutil.rmtree(unit.scratch, ignore_errors=True)  # that call was ended in the middle of it
    state = state_of(unit)
    outcome = unchanged(unit, left) or tables_of(unit)
    if not outcome.has_tables:
        shutil.rmtree(unit.scratch, ignore_errors=True)
    if launch or outcome.has_tables:
        keep(unit, outcome, launch, state)
    return outcome


def convert_with(unit_and_left: tuple[Unit, Sequence[Path]]) -> Outcome:
    """As :func:`convert_unit`, for workers, which take one thing each."""
    unit, left = unit_and_left
    return convert_unit(unit, left=left)


def tables_of(unit: Unit) -> Outcome:
    """Write the tables of one file, whatever was there before."""
    findings: list[str] = []
    try:
        name = unit.name or recognise(unit.path)
        reader = reader_of(unit.path, name)
        if reader.analysed_as_it_is:
            if unit.name:  # not recognised by what is in it: whether it is one is to be seen
                reader.read(unit.path)
            return Outcome(unit.target, as_it_is=True, tool=name or "")
        ranks = _ranks(unit, reader, name or "", findings)
        if ranks:
            return Outcome(unit.target, tuple(findings), ranks=ranks, tool=name or "")
        with Writer(unit.target) as writer:
            for table, piece in reader.stream(unit.path, findings):
                writer.add(table, piece)
        if sources_of(unit.target):  # by an earlier call, of another file or as it was
            for table in SCHEMAS.keys() - writer.names:
                table_path(unit.target, table).unlink(missing_ok=True)
    except UserError as error:
        return Outcome(unit.target, error=str(error), unrecognised=isinstance(error, Unrecognised))
    except OSError as error:
        why = error.strerror or error
        space = "free some space, or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        do = f"{space}name another place (profiling.convert --out DIR, analysis.report --output FILE)"
        return Outcome(unit.target, error=f"cannot write to {unit.target}: {why}; {do}")
    return Outcome(unit.target, tuple(findings), tool=name or "")


def _ranks(unit: Unit, reader: Profiler, name: str, findings: list[str]) -> tuple[Recorded, ...]:
    """The ranks of a trace, if the unit is one and is to be one of a job."""
    if unit.batch_marker is None:
        return ()
    facts = reader.facts(unit.path)
    if facts is None:
        return ()
    return record_ranks(unit.path, unit.root, name, facts, unit.scratch, unit.batch_marker, findings)
