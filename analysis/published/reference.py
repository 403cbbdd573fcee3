"""PyProf's kernel tables: counts, FLOPs and coverage of a step, and the reference's scaled efficiencies.

Steps are counted in each table. The tables hold no step durations; TAU tables of the same configurations do.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.display.metrics import Metric, Rows
from analysis.display.numbers import in_order, sortable
from analysis.frames.kernel_sums import costs
from analysis.frames.pyprof import table_sums
from analysis.frames.study import Source, Study
from analysis.measures import tau
from analysis.measures.peaks import bound_of, forward_flops_per_image, published_bound
from analysis.measures.use import check_coverage
from jobs.run_fields import ID_FIELDS

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
    every = study.of_kind("pyprof")
    sums, cost = table_sums(study, every), costs(study, every)
    sources = [source for source in every if source.id in sums.index]  # a table without rows has none
    names = list(group_by) or list(ID_FIELDS)
    fields = pd.DataFrame([
        {**{name: source.value(name) for name in names}, "world_size": source.world_size}
        for source in sources
    ], dtype=object)  # fmt: skip
    if fields.empty:
        return fields
    for source in sources:
        if not sums.loc[source.id, "forward"]:
            study.note("not_recorded", source, what="loss kernels")
    known = sums.join(cost[["kernel_ns", "flops", "bytes"]].add_prefix("cost_"))
    tables = pd.DataFrame([_of_table(study, one, known.loc[one.id]) for one in sources])
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
        fprop_steps=of_group["fprop_steps"].sum().replace(0, np.nan),
        bprop_steps=of_group["bprop_steps"].sum(),
        tflop_per_step=of_group["flops_per_step"].mean() / 1e12,
        fprop_flop_coverage_pct=over("fprop_flops", "fprop_needed"),
        bprop_flop_coverage_pct=over("bprop_flops", "bprop_needed"),
        kernel_ms_per_step=of_group["kernel_s"].mean() * 1e3,
        flops_efficiency_of_kernels_pct=over("flops", "flops_possible"),
        bandwidth_efficiency_of_kernels_pct=over("bytes", "bytes_possible"),
    )
    # A forward and a backward pass need one and two products of each layer: the batch's, by their weights.
    both = (frame["fprop_flop_coverage_pct"] + 2 * frame["bprop_flop_coverage_pct"]) / 3
    check_coverage(study, both.dropna())
    return in_order(frame, names)


def _of_table(study: Study, source: Source, sums: Any) -> dict[str, float]:
    bound = bound_of(study, source)
    analytic = analytic_forward_flops(source) or np.nan
    row = {
        "fprop_steps": sums["forward"], "bprop_steps": sums["backward"],
        "flops_per_step": sums["fprop_per_batch"] + sums["bprop_per_batch"],
        # Each product of the forward pass has two in the backward pass.
        "fprop_flops": sums["fprop_per_batch"], "fprop_needed": analytic,
        "bprop_flops": sums["bprop_per_batch"], "bprop_needed": 2 * analytic,
    }  # fmt: skip
    seconds = sums["cost_kernel_ns"] / 1e9
    return row | {
        "kernel_s": seconds,
        "flops": sums["cost_flops"], "flops_possible": seconds * (bound.flops_per_s or np.nan),
        "bytes": sums["cost_bytes"], "bytes_possible": seconds * (bound.bytes_per_s or np.nan),
    }  # fmt: skip


def analytic_forward_flops(source: Source) -> float | None:
    """Analytic FLOPs of the forward pass of a batch at 224 x 224; None if the model is not known."""
    per_image = forward_flops_per_image(source.fields.get("model") or "")
    batch = source.fields.get("batch")
    return per_image * batch if per_image and batch else None


SCALED_METRICS = (
    Metric("step_duration_s", "published estimate of the step duration, from TAU's times", "step, s\n(TAU)"),
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


def scaled_rows(study: Study) -> Rows:
    """A row a PyProf table whose configuration TAU timed: its fields, then :data:`SCALED_METRICS`.

    The reference printed each efficiency under the other's header; these are under their own.
    """
    sources = study.of_kind("pyprof")
    durations = _durations(study) if sources and study.tau_intervals else {}
    timed = [source for source in sources if _point(source.fields) in durations]
    peak_flops, peak_bytes = published_bound(study)
    sums = table_sums(study, timed)
    rows = []
    for source in [source for source in timed if source.id in sums.index]:
        batch_s = durations[_point(source.fields)]
        of_table = sums.loc[source.id]
        flops_pct, bytes_pct = (
            100 * total / (tau.PROFILED_BATCHES * batch_s) / peak
            for total, peak in ((of_table["flops"], peak_flops), (of_table["bytes"], peak_bytes))
        )
        rows.append({
            **{name: source.fields.get(name) for name in ID_FIELDS},
            "world_size": source.world_size,
            "step_duration_s": batch_s,
            "flops_efficiency_of_step_pct": flops_pct,
            "bandwidth_efficiency_of_step_pct": bytes_pct,
        })  # fmt: skip
    return sorted(rows, key=lambda row: sortable([row[name] for name in ID_FIELDS]))


def _durations(study: Study) -> dict[tuple, float]:
    durations: dict[tuple, float] = {}
    for row in tau.step_durations(study).to_dict("records"):
        point = _point(row)
        # Two ways of running TAU are two estimates, of which the least counts.
        durations[point] = min(row["published_s"], durations.get(point, float("inf")))
    return {point: duration for point, duration in durations.items() if duration > 0}


def _point(fields: Any) -> tuple:
    """A configuration, whatever the profiler."""
    values = {name: fields.get(name) for name in ID_FIELDS if name != "profile"}
    return tuple(value.lower() if isinstance(value, str) else value for value in values.values())
