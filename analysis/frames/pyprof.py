"""Sums over the launches of PyProf tables, and the batches in them.

PyProf tables are read some at a time, and each for itself where one of them is damaged, so that a bad table
costs no other one.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import duckdb

from analysis.frames.study import Source, Study, Unusable
from profiling.readers import pyprof

_Value = TypeVar("_Value")


def per_table(
    study: Study, sources: Iterable[Source], sql: str, **each: Callable[[Source], Any]
) -> dict[Path, tuple]:
    """The row that ``sql`` gives of each table that can be read.

    Args:
        sql: a query over ``$paths`` whose rows begin with ``filename``, one a table.
        each: further parameters of it: lists of one value a table, which follows from the table alone.
    """

    def ask(some: Sequence[Source]) -> dict[Path, tuple]:
        arguments: dict[str, Any] = {"paths": [str(source.path) for source in some]}
        arguments |= {name: [value(source) for source in some] for name, value in each.items()}
        rows = study.connection.execute(sql, arguments).fetchall()
        return {Path(name): tuple(row) for name, *row in rows}

    return _once(study, list(sources), sql, ask)


def batches_of(study: Study, sources: Sequence[Source]) -> dict[Path, pyprof.TableBatches]:
    """The batches of each table that can be read."""

    def ask(some: Sequence[Source]) -> dict[Path, pyprof.TableBatches]:
        return pyprof.find_batches(study.connection, [source.path for source in some])

    return _once(study, sources, "batches", ask)


def _once(
    study: Study, sources: Sequence[Source], what: str, ask: Callable[[Sequence[Source]], dict[Path, _Value]]
) -> dict[Path, _Value]:
    """What ``ask`` reads of each table that can be read; a study reads each once."""
    kept: dict[Path, _Value] = study.kept(f"of PyProf tables: {what}")
    kept |= _in_portions(study, [one for one in sources if one.path not in kept], ask)
    return {source.path: kept[source.path] for source in sources if source.path in kept}


def _in_portions(
    study: Study, sources: Sequence[Source], ask: Callable[[Sequence[Source]], dict[Path, _Value]]
) -> dict[Path, _Value]:
    def alone(source: Source) -> dict[Path, _Value]:
        try:
            return ask([source])
        except (duckdb.Error, OSError) as error:
            raise Unusable(source, damaged(error)) from None

    by_path: dict[Path, _Value] = {}
    source_of = {source.path: source for source in sources}
    for paths in pyprof.in_portions(list(source_of)):
        some = [source_of[path] for path in paths]
        try:
            by_path |= ask(some)
        except (duckdb.Error, OSError):
            for _, value in study.each(some, alone):
                by_path |= value
    return by_path


# --- sums of a table ----------------------------------------------------------------------------------

_NAMES = f"""
select file, "Kernel" as name, {pyprof.IS_LOADER} as loader,
    sum("Sil(ns)") as ns, sum("FLOPs") as flops, sum("Bytes") as bytes,
    sum("Sil(ns)") filter ("FLOPs" <> 0) as launched_ns,
    sum("Sil(ns)") filter ("Direction" = 'fprop') as fprop_ns,
    sum("FLOPs") filter ("Direction" = 'fprop') as fprop_flops,
    sum("FLOPs") filter ("Direction" = 'bprop') as bprop_flops,
    sum("FLOPs") filter ("Direction" = 'fprop' and first) as first_flops,
    sum("Sil(ns)") filter ("Direction" = 'fprop' and coalesce("Op", '') in ('', 'na', '-')) as lost_ns,
    sum("Sil(ns)") filter (attributed) as attributed_ns,
    sum("Sil(ns)") filter (attributed and "FLOPs" <> 0) as counted_ns,
    sum("FLOPs") filter (attributed) as attributed_flops,
    sum("Bytes") filter (attributed) as attributed_bytes
from (
    select *, file_index::bigint + 1 as file, "Idx" < $seconds[file] as first,
        "Idx" >= $attributed[file] and "Sil(ns)" is not null as attributed
    from {pyprof.TABLES}
)
group by all
"""
# Over the names of a table: what TableSums says of it.
_OF_NAMES = {
    "ns": "sum(ns)",
    "flops": "sum(flops)",
    "bytes": "sum(bytes)",
    "named_ns": "sum(ns) filter (flops <> 0)",
    "launched_ns": "sum(launched_ns)",
    "fprop_ns": "sum(fprop_ns)",
    "lost_ns": "sum(lost_ns) filter (not loader)",
    "fprop_flops": "sum(fprop_flops)",
    "bprop_flops": "sum(bprop_flops)",
    "first_flops": "sum(first_flops)",
    "kernel_ns": "sum(attributed_ns) filter (not loader)",
    "counted_ns": "sum(counted_ns) filter (not loader)",
    "kernel_flops": "sum(attributed_flops) filter (not loader)",
    "kernel_bytes": "sum(attributed_bytes) filter (not loader)",
    "loader_ns": "sum(attributed_ns) filter (loader)",
}
_SUMS = f"""
select $paths[file], {", ".join(f"coalesce({sums}, 0)::double" for sums in _OF_NAMES.values())}
from ({_NAMES}) group by file
"""


@dataclass(frozen=True, kw_only=True)
class TableSums:
    """Sums over one PyProf table (ns, FLOP, bytes), and its batches.

    Attributes:
        ns, flops, bytes: of all launches.
        named_ns: of kernel names any launch of which is credited FLOPs; launched_ns: of those launches.
        fprop_ns: of what PyProf calls fprop; lost_ns: of that, what it could not assign.
        fprop_flops, bprop_flops: by PyProf's direction.
        first_flops: of the forward pass of the first batch, trials of autotuning included.
        kernel_ns, kernel_flops, kernel_bytes: of the attributed batches, without the loader's kernels;
            counted_ns: of those launches that are credited FLOPs; loader_ns: of the loader's kernels.
    """

    batches: pyprof.TableBatches
    ns: float
    flops: float
    bytes: float
    named_ns: float
    launched_ns: float
    fprop_ns: float
    lost_ns: float
    fprop_flops: float
    bprop_flops: float
    first_flops: float
    kernel_ns: float
    counted_ns: float
    kernel_flops: float
    kernel_bytes: float
    loader_ns: float

    @property
    def fprop_per_batch(self) -> float:
        return self.fprop_flops / self.batches.forward if self.batches.forward else float("nan")

    @property
    def bprop_per_batch(self) -> float:
        return self.bprop_flops / self.batches.backward if self.batches.backward else float("nan")


def table_sums(study: Study, sources: Sequence[Source]) -> dict[str, TableSums]:
    """Sums of each PyProf table that can be read, by the source's id."""
    batches = batches_of(study, sources)
    sums_by_path = per_table(
        study,
        [source for source in sources if source.path in batches],
        _SUMS,
        seconds=lambda source: next(iter(batches[source.path].starts[1:]), None),
        attributed=lambda source: batches[source.path].attributed_from,
    )
    by_id = {}
    for source in sources:
        if source.path in sums_by_path:
            named = dict(zip(_OF_NAMES, sums_by_path[source.path], strict=True))
            by_id[source.id] = TableSums(batches=batches[source.path], **named)
    return by_id


# --- by kernel name -----------------------------------------------------------------------------------


def per_name(study: Study, source: Source, direction: str | None = None) -> list[tuple[str, float, float]]:
    """(kernel, sum of ``Sil(ns)``, sum of FLOPs) of a table, the longest first.

    Args:
        direction: as PyProf says it; by default all launches.
    """
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
        raise Unusable(source, damaged(error)) from None


def damaged(error: Exception) -> str:
    """That a file is damaged, or has columns of other types, in one line."""
    other = isinstance(error, duckdb.BinderException | duckdb.ConversionException)
    what = "holds a column of another type" if other else "is damaged or truncated"
    return f"{what} ({str(error).splitlines()[0]})"
