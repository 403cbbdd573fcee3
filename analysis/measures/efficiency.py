"""Efficiency of kernels and of steps: rates divided by the device's peaks; and the cost of profiling.

FLOPs, bytes and time are summed over the runs, or points, of a group before ratios are formed.
"""

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analysis import estimates
from analysis.display.metrics import CONFIDENCE, Metric, fields, names_of
from analysis.display.numbers import in_order
from analysis.display.output import Answer
from analysis.frames.kernel_sums import costs, launches_by_name
from analysis.frames.load import no_result
from analysis.frames.measure import measure
from analysis.frames.study import Study
from analysis.measures.loss import Parts
from analysis.measures.peaks import ABOVE_PCT, bounds, published_bound
from analysis.measures.points import UNPROFILED, Run, as_columns, samples
from profiling.errors import UserError

METRICS = (
    Metric("compute_efficiency_pct", "time of launches with FLOPs divided by the time of all launches"),
    Metric("tflops_per_s", "FLOPs divided by kernel time"),
    Metric("bandwidth_gb_per_s", "bytes read and written, divided by kernel time"),
    Metric("bandwidth_efficiency_pct", "bandwidth_gb_per_s divided by the datasheet's memory bandwidth"),
    Metric("flops_efficiency_pct", "FLOP rate divided by the datasheet's peak"),
)
CORRECTED_METRICS = (
    Metric("flops_efficiency_of_measured_pct", "FLOP rate divided by the peak measured on this machine"),
    Metric("bandwidth_efficiency_of_measured_pct", "bandwidth divided by that measured on this machine"),
    Metric("kernel_ms_per_step", "time of the model's kernels per step"),
    Metric("loader_ms_per_step", "time of the loader's kernels per step"),
    Metric("attributed_steps", "number of steps with kernels"),
)
COLUMNS = {
    "Columns: the fields of --group-by, then": METRICS,
    "Additional columns of the corrected method:": CORRECTED_METRICS,
}
# What is credited to kernels: its name in columns, that of its cost, and that of the peak.
_CREDITED = (("flops", "flops", "flops_per_s"), ("bandwidth", "bytes", "bytes_per_s"))


@measure(COLUMNS)
def efficiency(study: Study, method: str = "corrected", group_by: Sequence[str] = ()) -> Answer:
    """A row a group of runs by fields (batch size and nodes; of traces each).

    By the corrected method costs are summed over a group before ratios are formed.
    """
    only_traces = all(source.kind == "trace" for source in study.sources)
    names = list(group_by) or (["run"] if only_traces else ["batch", "nodes"])
    values = {source.id: {name: source.value(name) for name in names} for source in study.sources}
    published = method == "published"
    costs_of_runs = _costs_of_tables(study) if published else _costs(study)
    runs = pd.DataFrame(values, dtype=object).T.join(costs_of_runs, how="inner")
    group = runs.groupby(names, dropna=False, sort=False).ngroup()
    figures = _published(study, runs, group) if published else _corrected(runs, group)
    rows = in_order(runs[names][~group.duplicated()].reset_index(drop=True).join(figures), names)
    metrics = [*METRICS, *([] if published else CORRECTED_METRICS)]
    columns = fields("job" if only_traces and name == "run" else name for name in names)
    return Answer(rows, [*columns, *metrics], title=with_method("Kernel efficiency", study, method))


def _costs(study: Study) -> pd.DataFrame:
    """The costs of a step of runs, and their peaks."""
    runs = costs(study, study.sources)
    if runs.empty:
        raise study.nothing(
            f"{study.path} holds no kernels with FLOPs: it needs profile: torch, shapes in traces, or PyProf"
        )
    return runs.join(bounds(study, [source for source in study.sources if source.id in runs.index]))


def _corrected(runs: pd.DataFrame, group: pd.Series) -> pd.DataFrame:
    # A run whose tool knows no shapes, and to which no other lent them, did not do nothing.
    flops, moved = (
        runs[runs[of] > 0].groupby(group)[["counted_ns", "kernel_ns", of]].sum() for _, of, _ in _CREDITED
    )
    by_group = runs.groupby(group)
    return pd.DataFrame({
        "compute_efficiency_pct": 100 * flops["counted_ns"] / flops["kernel_ns"],
        "tflops_per_s": flops["flops"] / flops["kernel_ns"] / 1e3,
        "bandwidth_gb_per_s": moved["bytes"] / moved["kernel_ns"],
        "kernel_ms_per_step": by_group["kernel_ns"].mean() / 1e6,
        "loader_ms_per_step": by_group["loader_ns"].mean() / 1e6,
        "attributed_steps": by_group["batches"].sum(),
        **_of_kernels(runs, group),
    })  # fmt: skip


def _of_kernels(costs: pd.DataFrame, group: pd.Series, of_what: str = "") -> dict[str, pd.Series]:
    """FLOPs and bytes over what devices could do in the time of kernels, by group, %; NaN: no peak of one."""
    shares = {}
    for what, of, peak in _CREDITED:
        credited = costs[costs[of] > 0]
        done = credited.groupby(group)[of].sum()
        for beside, prefix in (("", ""), ("_of_measured", "measured_")):
            possible = (credited[prefix + peak] * credited["kernel_ns"] / 1e9).groupby(group)
            shares[f"{what}_efficiency{of_what}{beside}_pct"] = 100 * done / possible.sum(skipna=False)
    return shares


def _costs_of_tables(study: Study) -> pd.DataFrame:
    """The sums of PyProf tables."""
    sources = study.of_kind("pyprof")
    if not sources:
        raise UserError(f"{study.path} holds no PyProf kernel table, which the published method needs")
    kernels = launches_by_name(study, sources).groupby(["run", "kernel"])[["ns", "flops", "bytes"]].sum()
    kernels["with_flops_ns"] = kernels["ns"].where(kernels["flops"] != 0, 0.0)
    tables = kernels.groupby("run").sum().query("ns > 0")
    for source in study.usable(sources):
        if source.id not in tables.index:
            study.note("not_recorded", source, what="times of kernels")
    if tables.empty:
        raise UserError(no_result(study))
    return tables


def _published(study: Study, tables: pd.DataFrame, group: pd.Series) -> pd.DataFrame:
    """Plain means over the tables of a group, to the six decimals that were published."""
    peak_flops, peak_bytes = published_bound(study)
    rates = pd.DataFrame({
        "compute_efficiency_pct": 100 * tables["with_flops_ns"] / tables["ns"],
        "tflops_per_s": tables["flops"] / tables["ns"] / 1e3,
        "bandwidth_gb_per_s": tables["bytes"] / tables["ns"],
        "bandwidth_efficiency_pct": 100e9 * tables["bytes"] / tables["ns"] / peak_bytes,
        "flops_efficiency_pct": 100e9 * tables["flops"] / tables["ns"] / peak_flops,
    })  # fmt: skip
    return rates.groupby(group).mean().round(6)


def with_method(title: str, study: Study, method: str) -> str:
    """A title that names the method where the reference published a result of its own: of its tables."""
    return f"{title}, {method} method" if method == "published" or study.of_kind("pyprof") else title


def _beside_peaks(
    what: str, meaning: str, header: str, interval: str = "", detail: bool = False
) -> tuple[Metric, Metric]:
    """A share of the datasheet's peak, and that of the measured one."""
    sheet = Metric(f"{what}_pct", meaning, header, interval, significant=3, detail=detail)
    measured = "the same, relative to the peak measured on this machine"
    return sheet, Metric(f"{what}_of_measured_pct", measured, header, significant=3, detail=detail)


USE_METRICS = (
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
    *_beside_peaks("mfu", "model FLOPs utilization: analytic FLOPs / step duration / datasheet peak",
                   "MFU\n%", CONFIDENCE),
    Metric("exposed_communication_ms", "communication per step and rank that no computation overlaps",
           "exposed\ncomm., ms"),
    Metric("overlapped_communication_ms", "communication per step and rank that is overlapped", detail=True),
    Metric("device_name", "name of the device", text=True),
    Metric("peak_tflops_per_s", "peak FLOP rate (datasheet)", detail=True),
    Metric("peak_gb_per_s", "peak memory bandwidth (datasheet)", detail=True),
    Metric("measured_tflops_per_s", "peak FLOP rate (measured on this machine)", detail=True),
    Metric("measured_gb_per_s", "peak memory bandwidth (measured on this machine)", detail=True),
)  # fmt: skip


def use_of_device(points: pd.DataFrame, group: pd.Series, parts: Parts) -> pd.DataFrame:
    """The figures of each group of points: a row a group, with what of :data:`USE_METRICS` is known."""
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
    ratios = {key: perturbation(of) for key, of in points[points["profiled"].map(len) > 0].groupby(group)}
    # A trace of several ranks without a collective is not "0 ms exposed".
    names = [name for name in ("exposed_communication", "overlapped_communication") if name in parts]
    known = pd.DataFrame({f"{name}_ms": parts[name][0] / 1e6 for name in names}, points.index).fillna(0.0)
    of_all = known.any(axis=1).groupby(group).all()
    return frame.join([
        pd.DataFrame.from_dict(ratios, "index"),
        known.groupby(group).mean().loc[of_all[of_all].index],
        _kernel_figures(points[points["kernel_ns"].notna().groupby(group).transform("all")], group),
    ])  # fmt: skip


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


def _kernel_figures(points: pd.DataFrame, group: pd.Series) -> pd.DataFrame:
    """What kernels do in a step, of groups of points that all have some."""
    figures = {
        "kernel_ms_per_step": points["kernel_ns"].groupby(group).mean() / 1e6,
        **_of_kernels(points, group, "_of_kernels"),
    }
    for what, of, peak in _CREDITED:
        # Of others the tool knows no shapes, and no run lent them: that is not 0 %.
        if len(credited := points[points[of] > 0]):
            figures |= _of_step(f"{what}_efficiency_of_step", credited[of], credited, group, peak)
    credited = points[points["flops"] > 0]
    done = credited["flops"].groupby(group)
    needed = analytic_flops(credited).groupby(group).sum(skipna=False)
    return pd.DataFrame({
        **figures, "tflop_per_step": done.mean() / 1e12, "flop_coverage_pct": 100 * done.sum() / needed,
    })  # fmt: skip


def check(study: Study, shares: pd.DataFrame) -> None:
    """Findings on points (:func:`use_of_device` of each) whose FLOPs are far off, or over a peak."""
    shares = shares.reindex(columns=names_of(USE_METRICS))
    known = shares[shares["kernel_ms_per_step"].notna()]
    check_coverage(study, known["flop_coverage_pct"])
    checks = [("MFU", "datasheet", shares["mfu_pct"], 100.0)]
    for what, _, _ in _CREDITED:
        kernels, step = (f"{what}_efficiency_of_{part}" for part in ("kernels", "step"))
        measured = known[[f"{kernels}_of_measured_pct", f"{step}_of_measured_pct"]].max(axis=1)
        checks.append((what, "measured", measured, ABOVE_PCT))
        checks.append((what, "datasheet", known[f"{kernels}_pct"], 100.0))
    for what, peak, of, most_pct in checks:
        if len(above := of[of > most_pct]):
            study.note("above_peak", what=what, peak=peak, n=len(above), of=len(of), most_pct=above.max())


def check_coverage(study: Study, coverage_pct: pd.Series) -> None:
    """A finding where FLOPs counted from kernels are not near the analytic count (NaN: not known)."""
    off = coverage_pct[coverage_pct.notna() & ~coverage_pct.between(95, 105)]
    for value in {off.min(), off.max()} if len(off) else ():
        study.note("flops_far_off", coverage_pct=value, n=len(off), of=len(coverage_pct))


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
    signed = zip((1, -1), sides, strict=True)
    weighted = [(sign * one.value / sum(each.value for each in of), one) for sign, of in signed for one in of]
    widening = estimates.shared_widening(weighted)
    recorded, twins = (np.sum([one.sampled(widening) for one in side], axis=0) for side in sides)
    ratio = estimates.columns_of("perturbation", recorded / twins)
    return ratio if len(drawn) == len(points) else {"perturbation": ratio["perturbation"]}
