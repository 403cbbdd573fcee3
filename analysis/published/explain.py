"""Effect of each correction of the reference's method on the data at hand, numbered as in docs/methods.md."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from analysis.display.metrics import Rows
from analysis.frames.kernel_sums import query, relation
from analysis.frames.pyprof import table_sums
from analysis.frames.steps import all_series
from analysis.frames.study import Source, Study
from analysis.measures import tau
from analysis.measures.peaks import costs_of, published_bound
from analysis.measures.points import UNPROFILED, point_names
from analysis.published import reference
from profiling.schemas import IS_MODEL

_MEANINGS = {
    "1 swapped columns": "bandwidth -> FLOPS efficiency of the step, %",
    "2 mixed step counts": "TFLOP per step",
    "3 autotuning of step 0": "TFLOP per step",
    "3 denominators": "FLOPS efficiency of kernels, %",
    "3 kernels apart": "kernel time of loader, collectives and copies, %",
    "4 compute efficiency by launch": "compute efficiency, %",
    "5 differences of 49 steps": "step duration, ms",
    "5, 6 estimators of the step": "least estimate relative to the unprofiled step, %",
    "7 startup": "scaling efficiency, %",
    "7 time before the first step": "share of the wall time, %",
    "7 independent of the batch size": "share of the application's duration, %",
    "8 baseline": "GPUs of the baseline",
    "9 2-sigma cut": "repetitions that count",
    "10 costs summed first": "FLOPS efficiency over all tables, %",
    "11 forward FLOP coverage": "share of the analytic count, %",
    "11 backward FLOP coverage": "share of the analytic count, %",
    "11 FLOP coverage": "share of the analytic count, %",
    "13 serialised stages": "runs that synchronise after stages",
    "14 direction": "unattributed share of fprop, %",
}
_Moved = Iterator[tuple[str, Sequence[float], Sequence[float]]]  # correction, published and corrected values


def explain(study: Study, own: Rows) -> list[str]:
    """A line for each correction that these data show: medians, as published -> corrected.

    Args:
        own: analysis.scaled's rows of our own runs, one a configuration.
    """
    lines = ["", "Effect of each correction (docs/methods.md), as published -> corrected, medians:"]
    for head, moved in (
        ("PyProf kernel tables", _of_pyprof(study)),
        ("TAU tables", _of_tau(study)),
        ("Our own runs", _of_runs(study, own)),
    ):
        found = [
            f"  {name}: {' -> '.join(f'{np.median(one):.4g}' for one in (before, after) if len(one))}"
            f" ({_MEANINGS[name]})"
            for name, before, after in moved
            if len(after)
        ]
        lines += [f"{head}:", *found] if found else []
    return lines


def _swapped(rows: Rows) -> tuple[str, list[float], list[float]]:
    flops, moved = (
        [row[f"{what}_efficiency_of_step_pct"] for row in rows] for what in ("flops", "bandwidth")
    )
    return "1 swapped columns", moved, flops


def _of_pyprof(study: Study) -> _Moved:
    sources = study.of_kind("pyprof")
    every, costs = table_sums(study, sources), costs_of(study, sources)
    known = [(every[one.id], costs[one.id], one) for one in sources if one.id in costs and one.id in every]
    tables = [
        (sums, cost, reference.analytic_forward_flops(source))
        for sums, cost, source in known
        if cost.kernel_ns and sums.fprop_ns and min(sums.batches.forward, len(sums.batches.starts)) > 1
    ]
    if not tables:
        return
    sums, cost = [one for one, _, _ in tables], [one for _, one, _ in tables]
    peak, _ = published_bound(study)
    scaled = reference.scaled_rows(study)[:1]
    yield _swapped(scaled)
    right = [(one.fprop_per_batch + one.bprop_per_batch) / 1e12 for one in sums]
    yield "2 mixed step counts", [one.flops / tau.PROFILED_BATCHES / 1e12 for one in sums], right
    later = [(one.fprop_flops - one.first_flops) / (one.batches.forward - 1) for one in sums]
    steady = [
        total + (flops - one.fprop_per_batch) / 1e12
        for total, flops, one in zip(right, later, sums, strict=True)
    ]
    yield "3 autotuning of step 0", right, steady
    published = [tau.efficiency_pct(tau.rate_per_s(one.flops, one.ns), peak) for one in sums]
    yield "3 denominators", published, [100 * one.flops / one.kernel_ns * 1e9 / peak for one in cost]
    by_name = [100 * one.named_ns / one.ns for one in sums]
    yield "4 compute efficiency by launch", by_name, [100 * one.launched_ns / one.ns for one in sums]
    pooled = tau.rate_per_s(sum(one.flops for one in sums), sum(one.ns for one in sums))
    yield "10 costs summed first", [float(np.mean(published))], [tau.efficiency_pct(pooled, peak)]
    counted = [(one, needed) for one, _, needed in tables if needed]
    yield "11 forward FLOP coverage", [], [100 * one.fprop_per_batch / needed for one, needed in counted]
    backward = [50 * one.bprop_per_batch / needed for one, needed in counted]
    yield "11 backward FLOP coverage", [], backward
    yield "14 direction", [], [100 * one.lost_ns / one.fprop_ns for one in sums]


def _of_tau(study: Study) -> _Moved:
    if not study.tau_intervals:
        return
    timed, started = tau.timed_and_started(study, rank_0_only=True)
    both = [(list(timed[key]), list(started[key])) for key in timed if key in started]
    after = [1e3 * float(np.median(of_50) - np.median(of_1)) / (tau.BATCHES - 1) for of_50, of_1 in both]
    yield "5 differences of 49 steps", [1e3 * tau.tau_step_duration_s(*one) for one in both], after
    rows = tau.tau_rows(study)
    parts = [row["batch_independent_pct"] for row in rows if row["batch_independent_pct"] is not None]
    yield "7 independent of the batch size", [], parts
    yield "8 baseline", [], sorted({row["base_nodes"] * row["gpus_per_node"] for row in rows})[:1]
    if rows:
        kept = sum(row["runs_kept"] for row in rows)
        yield "9 2-sigma cut", [kept], [sum(row["runs"] for row in rows)]


def _of_runs(study: Study, rows: Rows) -> _Moved:
    runs = study.of_kind("run")
    if not runs:
        return
    known = [row for row in rows if row.get("flops_efficiency_of_step_pct")][:1]
    yield _swapped(known)
    cost = costs_of(study, runs)
    whole = {name: c.kernel_ns + c.loader_ns + c.communication_ns + c.copy_ns for name, c in cost.items()}
    apart = [100 * (1 - cost[name].kernel_ns / every) for name, every in whole.items() if every]
    yield "3 kernels apart", [], apart
    yield "4 compute efficiency by launch", *_by_name(study, runs)
    yield "5, 6 estimators of the step", [], _estimates(study, rows)
    starts = [
        100 * min(1.0, max(rank.startup_ns for rank in one.manifest.ranks) / 1e9 / one.manifest.seconds)
        for one in runs
        if one.manifest is not None and one.manifest.seconds > 0
    ]
    yield "7 time before the first step", [], starts
    same = [(row, _row_of(rows, row)) for row in tau.run_rows(study)]
    compared = [
        (row["scaling_efficiency_pct"], own["scaling_efficiency_pct"])
        for row, own in same
        if own and row["base_nodes"] * row["gpus_per_node"] == own["base_world_size"] < row["world_size"]
    ]
    yield "7 startup", [before for before, _ in compared], [after for _, after in compared]
    yield "11 FLOP coverage", [], [row["flop_coverage_pct"] for row in rows if row.get("flop_coverage_pct")]
    yield "13 serialised stages", [], [sum(bool(source.fields.get("sync_stages")) for source in runs)]


_NAMES = f"""
with names as (
    select name::varchar as name, sum(duration_ns) as ns, sum(coalesce(flops, 0)) as flops
    from {{launches}} where {IS_MODEL} group by all
)
select sum(ns) filter (flops <> 0), sum(ns) from names
"""


def _by_name(study: Study, runs: Sequence[Source]) -> tuple[list[float], list[float]]:
    cost = costs_of(study, runs)

    def by_name(source: Source) -> list[tuple]:
        sql = _NAMES.format(launches=relation(study, source))
        return query(study, source, sql, kernels=source.tables("kernels"))

    counted = [source for source in runs if source.id in cost and cost[source.id].kernel_ns]
    found = [
        (100 * float(named or 0) / float(ns), 100 * cost[one.id].counted_ns / cost[one.id].kernel_ns)
        for one, ((named, ns),) in study.each(counted, by_name)
        if ns
    ]
    return [before for before, _ in found], [after for _, after in found]


def _estimates(study: Study, rows: Rows) -> list[float]:
    """The least of the reference's estimates of profiled steps against the unprofiled step, %."""
    series, least = all_series(study), []
    for source in study.of_kind("run"):
        one, twin = series.get(source.id), _row_of(rows, source.fields)
        if one is None or source.fields["profile"] == "none" or not one.attributed.any():
            continue
        if twin is None or twin["kind_of_runs"] != UNPROFILED:
            continue
        ends = np.concatenate([[0], np.cumsum(one.step_ns)])
        # Median differences of the ends of batches (nvprof), and of those that are attributed (PyProf).
        estimates = [float(np.median(np.diff(ends))) / 1e9]
        if one.attributed.sum() > 1:
            estimates.append(float(np.median(np.diff(ends[int(np.argmax(one.attributed)) :]))) / 1e9)
        least.append(100 * (1e3 * tau.step_duration_s(estimates) / twin["step_ms"] - 1))
    return least


def _row_of(rows: Rows, fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """The row of the configuration that these fields are of."""
    same = (row for row in rows if all(row.get(name) == fields[name] for name in point_names(fields)))
    return next(same, None)
