"""What do the runs of a point, or of a group of points, add up to?

Costs (time, images, FLOPs, bytes) are summed over the points first, ratios are formed last. The columns are
explained in analysis/scaled.py.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from analysis import statistics
from analysis.batches import STAGES
from analysis.scaling import NAN, UNPROFILED, Point, Scaling

# Credited FLOPs outside this share of the analytic count are worth a warning.
COVERAGE_PCT = (95.0, 105.0)

TIME_COLUMNS = (
    "scaling", "repetitions", "timed_by", "batch_ms", "batch_ms_low", "batch_ms_high", "p95_ms", "p99_ms",
    "max_ms", "images_per_s", "images_per_s_low", "images_per_s_high",
    "speedup", "speedup_low", "speedup_high",
    "scaling_efficiency_pct", "scaling_efficiency_pct_low", "scaling_efficiency_pct_high", "interval_note",
    "interval_seed",
    "base", "base_world_size", "base_images_per_s", "warmup_dropped",
    "load_ms", "forward_ms", "backward_ms", "update_ms", "startup_s",
)  # fmt: skip
USE_COLUMNS = (
    "profiled_runs", "perturbation", "tflop_per_batch", "flop_coverage_pct", "kernel_ms",
    "flops_efficiency_of_kernels_pct", "flops_efficiency_of_kernels_of_measured_pct",
    "bandwidth_efficiency_of_kernels_pct", "bandwidth_efficiency_of_kernels_of_measured_pct",
    "flops_efficiency_of_batch_pct", "flops_efficiency_of_batch_of_measured_pct",
    "bandwidth_efficiency_of_batch_pct", "bandwidth_efficiency_of_batch_of_measured_pct",
    "mfu_pct", "mfu_of_measured_pct", "exposed_communication_ms", "overlapped_communication_ms",
    "device_name", "peak_tflops_per_s", "peak_gb_per_s", "measured_tflops_per_s", "measured_gb_per_s",
)  # fmt: skip


def figures(points: Sequence[Point], scaling: Scaling = "weak") -> dict[str, Any]:
    """The figures of a point, or of a group of them (:data:`TIME_COLUMNS` and :data:`USE_COLUMNS`)."""
    row: dict[str, Any] = {"scaling": scaling, **_durations(points), **_against_base(points)}
    return row | _stages(points) | _use(points)


def _durations(points: Sequence[Point]) -> dict[str, Any]:
    steady = [series.steady_ns / 1e6 for point in points for _, series in point.timed]
    pooled = np.concatenate(steady) if len(points) == 1 else np.array([])
    batch = _mean([point.batch_resamples for point in points])
    rate = _rate([point.rate_resamples for point in points], points)
    notes = dict.fromkeys(point.batch.note for point in points if point.batch.note)
    row: dict[str, Any] = {
        "repetitions": min(len(point.timed) for point in points),
        "timed_by": ", ".join(dict.fromkeys(point.timed_by for point in points)),
        "batch_ms": float(np.mean([point.batch.value for point in points])) / 1e6,
        "p95_ms": statistics.percentile(pooled, 95),
        "p99_ms": statistics.percentile(pooled, 99),
        "max_ms": float(pooled.max()) if len(pooled) else NAN,
        "images_per_s": _rate([np.array(point.rate.value) for point in points], points),
        "interval_note": "; ".join(notes),
        "interval_seed": statistics.SEED,
        "warmup_dropped": sum(series.warmup for point in points for _, series in point.timed),
    }
    row["batch_ms_low"], row["batch_ms_high"] = _ends(batch, 1e-6)
    row["images_per_s_low"], row["images_per_s_high"] = _ends(rate)
    row["images_per_s"] = float(row["images_per_s"])
    return row


def _mean(resamples: Sequence[np.ndarray | None]) -> np.ndarray | None:
    known = [values for values in resamples if values is not None]
    return np.mean(known, axis=0) if len(known) == len(resamples) else None


def _rate(rates: Sequence[np.ndarray | None], points: Sequence[Point]) -> Any:
    """Images of all points over their total time: a batch of each."""
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(rates):
        return None
    seconds = sum(point.images / rate for point, rate in zip(points, known, strict=True))
    return sum(point.images for point in points) / seconds


def _ends(resampled: np.ndarray | None, factor: float = 1.0) -> tuple[float, float]:
    return statistics.interval(resampled * factor) if resampled is not None else (NAN, NAN)


def _against_base(points: Sequence[Point]) -> dict[str, Any]:
    bases = [point.base or point for point in points]
    row: dict[str, Any] = {
        "base": "; ".join(dict.fromkeys(base.label for base in bases)) if len(points) < 4 else "",
        "base_world_size": bases[0].world_size if len({base.world_size for base in bases}) == 1 else None,
        "base_images_per_s": float(_rate([np.array(base.rate.value) for base in bases], bases)),
    }
    efficiency = _efficiency(points, bases, lambda point: np.array(point.rate.value))
    row["scaling_efficiency_pct"] = 100 * float(efficiency)
    sampled = None
    if any(base is not point for base, point in zip(bases, points, strict=True)):
        sampled = _efficiency(points, bases, lambda point: point.rate_resamples)
    row["scaling_efficiency_pct_low"], row["scaling_efficiency_pct_high"] = _ends(sampled, 100.0)
    growths = {point.world_size / base.world_size for point, base in zip(points, bases, strict=True)}
    growth = growths.pop() if len(growths) == 1 else NAN
    for end in ("", "_low", "_high"):
        row[f"speedup{end}"] = row[f"scaling_efficiency_pct{end}"] / 100 * growth
    return row


def _efficiency(
    points: Sequence[Point], bases: Sequence[Point], rate_of: Callable[[Point], np.ndarray | None]
) -> Any:
    """The time a batch of each point would take if it scaled ideally from its base, over what it takes."""
    ideal: Any = 0.0
    taken: Any = 0.0
    for point, base in zip(points, bases, strict=True):
        own, from_base = rate_of(point), rate_of(base)
        if own is None or from_base is None:
            return None
        ideal = ideal + point.images / (from_base * point.world_size / base.world_size)
        taken = taken + point.images / own
    return ideal / taken


def _stages(points: Sequence[Point]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for stage in STAGES:
        of_runs = [
            np.median(series.stages[stage][series.steady]) for point in points for _, series in point.timed
        ]
        row[f"{stage}_ms"] = float(np.mean(of_runs)) / 1e6
    starts = [
        max(rank.startup_ns for rank in source.manifest.ranks) / 1e9
        for point in points
        for source, _ in point.timed
        if source.manifest
    ]
    row["startup_s"] = float(np.median(starts)) if starts else NAN
    return row


def _use(points: Sequence[Point]) -> dict[str, Any]:
    profiled = [point for point in points if point.profiled]
    row: dict[str, Any] = {
        "profiled_runs": sum(len(point.profiled) for point in points),
        "perturbation": _perturbation(profiled),
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


def _perturbation(points: Sequence[Point]) -> float | None:
    """Duration of a batch that the profiler recorded over that of the unprofiled twin."""
    recorded = twins = 0.0
    for point in points:
        of_runs = [np.median(series.step_ns[series.attributed]) for _, series in point.profiled
                   if series.attributed.any()]  # fmt: skip
        if of_runs and point.timed_by == UNPROFILED:
            recorded += float(np.median(of_runs))
            twins += point.batch.value
    return recorded / twins if twins else None


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
    return {
        name: _over(sum(known), [(p.batch.value / 1e9, getattr(p.bound, peak)) for p in points])
        for name, peak in (("mfu_pct", "flops_per_s"), ("mfu_of_measured_pct", "measured_flops_per_s"))
    }


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
        for beside, prefix in (("", ""), ("_of_measured", "measured_")):
            kernels = [(cost.kernel_ns / 1e9, getattr(point.bound, prefix + peak)) for point, cost in known]
            whole = [(point.batch.value / 1e9, getattr(point.bound, prefix + peak)) for point, _ in known]
            row[f"{what}_efficiency_of_kernels{beside}_pct"] = _over(total, kernels)
            row[f"{what}_efficiency_of_batch{beside}_pct"] = _over(total, whole)
    return row


def findings(points: Sequence[Point]) -> list[str]:
    """Lines for points whose credit cannot be right: not near the analytic count, or over the peak."""
    costs = [_costs([point]) for point in points if point.cost]
    low, high = COVERAGE_PCT
    coverage = [row["flop_coverage_pct"] for row in costs if row["flop_coverage_pct"] is not None]
    off = [value for value in coverage if not low <= value <= high]
    lines = []
    if off:
        lines.append(
            f"credited FLOPs are {min(off):.1f} to {max(off):.1f} % of the analytic count in {len(off)} "
            f"points (expected {low:g} to {high:g} %): FLOPS efficiencies of these are off by as much"
        )
    for what in ("flops", "bandwidth"):
        shares = [row[f"{what}_efficiency_of_kernels_pct"] or 0 for row in costs]
        over = [share for share in shares if share > 100]
        if over:
            lines.append(
                f"{len(over)} points reach up to {max(over):.0f} % of the datasheet's {what}, more than the "
                "datasheet's peak: what is credited, or the peak (--peaks), is wrong"
            )
    return lines
