"""Use of the device by a step of a point or group of points, and the cost of profiling.

FLOPs, bytes and time are summed over the points before ratios are formed.
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


def _beside_peaks(
    what: str, meaning: str, header: str, interval: str = "", detail: bool = False
) -> tuple[Metric, Metric]:
    """A share of the datasheet's peak, and that of the measured one."""
    sheet = Metric(f"{what}_pct", meaning, header, interval, significant=3, detail=detail)
    measured = "the same, relative to the peak measured on this machine"
    return sheet, Metric(f"{what}_of_measured_pct", measured, header, significant=3, detail=detail)


METRICS = (
    Metric("profiled_runs", "number of profiled runs", detail=True),
    Metric("perturbation", "duration of a profiled step divided by that of an unprofiled one",
           "profiled/\nunprofiled", CONFIDENCE, places=2),
    Metric("tflop_per_step", "FLOPs of a step per rank, from its kernels, 1e12", detail=True),
    Metric("flop_coverage_pct", "tflop_per_step divided by the analytic count", detail=True),
    Metric("kernel_ms_per_step", "kernel time of the model per step and rank", detail=True),
    *_beside_peaks("flops_efficiency_of_kernels", "FLOPs divided by kernel time and the datasheet's peak",
                   "FLOPS eff. %\nof kernels"),
    *_beside_peaks("bandwidth_efficiency_of_kernels", "bytes divided by kernel time and the datasheet's peak",
                   "bandw. eff. %\nof kernels"),
    *_beside_peaks("flops_efficiency_of_step", "FLOPs divided by step duration and the datasheet's peak",
                   "FLOPS eff. %\nof step", CONFIDENCE),
    *_beside_peaks("bandwidth_efficiency_of_step", "bytes divided by step duration and the datasheet's peak",
                   "bandw. eff. %\nof step", CONFIDENCE, detail=True),
    *_beside_peaks("mfu", "model FLOPS utilization: analytic FLOPs over step duration and datasheet peak",
                   "MFU\n%", CONFIDENCE),
    Metric("use_note", "why efficiencies of kernels are below those of the step", text=True, detail=True),
    Metric("exposed_communication_ms", "communication per step and rank that no computation overlaps",
           "exposed\ncomm., ms"),
    Metric("overlapped_communication_ms", "communication per step and rank that is overlapped", detail=True),
    Metric("device_name", "name of the device", text=True),
    Metric("peak_tflops_per_s", "peak FLOP rate (datasheet)", detail=True),
    Metric("peak_gb_per_s", "peak memory bandwidth (datasheet)", detail=True),
    Metric("measured_tflops_per_s", "peak FLOP rate (measured on this machine)", detail=True),
    Metric("measured_gb_per_s", "peak memory bandwidth (measured on this machine)", detail=True),
)  # fmt: skip


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
    if all(point.cost is not None for point in points):
        row |= _costs(points)
        # One device that works on one kernel at a time has no more of them than fits a step.
        if (kernel_ns := 1e6 * row["kernel_ms_per_step"]) > np.mean([point.batch.value for point in points]):
            recorded = [np.median([np.median(run) for run in _recorded(one)] or np.nan) for one in points]
            row["use_note"] = SLOWED if kernel_ns <= np.mean(recorded) else AT_ONCE
    # A trace of several ranks without a collective is not "0 ms exposed".
    names = ("exposed_communication", "overlapped_communication")
    known = pd.DataFrame([
        {name: parts.get(point, {}).get(name, [0.0])[0] for name in names} for point in points
    ])  # fmt: skip
    if known.any(axis=1).all():
        row |= {f"{name}_ms": mean / 1e6 for name, mean in known.mean().items()}
    return row


def _peaks(points: Sequence[Point], name: str) -> np.ndarray:
    """A peak of each point's device; NaN: not known."""
    return np.array([getattr(point.bound, name) or np.nan for point in points])


def _of_step(name: str, total: float, points: Sequence[Point], peak: str) -> dict[str, float]:
    """``total`` over what could be done in the points' steps, in percent, with the interval of these."""
    seconds = np.array([point.batch.sampled() for point in points]) / 1e9
    of_measured = 100 * total / (_peaks(points, f"measured_{peak}") @ seconds[:, 0])
    return {
        **estimates.columns_of(f"{name}_pct", 100 * total / (_peaks(points, peak) @ seconds)),
        f"{name}_of_measured_pct": float(of_measured),
    }


def _mfu(points: Sequence[Point]) -> dict[str, float]:
    return _of_step("mfu", sum(map(analytic_flops, points)), points, "flops_per_s")


def analytic_flops(point: Point) -> float:
    """Analytic FLOPs of training on a rank's batch; NaN: not known."""
    manifest = point.timed[0][0].manifest
    per_image = manifest.ranks[0].training_flops_per_image if manifest and manifest.ranks else None
    return (per_image or np.nan) * point.images / point.world_size


def _costs(points: Sequence[Point]) -> dict[str, float]:
    costs = pd.DataFrame([point.cost for point in points])
    row = {"kernel_ms_per_step": float(costs["kernel_ns"].mean()) / 1e6}
    for what, of, peak in _CREDITED:
        # Of others the tool knows no shapes, and no run lent them: that is not 0 %.
        known = costs[of].to_numpy() > 0
        if not known.any():
            continue
        credited = [point for point, one in zip(points, known, strict=True) if one]
        total, seconds = costs[of].sum(), costs["kernel_ns"].to_numpy()[known] / 1e9
        for beside, prefix in (("", ""), ("_of_measured", "measured_")):
            share = 100 * total / (_peaks(credited, prefix + peak) @ seconds)
            row[f"{what}_efficiency_of_kernels{beside}_pct"] = float(share)
        row |= _of_step(f"{what}_efficiency_of_step", total, credited, peak)
        if what == "flops":
            row["tflop_per_step"] = total / len(credited) / 1e12
            row["flop_coverage_pct"] = 100 * total / sum(map(analytic_flops, credited))
    return row


def check(study: Study, points: Sequence[Point]) -> None:
    """Findings on points whose FLOPs cannot be right: not near the analytic count, or over a peak."""
    figures = [(_costs([point]) if point.cost is not None else {}) | _mfu([point]) for point in points]
    shares = pd.DataFrame(figures).reindex(columns=names_of(METRICS))
    costs = shares.loc[np.array([point.cost is not None for point in points], bool)]
    check_coverage(study, costs["flop_coverage_pct"])
    checks = [("MFU", "datasheet", shares["mfu_pct"], 100.0)]
    for what, _, _ in _CREDITED:
        kernels, step = (f"{what}_efficiency_of_{part}" for part in ("kernels", "step"))
        measured = costs[[f"{kernels}_of_measured_pct", f"{step}_of_measured_pct"]].max(axis=1)
        checks.append((what, "measured", measured, ABOVE_PCT))
        checks.append((what, "datasheet", costs[f"{kernels}_pct"], 100.0))
    for what, peak, of, most_pct in checks:
        if len(above := of[of > most_pct]):
            study.note("above_peak", what=what, peak=peak, n=len(above), of=len(of), most_pct=above.max())


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
    sides = list(zip(*drawn, strict=True))
    weighted = [
        (sign * one.value / sum(each.value for each in side), one)
        for sign, side in zip((1, -1), sides, strict=True)
        for one in side
    ]
    widening = estimates.shared_widening(weighted)
    recorded, twins = (np.sum([one.sampled(widening) for one in side], axis=0) for side in sides)
    ratio = estimates.columns_of("perturbation", recorded / twins)
    return ratio if len(drawn) == len(points) else {"perturbation": ratio["perturbation"]}
