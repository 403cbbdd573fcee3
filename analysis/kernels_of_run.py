"""What kernels does one run have in its attributed batches? Columns are explained in analysis/kernels.py."""

from collections.abc import Sequence
from typing import Any

from analysis import borrowed, costs, roofline
from analysis.launches import batches_of
from analysis.study import Source, Study
from analysis.terminal import Rows
from profiling.errors import UserError
from profiling.tools import pyprof

# What kernels can be grouped by, and the column of the table that says it.
GROUPS = {
    "kernel": "short_name",
    "class": "class",
    "operator": "operator",
    "layer": "layer",
    "direction": "direction",
}
DEFAULT_BY = ("kernel", "class", "direction")

_CORRECTED = """
with launches as (
    select *, coalesce(nullif(flops, 'nan'::double), 0) as work,
        coalesce(nullif(bytes, 'nan'::double), 0) as moved
    from {launches} where {counted} and duration_ns is not null
)
select {groups}, count(*), sum(duration_ns)::double, min(duration_ns), max(duration_ns),
    sum(work), sum(moved),
    coalesce(sum(work) filter ({placed}), 0), coalesce(sum(moved) filter ({placed}), 0),
    coalesce(sum(duration_ns) filter ({placed}), 0)::double,
    (select sum(duration_ns) from launches)::double
from launches where {wanted}
group by {groups} order by sum(duration_ns) desc, {groups}
"""


def kernels_of(
    study: Study, source: Source, direction: str | None = None, by: Sequence[str] = DEFAULT_BY
) -> Rows:
    """The kernels of a run, largest first; none, and a finding or a failed run says why, if it has none.

    Args:
        by: of :data:`GROUPS`; a value that the tool did not record is None.
    """
    wanted = f"direction::varchar = {direction!r}" if direction else "true"
    groups = ", ".join(f'"{GROUPS[name]}"::varchar' for name in by)
    sql = (
        _CORRECTED.replace("{groups}", groups)
        .replace("{wanted}", wanted)
        .replace("{placed}", roofline.PLACED)
    )
    found = _pyprof_rows(study, source, sql) if source.kind == "pyprof" else _run_rows(study, source, sql)
    if found is None:
        return []
    batches, launches = found
    for place, name in enumerate(by):
        if launches and all(row[place] is None for row in launches):
            study.find(f"{source.id}: its tool says of no kernel which {name} it is of")
    bound = costs.bound_of(study, source)
    return [_row(row, by, batches, bound) for row in launches]


def _row(row: tuple, by: Sequence[str], batches: int, bound: costs.Bound) -> dict[str, Any]:
    calls, total, least, most, flops, moved, work, bytes_of_it, time_ns, whole = row[len(by) :]
    return {
        **dict(zip(by, row, strict=False)),
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
        "flops_efficiency_of_measured_pct": _efficiency(flops, total, bound.measured_flops_per_s),
        "bandwidth_efficiency_of_measured_pct": _efficiency(moved, total, bound.measured_bytes_per_s),
        **roofline.place(work, bytes_of_it, time_ns, bound),
    }


def _efficiency(total: float, time_ns: float, peak: float | None) -> float | None:
    return 100 * total / time_ns * 1e9 / peak if peak and time_ns else None


def _pyprof_rows(study: Study, source: Source, sql: str) -> tuple[int, list[tuple]] | None:
    batches = batches_of(study, [source]).get(source.path)
    if batches is None:
        return None
    if not batches.backward:
        study.find(f"{source.id}: no batch in it has an attributed backward pass")
        return None
    try:
        read = pyprof.read(source.path, batches=batches).tables["kernels"]
    except UserError as error:
        study.fail(source, str(error))
        return None
    study.connection.register("launches_of_pyprof", read)
    counted = f"batch_index >= {batches.first_attributed}"
    found = study.connection.execute(sql.format(launches="launches_of_pyprof", counted=counted)).fetchall()
    study.connection.unregister("launches_of_pyprof")
    return batches.backward, found


def _run_rows(study: Study, source: Source, sql: str) -> tuple[int, list[tuple]] | None:
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
    found = costs.query(study, source, sql.format(launches=launches, counted="true"), **paths)
    return None if found is None else (count[0][0], found)
