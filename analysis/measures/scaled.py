"""Scaling of configurations: durations, rates, efficiency, what is lost, and use of the device.

Time and images are summed over the points of a group before ratios are formed. A row is a configuration at
one world size (a point), a group of these, or files of the reference study.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis.display.metrics import (
    CONFIDENCE,
    FIELDS,
    FIELDS_OF_RUNS,
    Metric,
    Rows,
    columns,
    fields,
    filled,
    names_of,
    records,
    telling,
)
from analysis.display.numbers import in_order, shown
from analysis.display.terminal import Answer, Part
from analysis.frames.behind import WAITS
from analysis.frames.divide import PARTS, WITHIN
from analysis.frames.load import no_result
from analysis.frames.measure import measure
from analysis.frames.steps import STAGES
from analysis.frames.study import Study
from analysis.measures import loss, published, tau, traced, use
from analysis.measures.batches import STAGES_SHOWN
from analysis.measures.certainty import (
    sizes_without_result,
    uncertain,
    unexplained,
    without_unusable_intervals,
)
from analysis.measures.loss import BY_STAGES
from analysis.measures.points import Point, Scaling, choose_scaling, points_of
from analysis.statistics import estimates
from jobs.run import Run
from jobs.run_fields import APART, ID_FIELDS
from profiling.errors import UserError

_METHOD = Metric("method", "corrected or published", text=True)
_SCALING = (
    Metric("scaling", "weak (fixed batch size per GPU) or strong (fixed global batch size)", text=True),
    Metric("runs", "runs that give the durations (of a group: of all its configurations)"),
    Metric("kind_of_runs", "unprofiled, or profiled if there are no others", text=True, detail=True),
    Metric("step_ms", "median step of the job (that of its slowest rank)", "step, ms\nmedian", CONFIDENCE),
    Metric("p95_ms", "95th percentile of steady steps (empty below 20)", "p95\nms", detail=True),
    Metric("p99_ms", "99th percentile (empty below 100 steps)", "p99\nms", detail=True),
    Metric("max_ms", "longest step", "max\nms", detail=True),
    Metric("images_per_s", "images of all ranks divided by the job's time", "images\n/s", CONFIDENCE),
    Metric("speedup", "images/s divided by that of the baseline", "speedup", CONFIDENCE, places=2),
    Metric("scaling_efficiency_pct", "speedup divided by the increase in ranks", "scaling eff.\n%",
           CONFIDENCE, places=1, priority=2),
    Metric("interval_note", "reason why there is no interval", text=True, detail=True),
    Metric("interval_seed", "seed of the resampling", detail=True),
    Metric("base", "baseline: the smallest world size of the configuration", text=True, detail=True),
    Metric("base_world_size", "world size of the baseline"),
    Metric("base_images_per_s", "images/s of the baseline", detail=True),
)  # fmt: skip
_STARTED = (
    Metric("warmup_dropped", "warmup steps left out, sum over these runs", "warmup", detail=True),
    *(
        Metric(f"{stage}_ms", f"median of {name}, mean over ranks", f"{head}\nms", detail=True)
        for stage, (head, name) in STAGES_SHOWN.items()
    ),
    *loss.MEAN_STAGES,
    Metric("startup_s", "start of the process to first step, slowest rank, median over runs", detail=True),
)
METRICS = (*_SCALING, *loss.METRICS, *_STARTED)
COLUMNS = {
    "Columns: method, the fields of a run, world_size, then, for our own runs:": (
        _METHOD,
        *METRICS,
        *use.METRICS,
    ),
    "PyProf tables (they hold no step durations):": published.METRICS,
    "Published method, for TAU tables and for our own runs, by whole wall time:": tau.METRICS,
    "Published method, for PyProf tables of configurations with step times:": published.SCALED_METRICS,
    **traced.COLUMNS,
}
# Ends of other intervals are details.
_WITH_ENDS = ("step_ms", "scaling_efficiency_pct")
_COUNTS = (
    "runs", "base_world_size", "interval_seed", "warmup_dropped", "profiled_runs", "tables", "fprop_steps",
    "bprop_steps", "runs_kept", "base_nodes",
)  # fmt: skip

# Of a row without a baseline these say nothing.
_AGAINST_BASE = [
    *names_of(columns(_SCALING, "speedup", "scaling_efficiency_pct")), "base_images_per_s", "loss_pct",
]  # fmt: skip
# Of a group of several world sizes: durations, and what goes with the number of ranks.
_OF_ONE_SIZE = [
    name
    for name in names_of((*METRICS, *use.METRICS))
    if re.search(r"(_ms|_ms_per_step|images_per_s|speedup|^startup_s)(_low|_high)?$", name)
]
ABOVE_IDEAL_PCT = 105.0  # an efficiency that is surely more than this is worth a line


@measure(COLUMNS)
def scaled(
    study: Study,
    method: Sequence[str] = ("corrected",),
    group_by: Sequence[str] = (),
    scaling: Scaling | None = None,
    explain: bool = False,
) -> Answer:
    """A row a configuration, or a group of them, by each method; of traces alone a row a job.

    Args:
        scaling: weak or strong; None: the kind that compares more configurations.
        explain: with the effect of each correction of the published method.

    Raises:
        UserError: nothing in the study can answer.
    """
    if study.of_kind("trace") and not study.of_kind("run", "pyprof") and not study.tau_intervals:
        return traced.answer(study, scaling)
    frame = configurations(study, method, group_by, scaling)
    notes: list[str] = []
    if explain:
        notes = published.explain(study, of_runs(study, (), scaling))
    rows = records(frame)
    for finding in unexplained(rows):
        study.log.add(finding)
    verdict = [*sizes_without_result(study), *uncertain(rows)]
    return Answer(frame, _in_data(frame, group_by), tables(rows, group_by), verdict=verdict, notes=notes)


def configurations(
    study: Study,
    methods: Sequence[str] = ("corrected",),
    group_by: Sequence[str] = (),
    scaling: Scaling | None = None,
) -> pd.DataFrame:
    """The rows by method, then by configuration, with all columns, whatever results they are of.

    Raises:
        UserError: nothing in the study can answer.
    """
    frames = []
    for method in methods:
        found = []
        if method == "corrected" and study.of_kind("run"):
            found.append(of_runs(study, group_by, scaling))
        if method == "corrected" and study.of_kind("pyprof"):
            found.append(published.of_tables(study, group_by))
        if method == "published":
            rows = [tau.tau_rows(study), published.scaled_tables(study)]
            rows += [tau.run_rows(study)] if study.of_kind("run") else []
            known = pd.concat([one for one in rows if len(one)] or rows, ignore_index=True)
            found.append(tau.grouped(known, group_by).astype(object))
        frames += [one.assign(method=method) for one in found if len(one)]
    if not frames:
        raise UserError(_nothing(study, methods))
    frame = pd.concat(frames, ignore_index=True)
    figures = [one for metrics in _KINDS.values() for one in metrics]
    names = names_of([_METHOD, *_fields(group_by), *figures]) + ([] if group_by else study.own_factors)
    numbers = names_of(one for one in figures if not one.text)
    frame = frame.reindex(columns=list(dict.fromkeys(names)))
    return frame.astype(dict.fromkeys(numbers, float) | dict.fromkeys(_COUNTS, "Int64"))


# A column that rows of one kind alone have, and the columns of this kind.
_KINDS = {
    "scaling": (*METRICS, *use.METRICS),
    "tables": published.METRICS,
    "application_s": tau.METRICS,
    "step_duration_s": published.SCALED_METRICS,
}


def _fields(group_by: Sequence[str]) -> list[Metric]:
    names = group_by or [*ID_FIELDS, *(name for name in FIELDS_OF_RUNS if name not in ID_FIELDS)]
    return [*fields(names), FIELDS["world_size"]]


def _in_data(frame: pd.DataFrame, group_by: Sequence[str]) -> list[Metric]:
    """The columns of the data; those of kinds of results that are not there, and most ends, are details."""
    method = replace(_METHOD, detail=frame["method"].nunique() == 1)
    found = {metric.name: metric for metric in (method, *_fields(group_by))}
    # Of those of one name, which several kinds have, the first counts.
    for kind, metrics in sorted(_KINDS.items(), key=lambda one: frame[one[0]].isna().all()):
        absent = bool(frame[kind].isna().all())
        for metric in metrics:
            shown = metric if metric.name in _WITH_ENDS and not absent else metric.alone
            found.setdefault(metric.name, replace(shown, detail=metric.detail or absent))
            for end in metric.names[1:] if shown is not metric else ():
                found.setdefault(end, Metric(end, f"end of the interval of {metric.name}", detail=True))
    return list(found.values())


def _nothing(study: Study, methods: Sequence[str]) -> str:
    if study.missing:
        return no_result(study)
    if study.tau_intervals and list(methods) == ["corrected"]:
        return f"{study.path} holds only TAU application times: they have no steps (see --method published)"
    if study.of_kind("pyprof") and list(methods) == ["published"]:
        return f"{study.path} holds no step durations: they need TAU tables or marks of the same runs"
    return f"{study.path} holds no data on scaling (method {', '.join(methods)})"


# --- our own runs -----------------------------------------------------------------------------------------


def of_runs(study: Study, group_by: Sequence[str] = (), scaling: Scaling | None = None) -> pd.DataFrame:
    """A row a configuration at one world size, or a group: its fields, ``world_size``, then the figures."""
    of_each = loss.parts_of_runs(study)
    points = points_of(study, scaling)
    kind = scaling or choose_scaling(points)
    parts = loss.parts_of_points(points, of_each)
    use.check(study, points)
    if not points:
        return pd.DataFrame()
    index = pd.DataFrame([
        {**point.fields, "profile": _value(point, "profile"), "world_size": point.world_size,
         **{name: _value(point, name) for name in group_by}}
        for point in points
    ], dtype=object)  # fmt: skip
    names = list(group_by) or list(index.columns)
    by = index.groupby(list(group_by), dropna=False, sort=False).ngroup() if group_by else index.index
    groups = [np.flatnonzero(by == number) for number in range(by.max() + 1)]
    sizes = [index["world_size"].iloc[members].unique() for members in groups]
    of_groups = index[names].iloc[[members[0] for members in groups]].reset_index(drop=True)
    of_groups["world_size"] = pd.Series([one[0] if len(one) == 1 else None for one in sizes], dtype=object)
    made = [figures([points[place] for place in members], kind, parts) for members in groups]
    frame = pd.concat([of_groups, pd.DataFrame(made)], axis=1)
    frame = frame.reindex(columns=list(dict.fromkeys([*frame, *names_of((*METRICS, *use.METRICS))])))
    frame["base_world_size"] = frame["base_world_size"].astype("Int64")
    _drop_baselines(study, frame)
    if above := [row["scaling_efficiency_pct"] for row in records(frame) if above_ideal(row)]:
        study.note("above_ideal", n=len(above), of=len(frame), efficiency_pct=max(above))
    # A mean over world sizes is the duration of no job.
    frame.loc[frame["world_size"].isna(), _OF_ONE_SIZE] = np.nan
    # Where the global batch is constant that of a GPU goes with the number of ranks.
    # How a configuration was profiled comes last: in a sweep that is partly done, not all were yet.
    late = ("profile", *(["batch"] if kind == "strong" else []))
    order = list(group_by) or [
        *(name for name in (*ID_FIELDS[2:], *Run.model_fields) if name not in (*late, *ID_FIELDS[:2])),
        *study.own_factors,
        *("world_size", "nodes", "batch", "profile"),
    ]
    # fp32 comes first: one rank has no other precision of gradients, and is the base of the others.
    keys = of_groups.replace("fp32", "").assign(place=frame.index)
    return frame.loc[in_order(keys, order)["place"]].reset_index(drop=True)


def _value(point: Point, name: str) -> Any:
    if name == "world_size":
        return point.world_size
    if name in point.fields:
        return point.fields[name]
    values = dict.fromkeys(run.fields.get(name) for run in point.runs)  # not all have a program's factor
    return next(iter(values)) if len(values) == 1 else "+".join(map(shown, values))


def figures(
    points: Sequence[Point], scaling: Scaling = "weak", parts: Mapping[Point, loss.Parts] | None = None
) -> dict[str, Any]:
    """The figures of a point, or of a group of them (:data:`METRICS`, then those of measures.use).

    Args:
        parts: of the steps of points and their baselines; without them nothing is known of the parts of a
            loss.
    """
    known = parts or {}
    of_device = use.use_of_device(points, known)
    return {"scaling": scaling, **_durations(points), **_against_base(points, known), **of_device}


def _durations(points: Sequence[Point]) -> dict[str, Any]:
    timed = [run for point in points for run in point.timed]
    pooled_ms = np.concatenate([series.steady_ns for _, series in timed]) / 1e6
    if len(points) > 1:
        pooled_ms = np.array([np.nan])
    started_s = [
        max(rank.startup_ns for rank in source.manifest.ranks) / 1e9 for source, _ in timed if source.manifest
    ]
    stages = {
        stage: [np.median(series.stages[stage][series.steady]) for _, series in timed] for stage in STAGES
    }
    by_stages = pd.DataFrame([point.stages_ns for point in points]).mean()
    by_stages[loss.LATE_RANKS] = by_stages[list(WAITS)].sum()
    return {
        "runs": len(timed),
        "kind_of_runs": ", ".join(dict.fromkeys(point.timed_by for point in points)),
        **estimates.columns_of("step_ms", np.mean([one.batch.sampled() for one in points], axis=0) / 1e6),
        "p95_ms": estimates.percentile(pooled_ms, 95),
        "p99_ms": estimates.percentile(pooled_ms, 99),
        "max_ms": pooled_ms.max(),
        **estimates.columns_of("images_per_s", _rate(points, lambda point: point.rate.sampled())),
        "interval_note": "one repetition" if any(len(point.timed) < 2 for point in points) else "",
        "interval_seed": estimates.SEED,
        "warmup_dropped": sum(series.warmup for _, series in timed),
        **{f"{stage}_ms": np.mean(medians) / 1e6 for stage, medians in stages.items()},
        **{f"mean_{name}_ms": ns / 1e6 for name, ns in by_stages.items()},
        "startup_s": np.median(started_s or [np.nan]),
    }


Rates = Callable[[Point], Any]  # images/s of a point, measured or resampled


def _rate(points: Sequence[Point], rate: Rates) -> Any:
    """Images of all points over their total time: a step of each."""
    return sum(one.images for one in points) / sum(one.images / rate(one) for one in points)


def _against_base(points: Sequence[Point], parts: Mapping[Point, loss.Parts]) -> dict[str, Any]:
    # Base points are 100 % by definition: in a group they would make the others look better by being there.
    compared = [point for point in points if point.baseline]
    points = compared or points
    bases = [point.base for point in points]
    sizes = {base.world_size for base in bases}
    row: dict[str, Any] = {
        "base": "; ".join(dict.fromkeys(base.label for base in bases)) if len(points) < 4 else "",
        "base_world_size": sizes.pop() if len(sizes) == 1 else None,
        "base_images_per_s": _rate(bases, lambda base: base.rate.value),
    }
    # A point's share of the time is by how much the logarithm of the efficiency changes with its rate's.
    taken, ideal = _times(points, lambda point: point.rate.value)
    weights: dict[Point, float] = defaultdict(float)
    for point, own, of_base in zip(points, taken / taken.sum(), ideal / ideal.sum(), strict=True):
        weights[point] += own
        weights[point.base] -= of_base
    widening = estimates.shared_widening(
        [(weight, one.rate) for one, weight in weights.items()], points[0].seed
    )
    taken, ideal = _times(points, lambda point: point.rate.sampled(widening))
    efficiency = 100 * (ideal.sum(axis=0) / taken.sum(axis=0))
    if not compared:
        efficiency[1:] = np.nan
    growths = {point.world_size / point.base.world_size for point in points}
    growth = growths.pop() if len(growths) == 1 else np.nan
    row |= estimates.columns_of("scaling_efficiency_pct", efficiency)
    row |= estimates.columns_of("speedup", efficiency / 100 * growth)
    row |= loss.loss_of(points, efficiency[0], parts)
    row["loss_pct_low"], row["loss_pct_high"] = estimates.interval(100 - efficiency[1:])
    return row


def _times(points: Sequence[Point], rate: Rates) -> tuple[np.ndarray, np.ndarray]:
    """What a step of each point takes, and would if it scaled ideally from its base, s; a row a point."""
    taken = [point.images / rate(point) for point in points]
    ideal = [point.images / (rate(point.base) * point.world_size / point.base.world_size) for point in points]
    return np.array(taken), np.array(ideal)


def above_ideal(row: Mapping[str, Any]) -> bool:
    """Whether a row scales better than ideal, surely (or, without an interval, by as much as is odd)."""
    low = row["scaling_efficiency_pct_low"]
    least = row["scaling_efficiency_pct"] if low is None or np.isnan(low) else low
    return row["world_size"] != row["base_world_size"] and least is not None and least > ABOVE_IDEAL_PCT


def _drop_baselines(study: Study, frame: pd.DataFrame) -> None:
    """Take the baseline from rows that cannot be compared with fewer ranks, though there are some.

    Of another command of the same model; of named folders that differ in batch per rank and in all; and where
    samples are unknown, of the row or of its baseline: whether ranks did as much as on fewer is not known.
    """
    # A row of a group may mix world sizes: it is neither compared nor compared with.
    sized = records(frame[frame["world_size"].notna()].reset_index(names="place"))
    dropped = pd.Series(False, frame.index)
    for row in sized:
        ranks, own = row["world_size"], row.get("batch")
        fewer = [one for one in sized if one["world_size"] < ranks]
        if not fewer or ranks != row["base_world_size"]:
            continue
        least = min(fewer, key=lambda one: one["world_size"])
        other = least.get("batch")
        other_batch = own and other and own != other and own * ranks != other * least["world_size"]
        programs = {one.get("program") for one in fewer if one.get("model") == row.get("model")}
        other_command = row.get("program") and programs - {None, "", row["program"]}
        if other_command or (study.named and other_batch):
            dropped[row["place"]] = True
            differs = "command" if other_command else "batch size"
            study.note("not_compared", what=f"{ranks} ranks, other {differs}")
    unknown = frame["images_per_s"].isna()
    compared = (frame["world_size"].astype("Int64") != frame["base_world_size"]).fillna(True)
    dropped |= unknown | (frame["base_images_per_s"].isna() & compared)
    if unknown.any():
        study.note("not_recorded", what="samples per step", n=int(unknown.sum()), of=len(frame))
    frame.loc[dropped, _AGAINST_BASE] = np.nan
    frame.loc[dropped, "base"] = ""
    frame.loc[dropped, "base_world_size"] = frame.loc[dropped, "world_size"].astype("Int64")


# --- tables -----------------------------------------------------------------------------------------------

_SHARES = (
    "flops_efficiency_of_kernels", "flops_efficiency_of_step", "bandwidth_efficiency_of_kernels",
    "bandwidth_efficiency_of_step", "mfu",
)  # fmt: skip
_OF_FILES = (
    ("PyProf kernel tables, corrected method", "tables", published.METRICS[1:]),
    ("Published method", "application_s", tau.METRICS),
    ("Published method, PyProf tables with step times", "step_duration_s", published.SCALED_METRICS),
)


def tables(rows: Rows, group_by: Sequence[str] = (), with_loss: bool = True) -> list[Part]:
    """The terminal's tables: durations and scaling, what is lost, use of the device, and reference files'."""
    own = [without_unusable_intervals(row) for row in rows if row.get("scaling")]
    lost = loss_part(own, group_by) if own and with_loss else None
    tables = [_time_part(own, group_by)] if own else []
    tables += [part for part in (lost, _use_part(own, group_by) if own else None) if part]
    for title, kind, metrics in _OF_FILES:
        if some := [row for row in rows if row.get(kind) is not None]:
            figures = [one for one in metrics if one.name not in ("runs", "base_nodes")]
            tables.append(Part(title, some, [*_who(some, group_by), *figures]))
    return tables


_LATE = "Growth of each stage relative to the baseline, without waiting for late ranks; negative: it shrank."


def _who(some: Rows, group_by: Sequence[str]) -> list[Metric]:
    """The fields that tell the rows apart; of a single configuration its size."""
    size = [name for name in ("nodes", "gpus_per_node") if some[0].get(name) is not None]
    return fields(group_by or telling(some, APART) or size or ["model"])


def _time_part(own: Rows, group_by: Sequence[str]) -> Part:
    step, rate, speedup, *others = columns(
        METRICS, "step_ms", "images_per_s", "speedup", "scaling_efficiency_pct", "runs", "warmup_dropped"
    )
    who = [*_who(own, group_by), step, rate.alone]
    # Where none is compared with another, 100 % would look like a result.
    if not any(map(_is_compared, own)):
        return Part("Steps and throughput", own, [*who, *others[1:]])
    kind = own[0]["scaling"]
    per = "per-rank" if all(row["device_name"] == "cpu" for row in own) else "per-GPU"
    title = f"{kind.capitalize()} scaling (fixed {per if kind == 'weak' else 'global'} batch size)"
    return Part(title, own, [*who, speedup.alone, *others])


def _is_compared(row: Mapping[str, Any]) -> bool:
    """Whether a row's efficiency is relative to fewer ranks; a group of world sizes has some that is."""
    own_baseline = row["world_size"] is not None and row["world_size"] == row["base_world_size"]
    return row["scaling_efficiency_pct"] is not None and not own_baseline


def loss_part(own: Rows, group_by: Sequence[str] = (), intervals: bool = False) -> Part | None:
    """Percentage points of ideal scaling that each part of a batch costs; None: all are baselines.

    Args:
        intervals: beside the parts, too: for pages, which are wider than terminals.
    """
    scaled = [
        loss.without_meaningless_parts(without_unusable_intervals(row))
        for row in own
        if row["world_size"] != row["base_world_size"]
    ]
    if not scaled:
        return None
    who = [*_who(own, group_by), *columns(loss.METRICS, "loss_pct")]
    if all(row["loss_compute_pct"] is None for row in scaled):
        # No profiled run tells the parts; every run has stages.
        names = (*BY_STAGES, "wait_data", "wait_host")
        by_stages = columns(loss.METRICS, *(f"loss_{name}_pct" for name in names))
        title = "Loss of scaling efficiency by stage, percentage points"
        return Part(title, scaled, [*who, *by_stages], _LATE)
    names = (*PARTS[:2], *WITHIN["exposed_communication"], *PARTS[2:], "unattributed", "idle_host_bound")
    optional = [f"loss_{name}_pct" for name in (*WITHIN["exposed_communication"], "idle_host_bound")]
    shown = [
        replace(one.alone, cell=one.printed if intervals else None, priority=0 if one.name in optional else 2)
        for one in columns(loss.METRICS, *(f"loss_{name}_pct" for name in names))
        if one.name not in optional or any(row[one.name] is not None for row in scaled)
    ]
    title = "Loss of scaling efficiency by part of the step, percentage points"
    caption = "Growth of each part of a profiled step relative to the baseline; negative: it shrank."
    return Part(title, scaled, [*who, *shown], caption)


def _use_part(own: Rows, group_by: Sequence[str]) -> Part | None:
    """Shares of the datasheet's peak, or, where that is not known, of the measured one; None: no figure."""
    of_sheet = any(row.get("peak_tflops_per_s") or row.get("peak_gb_per_s") for row in own)
    beside = "_pct" if of_sheet else "_of_measured_pct"
    exposed, perturbation = columns(use.METRICS, "exposed_communication_ms", "perturbation")
    shares = [one.alone for one in columns(use.METRICS, *(f"{name}{beside}" for name in _SHARES))]
    shares = filled(shares, own)
    others = [exposed, perturbation.alone]
    if not filled([*shares, *others], own):
        return None
    peak = "the datasheet's peak" if of_sheet else "the measured peak"
    title = f"Use of the device, % of {peak}" if shares else "Communication, and the cost of profiling"
    return Part(title, own, [*_who(own, group_by), *shares, *others])
