"""PyProf's tables as the reference study evaluated them, corrected values, and the effect of each correction.

Steps are counted in each table. Step durations come from TAU tables of the same configurations.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd

from analysis.display.metrics import Metric
from analysis.display.numbers import in_order
from analysis.frames.kernel_sums import costs, table_sums
from analysis.frames.load import MARK, MARKED
from analysis.frames.study import Source, Study, Unusable
from analysis.measures import tau
from analysis.measures.efficiency import check_coverage
from analysis.measures.peaks import bounds, forward_flops_per_image, published_bound
from jobs.run_fields import ID_FIELDS
from profiling.schemas import END_OF_BATCH, FORWARD

METRICS = (
    Metric("tables", "number of tables (repetitions, ranks), summed before ratios are formed"),
    Metric("fprop_steps", "forward passes counted in them", "fprop\nsteps"),
    Metric("bprop_steps", "attributed backward passes counted in them", "bprop\nsteps"),
    Metric("tflop_per_step", "FLOPs per forward plus per backward pass, 1e12", "TFLOP/\nstep", places=5),
    Metric("fprop_flop_coverage_pct", "forward FLOPs / analytic count", "fprop\ncover. %", places=1),
    Metric("bprop_flop_coverage_pct", "backward FLOPs / analytic count", "bprop\ncover. %", places=1),
    Metric("kernel_ms_per_step", "kernel time of the model per profiled step", "kernels\nms"),
    Metric("flops_efficiency_of_kernels_pct", "FLOP rate over the peak", "FLOPS\neff. %", places=2),
    Metric("bandwidth_efficiency_of_kernels_pct", "bandwidth over the peak", "bandw.\neff. %", places=2),
)


def of_tables(study: Study, group_by: Sequence[str] = ()) -> pd.DataFrame:
    """A row a configuration (or group): its fields, ``world_size``, then :data:`METRICS`."""
    names = list(group_by) or list(ID_FIELDS)
    tables = _tables(study, names)
    sources = [source for source in study.of_kind("pyprof") if source.id in tables.index]
    if not sources:
        return tables
    for source in sources:
        if not tables.loc[source.id, "forward"]:
            study.note("not_recorded", source, what="loss kernels")
    cost, bound = costs(study, sources), bounds(study, sources)
    tables = tables.assign(
        flops_per_step=tables["fprop_per_batch"] + tables["bprop_per_batch"],
        bprop_analytic=2 * tables["analytic"],  # each product of the forward pass has two in the other
        kernel_ns=cost["kernel_ns"],
        cost_flops=cost["flops"],
        cost_bytes=cost["bytes"],
        possible_flops=cost["kernel_ns"] / 1e9 * bound["flops_per_s"],
        possible_bytes=cost["kernel_ns"] / 1e9 * bound["bytes_per_s"],
    )
    group = tables.groupby(names, dropna=False, sort=False).ngroup()
    of_group = tables.groupby(group)

    def over(done: str, needed: str) -> pd.Series:
        """In percent, of the tables that know what was done; NaN if one of them needed nobody knows what."""
        total = tables[tables[done].notna()].groupby(group)[[done, needed]].sum(skipna=False)
        return 100 * total[done] / total[needed]

    first = tables[list(dict.fromkeys([*names, "world_size"]))][~group.duplicated()].reset_index(drop=True)
    frame = first.assign(
        world_size=first["world_size"].where(of_group["world_size"].nunique(dropna=False) == 1, None),
        tables=of_group.size(),
        fprop_steps=of_group["forward"].sum().replace(0, np.nan),
        bprop_steps=of_group["backward"].sum(),
        tflop_per_step=of_group["flops_per_step"].mean() / 1e12,
        fprop_flop_coverage_pct=over("fprop_per_batch", "analytic"),
        bprop_flop_coverage_pct=over("bprop_per_batch", "bprop_analytic"),
        kernel_ms_per_step=of_group["kernel_ns"].mean() / 1e6,
        flops_efficiency_of_kernels_pct=over("cost_flops", "possible_flops"),
        bandwidth_efficiency_of_kernels_pct=over("cost_bytes", "possible_bytes"),
    )
    # A forward and a backward pass need one and two products of each layer: the batch's, by their weights.
    both = (frame["fprop_flop_coverage_pct"] + 2 * frame["bprop_flop_coverage_pct"]) / 3
    check_coverage(study, both.dropna())
    return in_order(frame, names)


def _tables(study: Study, names: Sequence[str] = ID_FIELDS) -> pd.DataFrame:
    """A row a PyProf table with rows, by its id.

    Columns: these fields and ``world_size``, :func:`table_sums`, and ``analytic``: FLOPs of a forward pass.
    """
    sums = table_sums(study, study.of_kind("pyprof"))
    fields, analytic = {}, {}
    for source in study.of_kind("pyprof"):
        if source.id in sums.index:
            flops = forward_flops_per_image(source.fields.get("model") or "")
            analytic[source.id] = (flops or np.nan) * (source.fields.get("batch") or np.nan)
            fields[source.id] = {name: source.value(name) for name in (*names, "world_size")}
    frame = pd.DataFrame.from_dict(fields, "index", dtype=object)
    return frame.join(sums).assign(analytic=pd.Series(analytic, dtype=float))


SCALED_METRICS = (
    Metric("step_duration_s", "the least of TAU's, nvprof's and PyProf's estimates", "step\ns"),
    Metric("flops_efficiency_of_step_pct", "FLOPs in 25 steps / peak", "FLOPS eff. %\nof step", places=2),
    Metric("bandwidth_efficiency_of_step_pct", "bytes in 25 steps over the peak", "bandw. eff. %\nof step",
           places=2),
)  # fmt: skip


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
        ends, begins = of_name[0], of_name[1][26:]  # of the reference's 51 batches
        return [float(np.median(np.diff(at))) / 1e9 for at in (ends, begins) if len(at) > 1]

    each = study.each(study.of_kind("marks"), of_file)
    found = [{**source.fields, "published_s": seconds} for source, known in each for seconds in known]
    return pd.DataFrame(found, columns=[*ID_FIELDS, "published_s"])


def scaled_tables(study: Study) -> pd.DataFrame:
    """A row a PyProf table with a timed step: its fields, then :data:`SCALED_METRICS`."""
    columns = [*ID_FIELDS, "world_size", *(metric.name for metric in SCALED_METRICS)]
    if not study.of_kind("pyprof") or not (study.of_kind("tau_intervals") or study.of_kind("marks")):
        return pd.DataFrame(columns=columns)
    estimates = [one for one in (tau.step_durations(study), _by_marks(study)) if len(one)]
    timed = pd.concat(estimates or [_by_marks(study)]).query("published_s > 0")
    timed = timed.sort_values("published_s", ascending=False)  # the least counts
    durations = dict(zip(_points(timed), timed["published_s"], strict=True))
    tables = _tables(study)
    tables["step_duration_s"] = [durations.get(point, np.nan) for point in _points(tables)]
    tables = tables.dropna(subset="step_duration_s")
    names = ("flops", "bandwidth"), ("flops", "bytes")
    for name, done, peak in zip(*names, published_bound(study), strict=True):
        rate = tables[done] / (tau.PROFILED_BATCHES * tables["step_duration_s"])
        tables[f"{name}_efficiency_of_step_pct"] = 100 * rate / peak
    return in_order(tables.reindex(columns=columns), ID_FIELDS)


def _points(fields: pd.DataFrame) -> list[tuple]:
    """The configuration of each row, whatever the profiler."""
    rows = fields.reindex(columns=[name for name in ID_FIELDS if name != "profile"])
    return [
        tuple(value.lower() if isinstance(value, str) else value for value in row)
        for row in rows.itertuples(index=False, name=None)
    ]


Moved = Iterator[tuple[str, str, Sequence[float] | pd.Series, Sequence[float] | pd.Series]]


def explain(study: Study) -> list[str]:
    """A line for each correction that the reference's tables show: medians, as published -> corrected."""
    lines = ["", "Effect of each correction (docs/methods.md), as published -> corrected, medians:"]
    for head, moved in (("PyProf kernel tables", _of_pyprof(study)), ("TAU tables", _of_tau(study))):
        found = [
            f"  {name}: {' -> '.join(f'{np.median(side):.4g}' for side in sides if len(side))} ({what})"
            for name, what, *sides in moved
            if len(sides[1])
        ]
        lines += [f"{head}:", *found] if found else []
    return lines


def _of_pyprof(study: Study) -> Moved:
    tables = _tables(study)
    cost = costs(study, study.of_kind("pyprof"))[["kernel_ns", "flops"]]
    cost = cost.set_axis(["model_ns", "model_flops"], axis=1)
    tables = tables.join(cost, how="inner")
    known = (tables["model_ns"] > 0) & (tables["fprop_ns"] > 0)
    tables = tables[known & (tables[["forward", "starts"]].min(axis=1) > 1)]
    if tables.empty:
        return
    peak, _ = published_bound(study)
    first = scaled_tables(study).dropna(subset="flops_efficiency_of_step_pct")[:1]
    swapped, right = (first[f"{what}_efficiency_of_step_pct"] for what in ("bandwidth", "flops"))
    yield "1 swapped columns", "bandwidth -> FLOPS efficiency of the step, %", swapped, right
    per_step = (tables["fprop_per_batch"] + tables["bprop_per_batch"]) / 1e12
    yield "2 mixed step counts", "TFLOP per step", tables["flops"] / tau.PROFILED_BATCHES / 1e12, per_step
    later = (tables["fprop_flops"] - tables["first_flops"]) / (tables["forward"] - 1)
    without_first = per_step + (later - tables["fprop_per_batch"]) / 1e12
    yield "3 autotuning of step 0", "TFLOP per step", per_step, without_first
    rate, of_model = (100e9 * tables[f"{of}flops"] / tables[f"{of}ns"] / peak for of in ("", "model_"))
    yield "3 denominators", "FLOPS efficiency of kernels, %", rate, of_model
    by_name, by_launch = (100 * tables[f"{which}_ns"] / tables["ns"] for which in ("named", "launched"))
    yield "4 compute efficiency by launch", "compute efficiency, %", by_name, by_launch
    pooled = 100e9 * tables["flops"].sum() / tables["ns"].sum() / peak
    yield "10 costs summed first", "FLOPS efficiency over all tables, %", [rate.mean()], [pooled]
    for name, direction, products in (("forward", "fprop", 1), ("backward", "bprop", 2)):
        coverage = 100 / products * tables[f"{direction}_per_batch"] / tables["analytic"]
        yield f"11 {name} FLOP coverage", "share of the analytic count, %", [], coverage.dropna()
    yield "14 direction", "unattributed share of fprop, %", [], 100 * tables["lost_ns"] / tables["fprop_ns"]


def _of_tau(study: Study) -> Moved:
    if not study.of_kind("tau_intervals"):
        return
    steps = 1e3 * tau.step_durations(study)[["published_s", "step_s"]]
    yield "5 differences of 49 steps", "step duration, ms", steps["published_s"], steps["step_s"]
    rows = tau.tau_rows(study)
    if len(rows):
        share = rows["batch_independent_pct"].dropna()
        yield "7 independent of the batch size", "share of the application's duration, %", [], share
        smallest = (rows["base_nodes"] * rows["gpus_per_node"]).min()
        yield "8 baseline", "GPUs of the baseline", [], [smallest]
        kept, every = rows["runs_kept"].sum(), rows["runs"].sum()
        yield "9 2-sigma cut", "repetitions that count", [kept], [every]
