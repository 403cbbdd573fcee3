"""Which points has a study, and with which of fewer ranks is each compared?"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from analysis.measures.batches.series import Series, all_series
from analysis.measures.kernels.costs import bound_of, costs_of
from analysis.measures.scaling import baselines
from analysis.measures.scaling.baselines import Scaling, base_of
from analysis.measures.scaling.point import PROFILED, UNPROFILED, Point, point_fields
from analysis.measures.scaling.point_notes import note_points
from analysis.results.attributed import COSTS, Costs
from analysis.results.source import Source
from analysis.results.study import Study


def points_of(study: Study, scaling: Scaling | None = "weak") -> list[Point]:
    """The points of a study, each with its baseline.

    They are found once a study and set of runs: several sections of a report ask for them.

    Args:
        scaling: by which baselines are found; None: as :func:`choose_scaling` finds.
    """
    kept: dict[tuple, list[Point]] = study.kept("points")
    key = (scaling, *(source.id for source in study.sources))
    if key not in kept:
        points = _points(study, scaling)
        # Those that turned out to be unusable are in none of them.
        key = (scaling, *(source.id for source in study.sources))
        kept[key] = points
    return kept[key]


def choose_scaling(points: Sequence[Point]) -> Scaling:
    """The kind of scaling that compares more of the points with one of fewer ranks; weak if they tie."""
    return baselines.choose([point.fields for point in points])


def count_compared(points: Sequence[Point], scaling: Scaling) -> int:
    """How many of the points have a baseline of fewer ranks."""
    return baselines.count([point.fields for point in points], scaling)


def _points(study: Study, scaling: Scaling | None) -> list[Point]:
    series = all_series(study)
    # Before there are points: a run whose tables are damaged is in none.
    costs = costs_of(study, [source for source in study.of_kind("run") if _is_profiled(source)])
    runs: dict[tuple, dict[str, list[tuple[Source, Series]]]] = {}
    fields: dict[tuple, dict[str, Any]] = {}
    for source in study.of_kind("run"):
        own = point_fields(source.fields)
        key = tuple(map(str, own.items()))
        fields.setdefault(key, own)
        by = runs.setdefault(key, {UNPROFILED: [], PROFILED: []})
        by[PROFILED if _is_profiled(source) else UNPROFILED].append((source, series[source.id]))
    measured = [_measured(study, fields[key], by, costs) for key, by in runs.items()]
    points = _with_baselines(measured, scaling or baselines.choose([point.fields for point in measured]))
    note_points(study, points)
    return points


def _is_profiled(source: Source) -> bool:
    return bool(source.fields["profile"] != "none")


def _measured(
    study: Study,
    fields: dict[str, Any],
    runs: Mapping[str, list[tuple[Source, Series]]],
    costs: Mapping[str, Costs],
) -> Point:
    """A point as it was measured, by itself.

    Args:
        costs: of runs, by their ids.
    """
    by = UNPROFILED if runs[UNPROFILED] else PROFILED
    bound = bound_of(study, runs[by][0][0])
    cost = _mean_cost([costs[source.id] for source, _ in runs[PROFILED] if source.id in costs])
    return Point(fields, tuple(runs[by]), tuple(runs[PROFILED]), by, bound, cost)


def _with_baselines(measured: Sequence[Point], scaling: Scaling) -> list[Point]:
    every = [point.fields for point in measured]
    of = [base_of(number, every, scaling) for number in range(len(every))]
    # The smallest points have none: they are what others are compared with.
    return [
        point if of[number] == number else replace(point, baseline=measured[of[number]])
        for number, point in enumerate(measured)
    ]


def _mean_cost(costs: Sequence[Costs]) -> Costs | None:
    if not costs:
        return None
    means = {name: float(np.mean([getattr(cost, name) for cost in costs])) for name in COSTS}
    return Costs(sum(cost.batches for cost in costs), **means)
