"""Which kernels take the time, and how well do they use the device?

    python -m analysis.kernels DIR                               one run, a sweep, or a PyProf table
    python -m analysis.kernels A B --direction bprop             two side by side
    python -m analysis.kernels A B --direction fprop --method published
    python -m analysis.kernels A --metric flops-efficiency --method published

Corrected (the default): attributed batches only, a batch of a rank. Columns:

    run                          its id, where there are several
    kernel, class, direction     short name; gemm, convolution, ...; fprop, bprop, update, loader, none
    calls_per_batch              launches a batch
    ms_per_batch                 their time, ms a batch; share_pct: of all kernels, %
    min_us, mean_us, max_us      of a launch, microseconds
    gflop_per_batch              credited FLOPs, 1e9 a batch; mbyte_per_batch: bytes, 1e6 a batch
    flops_efficiency_pct         FLOP rate over the datasheet's peak, %
    bandwidth_efficiency_pct     bytes a second over the datasheet's bandwidth, %

Two: ``kernel, class, direction``, then the metric of each (``a_``, ``b_``) and ``b_to_a``, their ratio.

Published (PyProf tables): ``kernel, a_s, b_s``: the sum of ``Sil(ns)`` by kernel name over all launches that
PyProf calls by that direction, joined on the name, largest first; with ``--metric flops-efficiency``:
``kernel, duration_ns, flops, flops_per_s, flops_efficiency_pct``.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis import costs, output
from analysis.load import load
from analysis.study import Source, Study
from analysis.terminal import Answer, Column, Part, Rows
from jobs.run import make_parser
from profiling.errors import UserError, run_command
from profiling.tables import DIRECTIONS
from profiling.tools import pyprof

if TYPE_CHECKING:
    import pandas as pd

METRICS = ("duration", "flops-efficiency")
NAMED = ("kernel", "class", "direction")
COLUMNS = (
    *NAMED, "calls_per_batch", "ms_per_batch", "share_pct", "min_us", "mean_us", "max_us", "gflop_per_batch",
    "mbyte_per_batch", "flops_efficiency_pct", "bandwidth_efficiency_pct",
)  # fmt: skip
_METRIC_COLUMN = {"duration": "ms_per_batch", "flops-efficiency": "flops_efficiency_pct"}

_CORRECTED = """
select short_name::varchar, "class"::varchar, direction::varchar, count(*), sum(duration_ns),
    min(duration_ns), max(duration_ns), sum(coalesce(flops, 0)), sum(coalesce(bytes, 0))
from {launches} where {counted} group by all order by sum(duration_ns) desc
"""


def table(study: Study, run: str | None = None, direction: str | None = None) -> "pd.DataFrame":
    """The kernels of ``run`` (an id), or of all runs that have some, largest first.

    Columns: see this file's docstring.

    Raises:
        UserError: no run has kernels, or none of this id.
    """
    made, columns = rows(study, run, direction)
    return output.to_frame(made, columns)


def with_kernels(study: Study) -> list[Source]:
    """The runs and PyProf tables that have kernels."""
    return [source for source in study.sources if source.kind == "pyprof" or source.tables("kernels")]


def rows(study: Study, run: str | None = None, direction: str | None = None) -> tuple[Rows, list[str]]:
    """The corrected answer's rows and columns; see :func:`table`."""
    sources = with_kernels(study)
    if run is not None:
        sources = [source for source in sources if source.id == run]
    if not sources:
        which = f"run {run} of {study.path}" if run else str(study.path)
        raise UserError(f"{which} has no kernels: it needs a run under a profiler (profile: torch)")
    made = []
    for source in sources:
        made += [{"run": source.id, **row} for row in _kernels_of(study, source, direction)]
    several = len(sources) > 1
    return made, ["run", *COLUMNS] if several else list(COLUMNS)


def _kernels_of(study: Study, source: Source, direction: str | None) -> Rows:
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
    batches = pyprof.find_batches(study.connection, [source.path])[source.path]
    if not batches.backward:
        study.find(f"{source.id}: no batch in it has an attributed backward pass")
        return None
    read = pyprof.read(source.path).tables["kernels"]
    study.connection.register("launches_of_pyprof", read)
    counted = f"batch_index >= {batches.first_attributed}"
    sql = _CORRECTED.format(launches="launches_of_pyprof", counted=counted)
    found = study.connection.execute(sql).fetchall()
    study.connection.unregister("launches_of_pyprof")
    return batches.backward, found


def _run_rows(study: Study, source: Source) -> tuple[int, list[tuple]] | None:
    kernels, batches = source.tables("kernels"), source.tables("batches")
    launches = (
        "(select * from read_parquet($kernels) semi join "
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


# --- two side by side ---------------------------------------------------------------------------------


def compared(
    first: Study, second: Study, direction: str | None, metric: str = "duration"
) -> tuple[Rows, list[str]]:
    """Kernels of two runs beside each other; a kernel that one of them lacks has no figure there."""
    column = _METRIC_COLUMN[metric]
    sides = []
    for study in (first, second):
        source = _only(study)
        sides.append({
            tuple(row[name] for name in NAMED): row[column] for row in _kernels_of(study, source, direction)
        })  # fmt: skip
    a, b = f"a_{column}", f"b_{column}"
    made = []
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        values = [side.get(key) for side in sides]
        ratio = values[1] / values[0] if values[0] and values[1] is not None else None
        made.append({**dict(zip(NAMED, key, strict=True)), a: values[0], b: values[1], "b_to_a": ratio})
    made.sort(key=lambda row: -(row[a] if row[a] is not None else row[b] or 0))
    return made, [*NAMED, a, b, "b_to_a"]


def _only(study: Study) -> Source:
    sources = with_kernels(study)
    if len(sources) != 1:
        examples = ", ".join(source.id for source in sources[:3])
        raise UserError(
            f"{study.path} holds {len(sources)} runs with kernels; give one run (or file)"
            + (f", e.g. {examples}" if examples else "")
        )
    return sources[0]


# --- published ----------------------------------------------------------------------------------------


def _by_name(study: Study, direction: str | None, order: str) -> list[tuple]:
    source = _only(study)
    if source.kind != "pyprof":
        raise UserError(f"{study.path} is no PyProf kernel table, which the published method is for")
    where = 'where "Direction" = $direction' if direction else ""
    sql = (
        'select "Kernel", sum("Sil(ns)")::bigint as ns, sum("FLOPs") as flops from read_parquet($path) '
        f'{where} group by "Kernel" order by {order}'
    )
    arguments = {"path": str(source.path)} | ({"direction": direction} if direction else {})
    return study.connection.execute(sql, arguments).fetchall()


def published_durations(first: Study, second: Study | None, direction: str | None) -> tuple[Rows, list[str]]:
    """Sum of ``Sil(ns)`` by kernel name of one direction, s, largest first; two runs joined on the name."""
    of_a = {name: ns / 1e9 for name, ns, _ in _by_name(first, direction, "ns desc")}
    if second is None:
        return [{"kernel": name, "a_s": round(value, 6)} for name, value in of_a.items()], ["kernel", "a_s"]
    of_b = {name: ns / 1e9 for name, ns, _ in _by_name(second, direction, "ns desc")}
    made = [
        {"kernel": name, "a_s": round(value, 6), "b_s": round(of_b[name], 6)}
        for name, value in of_a.items()
        if name in of_b
    ]
    return made, ["kernel", "a_s", "b_s"]


def published_efficiencies(study: Study, direction: str | None) -> tuple[Rows, list[str]]:
    """FLOPS efficiency by kernel name, highest first, to the seven digits that were published."""
    peak = costs.bound_of(study, _only(study)).flops_per_s
    assert peak is not None
    made = []
    for name, ns, flops in _by_name(study, direction, 'sum("FLOPs") / sum("Sil(ns)") desc, "Kernel"'):
        rate = flops / ns * 1e9
        made.append({
            "kernel": name,
            "duration_ns": ns,
            "flops": float(f"{flops:.7g}"),
            "flops_per_s": float(f"{rate:.7g}"),
            "flops_efficiency_pct": round(100 * rate / peak, 6),
        })  # fmt: skip
    return made, ["kernel", "duration_ns", "flops", "flops_per_s", "flops_efficiency_pct"]


# --- command ------------------------------------------------------------------------------------------


def main() -> int:
    parser = make_parser("python -m analysis.kernels", __doc__)
    parser.add_argument("path", type=Path, metavar="A", help="a run, a sweep, or a PyProf kernel table")
    parser.add_argument("other", type=Path, metavar="B", nargs="?", help="a run or table to set beside it")
    parser.add_argument("--direction", choices=DIRECTIONS, help="fprop, bprop, ... [all]")
    parser.add_argument("--method", choices=("corrected", "published"), default="corrected")
    parser.add_argument("--metric", choices=METRICS, default="duration", help="what to order by [duration]")
    parser.add_argument("--top", type=int, metavar="N", help="the first N kernels [table: 25, else all]")
    arguments = output.add_output_flags(parser).parse_args()
    if arguments.top is not None and arguments.top < 1:
        raise UserError(f"--top: {arguments.top} is no number of kernels; give 1 or more")
    study = load(arguments.path, arguments.peaks)
    other = load(arguments.other, arguments.peaks) if arguments.other else None
    made, columns = _answer(study, other, arguments)
    top = arguments.top or (25 if arguments.format == "table" else len(made))
    note = [f"({len(made) - top} more kernels; --top N shows more)"] if len(made) > top else []
    title = f"Kernels, {arguments.method} method" + (
        f", {arguments.direction}" if arguments.direction else ""
    )
    own = arguments.method == "corrected" and other is None
    answer = Answer(
        made[:top],
        columns,
        parts=[Part(title, made[:top], _shown(columns))] if own else [],
        title=title,
        notes=note if arguments.format == "table" else [],
    )
    if other is not None:
        study.failed += other.failed
        study.findings += other.findings
    return output.emit(answer, study, arguments)


def _answer(study: Study, other: Study | None, arguments: Any) -> tuple[Rows, list[str]]:
    direction, metric = arguments.direction, arguments.metric
    if arguments.method == "published":
        if metric == "duration":
            return published_durations(study, other, direction)
        if other is not None:
            raise UserError("the published FLOPS efficiency of kernels is of one file; leave B out")
        return published_efficiencies(study, direction)
    if other is not None:
        return compared(study, other, direction, metric)
    made, columns = rows(study, direction=direction)
    if metric == "flops-efficiency":
        made.sort(key=lambda row: -(row["flops_efficiency_pct"] or row["gflop_per_batch"] or 0))
    return made, columns


def _shown(columns: list[str]) -> list[Column]:
    """The terminal's columns: what fits into 110."""

    def named(row: Any) -> str:
        return row["kernel"] if len(row["kernel"]) <= 46 else row["kernel"][:20] + "..." + row["kernel"][-23:]

    return [
        *([Column("run", lambda row: row["run"], left=True)] if "run" in columns else []),
        Column("kernel", named, left=True),
        Column("class", lambda row: row["class"], left=True),
        Column("pass", lambda row: row["direction"], left=True),
        Column("ms a\nbatch", lambda row: row["ms_per_batch"]),
        Column("share\n%", lambda row: f"{row['share_pct'] or 0:.1f}"),
        Column("calls a\nbatch", lambda row: f"{row['calls_per_batch']:.1f}"),
        Column("mean\nus", lambda row: f"{row['mean_us']:.1f}"),
        Column("FLOPS\neff. %", lambda row: row["flops_efficiency_pct"]),
    ]


if __name__ == "__main__":
    run_command(main)
