"""PyProf's tables: their steps, their launches by kernel name, and sums as the reference study computed them.

Several tables are read at once; if one is damaged, they are read one by one, so that only it is lost.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pandas as pd

from analysis.frames.study import Source, Study, Unusable
from profiling.readers import pyprof

_Value = TypeVar("_Value")
DIRECTIONS = ("fprop", "bprop")  # of a kernel, as PyProf calls them; it has no others


def batches_of(study: Study, sources: Sequence[Source]) -> dict[Path, pyprof.TableBatches]:
    """The batches of each table that can be read."""

    def ask(some: Sequence[Source]) -> dict[Path, pyprof.TableBatches]:
        return pyprof.find_batches(study.connection, [source.path for source in some])

    return _each_table(study, sources, "batches", ask)


def _each_table(
    study: Study, sources: Sequence[Source], what: str, ask: Callable[[Sequence[Source]], dict[Path, _Value]]
) -> dict[Path, _Value]:
    """What ``ask`` reads of each table that can be read, several at a time; a study reads each once."""

    def alone(source: Source) -> dict[Path, _Value]:
        try:
            return ask([source])
        except (duckdb.Error, OSError) as error:
            other = isinstance(error, duckdb.BinderException | duckdb.ConversionException)
            what = "holds a column of another type" if other else "is damaged or truncated"
            raise Unusable(source, f"{what} ({str(error).splitlines()[0]})") from None

    kept: dict[Path, _Value] = study.kept(f"of PyProf tables: {what}")
    source_of = {source.path: source for source in sources if source.path not in kept}
    for paths in pyprof.in_portions(list(source_of)):
        some = [source_of[path] for path in paths]
        try:
            kept |= ask(some)
        except (duckdb.Error, OSError):
            for _, value in study.each(some, alone):
                kept |= value
    return {source.path: kept[source.path] for source in sources if source.path in kept}


_NAMES = """
select file_index::bigint as file, "Kernel" as kernel, "Direction" as direction, sum("Sil(ns)") as ns,
    sum("FLOPs") as flops, sum("Bytes") as bytes, sum("Sil(ns)") filter ("FLOPs" <> 0) as launched_ns
from {tables} where {where} group by all
"""
_OF_ATTRIBUTED = '"Idx" >= $from_idx[file_index::bigint + 1] and "Sil(ns)" >= 0'
# The first step's forward pass has trials of autotuning; what PyProf could not assign it calls fprop.
_SUMS = f"""
select file_index::bigint as file, sum("Sil(ns)") as ns, sum("FLOPs") as flops, sum("Bytes") as bytes,
    sum("Sil(ns)") filter ("FLOPs" <> 0) as launched_ns,
    sum("Sil(ns)") filter ("Direction" = 'fprop') as fprop_ns,
    sum("FLOPs") filter ("Direction" = 'fprop') as fprop_flops,
    sum("FLOPs") filter ("Direction" = 'bprop') as bprop_flops,
    sum("FLOPs") filter ("Direction" = 'fprop' and "Idx" < $from_idx[file_index::bigint + 1]) as first_flops,
    sum("Sil(ns)") filter (
        "Direction" = 'fprop' and coalesce("Op", '') in ('', 'na', '-') and not {pyprof.IS_LOADER}
    ) as lost_ns
from {pyprof.TABLES} group by all
"""


def _sums(
    study: Study, sources: Sequence[Source], sql: str, from_idx: dict[Path, Any] | None = None
) -> pd.DataFrame:
    """Rows of a query over tables, with the ``run`` that each is of; sums of nothing are 0."""

    def ask(some: Sequence[Source]) -> dict[Path, pd.DataFrame]:
        arguments: dict[str, Any] = {"paths": [str(source.path) for source in some]}
        if from_idx is not None:
            arguments["from_idx"] = [from_idx[source.path] for source in some]
        rows = study.connection.execute(sql, arguments).df()
        rows = rows.fillna(dict.fromkeys(rows.select_dtypes("number"), 0.0))
        of = rows.pop("file")
        return {source.path: rows[of == place].assign(run=source.id) for place, source in enumerate(some)}

    by_path = _each_table(study, sources, sql, ask)
    return pd.concat(by_path.values(), ignore_index=True) if by_path else _NO_ROWS


_NO_ROWS = pd.DataFrame(columns=[
    "run", "kernel", "direction", "ns", "flops", "bytes", "launched_ns", "fprop_ns", "fprop_flops",
    "bprop_flops", "first_flops", "lost_ns",
])  # fmt: skip


def launches_by_name(study: Study, sources: Sequence[Source], attributed: bool = False) -> pd.DataFrame:
    """The launches of PyProf tables by their names, as the reference counted them.

    Args:
        attributed: those of steps whose backward pass is attributed; else all.

    Returns:
        A row a table, kernel and direction. Columns: ``run, kernel, direction`` (as PyProf has it), ``ns,
        flops, bytes``; ``launched_ns`` of launches with FLOPs.
    """
    if not attributed:
        return _sums(study, sources, _NAMES.format(tables=pyprof.TABLES, where="true"))
    from_idx = {path: of.attributed_from for path, of in batches_of(study, sources).items()}
    readable = [source for source in sources if from_idx.get(source.path) is not None]
    return _sums(study, readable, _NAMES.format(tables=pyprof.TABLES, where=_OF_ATTRIBUTED), from_idx)


def table_sums(study: Study, sources: Sequence[Source]) -> pd.DataFrame:
    """Sums of each PyProf table that can be read and has rows, and its batches.

    Returns:
        By run: ``ns, flops, bytes`` of all launches; ``launched_ns`` of those with FLOPs, ``named_ns`` of all
        launches of such kernels; ``fprop_ns`` of what PyProf calls fprop, of it ``lost_ns`` that it could not
        assign; ``fprop_flops, bprop_flops``, and ``first_flops`` of the first forward pass; ``forward``,
        ``backward`` passes and ``starts`` of batches; ``fprop_per_batch, bprop_per_batch``: FLOPs (NaN: there
        is no such pass).
    """
    batches = batches_of(study, sources)
    sources = [source for source in sources if source.path in batches]
    second = {path: next(iter(of.starts[1:]), None) for path, of in batches.items()}
    sums = _sums(study, sources, _SUMS, second).set_index("run")
    names = launches_by_name(study, sources)
    of_name = names.groupby(["run", "kernel"])[["ns", "flops"]].sum()
    of_tables = {source.id: batches[source.path] for source in sources if source.id in sums.index}
    counts = pd.DataFrame(
        [(of.forward, of.backward, len(of.starts)) for of in of_tables.values()],
        columns=["forward", "backward", "starts"], index=list(of_tables),
    )  # fmt: skip
    sums = sums.join(counts)
    return sums.assign(
        named_ns=of_name["ns"].where(of_name["flops"] != 0, 0.0).groupby("run").sum(),
        fprop_per_batch=sums["fprop_flops"] / sums["forward"].mask(sums["forward"] == 0),
        bprop_per_batch=sums["bprop_flops"] / sums["backward"].mask(sums["backward"] == 0),
    )
