"""Queries over a run's tables; a damaged one makes the run unusable (:class:`Unusable`)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.results.source import Source, reading
from analysis.results.study import Study
from profiling import tables


def query(study: Study, source: Source, sql: str, **paths: Sequence[Path]) -> list[tuple]:
    """Rows of a query over a run's tables."""
    with reading(source):
        _check_numbers(study, paths.get("batches", ()))
        return ask(study, sql, _as_text(paths))


def ask(study: Study, sql: str, arguments: Mapping[str, Any]) -> list[tuple]:
    """The rows of a query over files; what was asked before is not read again.

    Raises:
        duckdb.Error: a file is damaged, or has other columns.
    """
    kept = study.kept("answers of queries")
    key = sql, repr(sorted(arguments.items()))
    if key not in kept:
        kept[key] = study.connection.execute(sql, dict(arguments)).fetchall()
    return list(kept[key])


def query_arrays(study: Study, source: Source, sql: str, **paths: Sequence[Path]) -> dict[str, np.ndarray]:
    """The same, as arrays by column."""
    with reading(source):
        _check_numbers(study, paths.get("batches", ()))
        columns = study.connection.execute(sql, _as_text(paths)).fetchnumpy()
    return {name: np.asarray(values) for name, values in columns.items()}


def _as_text(paths: Mapping[str, Sequence[Path]]) -> dict[str, list[str]]:
    return {name: [str(path) for path in value] for name, value in paths.items()}


def _check_numbers(study: Study, batches: Sequence[Path]) -> None:
    """A query joins kernels to batches by their number, and would not notice that it is wrong."""
    right = study.kept("batches numbered right")
    for path in [path for path in batches if path not in right]:
        tables.read(path.parent, "batches", ["batch_index"])
        right[path] = True


# --- what is left out ---------------------------------------------------------------------------------


def note_left_out(study: Study, source: Source, without: int, batches: int, untimed: int = 0) -> None:
    """Note what figures of a run leave out.

    Args:
        without: attributed batches (of ranks that have kernels) that hold no kernel, of ``batches``.
        untimed: launches without a duration (:func:`untimed_launches`).
    """
    if without:
        study.note("rows_left_out", source, n=without, what=f"of {batches} steps without kernels")
    if untimed:
        study.note("rows_left_out", source, n=untimed, what="launches without a duration")


_UNTIMED = "select count(*) from read_parquet($kernels) where duration_ns is null or duration_ns < 0"


def untimed_launches(study: Study, source: Source) -> int:
    """How many launches of a run have no duration, or one below 0: nobody counts these."""
    kernels = source.tables("kernels")
    ((untimed,),) = query(study, source, _UNTIMED, kernels=kernels) if kernels else [(0,)]
    return int(untimed)
