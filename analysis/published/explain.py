"""Effect of each correction of the published method on the given data, numbered as in docs/methods.md."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.frames.kernel_sums import costs, query, relation
from analysis.frames.pyprof import table_sums
from analysis.frames.study import Source, Study
from analysis.measures import tau
from analysis.measures.peaks import published_bound
from analysis.measures.points import UNPROFILED, point_names, points_of
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
_Moved = Iterator[tuple[str, Sequence[float] | pd.Series, Sequence[float] | pd.Series]]


def explain(study: Study, own: pd.DataFrame) -> list[str]:
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


def _of_pyprof(study: Study) -> _Moved:
    sources = study.of_kind("pyprof")
    cost = costs(study, sources)[["kernel_ns", "flops"]].set_axis(["model_ns", "model_flops"], axis=1)
    sums = table_sums(study, sources).join(cost, how="inner")
    tables = pd.DataFrame([_of_table(one, sums.loc[one.id]) for one in sources if one.id in sums.index])
    if tables.empty or (tables := tables[tables["usable"]]).empty:
        return
    peak, _ = published_bound(study)
    step_pct = [f"{what}_efficiency_of_step_pct" for what in ("bandwidth", "flops")]
    scaled = pd.DataFrame(reference.scaled_rows(study), columns=step_pct)[:1]
    yield "1 swapped columns", scaled[step_pct[0]], scaled[step_pct[1]]
    per_step = (tables["fprop"] + tables["bprop"]) / 1e12
    yield "2 mixed step counts", tables["flops"] / tau.PROFILED_BATCHES / 1e12, per_step
    later = (tables["fprop_flops"] - tables["first_flops"]) / (tables["forward"] - 1)
    yield "3 autotuning of step 0", per_step, per_step + (later - tables["fprop"]) / 1e12
    published = 100 * tables["flops"] / tables["ns"] * 1e9 / peak
    yield "3 denominators", published, 100 * tables["model_flops"] / tables["model_ns"] * 1e9 / peak
    by_name, by_launch = (100 * tables[f"{which}_ns"] / tables["ns"] for which in ("named", "launched"))
    yield "4 compute efficiency by launch", by_name, by_launch
    pooled = 100 * tables["flops"].sum() / tables["ns"].sum() * 1e9 / peak
    yield "10 costs summed first", [published.mean()], [pooled]
    yield "11 forward FLOP coverage", [], (100 * tables["fprop"] / tables["analytic"]).dropna()
    yield "11 backward FLOP coverage", [], (50 * tables["bprop"] / tables["analytic"]).dropna()
    yield "14 direction", [], 100 * tables["lost_ns"] / tables["fprop_ns"]


def _of_table(source: Source, sums: Any) -> dict[str, Any]:
    return {
        **sums,
        "usable": bool(sums["model_ns"] and sums["fprop_ns"] and sums[["forward", "starts"]].min() > 1),
        "fprop": sums["fprop_per_batch"], "bprop": sums["bprop_per_batch"],
        "analytic": reference.analytic_forward_flops(source) or np.nan,
    }  # fmt: skip


def _of_tau(study: Study) -> _Moved:
    if not study.tau_intervals:
        return
    steps = 1e3 * tau.step_durations(study)[["published_s", "step_s"]]
    yield "5 differences of 49 steps", steps["published_s"], steps["step_s"]
    rows = tau.tau_rows(study)
    if len(rows):
        yield "7 independent of the batch size", [], rows["batch_independent_pct"].dropna()
        yield "8 baseline", [], [(rows["base_nodes"] * rows["gpus_per_node"]).min()]
        yield "9 2-sigma cut", [rows["runs_kept"].sum()], [rows["runs"].sum()]


def _of_runs(study: Study, own: pd.DataFrame) -> _Moved:
    runs = study.of_kind("run")
    if not runs:
        return
    known = own[own["flops_efficiency_of_step_pct"].notna()][:1]
    yield (
        "1 swapped columns",
        known["bandwidth_efficiency_of_step_pct"],
        known["flops_efficiency_of_step_pct"],
    )
    cost = costs(study, runs)
    whole = cost[["kernel_ns", "loader_ns", "communication_ns", "copy_ns"]].sum(axis=1)
    yield "3 kernels apart", [], (100 * (1 - cost["kernel_ns"] / whole)).dropna()
    yield "4 compute efficiency by launch", *_by_name(study, runs)
    yield "5, 6 estimators of the step", [], list(_estimates(study))
    starts = [
        100 * min(1.0, max(rank.startup_ns for rank in one.manifest.ranks) / 1e9 / one.manifest.seconds)
        for one in runs
        if one.manifest is not None and one.manifest.seconds > 0
    ]
    yield "7 time before the first step", [], starts
    names = [name for name in point_names(*(one.fields for one in runs)) if name in own]
    published = tau.run_rows(study)
    published["published_pct"] = published["scaling_efficiency_pct"].astype(float)
    both = own.merge(published[[*names, "base_nodes", "published_pct"]], on=names)
    same_base = both["base_nodes"] * both["gpus_per_node"] == both["base_world_size"]
    compared = both[same_base & (both["base_world_size"] < both["world_size"])]
    yield "7 startup", compared["published_pct"], compared["scaling_efficiency_pct"]
    yield "11 FLOP coverage", [], own["flop_coverage_pct"].dropna()
    yield "13 serialised stages", [], [sum(bool(source.fields.get("sync_stages")) for source in runs)]


_NAMES = f"""
with names as (
    select name::varchar as name, sum(duration_ns) as ns, sum(coalesce(flops, 0)) as flops
    from {{launches}} where {IS_MODEL} group by all
)
select sum(ns) filter (flops <> 0), sum(ns) from names
"""


def _by_name(study: Study, runs: Sequence[Source]) -> tuple[list[float], list[float]]:
    cost = costs(study, runs)

    def by_name(source: Source) -> list[tuple]:
        sql = _NAMES.format(launches=relation(study, source))
        return query(study, source, sql, kernels=source.tables("kernels"))

    by_launch = 100 * cost["counted_ns"] / cost["kernel_ns"]
    counted = [source for source in runs if source.id in cost.index]
    found = [
        (100 * float(named or 0) / float(ns), by_launch[one.id])
        for one, ((named, ns),) in study.each(counted, by_name)
        if ns
    ]
    return [before for before, _ in found], [after for _, after in found]


def _estimates(study: Study) -> Iterator[float]:
    """The least of the reference's estimates of profiled steps against the unprofiled step, %."""
    for point in points_of(study, None):
        for _, series in point.profiled if point.timed_by == UNPROFILED else ():
            ends = np.concatenate([[0], np.cumsum(series.step_ns)])
            # Median differences of the ends of steps (nvprof), and of those that are attributed (PyProf).
            known = [ends, ends[int(np.argmax(series.attributed)) :]][: series.attributed.sum()]
            if known:
                least = min(np.median(np.diff(one)) for one in known)
                yield 100 * (least / point.batch.value - 1)
