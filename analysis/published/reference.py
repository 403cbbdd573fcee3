"""PyProf's kernel tables: counts, FLOPs and coverage of a step, and the reference's scaled efficiencies.

Steps are counted in each table. The tables hold no step durations; TAU tables of the same configurations do.
"""

from collections.abc import Sequence
from typing import Any

from analysis.display.metrics import Metric, Rows
from analysis.display.numbers import sortable
from analysis.frames.kernel_sums import Costs
from analysis.frames.pyprof import TableSums, table_sums
from analysis.frames.study import Source, Study
from analysis.measures import peaks, tau
from analysis.measures import peaks as costs
from analysis.measures import tau as applications
from analysis.measures.peaks import published_bound
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


def pyprof_rows(study: Study, group_by: Sequence[str] = ()) -> Rows:
    """A row a configuration (or group): its fields, ``world_size``, then :data:`METRICS`."""
    sums = table_sums(study, study.of_kind("pyprof"))
    cost = costs.costs_of(study, study.of_kind("pyprof"))
    names = list(group_by) or list(ID_FIELDS)
    groups: dict[tuple, list[Source]] = {}
    for source in study.of_kind("pyprof"):
        if source.id in sums:  # a table without rows has none
            groups.setdefault(tuple(source.value(name) for name in names), []).append(source)
    for source in study.of_kind("pyprof"):
        if source.id in sums and not sums[source.id].batches.forward:
            study.note("not_recorded", source, what="loss kernels")
    rows = []
    for key in sorted(groups, key=sortable):
        of_group = groups[key]
        sizes = {source.world_size for source in of_group}
        rows.append({
            **dict(zip(names, key, strict=True)),
            "world_size": sizes.pop() if len(sizes) == 1 else None,
            "tables": len(of_group),
            **_counts([(source, sums[source.id]) for source in of_group]),
            **_kernel_figures(study, [(s, cost[s.id]) for s in of_group if s.id in cost]),
        })  # fmt: skip
    # A forward and a backward pass need one and two products of each layer: the batch's, by their weights.
    parts = [(row["fprop_flop_coverage_pct"], row["bprop_flop_coverage_pct"]) for row in rows]
    check_coverage(study, [(f + 2 * b) / 3 for f, b in parts if f is not None and b is not None])
    return rows


def _counts(of_group: Sequence[tuple[Source, TableSums]]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "fprop_steps": sum(sums.batches.forward for _, sums in of_group) or None,
        "bprop_steps": sum(sums.batches.backward for _, sums in of_group),
    }
    whole = [sums for _, sums in of_group if sums.batches.forward and sums.batches.backward]
    if whole:
        flops = sum(sums.fprop_per_batch + sums.bprop_per_batch for sums in whole)
        row["tflop_per_step"] = flops / len(whole) / 1e12
    forward = [
        (analytic_forward_flops(s), sums.fprop_per_batch) for s, sums in of_group if sums.batches.forward
    ]
    backward = [
        (analytic_forward_flops(s), sums.bprop_per_batch) for s, sums in of_group if sums.batches.backward
    ]
    # Each product of the forward pass has two in the backward pass.
    row["fprop_flop_coverage_pct"] = _coverage(forward, 1)
    row["bprop_flop_coverage_pct"] = _coverage(backward, 2)
    return row


def _coverage(credited: Sequence[tuple[float | None, float]], products: int) -> float | None:
    needed = [analytic for analytic, _ in credited if analytic]
    if not needed or len(needed) < len(credited):
        return None
    return 100 * sum(flops for _, flops in credited) / (products * sum(needed))


def analytic_forward_flops(source: Source) -> float | None:
    """Analytic FLOPs of the forward pass of a batch at 224 x 224; None if the model is not known."""
    per_image = peaks.forward_flops_per_image(source.fields.get("model") or "")
    batch = source.fields.get("batch")
    return per_image * batch if per_image and batch else None


def _kernel_figures(study: Study, counted: Sequence[tuple[Source, Costs]]) -> dict[str, Any]:
    if not counted:
        return {}
    bounds = [costs.bound_of(study, source) for source, _ in counted]
    seconds = [cost.kernel_ns / 1e9 for _, cost in counted]
    return {
        "kernel_ms_per_step": 1e3 * sum(seconds) / len(seconds),
        "flops_efficiency_of_kernels_pct": _over(
            sum(cost.flops for _, cost in counted), seconds, [bound.flops_per_s for bound in bounds]
        ),
        "bandwidth_efficiency_of_kernels_pct": _over(
            sum(cost.bytes for _, cost in counted), seconds, [bound.bytes_per_s for bound in bounds]
        ),
    }


def _over(total: float, seconds: Sequence[float], peaks_per_s: Sequence[float | None]) -> float | None:
    """``total`` over what could be done in these seconds at these peaks, in percent."""
    known = [peak for peak in peaks_per_s if peak]
    could = sum(time * peak for time, peak in zip(seconds, known, strict=False))
    return 100 * total / could if could and len(known) == len(seconds) else None


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
    for source in [source for source in timed if source.id in sums]:
        batch_s = durations[_point(source.fields)]
        flops_pct, bytes_pct = (
            applications.scaled_efficiency_pct(total, batch_s, peak)
            for total, peak in ((sums[source.id].flops, peak_flops), (sums[source.id].bytes, peak_bytes))
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
    timed, started = tau.timed_and_started(study, rank_0_only=True)
    durations: dict[tuple, float] = {}
    for key in timed:
        if key in started:
            estimate = applications.tau_step_duration_s(list(timed[key]), list(started[key]))
            point = _point(dict(zip(ID_FIELDS, key, strict=True)))
            # Two ways of running TAU are two estimates, of which the least counts.
            durations[point] = applications.step_duration_s([estimate, durations.get(point, float("inf"))])
    return {point: duration for point, duration in durations.items() if duration > 0}


def _point(fields: Any) -> tuple:
    """A configuration, whatever the profiler."""
    values = {name: fields.get(name) for name in ID_FIELDS if name != "profile"}
    return tuple(value.lower() if isinstance(value, str) else value for value in values.values())
