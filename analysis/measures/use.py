"""Use of the device by a step of a point, or of a group of points, and the cost of profiling it.

Costs (FLOPs, bytes, time) are summed over the points first, ratios are formed last.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis.display.metrics import CONFIDENCE, Metric, names_of
from analysis.frames.study import Study
from analysis.measures.loss import Parts
from analysis.measures.peaks import ABOVE_PCT
from analysis.measures.points import UNPROFILED, Point
from analysis.statistics import estimates

COVERAGE_PCT = (95.0, 105.0)  # of the analytic FLOPs; what is counted outside of it is far off
# Values of use_note.
SLOWED, AT_ONCE = "kernels were timed in slower steps (profiled)", "several kernels run at once"

_MEASURED = "the same, relative to the peak measured on this machine"


def _beside_peaks(
    what: str, meaning: str, header: str, interval: str = "", detail: bool = False
) -> tuple[Metric, Metric]:
    """A share of the datasheet's peak, and that of the measured one."""
    sheet = Metric(f"{what}_pct", meaning, header, interval, significant=3, detail=detail)
    return sheet, Metric(f"{what}_of_measured_pct", _MEASURED, header, significant=3, detail=detail)


METRICS = (
    Metric("profiled_runs", "number of profiled runs", detail=True),
    Metric(
        "perturbation",
        "duration of a profiled step divided by that of an unprofiled one",
        "profiled/\nunprofiled",
        CONFIDENCE,
        places=2,
    ),
    Metric("tflop_per_step", "FLOPs of a step per rank, from its kernels, 1e12", detail=True),
    Metric("flop_coverage_pct", "tflop_per_step divided by the analytic count", detail=True),
    Metric("kernel_ms_per_step", "kernel time of the model per step and rank", detail=True),
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
        detail=True,
    ),
    *_beside_peaks(
        "mfu",
        "model FLOPS utilization: analytic FLOPs divided by step duration and datasheet peak",
        "MFU\n%",
        CONFIDENCE,
    ),
    Metric(
        "use_note",
        "reason why efficiencies of the kernels are below those of the step",
        text=True,
        detail=True,
    ),
    Metric(
        "exposed_communication_ms",
        "communication per step and rank, not overlapped with computation (as in analysis.anatomy)",
        "exposed\ncomm., ms",
    ),
    Metric(
        "overlapped_communication_ms",
        "communication per step and rank that is overlapped with computation",
        detail=True,
    ),
    Metric("device_name", "name of the device", text=True),
    Metric("peak_tflops_per_s", "peak FLOP rate (datasheet)", detail=True),
    Metric("peak_gb_per_s", "peak memory bandwidth (datasheet)", detail=True),
    Metric("measured_tflops_per_s", "peak FLOP rate (measured on this machine)", detail=True),
    Metric("measured_gb_per_s", "peak memory bandwidth (measured on this machine)", detail=True),
)


# What is credited to kernels: its name in columns, that of its cost, and that of the peak.
_CREDITED = (("flops", "flops", "flops_per_s"), ("bandwidth", "bytes", "bytes_per_s"))


def use_of_device(points: Sequence[Point], parts: Mapping[Point, Parts]) -> dict[str, Any]:
    """The figures of a point, or of a group of them (:data:`METRICS`)."""
    row: dict[str, Any] = {
        "profiled_runs": sum(len(point.profiled) for point in points),
        **perturbation([point for point in points if point.profiled]),
        "device_name": ", ".join(sorted({point.bound.device for point in points})),
        **_mfu(points),
    }
    for kind, prefix in (("peak", ""), ("measured", "measured_")):
        for name, peak, unit in (("tflops_per_s", "flops_per_s", 1e12), ("gb_per_s", "bytes_per_s", 1e9)):
            peaks = set(_peaks(points, prefix + peak))
            row[f"{kind}_{name}"] = peaks.pop() / unit if len(peaks) == 1 else np.nan
    if all(point.cost for point in points):
        row |= _costs(points)
        row["use_note"] = _below_step(points, row["kernel_ms_per_step"])
    return row | _communication([parts.get(point, {}) for point in points])


def _communication(parts: Sequence[Parts]) -> dict[str, float]:
    """Exposed and overlapped, ms a step of a rank; empty: not known.

    A trace of several ranks without a collective is not "0 ms exposed" (analysis/measures/loss.py).
    """
    names = ("exposed_communication", "overlapped_communication")
    means = np.array(
        [[of_point[name][0] if name in of_point else 0.0 for name in names] for of_point in parts]
    )
    if not means.any(axis=1).all():
        return {}
    return {f"{name}_ms": mean for name, mean in zip(names, means.mean(axis=0) / 1e6, strict=True)}


def _below_step(points: Sequence[Point], kernel_ms: float) -> str:
    """Why efficiencies of the kernels are below those of the step; empty: they are not.

    One device that works on one kernel at a time cannot do so. Kernels are timed in profiled steps, steps in
    unprofiled ones; and kernels that run at the same time are summed.
    """
    if kernel_ms <= np.mean([point.batch.value for point in points]) / 1e6:
        return ""
    recorded_ns = [np.median([np.median(run) for run in _recorded(point)] or np.nan) for point in points]
    return SLOWED if kernel_ms <= np.mean(recorded_ns) / 1e6 else AT_ONCE


def _peaks(points: Sequence[Point], name: str) -> np.ndarray:
    """A peak of each point's device; NaN: not known."""
    return np.array([getattr(point.bound, name) or np.nan for point in points])


def _share_pct(total: float, seconds: np.ndarray, peaks: np.ndarray) -> np.ndarray:
    """``total`` over what could be done in so many seconds (points, or points x resamples)."""
    return 100 * total / (peaks @ seconds)


def _of_step(name: str, total: float, points: Sequence[Point], peak: str) -> dict[str, float]:
    """``total`` over what could be done in the points' steps, in percent, with the interval of these."""
    seconds = np.array([point.batch.sampled() for point in points]) / 1e9
    of_measured = _share_pct(total, seconds[:, 0], _peaks(points, f"measured_{peak}"))
    return {
        **estimates.columns_of(f"{name}_pct", _share_pct(total, seconds, _peaks(points, peak))),
        f"{name}_of_measured_pct": float(of_measured),
    }


def _mfu(points: Sequence[Point]) -> dict[str, float]:
    """Model FLOPS utilization: analytic FLOPs of a rank's step over its whole duration and the peak."""
    return _of_step("mfu", sum(map(analytic_flops, points)), points, "flops_per_s")


def analytic_flops(point: Point) -> float:
    """Analytic FLOPs of training on a rank's batch; NaN: not known."""
    manifest = point.timed[0][0].manifest
    per_image = manifest.ranks[0].training_flops_per_image if manifest and manifest.ranks else None
    return (per_image or np.nan) * point.images / point.world_size


def _costs(points: Sequence[Point]) -> dict[str, float]:
    costs = [(point, point.cost) for point in points if point.cost]
    row = {"kernel_ms_per_step": float(np.mean([cost.kernel_ns for _, cost in costs])) / 1e6}
    for what, of, peak in _CREDITED:
        # Its tool knows no shapes, and no run lent them: that is not 0 %.
        credited = [point for point, cost in costs if getattr(cost, of)]
        if not credited:
            continue
        total = sum(getattr(point.cost, of) for point in credited)
        seconds = np.array([cost.kernel_ns for point, cost in costs if point in credited]) / 1e9
        for beside, prefix in (("", ""), ("_of_measured", "measured_")):
            share = _share_pct(total, seconds, _peaks(credited, prefix + peak))
            row[f"{what}_efficiency_of_kernels{beside}_pct"] = float(share)
        row |= _of_step(f"{what}_efficiency_of_step", total, credited, peak)
        if what == "flops":
            row["tflop_per_step"] = total / len(credited) / 1e12
            row["flop_coverage_pct"] = 100 * total / sum(map(analytic_flops, credited))
    return row


def check(study: Study, points: Sequence[Point]) -> None:
    """Findings on points whose FLOPs cannot be right: not near the analytic count, or over a peak."""
    costs = pd.DataFrame([_costs([point]) for point in points if point.cost])
    costs = costs.reindex(columns=names_of(METRICS))
    check_coverage(study, costs["flop_coverage_pct"])
    for what, _, _ in _CREDITED:
        of_kernels, of_step = (f"{what}_efficiency_of_{part}" for part in ("kernels", "step"))
        measured = costs[[f"{of_kernels}_of_measured_pct", f"{of_step}_of_measured_pct"]].max(axis=1)
        _check_peak(study, what, "measured", measured, ABOVE_PCT)
        _check_peak(study, what, "datasheet", costs[f"{of_kernels}_pct"])
    _check_peak(study, "MFU", "datasheet", pd.Series([_mfu([point])["mfu_pct"] for point in points]))


def _check_peak(study: Study, what: str, peak: str, shares: pd.Series, most_pct: float = 100.0) -> None:
    above = shares[shares > most_pct]
    if len(above):
        study.note("above_peak", what=what, peak=peak, n=len(above), of=len(shares), most_pct=above.max())


def check_coverage(study: Study, coverage_pct: pd.Series) -> None:
    """A finding where FLOPs counted from kernels are not near the analytic count (NaN: not known)."""
    off = coverage_pct[coverage_pct.notna() & ~coverage_pct.between(*COVERAGE_PCT)]
    for value in {off.min(), off.max()} if len(off) else ():
        study.note("flops_far_off", coverage_pct=value, n=len(off), of=len(coverage_pct))


# --- the cost of profiling --------------------------------------------------------------------------------


def _recorded(point: Point) -> list[np.ndarray]:
    """The steps that a profiler recorded, of each profiled run, without warmup, ns.

    Of runs that recorded kernels, if there are any: a tool that reads counters runs each kernel many times.
    """
    runs = [(source, series.recorded_ns.astype(float)) for source, series in point.profiled]
    with_kernels = [(source, run) for source, run in runs if source.tables("kernels")]
    return [run for _, run in with_kernels or runs if len(run)]


def perturbation(points: Sequence[Point]) -> dict[str, float]:
    """Duration of a step that the profiler recorded over that of the unprofiled twin, with its interval."""
    drawn = [
        (estimates.draw_runs(runs, seed=point.seed + 1), point.batch)
        for point in points
        if point.timed_by == UNPROFILED and (runs := _recorded(point))
    ]
    if not drawn:
        return {}
    sums = [sum(one.value for one in side) for side in zip(*drawn, strict=True)]
    weighted = [
        (sign * one.value / total, one)
        for sign, total, side in zip((1, -1), sums, zip(*drawn, strict=True), strict=True)
        for one in side
    ]
    widening = estimates.shared_widening(weighted)
    recorded, twins = (
        np.sum([one.sampled(widening) for one in side], axis=0) for side in zip(*drawn, strict=True)
    )
    ratio = estimates.columns_of("perturbation", recorded / twins)
    return ratio if len(drawn) == len(points) else {"perturbation": ratio["perturbation"]}
