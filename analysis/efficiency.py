"""How well do the kernels use the device?

    python -m analysis.efficiency DIR --group-by batch,nodes
    python -m analysis.efficiency DIR --method published      as the reference computed it

The default (corrected) method takes the model's kernels of attributed batches, launch by launch, sums costs
over a group first and forms ratios last. Rates are of the runs whose FLOPs or bytes are known, empty where
none are. The published one takes all launches, groups by kernel name and takes plain means of ratios; it is
for PyProf tables.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from analysis.display import output
from analysis.display.metrics import Metric, Rows, fields, names_of
from analysis.display.numbers import sortable
from analysis.display.terminal import Answer
from analysis.measures.kernels.costs import Bound, Costs, bound_of, costs_of, published_bound
from analysis.results.launches import per_table
from analysis.results.load import load, no_result
from analysis.results.study import Source, Study, Unusable
from profiling.errors import UserError, run_command
from profiling.readers import pyprof

if TYPE_CHECKING:
    import pandas as pd

METRICS = (
    Metric(
        "compute_efficiency_pct",
        "time of launches that do arithmetic (FLOPs credited) over the time of all",
    ),
    Metric("tflops_per_s", "FLOPs over kernel time"),
    Metric("bandwidth_gb_per_s", "bytes read and written over kernel time"),
    Metric("bandwidth_efficiency_pct", "that over the datasheet's memory bandwidth"),
    Metric("flops_efficiency_pct", "FLOP rate over the datasheet's peak"),
)
CORRECTED_METRICS = (
    Metric("flops_efficiency_of_measured_pct", "FLOP rate over the peak measured on the machine"),
    Metric("bandwidth_efficiency_of_measured_pct", "bytes over kernel time and the measured bandwidth"),
    Metric("kernel_ms_per_batch", "time of the model's kernels, a batch"),
    Metric("loader_ms_per_batch", "time of the loader's kernels, a batch"),
    Metric("attributed_batches", "batches that have kernels"),
)
COLUMNS = {
    "Columns: the fields of --group-by, then": METRICS,
    "... and by the corrected method:": CORRECTED_METRICS,
}
DEFAULT_GROUP = ("batch", "nodes")

# Names are long: their 64-bit hashes, and the files' numbers, are grouped in less time and memory, and a few
# hundred hashes do not collide.
_PUBLISHED = f"""
with names as (
    select file_index, hash("Kernel") as name, sum("Sil(ns)") as ns, sum("FLOPs") as flops,
        sum("Bytes") as bytes
    from {pyprof.TABLES} group by all
)
select $paths[file_index::bigint + 1], coalesce(sum(ns) filter (flops <> 0), 0) / sum(ns),
    coalesce(sum(flops), 0) / sum(ns), coalesce(sum(bytes), 0) / sum(ns)
from names group by file_index having sum(ns) > 0
"""


def rows(study: Study, method: str = "corrected", group_by: Sequence[str] = DEFAULT_GROUP) -> Rows:
    """The answer's rows, ordered by the group's fields.

    Raises:
        UserError: the study holds no kernels (of the kind that the method is for).
    """
    return _published(study, group_by) if method == "published" else _corrected(study, group_by)


def table(study: Study, method: str = "corrected", group_by: Sequence[str] = DEFAULT_GROUP) -> "pd.DataFrame":
    """The same as a DataFrame; columns: :func:`columns_of`."""
    return output.to_frame(rows(study, method, group_by), columns_of(method, group_by))


def columns_of(method: str, group_by: Sequence[str]) -> list[Metric]:
    return [*fields(group_by), *METRICS, *(CORRECTED_METRICS if method == "corrected" else ())]


def _published(study: Study, group_by: Sequence[str]) -> Rows:
    sources = study.of_kind("pyprof")
    if not sources:
        raise UserError(f"{study.path} holds no PyProf kernel table, which the published method is for")
    peak_flops, peak_bytes = published_bound(study)
    sums = per_table(study, sources, _PUBLISHED)
    ratios: dict[tuple, list[list[float]]] = {}

    def of_table(source: Source) -> tuple:
        if source.path not in sums:
            raise Unusable(source, "it holds no kernel that took time")
        return sums[source.path]

    for source, (busy, flops_per_ns, bytes_per_ns) in study.each(sources, of_table):
        values = [
            100 * busy,
            flops_per_ns / 1e3,
            bytes_per_ns,
            100 * bytes_per_ns * 1e9 / peak_bytes,
            100 * flops_per_ns * 1e9 / peak_flops,
        ]
        ratios.setdefault(_key(source, group_by), []).append(values)
    if not ratios:
        raise UserError(no_result(study))
    # Six decimals, as published; plain means over the configurations of a group.
    return [
        {
            **dict(zip(group_by, key, strict=True)),
            **{
                name: round(sum(column) / len(column), 6)
                for name, column in zip(names_of(METRICS), zip(*ratios[key], strict=True), strict=True)
            },
        }
        for key in sorted(ratios, key=sortable)
    ]


def _corrected(study: Study, group_by: Sequence[str]) -> Rows:
    costs = costs_of(study, list(study.sources))
    groups: dict[tuple, list[Source]] = {}
    for source in study.sources:
        if source.id in costs:
            groups.setdefault(_key(source, group_by), []).append(source)
    if not groups:
        raise study.nothing(
            f"{study.path} holds no kernels with FLOPs: it needs runs under a profiler (profile: torch), "
            "or PyProf kernel tables"
        )
    made = []
    for key in sorted(groups, key=sortable):
        of_group = [(costs[source.id], bound_of(study, source)) for source in groups[key]]
        # A run whose tool knows no shapes, and to which no other lent them, did not do nothing.
        credited = [(cost, bound) for cost, bound in of_group if cost.flops]
        moving = [(cost, bound) for cost, bound in of_group if cost.bytes]
        flops = sum(cost.flops for cost, _ in credited)
        moved = sum(cost.bytes for cost, _ in moving)
        rate, bandwidth = _over_time(flops, credited), _over_time(moved, moving)
        counted = _over_time(sum(cost.counted_ns for cost, _ in credited), credited)
        made.append({
            **dict(zip(group_by, key, strict=True)),
            "compute_efficiency_pct": None if counted is None else 100 * counted,
            "tflops_per_s": None if rate is None else rate / 1e3,
            "bandwidth_gb_per_s": bandwidth,
            "bandwidth_efficiency_pct": _over_peak(moved, moving, "bytes_per_s"),
            "flops_efficiency_pct": _over_peak(flops, credited, "flops_per_s"),
            "flops_efficiency_of_measured_pct": _over_peak(flops, credited, "measured_flops_per_s"),
            "bandwidth_efficiency_of_measured_pct": _over_peak(moved, moving, "measured_bytes_per_s"),
            "kernel_ms_per_batch": sum(cost.kernel_ns for cost, _ in of_group) / len(of_group) / 1e6,
            "loader_ms_per_batch": sum(cost.loader_ns for cost, _ in of_group) / len(of_group) / 1e6,
            "attributed_batches": sum(cost.batches for cost, _ in of_group),
        })  # fmt: skip
    return made


def _over_time(total: float, runs: Sequence[tuple[Costs, Bound]]) -> float | None:
    """``total`` over the time of the runs' kernels in ns; None without any."""
    time = sum(cost.kernel_ns for cost, _ in runs)
    return total / time if time else None


def _over_peak(total: float, runs: Sequence[tuple[Costs, Bound]], name: str) -> float | None:
    """``total`` over what the devices could have done in the kernels' time, %; None if that is not known."""
    peaks = [getattr(bound, name) for _, bound in runs]
    if not all(peaks):
        return None
    could = sum(cost.kernel_ns * peak for (cost, _), peak in zip(runs, peaks, strict=True)) / 1e9
    return 100 * total / could if could else None


def _key(source: Source, group_by: Sequence[str]) -> tuple[Any, ...]:
    return tuple(source.value(name) for name in group_by)


def main() -> int:
    parser = output.parser("analysis.efficiency", __doc__, columns=COLUMNS)
    parser.add_argument("--method", choices=("corrected", "published"), default="corrected")
    parser.add_argument("--group-by", metavar="FIELD,...", help="fields of a run [batch,nodes]")
    arguments = parser.parse_args()
    group_by = output.parse_fields(arguments.group_by, ("world_size",)) or list(DEFAULT_GROUP)
    study = load(arguments.path, arguments.peaks)
    made = rows(study, arguments.method, group_by)
    answer = Answer(
        made,
        columns_of(arguments.method, group_by),
        title=f"Kernel efficiency, {arguments.method} method",
        caption=_caption(study, arguments.method),
    )
    return output.emit(answer, study, arguments)


def _caption(study: Study, method: str) -> str:
    devices = sorted({bound_of(study, source).device for source in study.sources})
    if method == "published":
        return f"All launches, by kernel name; means of ratios. Peaks: datasheet of {', '.join(devices)}."
    return (
        "The model's kernels of attributed batches, by launch; the loader's, collectives and copies apart. "
        f"Peaks: datasheet of {', '.join(devices)}."
    )


if __name__ == "__main__":
    run_command(main)
