"""What kernels does one run have in its attributed batches?"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from analysis.display.metrics import Metric, Rows
from analysis.measures.kernels import costs, roofline
from analysis.results import attributed
from analysis.results.attributed import Groups, Question, groups_of_each
from analysis.results.source import Source
from analysis.results.study import Study

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

_RECORDED_BY = {
    ("layer", "run"): "profile: torch records layers, if the model is not compiled",
    ("layer", "trace"): "torch.profiler records layers with with_stack=True",
    ("operator", "run"): "profile: torch records operators",
    ("operator", "trace"): "torch.profiler records operators",
}

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
                study.note(not_recorded(source, name), source)
        yield source, rows_of(groups, by, costs.bound_of(study, source))


def not_recorded(source: Source, name: str) -> str:
    """That a run's kernels have no layer, for example, and what would record it."""
    how = _RECORDED_BY.get((name, source.kind), "")
    return f"no {name} of its kernels was recorded{how and f': {how}'}"


def reading_ahead(study: Study) -> AbstractContextManager[None]:
    """Within it threads read what :func:`kernels_of_each` will ask for."""
    return attributed.reading_ahead(study, question_of(DEFAULT_BY))


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
