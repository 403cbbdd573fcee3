"""What kernels does one run have in its attributed batches? Columns are explained in analysis/kernels.py."""

from typing import Any

from analysis import borrowed, costs
from analysis.launches import batches_of
from analysis.study import Source, Study
from analysis.terminal import Rows
from profiling.errors import UserError
from profiling.tools import pyprof

_CORRECTED = """
select short_name::varchar, "class"::varchar, direction::varchar, count(*), sum(duration_ns)::double,
    min(duration_ns), max(duration_ns), sum(coalesce(nullif(flops, 'nan'::double), 0)),
    sum(coalesce(nullif(bytes, 'nan'::double), 0))
from {launches} where {counted} and duration_ns is not null
group by all order by sum(duration_ns) desc, short_name::varchar
"""


def kernels_of(study: Study, source: Source, direction: str | None) -> Rows:
    """The kernels of a run, largest first; none, and a finding or a failed run says why, if it has none."""
    found = _pyprof_rows(study, source) if source.kind == "pyprof" else _run_rows(study, source)
    if found is None:
        return []
    batches, launches = found
    bound = costs.bound_of(study, source)
    whole = sum(row[4] for row in launches)
    return [_row(row, batches, whole, bound) for row in launches if direction is None or row[2] == direction]


def _row(row: tuple, batches: int, whole: float, bound: costs.Bound) -> dict[str, Any]:
    name, kind, direction, calls, total, least, most, flops, moved = row
    return {
        "kernel": name,
        "class": kind,
        "direction": direction,
        "calls_per_batch": calls / batches,
        "ms_per_batch": total / batches / 1e6,
        "share_pct": 100 * total / whole if whole else None,
        "min_us": least / 1e3,
        "mean_us": total / calls / 1e3,
        "max_us": most / 1e3,
        "gflop_per_batch": flops / batches / 1e9,
        "mbyte_per_batch": moved / batches / 1e6,
        "flops_efficiency_pct": _efficiency(flops, total, bound.flops_per_s),
        "bandwidth_efficiency_pct": _efficiency(moved, total, bound.bytes_per_s),
    }


def _efficiency(total: float, time_ns: float, peak: float | None) -> float | None:
    return 100 * total / time_ns * 1e9 / peak if peak and time_ns else None


def _pyprof_rows(study: Study, source: Source) -> tuple[int, list[tuple]] | None:
    batches = batches_of(study, [source]).get(source.path)
    if batches is None:
        return None
    if not batches.backward:
        study.find(f"{source.id}: no batch in it has an attributed backward pass")
        return None
    try:
        read = pyprof.read(source.path).tables["kernels"]
    except UserError as error:
        study.fail(source, str(error))
        return None
    study.connection.register("launches_of_pyprof", read)
    counted = f"batch_index >= {batches.first_attributed}"
    sql = _CORRECTED.format(launches="launches_of_pyprof", counted=counted)
    found = study.connection.execute(sql).fetchall()
    study.connection.unregister("launches_of_pyprof")
    return batches.backward, found


def _run_rows(study: Study, source: Source) -> tuple[int, list[tuple]] | None:
    kernels, batches = source.tables("kernels"), source.tables("batches")
    launches = (
        f"(select * from {borrowed.launches(study, source)} semi join "
        "(select rank, batch_index from read_parquet($batches) where attributed) using (rank, batch_index))"
    )
    counted = (
        "select count(*) from (select distinct rank, batch_index from read_parquet($kernels) semi join "
        "(select rank, batch_index from read_parquet($batches) where attributed) using (rank, batch_index))"
    )
    paths = {"kernels": kernels, "batches": batches}
    count = costs.query(study, source, counted, **paths)
    if count is None or not count[0][0]:
        return None
    found = costs.query(study, source, _CORRECTED.format(launches=launches, counted="true"), **paths)
    return None if found is None else (count[0][0], found)
