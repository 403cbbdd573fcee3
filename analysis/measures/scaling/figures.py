"""Durations, rates and scaling efficiency of a point, or of a group of points.

Costs (time, images) are summed over the points first, ratios are formed last.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from analysis.display.metrics import CONFIDENCE, Metric, picked
from analysis.measures.batches.series import STAGES
from analysis.measures.scaling import loss
from analysis.measures.scaling.point import NAN, Point, Scaling
from analysis.measures.scaling.use import use_of_device
from analysis.statistics import estimates

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
