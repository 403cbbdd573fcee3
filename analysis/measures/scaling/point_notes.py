"""What is to be said of points that are compared: of their devices, lengths, runs and baselines?"""

from collections.abc import Sequence

import numpy as np

from analysis.measures.scaling.point import PROFILED, Point, called
from analysis.results.study import Study
from profiling.wording import how_many, in_a_row

# Two runs give an interval this many times as wide as three do (medians, benchmarks.interval_coverage).
TWO_RUNS_WIDER = 2.5
# Runs of one point that differ by more (standard deviation of the logarithm) are worth a line.
WIDE_SCATTER = 0.1


def note_points(study: Study, points: Sequence[Point]) -> None:
    """Notes on all that makes the points' figures less than they seem."""
    _note_scatter(study, points)
    for point in points:
        if point.base.fields["grad"] != point.fields["grad"]:
            study.note(
                f"the 1-rank configuration with {point.base.fields['grad']} gradients is the baseline for "
                f"{point.fields['grad']}, too: 1 rank sends no gradients, so both would be equal"
            )
    for text in (*other_devices(points), *other_lengths(points)):
        study.note(text)
    alone = [series for point in points if point.timed_by == PROFILED for _, series in point.timed]
    if any(one.attributed[one.steady].any() for one in alone):
        study.note(
            "some configurations have no unprofiled run: their durations include the profiler's overhead"
        )
    elif alone:
        study.note(
            "some configurations have no unprofiled run: their durations come from steps that the "
            "profiler did not record"
        )


def other_devices(points: Sequence[Point]) -> list[str]:
    """What is to be said where figures of different devices meet in one: in a point, or in an efficiency."""
    notes = []
    for point in points:
        own = _devices(point)
        if len(own) > 1:
            notes.append(
                f"one configuration ({called(point, points)}) ran on different devices: {in_a_row(own)}"
            )
        base = _devices(point.base)
        if base and own and base != own:
            notes.append(
                f"configurations on {in_a_row(own)} are compared with a baseline on "
                f"{in_a_row(base)}: this scaling efficiency also compares the devices"
            )
    return list(dict.fromkeys(notes))


def other_lengths(points: Sequence[Point]) -> list[str]:
    """What is to be said where configurations differ in nothing but how long they ran.

    They are two, not repetitions: a longer run is past more of its warmup, and its clocks are others, so that
    the spread of such runs would be no spread of identical ones.
    """
    alike: dict[tuple, set[int]] = {}
    for point in points:
        key = tuple(str(value) for name, value in point.fields.items() if name != "batches")
        alike.setdefault(key, set()).add(point.fields["batches"])
    differ = [sorted(lengths) for lengths in alike.values() if len(lengths) > 1]
    if not differ:
        return []
    lengths = ", ".join(str(one) for one in differ[0])
    return [
        f"{how_many(len(differ), 'configuration')} ran with different numbers of steps ({lengths}); such "
        "runs are not averaged: give all the same number (--batches)"
    ]


def _devices(point: Point) -> list[str]:
    runs = [source for source, _ in (*point.timed, *point.profiled)]
    return sorted({device for run in runs for device in run.devices})


def _note_scatter(study: Study, points: Sequence[Point]) -> None:
    """Notes where the runs are too few or too different to say much."""
    twice = [point for point in points if len(point.timed) == 2]
    if twice:
        study.note(
            f"{len(twice)} of {how_many(len(points), 'configuration')} ran only twice: a confidence "
            f"interval of two runs is typically {TWO_RUNS_WIDER:g} times as wide as one of three"
        )
    apart = [point for point in points if point.scatter.sigma > WIDE_SCATTER]
    if apart:
        worst = max(apart, key=lambda point: point.scatter.sigma)
        medians = [float(np.median(run)) for run in worst.steps]
        study.note(
            f"runs of the same configuration differ by more than {100 * WIDE_SCATTER:.0f} % (standard "
            f"deviation) in {len(apart)} of {how_many(len(points), 'configuration')}, most in "
            f"{called(worst, points)} (by a factor of up to {max(medians) / min(medians):.3g}), so "
            "confidence intervals are wide: was the machine busy?"
        )
