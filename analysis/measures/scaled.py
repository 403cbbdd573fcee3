"""Scaling of configurations: durations, rates, efficiency, what is lost, and use of the device.

A row is a configuration at one world size (a point), a group of these, of which time and images are summed
before ratios are formed, or files of the reference study.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from analysis import estimates
from analysis.display.metrics import CONFIDENCE, Metric, columns, fields, filled, names_of, records, varied
from analysis.display.numbers import OPEN, in_order, is_unusable, shown
from analysis.display.output import Answer, Part
from analysis.frames.divide import PARTS, WITHIN
from analysis.frames.load import no_result
from analysis.frames.matching import WAITS
from analysis.frames.measure import measure
from analysis.frames.steps import STAGES
from analysis.frames.study import Study
from analysis.measures import loss, published, tau, traced
from analysis.measures.efficiency import USE_METRICS, check, use_of_device
from analysis.measures.loss import BY_STAGES
from analysis.measures.points import Scaling, as_columns, point_names, points_of, runs_of, samples
from jobs.run import Run
from jobs.run_fields import APART, ID_FIELDS, parse_id
from profiling.errors import UserError
from profiling.findings import Finding

_METHOD = Metric("method", "corrected or published", text=True)
_SCALING = (
    Metric("scaling", "weak (fixed batch size per GPU) or strong (fixed global batch size)", text=True),
    Metric("runs", "runs that give the durations (of a group: of all its configurations)"),
    Metric("kind_of_runs", "unprofiled, or profiled if there are no others", text=True, detail=True),
    Metric("step_ms", "median step of the job (that of its slowest rank)", "step, ms\nmedian", CONFIDENCE),
    Metric("images_per_s", "images of all ranks divided by the job's time", "images\n/s", CONFIDENCE),
    Metric("speedup", "images/s divided by that of the baseline", "speedup", CONFIDENCE, places=2),
    Metric("scaling_efficiency_pct", "speedup divided by the increase in ranks", "scaling eff.\n%",
           CONFIDENCE, places=1, priority=2),
    Metric("base_world_size", "world size of the baseline"),
    Metric("base_images_per_s", "images/s of the baseline", detail=True),
)  # fmt: skip
_WARMUP = Metric("warmup_dropped", "warmup steps left out, sum over these runs", "warmup", detail=True)
_SLOWER = Metric("slower_pct", "increase of steps from one on, median run", detail=True)
METRICS = (*_SCALING, *loss.METRICS, _WARMUP, _SLOWER, *loss.MEAN_STAGES)
COLUMNS = {
    "Columns: method, the fields of a run, world_size, then, for our own runs:":
    (_METHOD, *METRICS, *USE_METRICS),
    "PyProf tables (they hold no step durations):": published.METRICS,
    "Published method, for TAU tables:": tau.METRICS,
    "Published method, for PyProf tables of configurations with step times:": published.SCALED_METRICS,
    **traced.COLUMNS,
}  # fmt: skip
# Ends of other intervals are details.
_WITH_ENDS = ("step_ms", "scaling_efficiency_pct")
_COUNTS = (
    "runs", "base_world_size", "warmup_dropped", "profiled_runs", "tables", "fprop_steps", "bprop_steps",
    "runs_kept", "base_nodes",
)  # fmt: skip

# Of a row without a baseline these say nothing.
_AGAINST_BASE = [
    *names_of(columns(_SCALING, "speedup", "scaling_efficiency_pct")), "base_images_per_s", "loss_pct",
]  # fmt: skip
# Of a group of several world sizes: durations, and what goes with the number of ranks.
_SIZED = re.compile(r"(_ms|_ms_per_step|images_per_s|speedup)(_low|_high)?$")
_OF_ONE_SIZE = [name for name in names_of((*METRICS, *USE_METRICS)) if _SIZED.search(name)]
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

    ``scaling``: weak or strong; None: the kind that compares more configurations. ``explain``: with the
    effect of each correction of the published method.
    """
    if study.of_kind("trace") and not study.of_kind("run", "pyprof") and not study.of_kind("tau_intervals"):
        return traced.answer(study, scaling)
    frame = configurations(study, method, group_by, scaling)
    notes = published.explain(study) if explain else []
    verdict = [*sizes_without_result(study), *uncertain(frame)]
    return Answer(frame, _in_data(frame, group_by), tables(frame, group_by), verdict=verdict, notes=notes)


def configurations(
    study: Study,
    methods: Sequence[str] = ("corrected",),
    group_by: Sequence[str] = (),
    scaling: Scaling | None = None,
) -> pd.DataFrame:
    """The rows by method, then by configuration, with all columns, whatever results they are of."""
    frames = []
    for method in methods:
        found = []
        if method == "corrected" and study.of_kind("run"):
            found.append(of_runs(study, group_by, scaling))
        if method == "corrected" and study.of_kind("pyprof"):
            found.append(published.of_tables(study, group_by))
        if method == "published":
            rows = [one for one in (tau.tau_rows(study), published.scaled_tables(study)) if len(one)]
            if rows:
                found.append(tau.grouped(pd.concat(rows, ignore_index=True), group_by).astype(object))
        frames += [one.assign(method=method) for one in found if len(one)]
    if not frames:
        raise UserError(_nothing(study, methods))
    frame = pd.concat(frames, ignore_index=True)
    figures = [one for _, metrics in _KINDS.values() for one in metrics]
    names = names_of([_METHOD, *_fields(group_by), *figures]) + ([] if group_by else study.own_factors)
    numbers = names_of(one for one in figures if not one.text)
    frame = frame.reindex(columns=list(dict.fromkeys(names)))
    frame = frame.astype(dict.fromkeys(numbers, float) | dict.fromkeys(_COUNTS, "Int64"))
    for finding in unexplained(frame):
        study.add(finding)
    return frame


# A column that rows of one kind alone have; the title of their table, if they have one, and their columns.
_KINDS: dict[str, tuple[str, Sequence[Metric]]] = {
    "scaling": ("", (*METRICS, *USE_METRICS)),
    "tables": ("PyProf kernel tables, corrected method", published.METRICS),
    "application_s": ("Published method", tau.METRICS),
    "step_duration_s": ("Published method, PyProf tables with step times", published.SCALED_METRICS),
}


def _fields(group_by: Sequence[str]) -> list[Metric]:
    others = [name for name in Run.model_fields if name not in (*ID_FIELDS, "factors")]
    return fields([*(group_by or [*ID_FIELDS, *others]), "world_size"])


def _in_data(frame: pd.DataFrame, group_by: Sequence[str]) -> list[Metric]:
    """The columns of the data; those of kinds of results that are not there, and most ends, are details."""
    method = replace(_METHOD, detail=frame["method"].nunique() == 1)
    found = {metric.name: metric for metric in (method, *_fields(group_by))}
    # Of those of one name, which several kinds have, the first counts.
    for kind, (_, metrics) in sorted(_KINDS.items(), key=lambda one: frame[one[0]].isna().all()):
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
    if study.of_kind("tau_intervals") and list(methods) == ["corrected"]:
        return f"{study.path} holds only TAU application times: they have no steps (see --method published)"
    if study.of_kind("pyprof") and list(methods) == ["published"]:
        return f"{study.path} holds no step durations: they need TAU tables or marks of the same runs"
    return f"{study.path} holds no data on scaling (method {', '.join(methods)})"


def of_runs(study: Study, group_by: Sequence[str] = (), scaling: Scaling | None = None) -> pd.DataFrame:
    """A row a configuration at one world size, or a group: its fields, ``world_size``, then the figures."""
    of_each = loss.parts_of_runs(study)
    points = points_of(study, scaling)
    if points.empty:
        return points
    parts = loss.parts_of_points(points, of_each)
    alone = pd.Series(points.index, points.index)
    kind = points["scaling"].iloc[0]
    names = list(group_by) or [*point_names(points), "profile", "world_size"]
    fields = pd.DataFrame({name: _values(points, name) for name in names}, dtype=object)
    group = fields.groupby(names, dropna=False, sort=False).ngroup() if group_by else alone
    sizes = points["world_size"].groupby(group)
    of_device = use_of_device(points, alone, parts)
    check(study, of_device)
    frame = fields[~group.duplicated()].reset_index(drop=True).assign(
        world_size=sizes.first().astype(object).where(sizes.nunique() == 1, None), scaling=kind
    ).join([
        durations(points, group), against_base(points, group, parts),
        use_of_device(points, group, parts) if group_by else of_device,
    ])  # fmt: skip
    frame = frame.reindex(columns=list(dict.fromkeys([*frame, *names_of((*METRICS, *USE_METRICS))])))
    _drop_baselines(study, frame)
    efficiency = frame.filter(regex="world_size$|^scaling_efficiency")
    if above := [row["scaling_efficiency_pct"] for row in records(efficiency) if above_ideal(row)]:
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
    keys = frame[[name for name in order if name in frame]].replace("fp32", "").assign(place=frame.index)
    return frame.loc[in_order(keys, order)["place"]].reset_index(drop=True)


def _values(points: pd.DataFrame, name: str) -> list[Any]:
    """The values of a field: of a point, or of its runs."""
    if name in points and (name == "world_size" or name in point_names(points)):
        return points[name].tolist()
    values = [dict.fromkeys(run.fields.get(name) for run in runs_of(point)) for _, point in points.iterrows()]
    return [next(iter(one)) if len(one) == 1 else "+".join(map(shown, one)) for one in values]


def durations(points: pd.DataFrame, group: pd.Series) -> pd.DataFrame:
    """What steps take: a row a group of points, with :data:`METRICS` on durations."""
    by_group, stages = points.groupby(group), [*STAGES, *WAITS]
    warmup = points["timed"].map(lambda runs: sum(series.warmup for _, series in runs))
    by_stages = by_group[[f"{name}_ns" for name in stages]].mean() / 1e6
    by_stages.columns = [f"mean_{name}_ms" for name in stages]
    return pd.DataFrame({
        "runs": by_group["runs"].sum(),
        "kind_of_runs": by_group["timed_by"].agg(lambda kinds: ", ".join(kinds.unique())),
        **as_columns("step_ms", samples(points["step"]).groupby(group).mean() / 1e6),
        **as_columns("images_per_s", _rate(points["images"], samples(points["rate"]), group)),
        "warmup_dropped": warmup.groupby(group).sum(),
        "slower_pct": by_group["slower_pct"].max(),
        **by_stages,
        f"mean_{loss.LATE_RANKS}_ms": by_stages[[f"mean_{name}_ms" for name in WAITS]].sum(axis=1),
    })  # fmt: skip


def _rate(images: pd.Series, rates: pd.DataFrame, group: pd.Series) -> pd.DataFrame:
    """Images of all points over their total time, a step of each: by group."""
    seconds = (1 / rates).mul(images, axis=0).groupby(group).sum(skipna=False)
    return seconds.rdiv(images.groupby(group).sum(skipna=False), axis=0)


def against_base(
    points: pd.DataFrame, group: pd.Series, parts: loss.Parts = MappingProxyType({})
) -> pd.DataFrame:
    """Efficiency and loss of groups of points relative to their baselines; a row a group."""
    # Base points are 100 % by definition: in a group they would make the others look better by being there.
    compared = points["base"] != points.index
    counts = compared | ~compared.groupby(group).transform("any")
    own, group = points[counts], group[counts]
    base = points.loc[own["base"]].set_axis(own.index)
    growth = own["world_size"] / base["world_size"]
    sizes, more = base["world_size"].groupby(group), growth.groupby(group)
    efficiency = pd.DataFrame(np.array([_efficiency_pct(points, of) for _, of in own.groupby(group)]))
    efficiency.loc[~compared[counts].groupby(group).any(), 1:] = np.nan
    row = pd.DataFrame({
        "base_world_size": sizes.first().astype("Int64").where(sizes.nunique() == 1),
        "base_images_per_s": _rate(base["images"], base[["images_per_s"]], group)["images_per_s"],
        **as_columns("scaling_efficiency_pct", efficiency),
        **as_columns("speedup", efficiency.mul(more.first().where(more.nunique() == 1) / 100, axis=0)),
        **as_columns("loss_pct", 100 - efficiency),
    })  # fmt: skip
    own = own[compared[own.index]]
    if own.empty:
        return row.assign(loss_note="")
    of_loss = loss.parts_of_loss(own, base.loc[own.index], group[own.index], row["loss_pct"], parts)
    return row.join(of_loss).fillna({"loss_note": ""})


def _efficiency_pct(points: pd.DataFrame, own: pd.DataFrame) -> np.ndarray:
    """The efficiency of a group of points, then as it may be, %: ideal time over time."""
    base = points.loc[own["base"]].set_axis(own.index)
    growth = own["world_size"] / base["world_size"]
    # A point's share of the time is by how much the logarithm of the efficiency changes with its rate's.
    taken, ideal = own["images"] / own["images_per_s"], own["images"] / (base["images_per_s"] * growth)
    shares = pd.concat([taken / taken.sum(), -(ideal / ideal.sum()).set_axis(own["base"])])
    weights = shares.groupby(level=0, sort=False).sum()
    parts = list(zip(weights, points["rate"].loc[weights.index], strict=True))
    widening = estimates.shared_widening(parts, own["draw_seed"].iloc[0])
    rates, of_base = (np.array([one.sampled(widening) for one in of["rate"]]) for of in (own, base))
    images, ideal_rates = own[["images"]].to_numpy(), of_base * growth.to_numpy()[:, None]
    return np.asarray(100 * ((images / ideal_rates).sum(axis=0) / (images / rates).sum(axis=0)))


def above_ideal(row: Mapping[str, Any]) -> bool:
    """Whether a row scales better than ideal, surely (or, without an interval, by as much as is odd)."""
    low = row["scaling_efficiency_pct_low"]
    least = row["scaling_efficiency_pct"] if low is None or np.isnan(low) else low
    return row["world_size"] != row["base_world_size"] and least is not None and least > ABOVE_IDEAL_PCT


def _drop_baselines(study: Study, frame: pd.DataFrame) -> None:
    """Take the baseline from rows that cannot be compared with fewer ranks, though there are some.

    Of another command of the same model; of named folders that differ in batch per rank and in all; and where
    samples are unknown, of the row or of its baseline.
    """
    # A row of a group may mix world sizes: it is neither compared nor compared with.
    size, compared = frame["world_size"].astype("Int64"), _is_compared(frame)
    sized = frame[size.notna()].reindex(columns=["world_size", "batch", "program", "model"]).astype(object)
    dropped = pd.Series(False, frame.index)
    smallest = sized.sort_values("world_size", kind="stable")[["world_size", "batch"]][:1].to_numpy()
    for place, (ranks, batch, program, model) in zip(sized.index, sized.to_numpy(), strict=True):
        ((least, other),) = smallest
        if ranks == least or compared[place]:
            continue
        fewer = sized[sized["world_size"] < ranks]
        other_batch = batch and other and batch not in (other, other * least / ranks)
        same_model = fewer["model"].map(str) == str(model)
        other_command = program and {*fewer["program"][same_model].dropna()} - {"", program}
        if other_command or (study.named and other_batch):
            dropped[place] = True
            differs = "command" if other_command else "batch size"
            study.note("not_compared", what=f"{ranks} ranks, other {differs}")
    unknown = frame["images_per_s"].isna()
    dropped |= unknown | (frame["base_images_per_s"].isna() & compared)
    if unknown.any():
        study.note("not_recorded", what="samples per step", n=int(unknown.sum()), of=len(frame))
    frame.loc[dropped, _AGAINST_BASE] = np.nan
    frame.loc[dropped, "base_world_size"] = size[dropped]


# A scaling efficiency whose interval is wider than this (percentage points) explains nothing yet.
WIDEST_INTERVAL_PCT = 40.0
# The loss, which may be 0 or less, is as sure as the efficiency that it is the rest of.
_POSITIVE = ("step_ms", "images_per_s", "speedup", "scaling_efficiency_pct", "perturbation", "mfu_pct",
             "flops_efficiency_of_step_pct", "bandwidth_efficiency_of_step_pct")  # fmt: skip


def without_unusable_intervals(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows for tables and charts: intervals that do not tell the order of magnitude are open."""
    known = frame.copy()
    for name in (*_POSITIVE, "loss_pct"):
        if f"{name}_low" in frame:
            positive = "scaling_efficiency_pct" if name == "loss_pct" else name
            ends = (frame[f"{positive}{end}"].astype(float) for end in ("", "_low", "_high"))
            known.loc[is_unusable(*ends), [f"{name}_low", f"{name}_high"]] = OPEN
    return known


def uncertain(frame: pd.DataFrame) -> list[Finding]:
    """A finding where intervals of scaling efficiencies are too wide to mean anything; else none."""
    scaled = frame[frame["base_world_size"].notna() & _is_compared(frame)]
    widths = scaled["scaling_efficiency_pct_high"] - scaled["scaling_efficiency_pct_low"]
    wide = widths[scaled["world_size"].notna() & (widths > WIDEST_INTERVAL_PCT)]
    data = {"n": len(wide), "of": len(scaled), "most": WIDEST_INTERVAL_PCT, "width": wide.max()}
    return [Finding("efficiency_uncertain", data=data)] if len(wide) else []


def unexplained(frame: pd.DataFrame) -> list[Finding]:
    """Of configurations whose profiled runs do not explain their loss: why."""
    shown = loss.without_meaningless_parts(frame[frame["loss_note"] == ""])
    shown = shown[shown["loss_note"] != ""]
    names = zip(shown["loss_pct"], shown["world_size"], shown["loss_note"], strict=True)
    return [
        Finding("loss_unexplained", data={"cost_pct": lost, "on": f"{size} ranks", "reason": note})
        for lost, size, note in names
    ]


def sizes_without_result(study: Study) -> list[Finding]:
    """A finding on world sizes of which all runs failed: else the largest completed one looks the largest."""
    completed = {source.world_size for source in study.of_kind("run")}
    lost: list[tuple[int, str]] = []
    for one in study.missing:
        with suppress(UserError):  # the name of a run by hand is no id
            ranks = parse_id(one.point).run.world_size
            if one.kind in ("failed", "unusable") and ranks not in completed:
                lost.append((ranks, one.reason.partition("\n")[0]))
    data = {"ranks": sorted({ranks for ranks, _ in lost}), "n": len(lost), "reason": lost[:1] and lost[0][1]}
    return [Finding("size_without_result", data=data)] if lost else []


# --- tables -----------------------------------------------------------------------------------------------

_SHARES = (
    "flops_efficiency_of_kernels", "flops_efficiency_of_step", "bandwidth_efficiency_of_kernels",
    "bandwidth_efficiency_of_step", "mfu",
)  # fmt: skip


def tables(frame: pd.DataFrame, group_by: Sequence[str] = (), with_loss: bool = True) -> list[Part]:
    """The terminal's tables: durations and scaling, what is lost, use of the device, and reference files'."""
    own = without_unusable_intervals(frame[frame["scaling"].notna()])
    found = (_time_part, loss_part, _use_part) if with_loss else (_time_part, _use_part)
    tables = [part for of in found if len(own) and (part := of(own, group_by))]
    for kind, (title, metrics) in _KINDS.items():
        some = frame[frame[kind].notna()]
        if title and len(some):
            figures = [one for one in metrics if one.name not in ("runs", "tables", "base_nodes")]
            tables.append(Part(title, some, [*_who(some, group_by), *figures]))
    return tables


def _who(some: pd.DataFrame, group_by: Sequence[str]) -> list[Metric]:
    """The fields that tell the rows apart; of a single configuration its size."""
    size = [name for name in ("nodes", "gpus_per_node") if name in some and some[name].notna().all()]
    return fields(group_by or varied(some, APART) or size or ["model"])


def _time_part(own: pd.DataFrame, group_by: Sequence[str]) -> Part:
    step, rate, speedup, *others = columns(
        METRICS, "step_ms", "images_per_s", "speedup", "scaling_efficiency_pct", "runs", "warmup_dropped"
    )
    who = [*_who(own, group_by), step, rate.alone]
    # Where none is compared with another, 100 % would look like a result. Groups of world sizes have some.
    if not (_is_compared(own) & own["scaling_efficiency_pct"].notna()).any():
        return Part("Steps and throughput", own, [*who, *others[1:]])
    kind = own["scaling"].iloc[0]
    per = "per-rank" if (own["device_name"] == "cpu").all() else "per-GPU"
    title = f"{kind.capitalize()} scaling (fixed {per if kind == 'weak' else 'global'} batch size)"
    return Part(title, own, [*who, speedup.alone, *others])


def loss_part(own: pd.DataFrame, group_by: Sequence[str] = (), intervals: bool = False) -> Part | None:
    """Percentage points of ideal scaling that each part of a batch costs; None: all are baselines.

    ``intervals``: beside the parts, too, for pages, which are wider than terminals.
    """
    scaled = own[_is_compared(own)]
    scaled = loss.without_meaningless_parts(without_unusable_intervals(scaled))
    if scaled.empty:
        return None
    (lost,) = columns(loss.METRICS, "loss_pct")
    who = [*_who(own, group_by), lost if intervals else replace(lost.alone, priority=2)]
    title = "Loss of scaling efficiency, percentage points"
    if scaled["loss_compute_pct"].isna().all():
        # No profiled run tells the parts; every run has stages.
        names = (*BY_STAGES, "wait_data", "wait_host")
        by_stages = [
            replace(one, priority=0 if one.name.startswith("loss_wait_") else 2)
            for one in columns(loss.METRICS, *(f"loss_{name}_pct" for name in names))
        ]
        return Part(title, scaled, [*who, *by_stages])
    names = (*PARTS[:2], *WITHIN["exposed_communication"], *PARTS[2:], "unattributed", "idle_host_bound")
    optional = [f"loss_{name}_pct" for name in (*WITHIN["exposed_communication"], "idle_host_bound")]
    shown = [
        replace(one.alone, cell=one.printed if intervals else None, priority=0 if one.name in optional else 2)
        for one in columns(loss.METRICS, *(f"loss_{name}_pct" for name in names))
        if one.name not in optional or scaled[one.name].notna().any()
    ]
    caption = "Growth of each part of a profiled step relative to the baseline; negative: it shrank."
    return Part(title, scaled, [*who, *shown], caption)


def _is_compared(own: pd.DataFrame) -> pd.Series:
    """Whether rows are relative to another number of ranks; rows of several world sizes are."""
    size = own["world_size"].astype("Int64")
    return (size != own["base_world_size"]).fillna(True).astype(bool)


def _use_part(own: pd.DataFrame, group_by: Sequence[str]) -> Part | None:
    """Shares of the datasheet's peak, or, where that is not known, of the measured one; None: no figure."""
    of_sheet = bool(own[["peak_tflops_per_s", "peak_gb_per_s"]].notna().any(axis=None))
    beside = "_pct" if of_sheet else "_of_measured_pct"
    exposed, perturbation = columns(USE_METRICS, "exposed_communication_ms", "perturbation")
    shares = [one.alone for one in columns(USE_METRICS, *(f"{name}{beside}" for name in _SHARES))]
    shares = filled(shares, own)
    others = [exposed, perturbation.alone]
    if not filled([*shares, *others], own):
        return None
    peak = "datasheet's peak" if of_sheet else "measured peak"
    title = f"Use of device, % of {peak}" if shares else "Communication, and the cost of profiling"
    if (own[f"flops_efficiency_of_step{beside}"] > own[f"flops_efficiency_of_kernels{beside}"]).any():
        title += " (kernels: from slower, profiled runs)"
    return Part(title, own, [*_who(own, group_by), *shares, *others])
