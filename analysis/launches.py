"""What do the launches of a PyProf table add up to, and how many batches are in it?

PyProf tables are read some at a time, and each for itself where one of them is damaged, so that a bad table
costs no other one.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from analysis.study import Source, Study
from profiling.errors import UserError
from profiling.tools import pyprof

_Found = TypeVar("_Found")


def per_table(
    study: Study,
    sources: Iterable[Source],
    sql: str,
    **each: Callable[[Source], Any],
) -> dict[Path, tuple]:
    """The row that ``sql`` gives of each table; a table that cannot be read is taken out of the study.

    Args:
        sql: a query over ``$paths`` whose rows begin with ``filename``, one a table.
        each: further parameters of it: lists of one value a table.
    """

    def ask(some: Sequence[Source]) -> dict[Path, tuple]:
        arguments: dict[str, Any] = {"paths": [str(source.path) for source in some]}
        arguments |= {name: [value(source) for source in some] for name, value in each.items()}
        rows = study.ask(sql, arguments)
        return {Path(name): tuple(row) for name, *row in rows}

    return _in_portions(study, list(sources), ask)


def _in_portions(
    study: Study, sources: Sequence[Source], ask: Callable[[Sequence[Source]], dict[Path, _Found]]
) -> dict[Path, _Found]:
    import duckdb

    found: dict[Path, _Found] = {}
    by_path = {source.path: source for source in sources}
    for paths in pyprof.in_portions(list(by_path)):
        some = [by_path[path] for path in paths]
        try:
            found |= ask(some)
        except (duckdb.Error, OSError):
            for source in some:
                try:
                    found |= ask([source])
                except (duckdb.Error, OSError) as error:
                    study.fail(source, damaged(error))
    return found


def batches_of(study: Study, sources: Sequence[Source]) -> dict[Path, pyprof.Batches]:
    """The batches of each table, counted once a study."""
    new = [source for source in sources if source.path not in study.batches]
    if new:
        study.batches |= _in_portions(
            study,
            new,
            lambda some: pyprof.find_batches(study.connection, [source.path for source in some]),
        )
    return {source.path: study.batches[source.path] for source in sources if source.path in study.batches}


# --- FLOPs by direction -------------------------------------------------------------------------------

_SUMS = f"""
select filename,
    coalesce(sum("FLOPs") filter ("Direction" = 'fprop'), 0)::double,
    coalesce(sum("FLOPs") filter ("Direction" = 'bprop'), 0)::double
from {pyprof.TABLES} group by filename
"""


@dataclass(frozen=True)
class TableSums:
    """Sums over one PyProf table: credited FLOPs by PyProf's direction, and its batches."""

    fprop_flops: float
    bprop_flops: float
    batches: pyprof.Batches

    @property
    def fprop_per_batch(self) -> float:
        return self.fprop_flops / self.batches.forward if self.batches.forward else float("nan")

    @property
    def bprop_per_batch(self) -> float:
        return self.bprop_flops / self.batches.backward if self.batches.backward else float("nan")


def table_sums(study: Study, sources: Sequence[Source]) -> dict[str, TableSums]:
    """Sums of each PyProf table that can be read, by the source's id."""
    batches = batches_of(study, sources)
    sums = per_table(study, [source for source in sources if source.path in batches], _SUMS)
    found = {}
    for source in sources:
        if source.path in sums:
            forward, backward = sums[source.path]
            found[source.id] = TableSums(forward, backward, batches[source.path])
    return found


# --- by kernel name -----------------------------------------------------------------------------------


def per_name(study: Study, source: Source, direction: str | None = None) -> list[tuple[str, float, float]]:
    """(kernel, sum of ``Sil(ns)``, sum of FLOPs) of a table, the longest first.

    Args:
        direction: as PyProf says it; by default all launches.

    Raises:
        UserError: the table is damaged.
    """
    import duckdb

    where = '"Direction" = $direction' if direction else "true"
    sql = (
        'select "Kernel", coalesce(sum("Sil(ns)"), 0)::double as ns, coalesce(sum("FLOPs"), 0)::double '
        f'from {pyprof.TABLES} where {where} group by "Kernel" order by ns desc, "Kernel"'
    )
    arguments: dict[str, Any] = {"paths": [str(source.path)]} | (
        {"direction": direction} if direction else {}
    )
    try:
        return study.connection.execute(sql, arguments).fetchall()
    except (duckdb.Error, OSError) as error:
        raise UserError(f"{source.path} {damaged(error)}") from None


def damaged(error: Exception) -> str:
    """That a file is damaged, or has columns of other types, in one line."""
    import duckdb

    if isinstance(error, duckdb.BinderException | duckdb.ConversionException):
        return f"holds a column of another type than PyProf's ({str(error).splitlines()[0]})"
    return f"is damaged or truncated ({str(error).splitlines()[0]}); fetch it again"
