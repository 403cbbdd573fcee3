"""How well does a batch of a point, or of a group of points, use the device?

Costs (FLOPs, bytes, time) are summed over the points first, ratios are formed last. The columns are explained
in analysis/scaled.py.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from analysis import statistics
from analysis.scaling import UNPROFILED, Point

# Credited FLOPs outside this share of the analytic count are worth a warning.
COVERAGE_PCT = (95.0, 105.0)

USE_COLUMNS = (
    "profiled_runs", "perturbation", "perturbation_low", "perturbation_high",
    "tflop_per_batch", "flop_coverage_pct", "kernel_ms",
    "flops_efficiency_of_kernels_pct", "flops_efficiency_of_kernels_of_measured_pct",
    "bandwidth_efficiency_of_kernels_pct", "bandwidth_efficiency_of_kernels_of_measured_pct",
    "flops_efficiency_of_batch_pct", "flops_efficiency_of_batch_pct_low",
    "flops_efficiency_of_batch_pct_high", "flops_efficiency_of_batch_of_measured_pct",
    "bandwidth_efficiency_of_batch_pct", "bandwidth_efficiency_of_batch_pct_low",
    "bandwidth_efficiency_of_batch_pct_high", "bandwidth_efficiency_of_batch_of_measured_pct",
    "mfu_pct", "mfu_pct_low", "mfu_pct_high", "mfu_of_measured_pct",
    "exposed_communication_ms", "overlapped_communication_ms",
    "device_name", "peak_tflops_per_s", "peak_gb_per_s", "measured_tflops_per_s", "measured_gb_per_s",
)  # fmt: skip


def use_of_device(points: Sequence[Point]) -> dict[str, Any]:
    """The figures of a point, or of a group of them (:data:`USE_COLUMNS`)."""
    profiled = [point for point in points if point.profiled]
    row: dict[str, Any] = {
        "profiled_runs": sum(len(point.profiled) for point in points),
        **_perturbation(profiled),
        "device_name": ", ".join(sorted({point.bound.device for point in points})),
    }
    for name, attribute, unit in (
        ("peak_tflops_per_s", "flops_per_s", 1e12),
        ("peak_gb_per_s", "bytes_per_s", 1e9),
        ("measured_tflops_per_s", "measured_flops_per_s", 1e12),
        ("measured_gb_per_s", "measured_bytes_per_s", 1e9),
    ):
        values = {getattr(point.bound, attribute) for point in points}
        value = values.pop() if len(values) == 1 else None
        row[name] = value / unit if value else None
    row |= _mfu(points)
    if points and all(point.cost for point in points):
        row |= _costs(points)
    talks = [point.communication for point in points]
    if talks and all(talks):
        row["exposed_communication_ms"] = float(np.mean([talk.exposed_ns for talk in talks if talk])) / 1e6
        row["overlapped_communication_ms"] = (
            float(np.mean([talk.overlapped_ns for talk in talks if talk])) / 1e6
        )
    return row


def _perturbation(points: Sequence[Point]) -> dict[str, Any]:
    """Duration of a batch that the profiler recorded over that of the unprofiled twin, with its interval."""
    recorded = twins = 0.0
    drawn: list[tuple[np.ndarray, np.ndarray | None]] = []
    for point in points:
        runs = [series.step_ns[series.attributed].astype(float) for _, series in point.profiled]
        runs = [run for run in runs if len(run)]
        if not runs or point.timed_by != UNPROFILED:
            continue
        recorded += float(np.median([np.median(run) for run in runs]))
        twins += point.batch.value
        if point.scatter.freedom:
            # One profiled run alone is taken to scatter as its unprofiled twins do.
            between = point.scatter if len(runs) == 1 else None
            own = statistics.run_resamples(runs, seed=point.seed + 1, between=between)
            drawn.append((own, point.batch_resamples))
    low = high = None
    known = [(own, twin) for own, twin in drawn if twin is not None]
    if known and len(known) == len(points):
        sums = [np.sum(durations, axis=0) for durations in zip(*known, strict=True)]
        low, high = statistics.interval(sums[0] / sums[1])
    ratio = recorded / twins if twins else None
    return {"perturbation": ratio, "perturbation_low": low, "perturbation_high": high}


def _over(total: float, could: Sequence[tuple[float, float | None]]) -> float | None:
    """``total`` over what could be done in (seconds, peak a second), in percent."""
    if any(not peak for _, peak in could):
        return None
    most = sum(seconds * peak for seconds, peak in could if peak)
    return 100 * total / most if most else None


def _mfu(points: Sequence[Point]) -> dict[str, Any]:
    """Model FLOPS utilisation: analytic FLOPs of a rank's batch over its whole duration and the peak."""
    needed = [analytic_flops(point) for point in points]
    known = [flops for flops in needed if flops is not None]
    if len(known) < len(needed):
        return {}
    return _of_batch("mfu", sum(known), points, "flops_per_s")


def _of_batch(name: str, total: float, points: Sequence[Point], peak: str) -> dict[str, Any]:
    """``total`` over what could be done in the points' batches, in percent, with the interval of these."""
    row = {
        f"{name}{beside}_pct": _over(total, [(p.batch.value / 1e9, getattr(p.bound, which)) for p in points])
        for beside, which in (("", peak), ("_of_measured", f"measured_{peak}"))
    }
    drawn = [(point.batch_resamples, getattr(point.bound, peak)) for point in points]
    known = [(durations / 1e9, rate) for durations, rate in drawn if durations is not None and rate]
    row[f"{name}_pct_low"] = row[f"{name}_pct_high"] = None
    if known and len(known) == len(drawn):
        could = np.sum([seconds * rate for seconds, rate in known], axis=0)
        row[f"{name}_pct_low"], row[f"{name}_pct_high"] = statistics.interval(100 * total / could)
    return row


def analytic_flops(point: Point) -> float | None:
    """Analytic FLOPs of training on a rank's batch."""
    manifest = point.timed[0][0].manifest
    per_image = manifest.ranks[0].training_flops_per_image if manifest and manifest.ranks else None
    return per_image * point.images / point.world_size if per_image else None


def _costs(points: Sequence[Point]) -> dict[str, Any]:
    known = [(point, point.cost) for point in points if point.cost]
    flops = sum(cost.flops for _, cost in known)
    moved = sum(cost.bytes for _, cost in known)
    analytic = [analytic_flops(point) for point in points]
    needed = sum(value for value in analytic if value) if all(analytic) else None
    row: dict[str, Any] = {
        "tflop_per_batch": flops / len(known) / 1e12,
        "flop_coverage_pct": 100 * flops / needed if needed else None,
        "kernel_ms": sum(cost.kernel_ns for _, cost in known) / len(known) / 1e6,
    }
    for what, total, peak in (("flops", flops, "flops_per_s"), ("bandwidth", moved, "bytes_per_s")):
        if not total:  # its tool knows no shapes, and no run lent them: that is not 0 %
            row |= {name: None for name in USE_COLUMNS if name.startswith(f"{what}_efficiency")}
            continue
        for beside, prefix in (("", ""), ("_of_measured", "measured_")):
            kernels = [(cost.kernel_ns / 1e9, getattr(point.bound, prefix + peak)) for point, cost in known]
            row[f"{what}_efficiency_of_kernels{beside}_pct"] = _over(total, kernels)
        row |= _of_batch(f"{what}_efficiency_of_batch", total, [point for point, _ in known], peak)
    return row


def findings(points: Sequence[Point]) -> list[str]:
    """Lines for points whose credit cannot be right: not near the analytic count, or over the peak."""
    costs = [_costs([point]) for point in points if point.cost]
    lines = coverage_findings([row["flop_coverage_pct"] for row in costs])
    for what in ("flops", "bandwidth"):
        shares = [row[f"{what}_efficiency_of_kernels_pct"] or 0 for row in costs]
        over = [share for share in shares if share > 100]
        if over:
            lines.append(
                f"{len(over)} points reach up to {max(over):.0f} % of the datasheet's {what}, more than the "
                "datasheet's peak: what is credited, or the peak (--peaks), is wrong"
            )
    return lines


def coverage_findings(coverage_pct: Sequence[float | None]) -> list[str]:
    """A line where points' credited FLOPs are not near the analytic count (None: that is not known)."""
    low, high = COVERAGE_PCT
    off = [value for value in coverage_pct if value is not None and not low <= value <= high]
    if not off:
        return []
    return [
        f"credited FLOPs are {min(off):.1f} to {max(off):.1f} % of the analytic count in {len(off)} points "
        f"(expected {low:g} to {high:g} %): FLOPS efficiencies of these are off by as much"
    ]
