"""Which correction moves a figure, and by how much?

One line a correction of docs/methods.md ("what is wrong with them"), numbered as there, with what it moved on
the data at hand. A correction that these data cannot show says so.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from analysis.display.metrics import Rows
from analysis.measures.batches.series import all_series
from analysis.measures.kernels.costs import costs_of
from analysis.measures.scaling.point import UNPROFILED, point_names
from analysis.measures.tau import applications
from analysis.measures.tau import applications as tau
from analysis.published import explain_reference
from analysis.published.explain_reference import BY_LAUNCH, Lines, line, moves, span
from analysis.results.attributed import Costs, relation
from analysis.results.query import query
from analysis.results.source import Source
from analysis.results.study import Study
from profiling.schemas import IS_MODEL
from profiling.wording import how_many, verb


def explain(study: Study, own: Rows) -> list[str]:
    """The lines for this study; ``own`` are analysis.scaled's rows of runs of our own, a row a point."""
    lines = ["", "Effect of each correction of the reference's method on these data:"]
    if study.of_kind("pyprof"):
        lines += ["PyProf kernel tables:", *explain_reference.of_pyprof(study)]
    if study.tau_intervals:
        lines += ["TAU tables:", *explain_reference.of_tau(study)]
    if study.of_kind("run"):
        lines += ["Our own runs:", *_of_runs(study, own)]
    return lines


# --- our own runs --------------------------------------------------------------------------------------


def _of_runs(study: Study, rows: Rows) -> Lines:
    """The lines of our own runs.

    Args:
        rows: analysis.scaled's, one a point.
    """
    cost = costs_of(study, study.of_kind("run"))
    return [
        _swapped(rows),
        _denominators(cost),
        *_by_name(study, cost),
        _estimators(study, rows),
        _startup(study, rows),
        _coverage(rows),
        _serialised(study),
        line("others", "hold by construction", "steps are counted (2), the baseline is named (8), "
             "intervals come from resampling and nothing is cut (9), costs are summed first (10), shards "
             "follow the global rank (12), unattributed kernels have a direction of their own (14), finished "
             "runs are kept (15)"),
    ]  # fmt: skip


def _swapped(rows: Rows) -> str:
    known = [row for row in rows if row.get("flops_efficiency_of_step_pct")]
    if not known:
        return line("1", "swapped columns", "not shown: no run has kernels and a datasheet peak")
    row = known[0]
    flops, bandwidth = row["flops_efficiency_of_step_pct"], row["bandwidth_efficiency_of_step_pct"]
    text = f"{flops:.2f} % FLOPS and {bandwidth:.2f} % bandwidth of a step would change places"
    return line("1", "swapped columns", text)


def _denominators(cost: dict[str, Costs]) -> str:
    whole = {name: c.kernel_ns + c.loader_ns + c.communication_ns + c.copy_ns for name, c in cost.items()}
    apart = [100 * (1 - c.kernel_ns / whole[name]) for name, c in cost.items() if whole[name]]
    if not apart:
        return line("3", "denominators", "not shown: no run has kernels")
    text = f"{span(apart, '{:.1f}', ' %')} of kernel time is loader, collectives and copies: left out"
    return line("3", "denominators", text)


def _by_name(study: Study, cost: dict[str, Costs]) -> Lines:
    before, after = [], []

    def by_name(source: Source) -> list[tuple]:
        sql = _NAMES.format(launches=relation(study, source))
        return query(study, source, sql, kernels=source.tables("kernels"))

    counted = [source for source in study.of_kind("run") if source.id in cost]
    for source, ((credited_ns, kernel_ns),) in study.each(counted, by_name):
        if kernel_ns and cost[source.id].kernel_ns:
            before.append(100 * float(credited_ns or 0) / float(kernel_ns))
            after.append(100 * cost[source.id].counted_ns / cost[source.id].kernel_ns)
    if not before:
        return []
    return [line("4", BY_LAUNCH, moves(before, after, "{:.1f}", " %"))]


_NAMES = f"""
with names as (
    select name::varchar as name, sum(duration_ns) as ns, sum(coalesce(flops, 0)) as flops
    from {{launches}} where {IS_MODEL} group by all
)
select sum(ns) filter (flops <> 0), sum(ns) from names
"""


def _estimators(study: Study, rows: Rows) -> str:
    """The reference's batch durations of profiled runs against the corrected ones."""
    series = all_series(study)
    least = []
    for source in study.of_kind("run"):
        one = series.get(source.id)
        if one is None or source.fields["profile"] == "none" or not one.attributed.any():
            continue
        ends = np.concatenate([[0], np.cumsum(one.step_ns)])
        estimates = [applications.nvprof_step_duration_s(ends)]
        if one.attributed.sum() > 1:
            estimates.append(applications.pyprof_step_duration_s(ends, int(np.argmax(one.attributed))))
        twin = _row_of(rows, source.fields)
        if twin is not None and twin["kind_of_runs"] == UNPROFILED:
            least.append(100 * (1e3 * applications.step_duration_s(estimates) / twin["step_ms"] - 1))
    if not least:
        return line(
            "5, 6",
            "estimators of the step",
            "not shown: no profiled run has an unprofiled one of the same configuration",
        )
    text = (
        "the smallest of the profiled estimates differs from the unprofiled run by "
        f"{span(least, '{:+.1f}', ' %')}"
    )
    return line("5, 6", "estimators of the step", text)


def _row_of(rows: Rows, fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """The row of the point that these fields are of."""
    same = (row for row in rows if all(row.get(name) == fields[name] for name in point_names(fields)))
    return next(same, None)


def _startup(study: Study, rows: Rows) -> str:
    shares = []
    for source in study.of_kind("run"):
        if source.manifest is not None and source.manifest.seconds > 0:
            starts = max(rank.startup_ns for rank in source.manifest.ranks) / 1e9
            shares.append(100 * min(1.0, starts / source.manifest.seconds))
    if not shares:
        return line("7", "startup", "not shown: no run recorded its wall time")
    text = f"{span(shares, '{:.0f}', ' %')} of a run's wall time is before its first step"
    before, after = [], []
    for row in tau.run_rows(study):
        same = _row_of(rows, row)
        base = row["base_nodes"] * row["gpus_per_node"]
        if same is not None and base == same["base_world_size"] < row["world_size"]:
            before.append(row["scaling_efficiency_pct"])
            after.append(same["scaling_efficiency_pct"])
    if before:
        text += f"; scaling efficiency {moves(before, after, '{:.1f}', ' %')} without it"
    return line("7", "startup", text)


def _coverage(rows: Rows) -> str:
    values = [row["flop_coverage_pct"] for row in rows if row.get("flop_coverage_pct")]
    if not values:
        return line("11", "FLOP coverage", "not shown: no run has kernels and an analytic count")
    return line(
        "11", "FLOP coverage", f"{span(values, '{:.1f}', ' %')} of the analytic count is found in kernels"
    )


def _serialised(study: Study) -> str:
    synchronised = sum(bool(source.fields.get("sync_stages")) for source in study.of_kind("run"))
    runs = f"{how_many(synchronised, 'run')} {verb(synchronised, 'synchronise')}"
    text = f"{runs} the device after stages, as the reference did"
    return line("13", "serialised stages", text)
