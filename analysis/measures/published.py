"""PyProf's tables as the reference study evaluated them, corrected values, and the effect of each correction.

Steps are counted in each table. The tables contain no step durations; TAU tables of the same configurations
do.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from analysis.display.metrics import Metric
from analysis.display.numbers import in_order
from analysis.frames.kernel_sums import costs, query, relation, table_sums
from analysis.frames.load import MARK, MARKED
from analysis.frames.study import Source, Study, Unusable
from analysis.measures import tau
from analysis.measures.peaks import bounds, forward_flops_per_image, published_bound
from analysis.measures.points import UNPROFILED, point_names, points_of
from analysis.measures.use import check_coverage
from jobs.run_fields import ID_FIELDS
from profiling.schemas import END_OF_BATCH, FORWARD, IS_MODEL

METRICS = (
    Metric("tables", "number of tables (repetitions, ranks), summed before ratios are formed"),
    Metric("fprop_steps", "forward passes counted in them", "fprop\nsteps"),
    Metric("bprop_steps", "attributed backward passes counted in them", "bprop\nsteps"),
    Metric("tflop_per_step", "FLOPs per forward plus per backward pass, 1e12", "TFLOP/\nstep", places=5),
    Metric("fprop_flop_coverage_pct", "forward FLOPs over the analytic count", "fprop\ncover. %", places=1),
    Metric("bprop_flop_coverage_pct", "backward FLOPs over the analytic count", "bprop\ncover. %", places=1),
    Metric("kernel_ms_per_step", "kernel time of the model per profiled step", "kernels\nms"),
    Metric("flops_efficiency_of_kernels_pct", "FLOP rate over the peak", "FLOPS\neff. %", places=2),
    Metric("bandwidth_efficiency_of_kernels_pct", "bandwidth over the peak", "bandw.\neff. %", places=2),
)


def of_tables(study: Study, group_by: Sequence[str] = ()) -> pd.DataFrame:
    """A row a configuration (or group): its fields, ``world_size``, then :data:`METRICS`."""
    sums, sources = _sums_of_tables(study, study.of_kind("pyprof"))
    names = list(group_by) or list(ID_FIELDS)
    fields = _fields(sources, names)
    if fields.empty:
        return fields
    for source in sources:
        if not sums.loc[source.id, "forward"]:
            study.note("not_recorded", source, what="loss kernels")
    cost = costs(study, sources).reindex(sums.index)
    seconds, bound = cost["kernel_ns"] / 1e9, bounds(study, sources).loc[sums.index]
    tables = sums.assign(
        flops_per_step=sums["fprop_per_batch"] + sums["bprop_per_batch"],
        bprop_analytic=2 * sums["analytic"],  # each product of the forward pass has two in the backward pass
        kernel_s=seconds,
        cost_flops=cost["flops"],
        cost_bytes=cost["bytes"],
        possible_flops=seconds * bound["flops_per_s"],
        possible_bytes=seconds * bound["bytes_per_s"],
    ).reset_index(drop=True)
    group = fields.groupby(names, dropna=False, sort=False).ngroup()
    of_group = tables.groupby(group)

    def over(done: str, needed: str) -> pd.Series:
        """In percent, of the tables that know what was done; NaN if one of them needed nobody knows what."""
        known = tables[done].notna()
        total = tables[known].groupby(group[known])[[done, needed]].sum(skipna=False)
        return 100 * total[done] / total[needed]

    first = fields[~group.duplicated()].reset_index(drop=True)
    several = fields.groupby(group)["world_size"].nunique(dropna=False) > 1
    frame = first.assign(
        world_size=first["world_size"].mask(several, None),
        tables=of_group.size(),
        fprop_steps=of_group["forward"].sum().replace(0, np.nan),
        bprop_steps=of_group["backward"].sum(),
        tflop_per_step=of_group["flops_per_step"].mean() / 1e12,
        fprop_flop_coverage_pct=over("fprop_per_batch", "analytic"),
        bprop_flop_coverage_pct=over("bprop_per_batch", "bprop_analytic"),
        kernel_ms_per_step=of_group["kernel_s"].mean() * 1e3,
        flops_efficiency_of_kernels_pct=over("cost_flops", "possible_flops"),
        bandwidth_efficiency_of_kernels_pct=over("cost_bytes", "possible_bytes"),
    )
    # A forward and a backward pass need one and two products of each layer: the batch's, by their weights.
    both = (frame["fprop_flop_coverage_pct"] + 2 * frame["bprop_flop_coverage_pct"]) / 3
    check_coverage(study, both.dropna())
    return in_order(frame, names)


def _sums_of_tables(study: Study, tables: Sequence[Source]) -> tuple[pd.DataFrame, list[Source]]:
    """:func:`table_sums` of those with rows, and ``analytic``: FLOPs of a forward pass (NaN: unknown)."""
    sums = table_sums(study, tables)
    sources = [source for source in tables if source.id in sums.index]
    of_model = [forward_flops_per_image(source.fields.get("model") or "") for source in sources]
    batches = [source.fields.get("batch") for source in sources]
    analytic = [
        flops * batch if flops and batch else np.nan for flops, batch in zip(of_model, batches, strict=True)
    ]
    return sums.loc[[source.id for source in sources]].assign(analytic=analytic), sources


def _fields(sources: Sequence[Source], names: Sequence[str]) -> pd.DataFrame:
    named = [*names, "world_size"]
    return pd.DataFrame([{name: one.value(name) for name in named} for one in sources], dtype=object)


SCALED_METRICS = (
    Metric(
        "step_duration_s", "published step duration: the least of TAU's, nvprof's and PyProf's", "step\ns"
    ),
    Metric(
        "flops_efficiency_of_step_pct", "FLOPs in 25 steps over the peak", "FLOPS eff. %\nof step", places=2
    ),
    Metric(
        "bandwidth_efficiency_of_step_pct",
        "bytes in 25 steps over the peak",
        "bandw. eff. %\nof step",
        places=2,
    ),
)


_ATTRIBUTED_FROM = 26  # of the reference's 51 batches


def _by_marks(study: Study) -> pd.DataFrame:
    """The reference's estimates from marks of profiled runs: ID_FIELDS, and ``published_s``.

    nvprof's is the median distance of ends of batches, PyProf's that of forward passes since it attributes.
    """

    def of_file(source: Source) -> list[float]:
        try:
            marks = pd.read_csv(source.path, usecols=[MARK, MARKED]).astype({MARKED: float})
        except ValueError as error:
            raise Unusable(source, f"is damaged: {error}") from None
        of_name = [np.sort(marks.loc[marks[MARK] == name, MARKED]) for name in (END_OF_BATCH, FORWARD)]
        ends, begins = of_name[0], of_name[1][_ATTRIBUTED_FROM:]
        return [float(np.median(np.diff(at))) / 1e9 for at in (ends, begins) if len(at) > 1]

    found = [
        {**source.fields, "published_s": seconds}
        for source, estimates in study.each(study.of_kind("marks"), of_file)
        for seconds in estimates
    ]
    return pd.DataFrame(found, columns=[*ID_FIELDS, "published_s"])


def scaled_tables(study: Study) -> pd.DataFrame:
    """A row a PyProf table of whose configuration a step is timed: its fields, then :data:`SCALED_METRICS`.

    The reference printed each efficiency under the other's header; these are under their own.
    """
    every = study.of_kind("pyprof")
    if not every or not (study.tau_intervals or study.of_kind("marks")):
        return pd.DataFrame(columns=[metric.name for metric in SCALED_METRICS])
    estimates = [one for one in (tau.step_durations(study), _by_marks(study)) if len(one)]
    timed = pd.concat(estimates or [_by_marks(study)]).query("published_s > 0")
    timed = timed.sort_values("published_s", ascending=False)  # the least counts
    durations = dict(zip(_points(timed), timed["published_s"], strict=True))
    sources = [
        one
        for one, point in zip(every, _points(_fields(every, ID_FIELDS)), strict=True)
        if point in durations
    ]
    sums, sources = _sums_of_tables(study, sources)
    frame = _fields(sources, ID_FIELDS).reindex(columns=[*ID_FIELDS, "world_size"])
    seconds = np.array([durations[point] for point in _points(frame)])
    peaks = dict(zip(("flops", "bandwidth"), published_bound(study), strict=True))
    for name, done in (("flops", "flops"), ("bandwidth", "bytes")):
        rate = sums[done].to_numpy() / (tau.PROFILED_BATCHES * seconds)
        frame[f"{name}_efficiency_of_step_pct"] = 100 * rate / peaks[name]
    return in_order(frame.assign(step_duration_s=seconds), ID_FIELDS)


def _points(fields: pd.DataFrame) -> list[tuple]:
    """The configuration of each row, whatever the profiler."""
    rows = fields[[name for name in ID_FIELDS if name != "profile"]].itertuples(index=False, name=None)
    return [tuple(value.lower() if isinstance(value, str) else value for value in row) for row in rows]


# --- what each correction moves -----------------------------------------------------------------------

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
    tables, sources = _sums_of_tables(study, study.of_kind("pyprof"))
    cost = costs(study, sources)[["kernel_ns", "flops"]].set_axis(["model_ns", "model_flops"], axis=1)
    tables = tables.join(cost, how="inner")
    known = (tables["model_ns"] > 0) & (tables["fprop_ns"] > 0)
    tables = tables[known & (tables[["forward", "starts"]].min(axis=1) > 1)]
    if tables.empty:
        return
    peak, _ = published_bound(study)
    scaled = scaled_tables(study)[:1]
    under_other = [scaled[f"{what}_efficiency_of_step_pct"] for what in ("bandwidth", "flops")]
    yield "1 swapped columns", under_other[0], under_other[1]
    per_step = (tables["fprop_per_batch"] + tables["bprop_per_batch"]) / 1e12
    yield "2 mixed step counts", tables["flops"] / tau.PROFILED_BATCHES / 1e12, per_step
    later = (tables["fprop_flops"] - tables["first_flops"]) / (tables["forward"] - 1)
    yield "3 autotuning of step 0", per_step, per_step + (later - tables["fprop_per_batch"]) / 1e12
    published = 100 * tables["flops"] / tables["ns"] * 1e9 / peak
    yield "3 denominators", published, 100 * tables["model_flops"] / tables["model_ns"] * 1e9 / peak
    by_name, by_launch = (100 * tables[f"{which}_ns"] / tables["ns"] for which in ("named", "launched"))
    yield "4 compute efficiency by launch", by_name, by_launch
    pooled = 100 * tables["flops"].sum() / tables["ns"].sum() * 1e9 / peak
    yield "10 costs summed first", [published.mean()], [pooled]
    yield "11 forward FLOP coverage", [], (100 * tables["fprop_per_batch"] / tables["analytic"]).dropna()
    yield "11 backward FLOP coverage", [], (50 * tables["bprop_per_batch"] / tables["analytic"]).dropna()
    yield "14 direction", [], 100 * tables["lost_ns"] / tables["fprop_ns"]


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
select sum(ns) filter (flops <> 0) as named, sum(ns) as ns from names
"""


def _by_name(study: Study, runs: Sequence[Source]) -> tuple[list[float], list[float]]:
    cost = costs(study, runs)

    def by_name(source: Source) -> np.ndarray:
        sql = _NAMES.format(launches=relation(study, source))
        return query(study, source, sql, kernels=source.tables("kernels")).fillna(0.0).to_numpy()

    by_launch = 100 * cost["counted_ns"] / cost["kernel_ns"]
    counted = [source for source in runs if source.id in cost.index]
    found = [
        (100 * float(named) / float(ns), by_launch[one.id])
        for one, ((named, ns),) in study.each(counted, by_name)
        if ns > 0
    ]
    return [before for before, _ in found], [after for _, after in found]


def _estimates(study: Study) -> Iterator[float]:
    """The least of the reference's estimates of profiled steps against the unprofiled step, %."""
    points = points_of(study, None)
    for _, point in points[points["timed_by"] == UNPROFILED].iterrows() if len(points) else ():
        for _, series in point["profiled"]:
            ends = np.concatenate([[0], np.cumsum(series.step_ns)])
            # Median differences of the ends of steps (nvprof), and of those that are attributed (PyProf).
            known = [ends, ends[int(np.argmax(series.attributed)) :]][: series.attributed.sum()]
            if known:
                least = min(np.median(np.diff(one)) for one in known)
                yield 100 * (least / point["step_ns"] - 1)
