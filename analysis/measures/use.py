"""Use of the device by a step of a point, or of a group of points, and the cost of profiling it.

Costs (FLOPs, bytes, time) are summed over the points first, ratios are formed last.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.display.metrics import CONFIDENCE, Metric, names_of
from analysis.frames.study import Study
from analysis.measures.loss import Anatomies
from analysis.measures.points import UNPROFILED, Point
from analysis.measures.roofline import ABOVE_PCT
from analysis.statistics import estimates

COVERAGE_PCT = (95.0, 105.0)  # of the analytic FLOPs; what is counted outside of it is far off
# Values of use_note.
_SLOWED, _AT_ONCE = "kernels were timed in slower steps (profiled)", "several kernels run at once"

_MEASURED = "the same, relative to the peak measured on this machine"


def _beside_peaks(what: str, meaning: str, header: str, interval: str = "") -> tuple[Metric, Metric]:
    """A share of the datasheet's peak, and that of the measured one."""
    sheet = Metric(f"{what}_pct", meaning, header, interval, significant=3)
    return sheet, Metric(f"{what}_of_measured_pct", _MEASURED, header, significant=3)


METRICS = (
    Metric("profiled_runs", "number of profiled runs"),
    Metric(
        "perturbation",
        "duration of a profiled step divided by that of an unprofiled one",
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
        "FLOPs divided by step duration and the datasheet's peak",
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
        "model FLOPS utilization: analytic FLOPs divided by step duration and datasheet peak",
        "MFU\n%",
        CONFIDENCE,
    ),
    Metric("use_note", "reason why efficiencies of the kernels are below those of the step", text=True),
    Metric(
        "exposed_communication_ms",
        "communication per step and rank, not overlapped with computation (as in analysis.anatomy)",
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
        row["use_note"] = _below_step(points, row["kernel_ms_per_step"])
    return row | _communication([anatomies.get(point, {}) for point in points])


def _communication(anatomies: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Any]:
    """Exposed and overlapped, ms a batch of a rank, as anatomy has them; empty: not known.

    A trace of several ranks without a collective is not "0 ms exposed" (analysis/measures/loss.py).
    """
    names = ("exposed_communication", "overlapped_communication")
    means = [[anatomy[name][0] if name in anatomy else 0.0 for name in names] for anatomy in anatomies]
    if not means or not all(map(any, means)):
        return {}
    return {f"{name}_ms": float(mean) / 1e6 for name, mean in zip(names, np.mean(means, axis=0), strict=True)}


def _below_step(points: Sequence[Point], kernel_ms: float) -> str:
    """Why efficiencies of the kernels are below those of the step; empty: they are not.

    One device that works on one kernel at a time cannot do so. Kernels are timed in profiled steps, steps in
    unprofiled ones; and kernels that run at the same time are summed.
    """
    step_ms = float(np.mean([point.batch.value for point in points])) / 1e6
    if kernel_ms <= step_ms:
        return ""
    recorded_ms = float(np.mean([_recorded_ns(point) for point in points])) / 1e6
    return _SLOWED if kernel_ms <= recorded_ms else _AT_ONCE


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


def check(study: Study, points: Sequence[Point]) -> None:
    """Findings on points whose FLOPs cannot be right: not near the analytic count, or over a peak."""
    costs = [_costs([point]) for point in points if point.cost]
    check_coverage(study, [row["flop_coverage_pct"] for row in costs])
    for what in ("flops", "bandwidth"):
        of_kernels, of_step = (f"{what}_efficiency_of_{part}" for part in ("kernels", "step"))
        measured = [
            max(row[f"{name}_of_measured_pct"] or 0 for name in (of_kernels, of_step)) for row in costs
        ]
        _check_peak(study, what, "measured", measured, ABOVE_PCT)
        _check_peak(study, what, "datasheet", [row[f"{of_kernels}_pct"] or 0 for row in costs])
    _check_peak(study, "MFU", "datasheet", [_mfu([point]).get("mfu_pct") or 0 for point in points])


def _check_peak(study: Study, what: str, peak: str, shares: Sequence[float], most_pct: float = 100.0) -> None:
    if above := [share for share in shares if share > most_pct]:
        study.note("above_peak", what=what, peak=peak, n=len(above), of=len(shares), most_pct=max(above))


def check_coverage(study: Study, coverage_pct: Sequence[float | None]) -> None:
    """A finding where FLOPs counted from kernels are not near the analytic count (None: not known)."""
    low, high = COVERAGE_PCT
    off = [value for value in coverage_pct if value is not None and not low <= value <= high]
    for value in {min(off), max(off)} if off else ():
        study.note("flops_far_off", coverage_pct=value, n=len(off), of=len(coverage_pct))


# --- the cost of profiling --------------------------------------------------------------------------------


def _recorded(point: Point) -> list[np.ndarray]:
    """The steps that a profiler recorded, of each profiled run, without warmup, ns.

    Of runs that recorded kernels, if there are any: a tool that reads counters runs each kernel many times.
    """
    runs = [(source, series.recorded_ns.astype(float)) for source, series in point.profiled]
    with_kernels = [(source, run) for source, run in runs if source.tables("kernels")]
    return [run for _, run in with_kernels or runs if len(run)]


def _recorded_ns(point: Point) -> float:
    """The median step that a profiler recorded; NaN without one."""
    runs = _recorded(point)
    return float(np.median([np.median(run) for run in runs])) if runs else float("nan")


def perturbation(points: Sequence[Point]) -> dict[str, Any]:
    """Duration of a step that the profiler recorded over that of the unprofiled twin, with its interval."""
    recorded = twins = 0.0
    drawn: list[tuple[estimates.Drawn, estimates.Drawn]] = []
    for point in points:
        runs = _recorded(point)
        if not runs or point.timed_by != UNPROFILED:
            continue
        recorded += _recorded_ns(point)
        twins += point.batch.value
        # How much profiled runs differ takes two: they may differ more than unprofiled ones do.
        if point.batch_drawn is not None and len(runs) > 1:
            drawn.append((estimates.draw_runs(runs, seed=point.seed + 1), point.batch_drawn))
    low = high = None
    if drawn and len(drawn) == len(points):
        low, high = _interval_of_ratio(drawn)
    ratio = recorded / twins if twins else None
    return {"perturbation": ratio, "perturbation_low": low, "perturbation_high": high}


def _interval_of_ratio(drawn: Sequence[tuple[estimates.Drawn, estimates.Drawn]]) -> tuple[float, float]:
    """Of the sum of the first ones over that of the second ones."""
    parts = [
        (sign * one.value / sum(other.value for other in side), one)
        for sign, side in zip((1, -1), zip(*drawn, strict=True), strict=True)
        for one in side
    ]
    widening = estimates.shared_widening(parts)
    over, under = (
        np.sum([one.values(widening) for one in side], axis=0) for side in zip(*drawn, strict=True)
    )
    return estimates.interval(over / under)
