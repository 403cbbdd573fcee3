"""What kernels does one run have in its attributed batches?"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from analysis.display.metrics import Metric, Rows
from analysis.measures.kernels import costs, roofline
from analysis.results import borrowed
from analysis.results.launches import batches_of
from analysis.results.query import note_untimed, note_without_kernels, query
from analysis.results.study import Source, Study, Unusable
from profiling.errors import UserError
from profiling.readers import pyprof
from profiling.workers import cores, in_threads

# What kernels can be grouped by, and the column of the table that says it.
GROUPS = {
    "kernel": "short_name",
    "class": "class",
    "operator": "operator",
    "layer": "layer",
    "direction": "direction",
}
BY = {
    "kernel": Metric("kernel", "short name", text=True, key=True),
    "class": Metric("class", "gemm, convolution, communication, ...", text=True, key=True),
    "operator": Metric("operator", "e.g. aten::convolution", text=True, key=True),
    "layer": Metric("layer", "e.g. layer1.0.conv1", text=True, key=True),
    "direction": Metric("direction", "fprop, bprop, update, loader or none", "pass", text=True, key=True),
}
DEFAULT_BY = ("kernel", "class", "direction")

_CORRECTED = """
with launches as (
    select *, nullif(flops, 'nan'::double) as work, nullif(bytes, 'nan'::double) as moved
    from {launches} where {counted} and duration_ns >= 0
)
select {groups}, count(*), sum(duration_ns)::double, min(duration_ns), max(duration_ns),
    sum(work), sum(moved),
    coalesce(sum(work) filter ({placed}), 0), coalesce(sum(moved) filter ({placed}), 0),
    coalesce(sum(duration_ns) filter ({placed}), 0)::double,
    (select sum(duration_ns) from launches)::double
from launches where {wanted}
group by {groups} order by sum(duration_ns) desc, {groups}
"""
# Attributed batches that have kernels, and all of ranks that have some.
_COUNTED = """
with attributed as (select distinct rank, batch_index from read_parquet($batches) where attributed),
recorded as (
    select distinct rank, batch_index from read_parquet($kernels)
    semi join attributed using (rank, batch_index)
)
select (select count(*) from recorded),
    (select count(*) from attributed where rank in (select rank from recorded))
"""


def kernels_of(
    study: Study, source: Source, direction: str | None = None, by: Sequence[str] = DEFAULT_BY
) -> Rows:
    """The kernels of a run, largest first; none, and the log says why, if it has none or cannot be used.

    Args:
        by: of :data:`GROUPS`; a value that the tool did not record is None.
    """
    return next((rows for _, rows in kernels_of_each(study, [source], direction, by)), [])


def kernels_of_each(
    study: Study, sources: Sequence[Source], direction: str | None = None, by: Sequence[str] = DEFAULT_BY
) -> Iterator[tuple[Source, Rows]]:
    """Each run that can be used with its kernels; tables of PyProf are read by several threads."""
    by = tuple(by)
    tables = [source for source in sources if source.kind == "pyprof"]
    batches = batches_of(study, tables)
    tables = study.usable(tables)
    ahead = _read_ahead(study)
    begun = {source.path: ahead.get((source.path, direction, by)) for source in tables}
    given = (
        (source.path, batches.get(source.path), direction, by, study.connection)
        for source in tables
        if begun[source.path] is None
    )
    in_turn = in_threads(lambda one: _grouped(*one), given)

    def rows_of(source: Source) -> Rows:
        if source.kind != "pyprof":
            return _rows(study, source, by, _run_launches(study, source, _sql(direction, by)))
        future = begun[source.path]
        launches = next(in_turn) if future is None else future.result()
        return _rows(study, source, by, _table_launches(study, source, batches.get(source.path), launches))

    yield from study.each(sources, rows_of)


def _read_ahead(study: Study) -> dict[tuple[Path, str | None, tuple[str, ...]], Future[Any]]:
    """Kernels that other threads read meanwhile, by file, direction and what they are grouped by."""
    return study.kept("kernels read ahead")


@contextmanager
def reading_ahead(study: Study) -> Iterator[None]:
    """Within it the kernels of PyProf tables are read by threads, for :func:`kernels_of_each`.

    Many tables take seconds; what a report says beside them is read meanwhile.
    """
    pool = ThreadPoolExecutor(cores())
    try:
        for path, batches in batches_of(study, study.of_kind("pyprof")).items():
            _read_ahead(study)[path, None, DEFAULT_BY] = pool.submit(
                _grouped, path, batches, None, DEFAULT_BY, study.connection
            )
        yield
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _sql(direction: str | None, by: Sequence[str]) -> str:
    wanted = f"direction::varchar = {direction!r}" if direction else "true"
    groups = ", ".join(f'"{GROUPS[name]}"::varchar' for name in by)
    return (
        _CORRECTED.replace("{groups}", groups)
        .replace("{wanted}", wanted)
        .replace("{placed}", roofline.PLACED)
    )


def _rows(study: Study, source: Source, by: Sequence[str], rows: tuple[int, list[tuple]] | None) -> Rows:
    if rows is None:
        return []
    batches, launches = rows
    for place, name in enumerate(by):
        if launches and all(row[place] is None for row in launches):
            study.note(f"its tool says of no kernel which {name} it is of", source)
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
        "gflop_per_batch": None if flops is None else flops / batches / 1e9,
        "mbyte_per_batch": None if moved is None else moved / batches / 1e6,
        "flops_efficiency_pct": _efficiency(flops, total, bound.flops_per_s),
        "bandwidth_efficiency_pct": _efficiency(moved, total, bound.bytes_per_s),
        "flops_efficiency_of_measured_pct": _efficiency(flops, total, bound.measured_flops_per_s),
        "bandwidth_efficiency_of_measured_pct": _efficiency(moved, total, bound.measured_bytes_per_s),
        **roofline.place(work, bytes_of_it, time_ns, bound),
    }


def _efficiency(total: float | None, time_ns: float, peak: float | None) -> float | None:
    return 100 * total / time_ns * 1e9 / peak if total is not None and peak and time_ns else None


def _grouped(
    path: Path,
    batches: pyprof.TableBatches | None,
    direction: str | None,
    by: Sequence[str],
    connection: Any,
) -> list[tuple] | UserError | None:
    """The kernels of a PyProf table, or what is wrong with it; None without an attributed batch."""
    if batches is None or not batches.backward:
        return None
    optional = ["Layer"] if "layer" in by else []
    # A thread may not use another's connection; a cursor is one of its own.
    with closing(connection.cursor()) as own:
        try:
            read = pyprof.read_table(path, batches=batches, optional=optional, connection=own)
        except UserError as error:
            return error
        own.register("launches_of_pyprof", read.tables["kernels"])
        counted = f"batch_index >= {batches.first_attributed}"
        sql = _sql(direction, by).format(launches="launches_of_pyprof", counted=counted)
        found: list[tuple] = own.execute(sql).fetchall()
    return found


def _table_launches(
    study: Study, source: Source, batches: pyprof.TableBatches | None, found: list[tuple] | UserError | None
) -> tuple[int, list[tuple]] | None:
    if isinstance(found, UserError):
        raise Unusable(source, str(found))
    if batches is None or found is None:
        if batches is not None:
            study.note("no batch in it has an attributed backward pass", source)
        return None
    return batches.backward, found


def _run_launches(study: Study, source: Source, sql: str) -> tuple[int, list[tuple]] | None:
    kernels, batches = source.tables("kernels"), source.tables("batches")
    launches = (
        f"(select * from {borrowed.launches(study, source)} semi join "
        "(select rank, batch_index from read_parquet($batches) where attributed) using (rank, batch_index))"
    )
    paths = {"kernels": kernels, "batches": batches}
    ((recorded, attributed),) = query(study, source, _COUNTED, **paths)
    if not recorded:
        return None
    note_without_kernels(study, source, attributed - recorded, attributed)
    found = query(study, source, sql.format(launches=launches, counted="true"), **paths)
    note_untimed(study, source)
    # One rank of DataParallel has the kernels of all its GPUs.
    return recorded * source.gpus_per_rank, found
