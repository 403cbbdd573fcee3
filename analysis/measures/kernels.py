"""Kernels of runs: calls, time, FLOPs, bytes and efficiency per step, by name, class, operator or layer."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from analysis.display.metrics import RUN, Column, Metric, Rows, columns, picked
from analysis.display.numbers import shortened, with_places
from analysis.frames.kernel_sums import Groups, Question, groups_of_each, has_kernels
from analysis.frames.load import no_result
from analysis.frames.study import Source, Study
from analysis.measures import peaks as costs
from analysis.measures import roofline
from analysis.measures.roofline import ABOVE_PCT, BANDWIDTH, COMPUTE
from profiling.errors import UserError
from profiling.findings import Finding

if TYPE_CHECKING:
    pass


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
    "direction": Metric("direction", "fprop, bprop, update, loader or none", text=True, key=True),
}
DEFAULT_BY = ("kernel", "class", "direction")

_CORRECTED = """
with sums as (select * from {sums} where calls > 0)
select {groups}, sum(calls)::bigint, sum(ns)::double, min(least_ns), max(most_ns), sum(flops), sum(bytes),
    coalesce(sum(placed_flops), 0), coalesce(sum(placed_bytes), 0), coalesce(sum(placed_ns), 0)::double,
    (select sum(ns) from sums)::double
from sums where {wanted}
group by {groups} order by sum(ns) desc, {groups}
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
    """Each run that can be used, and has attributed batches with kernels, with these."""
    for source, groups in groups_of_each(study, sources, question_of(by, direction)):
        for place, name in enumerate(by):
            if groups.rows and all(row[place] is None for row in groups.rows):
                study.note("not_recorded", source, what=f"{name} of kernels")
        yield source, rows_of(groups, by, costs.bound_of(study, source))


def question_of(by: Sequence[str], direction: str | None = None) -> Question:
    """What is read of a run's launches for :func:`rows_of`."""
    wanted = f"direction = {direction!r}" if direction else "true"
    columns = [GROUPS[name] for name in by]
    groups = ", ".join(f'"{column}"' for column in columns)
    sql = _CORRECTED.replace("{groups}", groups).replace("{wanted}", wanted)
    keys = dict.fromkeys([*columns, *(["direction"] if direction else [])])
    return Question(sql, tuple(keys), ("Layer",) if "layer" in by else ())


def rows_of(groups: Groups, by: Sequence[str], bound: costs.Bound) -> Rows:
    """The kernels of a run, in the order of ``groups``: what they answered to :func:`question_of`."""
    return [_row(row, by, groups.batches, bound) for row in groups.rows]


def _row(row: tuple, by: Sequence[str], batches: int, bound: costs.Bound) -> dict[str, Any]:
    calls, total, least, most, flops, moved, work, bytes_of_it, time_ns, whole = row[len(by) :]
    return {
        **dict(zip(by, row, strict=False)),
        "calls_per_step": calls / batches,
        "ms_per_step": total / batches / 1e6,
        "share_pct": 100 * total / whole if whole else None,
        "min_us": least / 1e3,
        "mean_us": total / calls / 1e3,
        "max_us": most / 1e3,
        "gflop_per_step": None if flops is None else flops / batches / 1e9,
        "mbyte_per_step": None if moved is None else moved / batches / 1e6,
        "flops_efficiency_pct": _efficiency(flops, total, bound.flops_per_s),
        "bandwidth_efficiency_pct": _efficiency(moved, total, bound.bytes_per_s),
        "flops_efficiency_of_measured_pct": _efficiency(flops, total, bound.measured_flops_per_s),
        "bandwidth_efficiency_of_measured_pct": _efficiency(moved, total, bound.measured_bytes_per_s),
        **roofline.place(work, bytes_of_it, time_ns, bound),
    }


def _efficiency(total: float | None, time_ns: float, peak: float | None) -> float | None:
    """Of the peak; None also where nothing was counted: a copy, say, has no FLOPs to be efficient at."""
    return 100 * total / time_ns * 1e9 / peak if total and peak and time_ns else None


TOP, TOP_OF_EACH = 25, 5  # kernels that the terminal shows of one run, of each of several
METRICS = (
    Metric("calls_per_step", "launches per step", "calls/\nstep", places=1, priority=0),
    Metric("ms_per_step", "time per step", "ms/\nstep"),
    Metric("share_pct", "share of the time of all kernels", places=1),
    Metric("min_us", "shortest launch"),
    Metric("mean_us", "mean launch", places=1, priority=0),
    Metric("max_us", "longest launch"),
    Metric("gflop_per_step", "FLOPs per step, 1e9", "GFLOP/\nstep"),
    Metric("mbyte_per_step", "bytes per step, 1e6", "MB/\nstep"),
    Metric("flops_efficiency_pct", "FLOP rate divided by the datasheet's peak", "FLOPS\neff. %", places=2),
    Metric("bandwidth_efficiency_pct", "bandwidth over the datasheet's", "bandw.\neff. %", places=2),
    Metric("flops_efficiency_of_measured_pct", "FLOP rate divided by the peak measured on this machine"),
    Metric("bandwidth_efficiency_of_measured_pct", "bandwidth over that measured on this machine"),
    *roofline.METRICS,
)


def with_kernels(study: Study) -> list[Source]:
    """The runs and PyProf tables that have kernels."""
    return [source for source in study.sources if has_kernels(source)]


def why_none(runs: Iterable[Source]) -> str:
    """Why none of these runs has kernels: by which profilers they ran."""
    return f"no kernels (profile: {', '.join(dict.fromkeys(run.fields['profile'] for run in runs))})"


def rows(
    study: Study, run: str | None = None, direction: str | None = None, by: Sequence[str] = DEFAULT_BY
) -> tuple[Rows, list[Metric]]:
    """The corrected answer's rows and columns; see :func:`table`."""
    sources = with_kernels(study)
    if run is not None:
        sources = [source for source in sources if source.id == run]
    if not sources:
        which = f"run {run} of {study.path}" if run else str(study.path)
        raise UserError(f"{which} has no kernels: needed is profile: torch, or a trace")
    answer = []
    for source, kernels in kernels_of_each(study, sources, direction, by):
        answer += [{"run": source.id, **row} for row in kernels]
    if not answer:
        raise UserError(nothing(study, direction))
    for finding in exceeded(answer, by):
        study.log.add(finding)
    return answer, [*([RUN] if len(sources) > 1 else []), *(BY[name] for name in by), *METRICS]


def nothing(study: Study, direction: str | None) -> str:
    if not with_kernels(study):
        return no_result(study)
    which = f"of direction {direction}" if direction else "in profiled steps"
    return " ".join([f"{study.path} has no kernels {which}", *(f"({note})" for note in study.notes()[:1])])


def naming(by: Sequence[str], kernels: Rows) -> list[Column]:
    """The table's columns of what kernels are grouped by; none of what no profiler recorded of these."""

    def printed(name: str) -> Callable[[Mapping[str, Any]], str]:
        # What belongs to no layer, as the optimizer and collectives, was not missed.
        return lambda row: shortened(row[name] or ("(no layer)" if name == "layer" else "(unknown)"))

    known = [name for name in by if any(row[name] is not None for row in kernels)]
    return [BY[name].column(printed=printed(name)) for name in known]


def shown(without_steps: bool = False) -> list[Column]:
    """The terminal's columns of figures: what fits into 110 beside names.

    Args:
        without_steps: the figures are of a whole recording, which has no steps.
    """
    known = columns(METRICS, "ms_per_step", "share_pct", "calls_per_step", "mean_us")
    if without_steps:
        known = [replace(column, header=column.header.replace("/\nstep", "")) for column in known]
    (flops, roof) = picked(METRICS, "flops_efficiency_pct", "roof_pct")
    share, rate = roofline.share_of, roofline.flops_efficiency_of
    return [
        *known,
        Column(flops.header, rate, printed=lambda row: with_places(rate(row), 2), help=flops.description),
        *columns(METRICS, "bound"),
        Column("roof\n%", share, printed=lambda row: with_places(share(row), 1), help=roof.description),
    ]


_SHARES = {COMPUTE: "flops_efficiency_of_measured_pct", BANDWIDTH: "bandwidth_efficiency_of_measured_pct"}
# Of the time of all kernels: what is shorter is timed too coarsely to judge a peak by.
_OF_WEIGHT_PCT = 1.0
# What a launch moves at least to judge the bandwidth: as much as the copy that measured it on a CPU. Smaller
# tensors are faster, in a cache.
_UNCACHED_MB = 128.0


def exceeded(kernels: Rows, by: Sequence[str] = DEFAULT_BY) -> list[Finding]:
    """A finding for each measured peak that kernels exceed: it was measured too low.

    Args:
        kernels: rows of :func:`kernels_of`, grouped ``by``.
    """
    found = []
    for bound, name in _SHARES.items():
        judging = [row for row in kernels if row[name] and _judges(row, bound)]
        most = max(judging, key=lambda row: row[name], default=None)
        if most and most[name] > ABOVE_PCT:
            kernel = ", ".join(str(most[one]) for one in by if most[one])
            over = sum(row[name] > ABOVE_PCT for row in judging)
            data = {"what": kernel, "peak": f"measured {bound}", "most_pct": most[name]}
            found.append(Finding("above_peak", data=data | {"n": over, "of": len(judging)}))
    return found


def _judges(row: Mapping[str, Any], bound: str) -> bool:
    """Whether a kernel is long enough, and for the bandwidth large enough, to judge a peak by."""
    large = (row["mbyte_per_step"] or 0) >= _UNCACHED_MB * row["calls_per_step"]
    return (row["share_pct"] or 0) >= _OF_WEIGHT_PCT and (large or bound == COMPUTE)
