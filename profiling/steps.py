"""In which batch does a time lie? By the ends that our loop marks, PyTorch's steps, or the optimizer's."""

import re
from collections.abc import Callable

import numpy as np

from profiling.events import Columns, contained, find_ranges
from profiling.tables import END_OF_BATCH

_STEP = re.compile(r"^ProfilerStep#?\s*(\d{1,9})$")
_OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")


def find_batches(
    names: list[str], host: Columns, first: int | None
) -> tuple[Callable[[np.ndarray], np.ndarray], str]:
    """How times in ns tell their batches (-1: outside every batch), and by what; see ``find_context``."""
    marks = find_ranges(names, host, lambda name: name == END_OF_BATCH)
    steps = find_ranges(names, host, lambda name: bool(_STEP.match(name)))
    if len(marks) and (first is not None or not len(steps)):
        return _ended_by(host["start_ns"][marks], first or 0), END_OF_BATCH
    if len(steps):
        numbers = np.array([int(_STEP.match(names[name])[1]) for name in host["name"][steps]])  # type: ignore[index]
        return _within(host["start_ns"][steps], host["end_ns"][steps], numbers), "ProfilerStep"
    updates = find_ranges(names, host, lambda name: bool(_OPTIMIZER_STEP.match(name)))
    # Another hook's range inside the first (Optimizer.step#SGD.step twice) is the same step.
    outer = updates[~contained(host["start_ns"][updates], host["end_ns"][updates])]
    if len(outer):
        return _ended_by(host["end_ns"][outer], first or 0), "Optimizer.step"
    return (lambda times: np.full(len(times), -1)), ""


def _ended_by(ends: np.ndarray, first: int) -> Callable[[np.ndarray], np.ndarray]:
    def batch_of(times: np.ndarray) -> np.ndarray:
        place = np.searchsorted(ends, times, side="left")
        return np.where(place < len(ends), place + first, -1)

    return batch_of


def _within(start: np.ndarray, end: np.ndarray, number: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    def batch_of(times: np.ndarray) -> np.ndarray:
        place = np.searchsorted(start, times, side="right") - 1
        return np.where((place >= 0) & (times <= end[place]), number[place], -1)

    return batch_of
