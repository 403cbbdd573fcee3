"""Efficiency of the kernels of groups of runs: rates divided by the device's peaks."""

from collections.abc import Sequence
from typing import Any

from analysis.display.metrics import Metric, Rows
from analysis.display.numbers import sortable
from analysis.frames.kernel_sums import Costs
from analysis.frames.study import Source, Study
from analysis.measures.peaks import Bound, bound_of, costs_of

METRICS = (
    Metric("compute_efficiency_pct", "time of launches with FLOPs divided by the time of all launches"),
    Metric("tflops_per_s", "FLOPs divided by kernel time"),
    Metric("bandwidth_gb_per_s", "bytes read and written, divided by kernel time"),
    Metric("bandwidth_efficiency_pct", "bandwidth_gb_per_s divided by the datasheet's memory bandwidth"),
    Metric("flops_efficiency_pct", "FLOP rate divided by the datasheet's peak"),
)
CORRECTED_METRICS = (
    Metric("flops_efficiency_of_measured_pct", "FLOP rate divided by the peak measured on this machine"),
    Metric("bandwidth_efficiency_of_measured_pct", "bandwidth over that measured on this machine"),
    Metric("kernel_ms_per_step", "time of the model's kernels per step"),
    Metric("loader_ms_per_step", "time of the loader's kernels per step"),
    Metric("attributed_steps", "number of steps with kernels"),
)


def rows(study: Study, group_by: Sequence[str]) -> Rows:
    """A row a group, ordered by its fields: these, then :data:`METRICS` and :data:`CORRECTED_METRICS`.

    Raises:
        UserError: no run has kernels in attributed batches.
    """
    costs = costs_of(study, study.sources)
    groups: dict[tuple, list[Source]] = {}
    for source in study.sources:
        if source.id in costs:
            groups.setdefault(group_of(source, group_by), []).append(source)
    if not groups:
        raise study.nothing(
            f"{study.path} holds no kernels with FLOPs: it needs profile: torch, shapes in traces, or PyProf"
        )
    answer = []
    for key in sorted(groups, key=sortable):
        of_group = [(costs[source.id], bound_of(study, source)) for source in groups[key]]
        # A run whose tool knows no shapes, and to which no other lent them, did not do nothing.
        credited = [(cost, bound) for cost, bound in of_group if cost.flops]
        moving = [(cost, bound) for cost, bound in of_group if cost.bytes]
        flops = sum(cost.flops for cost, _ in credited)
        moved = sum(cost.bytes for cost, _ in moving)
        rate, bandwidth = _over_time(flops, credited), _over_time(moved, moving)
        counted = _over_time(sum(cost.counted_ns for cost, _ in credited), credited)
        answer.append({
            **dict(zip(group_by, key, strict=True)),
            "compute_efficiency_pct": None if counted is None else 100 * counted,
            "tflops_per_s": None if rate is None else rate / 1e3,
            "bandwidth_gb_per_s": bandwidth,
            "bandwidth_efficiency_pct": _over_peak(moved, moving, "bytes_per_s"),
            "flops_efficiency_pct": _over_peak(flops, credited, "flops_per_s"),
            "flops_efficiency_of_measured_pct": _over_peak(flops, credited, "measured_flops_per_s"),
            "bandwidth_efficiency_of_measured_pct": _over_peak(moved, moving, "measured_bytes_per_s"),
            "kernel_ms_per_step": sum(cost.kernel_ns for cost, _ in of_group) / len(of_group) / 1e6,
            "loader_ms_per_step": sum(cost.loader_ns for cost, _ in of_group) / len(of_group) / 1e6,
            "attributed_steps": sum(cost.batches for cost, _ in of_group),
        })  # fmt: skip
    return answer


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


def group_of(source: Source, group_by: Sequence[str]) -> tuple[Any, ...]:
    return tuple(source.value(name) for name in group_by)
