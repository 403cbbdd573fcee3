"""Durations, rates and scaling efficiency of a point, or of a group of points.

Costs (time, images) are summed over the points first, ratios are formed last.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from analysis.display.metrics import CONFIDENCE, Metric, Rows, picked
from analysis.display.numbers import shown, sortable
from analysis.frames.steps import STAGES
from analysis.frames.study import Study
from analysis.measures import loss, use
from analysis.measures.points import NAN, Point, Scaling, choose_scaling, points_of
from analysis.measures.use import use_of_device
from analysis.statistics import estimates
from jobs.run import Run
from jobs.run_fields import ID_FIELDS, own_names

_SCALING = (
    Metric("scaling", "weak (fixed per-GPU batch size) or strong (fixed global batch size)", text=True),
    Metric("runs", "runs that give the durations (of a group: of all its configurations)"),
    Metric("kind_of_runs", "kind of these runs (unprofiled, if there are any)", text=True),
    Metric(
        "step_ms",
        "median step duration of the job (that of its slowest rank)",
        "step, ms\nmedian",
        CONFIDENCE,
    ),
    Metric(
        "p95_ms",
        "95th percentile of the steps of these runs, without warmup (empty below 20 steps)",
        "p95\nms",
        priority=0,
    ),
    Metric("p99_ms", "99th percentile (empty below 100 steps)", "p99\nms"),
    Metric("max_ms", "longest step", "max\nms"),
    Metric("images_per_s", "images of all ranks divided by the job's time", "images\n/s", CONFIDENCE),
    Metric("speedup", "images/s divided by that of the baseline", "speedup", CONFIDENCE, places=2),
    Metric(
        "scaling_efficiency_pct",
        "speedup divided by the increase in ranks (of configurations with a baseline)",
        "scaling eff.\n%",
        CONFIDENCE,
        places=1,
        priority=2,
    ),
    Metric("interval_note", "reason why there is no interval", text=True),
    Metric("interval_seed", "seed of the resampling"),
    Metric("base", "baseline: the smallest world size of the configuration", text=True),
    Metric("base_world_size", "world size of the baseline"),
    Metric("base_images_per_s", "images/s of the baseline"),
)
_STARTED = (
    Metric("warmup_dropped", "warmup steps left out at the start, sum over these runs", "warmup"),
    *(
        Metric(f"{stage}_ms", f"median of the {stage} stage, mean over ranks", f"{stage}\nms")
        for stage in STAGES
    ),
    Metric("startup_s", "start of the process to first step, slowest rank, median over runs"),
)
METRICS = (*_SCALING, *loss.METRICS, *_STARTED)
IN_DATA = (*_SCALING, *loss.IN_DATA, *_STARTED)

# Of a row without a baseline these say nothing.
AGAINST_BASE = (
    *(name for one in picked(_SCALING, "speedup", "scaling_efficiency_pct") for name in one.names),
    "base_images_per_s",
    "loss_pct",
)
ABOVE_IDEAL_PCT = 105.0  # an efficiency that is surely more than this is worth a line


def figures(
    points: Sequence[Point], scaling: Scaling = "weak", anatomies: loss.Anatomies | None = None
) -> dict[str, Any]:
    """The figures of a point, or of a group of them (:data:`METRICS`, then those of measures.use).

    Args:
        anatomies: of the points and their baselines; without them nothing is known of the parts of a loss.
    """
    known = anatomies or {}
    row: dict[str, Any] = {"scaling": scaling, **_durations(points), **_against_base(points, known)}
    return row | _stages(points) | use_of_device(points, known)


def above_ideal(row: Mapping[str, Any]) -> bool:
    """Whether a row scales better than ideal, surely (or, without an interval, by as much as is odd)."""
    share, low = row["scaling_efficiency_pct"], row["scaling_efficiency_pct_low"]
    return row["world_size"] != row["base_world_size"] and (low if low == low else share) > ABOVE_IDEAL_PCT


def _durations(points: Sequence[Point]) -> dict[str, Any]:
    steady = [series.steady_ns / 1e6 for point in points for _, series in point.timed]
    pooled = np.concatenate(steady) if len(points) == 1 else np.array([])
    batch = _mean([point.batch_resamples for point in points])
    rate = _rate([point.rate_resamples for point in points], points)
    notes = dict.fromkeys(point.batch.note for point in points if point.batch.note)
    row: dict[str, Any] = {
        "runs": sum(len(point.timed) for point in points),
        "kind_of_runs": ", ".join(dict.fromkeys(point.timed_by for point in points)),
        "step_ms": float(np.mean([point.batch.value for point in points])) / 1e6,
        "p95_ms": estimates.percentile(pooled, 95),
        "p99_ms": estimates.percentile(pooled, 99),
        "max_ms": float(pooled.max()) if len(pooled) else NAN,
        "images_per_s": _rate([np.array(point.rate.value) for point in points], points),
        "interval_note": "; ".join(notes),
        "interval_seed": estimates.SEED,
        "warmup_dropped": sum(series.warmup for point in points for _, series in point.timed),
    }
    row["step_ms_low"], row["step_ms_high"] = _ends(batch, 1e-6)
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
    return estimates.interval(resampled * factor) if resampled is not None else (NAN, NAN)


def _against_base(points: Sequence[Point], anatomies: loss.Anatomies) -> dict[str, Any]:
    # Base points are 100 % by definition: in a group they would make the others look better by being there.
    points = [point for point in points if point.baseline] or points
    bases = [point.base for point in points]
    row: dict[str, Any] = {
        "base": "; ".join(dict.fromkeys(base.label for base in bases)) if len(points) < 4 else "",
        "base_world_size": bases[0].world_size if len({base.world_size for base in bases}) == 1 else None,
        "base_images_per_s": float(_rate([np.array(base.rate.value) for base in bases], bases)),
    }
    efficiency = _efficiency(points, bases, lambda point: np.array(point.rate.value))
    row["scaling_efficiency_pct"] = 100 * float(efficiency)
    sampled = None
    if any(base is not point for base, point in zip(bases, points, strict=True)):
        sampled = _resampled_efficiency(points, bases)
    row["scaling_efficiency_pct_low"], row["scaling_efficiency_pct_high"] = _ends(sampled, 100.0)
    growths = {point.world_size / base.world_size for point, base in zip(points, bases, strict=True)}
    growth = growths.pop() if len(growths) == 1 else NAN
    for end in ("", "_low", "_high"):
        row[f"speedup{end}"] = row[f"scaling_efficiency_pct{end}"] / 100 * growth
    row |= loss.loss_of(points, row["scaling_efficiency_pct"], anatomies)
    row["loss_pct_low"] = 100 - row["scaling_efficiency_pct_high"]
    row["loss_pct_high"] = 100 - row["scaling_efficiency_pct_low"]
    return row


def _efficiency(
    points: Sequence[Point], bases: Sequence[Point], rate_of: Callable[[Point], np.ndarray]
) -> np.ndarray:
    """The time a batch of each point would take if it scaled ideally from its base, over what it takes."""
    return np.sum(_ideal(points, bases, rate_of), axis=0) / np.sum(_taken(points, rate_of), axis=0)


def _ideal(points: Sequence[Point], bases: Sequence[Point], rate_of: Callable[[Point], np.ndarray]) -> list:
    return [
        point.images / (rate_of(base) * point.world_size / base.world_size)
        for point, base in zip(points, bases, strict=True)
    ]


def _taken(points: Sequence[Point], rate_of: Callable[[Point], np.ndarray]) -> list:
    return [point.images / rate_of(point) for point in points]


def _resampled_efficiency(points: Sequence[Point], bases: Sequence[Point]) -> np.ndarray | None:
    """The same of resampled rates; None where a point ran once."""
    drawn = {id(point): point.rate_drawn for point in (*points, *bases)}
    known = {key: one for key, one in drawn.items() if one is not None}
    if len(known) < len(drawn):
        return None
    # A point's share of the time is by how much the logarithm of the efficiency changes with its rate's.
    weights = dict.fromkeys(known, 0.0)
    for sign, of, times in (
        (1, points, _taken(points, lambda point: np.array(point.rate.value))),
        (-1, bases, _ideal(points, bases, lambda point: np.array(point.rate.value))),
    ):
        for point, time in zip(of, times, strict=True):
            weights[id(point)] += sign * float(time) / float(np.sum(times))
    widening = estimates.shared_widening([(weights[key], one) for key, one in known.items()], points[0].seed)
    return _efficiency(points, bases, lambda point: known[id(point)].values(widening))


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


# Of a group of several world sizes: durations, and what goes with the number of ranks.
_OF_ONE_SIZE = {
    name
    for metric in (*METRICS, *use.METRICS)
    if metric.name.endswith(("_ms", "_ms_per_step", "images_per_s"))
    or metric.name in ("speedup", "startup_s")
    for name in metric.names
}


def rows(study: Study, group_by: Sequence[str] = (), scaling: Scaling | None = None) -> Rows:
    """A row a configuration at one world size, or a group: its fields, ``world_size``, then the figures.

    Args:
        scaling: weak or strong; None: the kind that compares more points.
    """
    of_runs = loss.read(study)
    points = points_of(study, scaling)
    kind = scaling or choose_scaling(points)
    anatomies = loss.anatomies_of(points, of_runs)
    use.check(study, points)
    groups: dict[tuple, list[Point]] = {}
    for number, point in enumerate(points):
        key = tuple(_value(point, name) for name in group_by) if group_by else (number,)
        groups.setdefault(key, []).append(point)
    answer: Rows = []
    for key, members in groups.items():
        first = members[0]
        row = (
            dict(zip(group_by, key, strict=True))
            if group_by
            else {**first.fields, "profile": _value(first, "profile")}
        )
        sizes = {point.world_size for point in members}
        row["world_size"] = sizes.pop() if len(sizes) == 1 else None
        answer.append({**row, **figures(members, kind, anatomies)})
    _drop_false_baselines(study, answer)
    _drop_unknown_samples(study, answer)
    if above := [row["scaling_efficiency_pct"] for row in answer if above_ideal(row)]:
        study.note("above_ideal", n=len(above), of=len(answer), efficiency_pct=max(above))
    for row in answer:
        if row["world_size"] is None:  # a mean over world sizes is the duration of no job
            row |= dict.fromkeys(row.keys() & _OF_ONE_SIZE, math.nan)
    # Where the global batch is constant that of a GPU goes with the number of ranks.
    # How a configuration was profiled comes last: in a sweep that is partly done, not all were yet.
    late = ("profile", *(["batch"] if kind == "strong" else []))
    order = list(group_by) or [
        *(name for name in ID_FIELDS[2:] if name not in late),
        *(name for name in Run.model_fields if name not in ID_FIELDS),
        *own_names(*answer),
        *("world_size", "nodes", "batch", "profile"),
    ]
    # fp32 comes first: one rank has no other precision of gradients, and is the base of the others.
    return sorted(
        answer,
        key=lambda row: sortable(["" if row.get(name) == "fp32" else row.get(name) for name in order]),
    )


def _drop_false_baselines(study: Study, rows: Rows) -> None:
    """Take the baseline from rows that are their own though there are fewer ranks, which do not compare.

    Of another command of the same model, and of named folders that differ in batch per rank and in all.
    """
    # A row of a group may mix world sizes: it is neither compared nor compared with.
    sized = [row for row in rows if row["world_size"] is not None]
    for row in sized:
        fewer = [one for one in sized if one["world_size"] < row["world_size"]]
        if not fewer or row["world_size"] != row["base_world_size"]:
            continue
        least = min(fewer, key=lambda one: one["world_size"])
        batches = row.get("batch"), least.get("batch")
        other_batch = (
            all(batches)
            and batches[0] != batches[1]
            and batches[0] * row["world_size"] != batches[1] * least["world_size"]
        )
        if any(_is_other_command(row, one) for one in fewer):
            differs = "command"
        elif study.named and other_batch:
            differs = "batch size"
        else:
            continue
        row |= without_baseline(row)
        study.note("not_compared", what=f"{row['world_size']} ranks, other {differs}")


def _is_other_command(row: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    programs = row.get("program"), other.get("program")
    return all(programs) and programs[0] != programs[1] and other.get("model") == row.get("model")


def without_baseline(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row that is compared with none."""
    unknown = dict.fromkeys(AGAINST_BASE, math.nan)
    return {**row, **unknown, "base": "", "base_world_size": row["world_size"]}


def _drop_unknown_samples(study: Study, rows: Rows) -> None:
    """Take the baseline from rows whose samples, or those of their baseline, are unknown.

    Without them it is not known whether each rank did as much as on fewer ranks, or all ranks together did.
    """
    unknown = [row for row in rows if math.isnan(row["images_per_s"])]
    for row in rows:
        of_base = math.isnan(row["base_images_per_s"]) and row["world_size"] != row["base_world_size"]
        if math.isnan(row["images_per_s"]) or of_base:
            row |= without_baseline(row)
    if unknown:
        study.note("not_recorded", what="samples per step", n=len(unknown), of=len(rows))


def _value(point: Point, name: str) -> Any:
    if name == "world_size":
        return point.world_size
    if name in point.fields:
        return point.fields[name]
    runs = [*point.timed, *point.profiled]
    values = dict.fromkeys(source.fields.get(name) for source, _ in runs)  # not all have a program's factor
    return next(iter(values)) if len(values) == 1 else "+".join(map(shown, values))
