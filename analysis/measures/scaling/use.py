"""How well does a batch of a point, or of a group of points, use the device?

Costs (FLOPs, bytes, time) are summed over the points first, ratios are formed last.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.display.metrics import CONFIDENCE, Metric, names_of
from analysis.display.numbers import digits, span
from analysis.measures.kernels.roofline import ABOVE_PCT, BANDWIDTH, COMPUTE
from analysis.measures.kernels.rows import too_low
from analysis.measures.scaling.loss import Anatomies
from analysis.measures.scaling.perturbation import perturbation, recorded_ns
from analysis.measures.scaling.point import Point
from analysis.results.study import Study
from analysis.statistics import estimates
from profiling.wording import how_many, verb

# Credited FLOPs outside this share of the analytic count are worth a warning.
COVERAGE_PCT = (95.0, 105.0)

_MEASURED = "the same, relative to the peak measured on this machine"


def _beside_peaks(what: str, meaning: str, header: str, interval: str = "") -> tuple[Metric, Metric]:
    """A share of the datasheet's peak, and that of the measured one."""
    sheet = Metric(f"{what}_pct", meaning, header, interval, significant=3)
    return sheet, Metric(f"{what}_of_measured_pct", _MEASURED, header, significant=3)


METRICS = (
    Metric("profiled_runs", "number of profiled runs"),
    Metric(
        "perturbation",
        "duration of a profiled step divided by that of an unprofiled run (with several profilers: of "
        "those that recorded kernels)",
        "profiled/\nunprofiled",
        CONFIDENCE,
        places=2,
    ),
    Metric("tflop_per_step", "FLOPs of a step per rank, from its kernels, 1e12"),
    Metric("flop_coverage_pct", "tflop_per_step divided by the analytic count"),
    Metric("kernel_ms_per_step", "kernel time of the model per step and rank"),
    *_beside_peaks(
        "flops_efficiency_of_kernels",
        "FLOPs divided by kernel time and the datasheet's peak",
        "FLOPS eff. %\nof kernels",
    ),
    *_beside_peaks(
        "bandwidth_efficiency_of_kernels",
        "bytes divided by kernel time and the datasheet's peak",
        "bandw. eff. %\nof kernels",
    ),
    *_beside_peaks(
        "flops_efficiency_of_step",
        "FLOPs divided by step duration and the datasheet's peak (the reference's \"scaled\" efficiency)",
        "FLOPS eff. %\nof step",
        CONFIDENCE,
    ),
    *_beside_peaks(
        "bandwidth_efficiency_of_step",
        "bytes divided by step duration and the datasheet's peak",
        "bandw. eff. %\nof step",
        CONFIDENCE,
    ),
    *_beside_peaks(
        "mfu",
        "model FLOPS utilization: analytic FLOPs divided by step duration and the datasheet's peak",
        "MFU\n%",
        CONFIDENCE,
    ),
    Metric("use_note", "reason why efficiencies of the kernels are below those of the step", text=True),
    Metric(
        "exposed_communication_ms",
        "communication per step and rank that is not overlapped with computation (as in "
        "analysis.anatomy); empty: not available",
        "exposed\ncomm., ms",
    ),
    Metric(
        "overlapped_communication_ms", "communication per step and rank that is overlapped with computation"
    ),
    Metric("device_name", "name of the device", text=True),
    Metric("peak_tflops_per_s", "peak FLOP rate (datasheet)"),
    Metric("peak_gb_per_s", "peak memory bandwidth (datasheet)"),
    Metric("measured_tflops_per_s", "peak FLOP rate (measured on this machine)"),
    Metric("measured_gb_per_s", "peak memory bandwidth (measured on this machine)"),
)


def use_of_device(points: Sequence[Point], anatomies: Anatomies) -> dict[str, Any]:
    """The figures of a point, or of a group of them (:data:`METRICS`)."""
    profiled = [point for point in points if point.profiled]
    row: dict[str, Any] = {
        "profiled_runs": sum(len(point.profiled) for point in points),
        **perturbation(profiled),
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
        # One profiled run that took longer may have met a busy machine.
        slowed = (row["perturbation_low"] or 0.0) > 1
        row["use_note"] = _below_step(points, row["kernel_ms_per_step"], slowed)
    return row | _communication([anatomies.get(point, {}) for point in points])


def _communication(anatomies: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """Exposed and overlapped, ms a batch of a rank, as anatomy has them; empty: not known.

    A trace of several ranks without a collective is not "0 ms exposed" (analysis/measures/scaling/loss.py).
    """
    names = ("exposed_communication", "overlapped_communication")
    means = [[anatomy[name][0] if name in anatomy else 0.0 for name in names] for anatomy in anatomies]
    if not means or not all(map(any, means)):
        return {}
    return {f"{name}_ms": float(mean) / 1e6 for name, mean in zip(names, np.mean(means, axis=0), strict=True)}


def _below_step(points: Sequence[Point], kernel_ms: float, slowed: bool) -> str:
    """Why efficiencies of the kernels are below those of the step; empty: they are not.

    One device that works on one kernel at a time cannot do so. Kernels are timed in recorded batches, which
    the profiler slows down, and batches in unprofiled ones; and kernels that run at the same time are summed.

    Args:
        slowed: repeated runs show that steps take longer under the profiler.
    """
    step_ms = float(np.mean([point.batch.value for point in points])) / 1e6
    if kernel_ms <= step_ms:
        return ""
    recorded_ms = float(np.mean([recorded_ns(point) for point in points])) / 1e6
    if kernel_ms <= recorded_ms:
        cause = "the profiler" if slowed else "the profiler, or a busy machine"
        return (
            f"unprofiled steps take {digits(step_ms)} ms, profiled ones {digits(recorded_ms)} ms (medians), "
            f"{recorded_ms / step_ms:.2f} times as long ({cause}), so efficiencies of the kernels are too "
            f"low, even below those of the step (kernel times sum to {digits(kernel_ms)} ms)"
        )
    return (
        f"several kernels run at the same time: their times sum to {digits(kernel_ms)} ms, a step takes "
        f"{digits(step_ms)} ms (profiled: {digits(recorded_ms)} ms). So efficiencies of the kernels are "
        "below those of the step"
    )


def _over(total: float, could: Sequence[tuple[float, float | None]]) -> float | None:
    """``total`` over what could be done in (seconds, peak a second), in percent."""
    if any(not peak for _, peak in could):
        return None
    most = sum(seconds * peak for seconds, peak in could if peak)
    return 100 * total / most if most else None


def _mfu(points: Sequence[Point]) -> dict[str, Any]:
    """Model FLOPS utilization: analytic FLOPs of a rank's batch over its whole duration and the peak."""
    needed = [analytic_flops(point) for point in points]
    known = [flops for flops in needed if flops is not None]
    if len(known) < len(needed):
        return {}
    return _of_step("mfu", sum(known), points, "flops_per_s")


def _of_step(name: str, total: float, points: Sequence[Point], peak: str) -> dict[str, Any]:
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
        row[f"{name}_pct_low"], row[f"{name}_pct_high"] = estimates.interval(100 * total / could)
    return row


def analytic_flops(point: Point) -> float | None:
    """Analytic FLOPs of training on a rank's batch."""
    manifest = point.timed[0][0].manifest
    per_image = manifest.ranks[0].training_flops_per_image if manifest and manifest.ranks else None
    return per_image * point.images / point.world_size if per_image else None


def _costs(points: Sequence[Point]) -> dict[str, Any]:
    known = [(point, point.cost) for point in points if point.cost]
    row: dict[str, Any] = {
        "tflop_per_step": None,
        "flop_coverage_pct": None,
        "kernel_ms_per_step": sum(cost.kernel_ns for _, cost in known) / len(known) / 1e6,
        **{
            name: None
            for name in names_of(METRICS)
            if name.startswith(("flops_efficiency", "bandwidth_efficiency"))
        },
    }
    for what, of, peak in (("flops", "flops", "flops_per_s"), ("bandwidth", "bytes", "bytes_per_s")):
        # Its tool knows no shapes, and no run lent them: that is not 0 %.
        credited = [(point, cost) for point, cost in known if getattr(cost, of)]
        if not credited:
            continue
        total = sum(getattr(cost, of) for _, cost in credited)
        for beside, prefix in (("", ""), ("_of_measured", "measured_")):
            kernels = [(cost.kernel_ns / 1e9, getattr(p.bound, prefix + peak)) for p, cost in credited]
            row[f"{what}_efficiency_of_kernels{beside}_pct"] = _over(total, kernels)
        row |= _of_step(f"{what}_efficiency_of_step", total, [point for point, _ in credited], peak)
        if what == "flops":
            analytic = [value for point, _ in credited if (value := analytic_flops(point))]
            row["tflop_per_step"] = total / len(credited) / 1e12
            if len(analytic) == len(credited):
                row["flop_coverage_pct"] = 100 * total / sum(analytic)
    return row


def findings(study: Study, points: Sequence[Point]) -> list[str]:
    """Lines for points whose credit cannot be right: not near the analytic count, or over a peak."""
    costs = [_costs([point]) for point in points if point.cost]
    lines = coverage_findings([row["flop_coverage_pct"] for row in costs])
    for what, bound in (("flops", COMPUTE), ("bandwidth", BANDWIDTH)):
        lines += _above_measured(study, costs, what, bound)
        shares = [row[f"{what}_efficiency_of_kernels_pct"] or 0 for row in costs]
        over = [share for share in shares if share > 100]
        if over:
            lines.append(
                f"{_points(len(over))} {verb(len(over), 'reach')} up to {max(over):.0f} % of the "
                f"datasheet's {what}: above 100 %, either the counted work or the peak (--peaks) is wrong"
            )
    used = [share for point in points if (share := _mfu([point]).get("mfu_pct") or 0) > 100]
    if used:
        lines.append(
            f"MFU is up to {max(used):.0f} % in {_points(len(used))}: above 100 %, either the analytic "
            "count or the peak (--peaks; for the precision used) is wrong"
        )
    return lines


def _above_measured(study: Study, costs: Sequence[Mapping[str, Any]], what: str, bound: str) -> list[str]:
    """A line where points exceed the measured peak that bounds ``what``."""
    names = [f"{what}_efficiency_of_{part}_of_measured_pct" for part in ("kernels", "step")]
    above = [share for row in costs if (share := max(row[name] or 0 for name in names)) > ABOVE_PCT]
    if not above:
        return []
    reached = f"{_points(len(above))} {verb(len(above), 'reach')} up to {max(above):.0f} %"
    return [too_low(study, bound, reached)]


def coverage_findings(coverage_pct: Sequence[float | None]) -> list[str]:
    """A line where points' credited FLOPs are not near the analytic count (None: that is not known)."""
    low, high = COVERAGE_PCT
    off = [value for value in coverage_pct if value is not None and not low <= value <= high]
    if not off:
        return []
    shares = span(f"{min(off):.1f}", f"{max(off):.1f}")
    return [
        f"FLOPs counted from kernels are {shares} % of the analytic count in "
        f"{_points(len(off))} (expected {low:g} to {high:g} %): their FLOPS efficiencies are wrong by as "
        "much"
    ]


def _points(count: int) -> str:
    return how_many(count, "configuration")
