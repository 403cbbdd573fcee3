"""Use of the device by a step of groups of points, and the cost of profiling.

FLOPs, bytes and time are summed over the points before ratios are formed.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis.display.metrics import CONFIDENCE, Metric, names_of
from analysis.frames.study import Study
from analysis.measures.loss import Parts
from analysis.measures.peaks import ABOVE_PCT
from analysis.measures.points import UNPROFILED, Run, as_columns, samples
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


def use_of_device(points: pd.DataFrame, group: pd.Series, parts: Parts) -> pd.DataFrame:
    """The figures of each group of points: a row a group, with what of :data:`METRICS` is known.

    Args:
        parts: of the steps of points.
    """
    by_group = points.groupby(group)
    frame = pd.DataFrame({
        "profiled_runs": points["profiled"].map(len).groupby(group).sum(),
        "device_name": by_group["device_name"].agg(lambda names: ", ".join(sorted(set(names)))),
        **_of_step("mfu", analytic_flops(points), points, group, "flops_per_s"),
    })  # fmt: skip
    for kind, prefix in (("peak", ""), ("measured", "measured_")):
        for name, peak, unit in (("tflops_per_s", "flops_per_s", 1e12), ("gb_per_s", "bytes_per_s", 1e9)):
            peaks = by_group[prefix + peak]
            frame[f"{kind}_{name}"] = peaks.first().where(peaks.nunique(dropna=False) == 1) / unit
    profiled = points[points["profiled"].map(len) > 0].groupby(group)
    ratios = {key: perturbation(of) for key, of in profiled}
    # A trace of several ranks without a collective is not "0 ms exposed".
    names = [name for name in ("exposed_communication", "overlapped_communication") if name in parts]
    known = pd.DataFrame({f"{name}_ms": parts[name][0] / 1e6 for name in names}, points.index).fillna(0.0)
    of_all = known.any(axis=1).groupby(group).all()
    frames: list[pd.DataFrame | pd.Series] = [
        pd.DataFrame.from_dict(ratios, "index"),
        known.groupby(group).mean().loc[of_all[of_all].index],
        _costs(points[points["kernel_ns"].notna().groupby(group).transform("all")], group),
    ]
    return frame.join(frames)


def _of_step(
    name: str, done: pd.Series, points: pd.DataFrame, group: pd.Series, peak: str
) -> dict[str, pd.Series]:
    """What is ``done`` in a step of points over what could be, by group, %, with intervals."""
    total, seconds = done.groupby(group).sum(skipna=False), samples(points["step"]) / 1e9
    possible = seconds.mul(points[peak], axis=0).groupby(group).sum(skipna=False)
    measured = (seconds[0] * points[f"measured_{peak}"]).groupby(group).sum(skipna=False)
    shares = as_columns(f"{name}_pct", 100 * possible.rdiv(total, axis=0))
    return {**shares, f"{name}_of_measured_pct": 100 * total / measured}


def analytic_flops(points: pd.DataFrame) -> pd.Series:
    """Analytic FLOPs of training on a rank's batch; NaN: not known."""
    manifests = [timed[0][0].manifest for timed in points["timed"]]
    per_image = [of.ranks[0].training_flops_per_image if of and of.ranks else None for of in manifests]
    return pd.Series(per_image, points.index, dtype=float) * points["images"] / points["world_size"]


def _costs(points: pd.DataFrame, group: pd.Series) -> pd.DataFrame:
    """What kernels do in a step, of groups of points that all have some."""
    figures = {"kernel_ms_per_step": points["kernel_ns"].groupby(group).mean() / 1e6}
    for what, of, peak in _CREDITED:
        # Of others the tool knows no shapes, and no run lent them: that is not 0 %.
        if (credited := points[points[of] > 0]).empty:
            continue
        by_group = credited[of].groupby(group)
        for beside, prefix in (("", ""), ("_of_measured", "measured_")):
            possible = credited[prefix + peak] * credited["kernel_ns"] / 1e9
            share = 100 * by_group.sum() / possible.groupby(group).sum(skipna=False)
            figures[f"{what}_efficiency_of_kernels{beside}_pct"] = share
        figures |= _of_step(f"{what}_efficiency_of_step", credited[of], credited, group, peak)
        if what == "flops":
            figures["tflop_per_step"] = by_group.mean() / 1e12
            needed = analytic_flops(credited).groupby(group).sum(skipna=False)
            figures["flop_coverage_pct"] = 100 * by_group.sum() / needed
    # One device that works on one kernel at a time has no more of them than fits a step.
    kernel_ns = points["kernel_ns"].groupby(group).mean()
    recorded = pd.Series([
        np.median([np.median(run) for run in _recorded(of)] or np.nan) for of in points["profiled"]
    ], points.index, dtype=float)  # fmt: skip
    slowed = kernel_ns <= recorded.groupby(group).mean(skipna=False)
    fits = kernel_ns <= points["step_ns"].groupby(group).mean()
    note = pd.Series(np.select([fits, slowed], ["", SLOWED], AT_ONCE), kernel_ns.index, dtype=object)
    return pd.DataFrame({**figures, "use_note": note.mask(fits, None)})


def check(study: Study, shares: pd.DataFrame) -> None:
    """Findings on points whose FLOPs cannot be right: not near the analytic count, or over a peak.

    Args:
        shares: of :func:`use_of_device`, of each point by itself.
    """
    shares = shares.reindex(columns=names_of(METRICS))
    costs = shares[shares["kernel_ms_per_step"].notna()]
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


def _recorded(profiled: Sequence[Run]) -> list[np.ndarray]:
    """The steps that a profiler recorded, of each profiled run, without warmup, ns.

    Of runs that recorded kernels, if there are any: a tool that reads counters runs each kernel many times.
    """
    runs = [(source, series.recorded_ns.astype(float)) for source, series in profiled]
    with_kernels = [(source, run) for source, run in runs if source.tables("kernels")]
    return [run for _, run in with_kernels or runs if len(run)]


def perturbation(points: pd.DataFrame) -> dict[str, float]:
    """Duration of a step that the profiler recorded over that of the unprofiled twin, with its interval."""
    drawn = [
        (estimates.draw_runs(runs, seed=point["draw_seed"] + 1), point["step"])
        for _, point in points.iterrows()
        if point["timed_by"] == UNPROFILED and (runs := _recorded(point["profiled"]))
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
