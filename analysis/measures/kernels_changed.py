"""Kernels that make one run's step longer than another's, by what changed of them; the parts add up.

A kernel's difference has two parts, which add up to it (:func:`effects`): of other numbers of calls, and of
other durations per call. The larger one says which of the :data:`KINDS` a kernel is: one that is called more
often is not slower. Calls of other launches in each run (a few large copies of an operator, or many small
ones) are neither. The differences of the kinds add up to that of all kernels. A batch's wall time is the time
of its kernels, less what runs at once (of two kernels in the same microsecond one counts), plus the time in
which none runs: so these add up to the difference of the batch.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc

from analysis.display.metrics import Column, Metric, Rows, columns, names_of
from analysis.display.numbers import digits, signed
from analysis.display.terminal import Part
from analysis.frames.divide import covered, union
from analysis.frames.steps import counted_steps, in_steps
from analysis.frames.study import Source, Study
from analysis.measures.kernels import BY, DEFAULT_BY, kernels_of
from profiling import tables
from profiling.errors import UserError
from profiling.workers import in_threads

SAME = 0.01  # two runs' times of a kernel that differ by less are one; scatter alone makes as much
_SAME_MS = 0.0005  # so are those whose difference is printed as 0
# From so many times the calls on, each of which is so many times shorter, they are of other launches.
_MANY_CALLS, _OTHER_DURATION = 4.0, 2.0
OTHER_CALLS = "other calls"
KINDS = ("slower", "faster", "more calls", "fewer calls", OTHER_CALLS, "new", "gone", "same")
ALL, AT_ONCE, NO_KERNEL, BATCH = "all kernels", "run at once", "no kernel runs", "step"
FIGURES = {"duration": "ms_per_step", "flops-efficiency": "flops_efficiency_pct"}
_RATIO = Metric("b_to_a", "B divided by A", "B / A")
# They add up to difference_ms, but for kernels of other calls.
_EFFECTS = (
    Metric("by_calls_ms", "part that the number of calls makes", "by calls\nms", show=signed(3)),
    Metric("by_duration_ms", "part that the duration per call makes", "by duration\nms", show=signed(3)),
)
METRICS = {
    "duration": (
        Metric("a_ms_per_step", "time per step in A", "A, ms/\nstep"),
        Metric("b_ms_per_step", "time per step in B", "B, ms/\nstep"),
        _RATIO,
        Metric("difference_ms", "B minus A", "B - A\nms", show=signed(3)),
        *_EFFECTS,
        Metric("change", "slower, faster, more, fewer or other calls, new, gone, same", text=True),
        Metric("a_calls_per_step", "launches per step in A", "A, calls/\nstep", places=1),
        Metric("b_calls_per_step", "launches per step in B", "B, calls/\nstep", places=1),
    ),
    "flops-efficiency": (
        Metric("a_flops_efficiency_pct", "FLOP rate in A over the datasheet's peak", "A, FLOPS\neff. %"),
        Metric("b_flops_efficiency_pct", "FLOP rate in B over the datasheet's peak", "B, FLOPS\neff. %"),
        _RATIO,
    ),
}


def _or_zero(milliseconds: float) -> str:
    """A time that is the difference of others: what is left of their rounding is 0."""
    return digits(milliseconds) if abs(milliseconds) >= _SAME_MS else "0"


SUMMARY_METRICS = (
    Metric("change", "kinds of kernels, their sum, and what makes up the step", text=True),
    Metric("kernels", "number of kernels", "kernels"),
    Metric("a_ms", "time per step in A", "A, ms/\nstep", show=_or_zero),
    Metric("b_ms", "time per step in B", "B, ms/\nstep", show=_or_zero),
    Metric("difference_ms", "B minus A", "B - A\nms", show=signed(3)),
    *_EFFECTS,
)


@dataclass(frozen=True)
class Side:
    """One of two runs: its kernels; of a batch of a rank, in ms, the wall time and that in which any runs."""

    kernels: Rows
    wall_ms: float | None = None
    busy_ms: float | None = None


def side_of(study: Study, source: Source, direction: str | None, by: Sequence[str] = DEFAULT_BY) -> Side:
    """A run's side; of kernels of one direction, or without a place in time, there is no wall time."""
    kernels = kernels_of(study, source, direction, by)
    if direction is not None or not source.tables("batches") or not kernels:
        return Side(kernels)
    try:
        return Side(kernels, *_wall_and_busy(study, source))
    except UserError:  # who reads the damaged table names it
        return Side(kernels)


def _wall_and_busy(study: Study, source: Source) -> tuple[float | None, float | None]:
    counted = counted_steps(study, source)
    of_rank = partial(_of_rank, steps=counted.steps if counted else None)
    ranks = list(in_threads(of_rank, [path.parent for path in source.tables("kernels")]))
    known = [one for one in ranks if one is not None]
    wall, busy, count = (sum(figures) for figures in zip((0, 0, 0), *known, strict=True))
    if not count or len(known) < len(ranks):
        return None, None
    return wall / count / 1e6, busy / count / 1e6


def _of_rank(directory: Path, steps: range | None) -> tuple[int, int, int] | None:
    """Of a rank's steps that have kernels the wall time, that in which one runs (ns), and how many they are.

    None: not all of its kernels have a place in time.
    """
    batches = tables.read(directory, "batches", ["batch_index", "start_ns", "end_ns", "attributed"])
    kernels = tables.read(directory, "kernels", ["batch_index", "start_ns", "duration_ns"])
    # Launches without a duration, or with one below 0, are in no figure of kernels, nor here.
    lasting = kernels.filter(pc.greater_equal(kernels["duration_ns"], 0))
    if lasting["start_ns"].null_count:
        return None
    index = batches["batch_index"].to_numpy()
    counted = batches["attributed"].to_numpy(zero_copy_only=False)
    # Batches without a kernel, and those of the warm-up, are not those that kernels are divided by.
    counted = counted & np.isin(index, kernels["batch_index"].drop_null()) & in_steps(index, steps)
    windows = (batches["start_ns"].to_numpy()[counted], batches["end_ns"].to_numpy()[counted])
    start = lasting["start_ns"].to_numpy()
    busy = covered(windows, union(start, start + lasting["duration_ns"].to_numpy()))
    return int((windows[1] - windows[0]).sum()), int(busy.sum()), len(windows[0])


# --- kernel by kernel ---------------------------------------------------------------------------------


def rows(a: Side, b: Side, metric: str = "duration", by: Sequence[str] = DEFAULT_BY) -> Rows:
    """A row a kernel of either side; a kernel that one of them lacks has no figure there.

    By ``duration`` those that differ most are first, by ``flops-efficiency`` the highest.
    """
    column = FIGURES[metric]
    sides = [{tuple(row[name] for name in by): row for row in side.kernels} for side in (a, b)]
    pairs = []
    for key in dict.fromkeys([*sides[0], *sides[1]]):
        of_a, of_b = (side.get(key) for side in sides)
        one, other = (row[column] if row else None for row in (of_a, of_b))
        row = {
            **dict(zip(by, key, strict=True)),
            f"a_{column}": one,
            f"b_{column}": other,
            "b_to_a": other / one if one and other is not None else None,
        }
        if metric == "duration":
            row["difference_ms"] = (other or 0.0) - (one or 0.0)
            row["by_calls_ms"], row["by_duration_ms"] = effects(of_a, of_b)
            row["change"] = change(of_a, of_b)
            row["a_calls_per_step"] = of_a["calls_per_step"] if of_a else None
            row["b_calls_per_step"] = of_b["calls_per_step"] if of_b else None
        pairs.append(row)
    if metric == "duration":
        return sorted(pairs, key=lambda row: -abs(row["difference_ms"]))
    first = f"a_{column}"
    return sorted(pairs, key=lambda row: -(row[first] if row[first] is not None else row[f"b_{column}"] or 0))


def columns_of(metric: str, by: Sequence[str]) -> list[Metric]:
    """The columns of :func:`rows`."""
    return [*(BY[name] for name in by), *METRICS[metric]]


def change(of_a: Mapping[str, Any] | None, of_b: Mapping[str, Any] | None) -> str:
    """Which of :data:`KINDS` a kernel is."""
    if of_a is None or of_b is None:
        return "new" if of_a is None else "gone"
    one, other = of_a["ms_per_step"], of_b["ms_per_step"]
    if abs(other - one) <= max(SAME * one, _SAME_MS):
        return "same"
    # The larger of the two has the sign of the difference.
    by_calls, by_duration = effects(of_a, of_b)
    if by_calls is None or by_duration is None:
        return OTHER_CALLS
    if abs(by_calls) > abs(by_duration):
        return "more calls" if by_calls > 0 else "fewer calls"
    return "slower" if by_duration > 0 else "faster"


def effects(
    of_a: Mapping[str, Any] | None, of_b: Mapping[str, Any] | None
) -> tuple[float, float] | tuple[None, None]:
    """What other numbers of calls and other durations per call make of a kernel's difference, ms a batch.

    Each is weighted by the mean of both sides (as in Marshall and Edgeworth's index numbers), so that the two
    add up to the difference, and from B to A have the other sign. A kernel that one side lacks is a matter of
    calls alone. None: the calls are of other launches.
    """
    if of_a is None or of_b is None:
        return (of_b["ms_per_step"] if of_b else 0.0) - (of_a["ms_per_step"] if of_a else 0.0), 0.0
    (calls_a, each_a), (calls_b, each_b) = (
        (row["calls_per_step"], row["ms_per_step"] / row["calls_per_step"]) for row in (of_a, of_b)
    )
    if each_a:
        calls, each = calls_b / calls_a, each_b / each_a
        many_short = calls >= _MANY_CALLS and each <= 1 / _OTHER_DURATION
        if many_short or (calls <= 1 / _MANY_CALLS and each >= _OTHER_DURATION):
            return None, None
    return (calls_b - calls_a) * (each_a + each_b) / 2, (each_b - each_a) * (calls_a + calls_b) / 2


# --- the total ----------------------------------------------------------------------------------------


def summary(rows: Rows, a: Side, b: Side) -> Rows:
    """Rows of :data:`SUMMARY_METRICS`: the kinds, which add up to all kernels; and these, to the batch."""
    kinds = [_sum(kind, [row for row in rows if row["change"] == kind]) for kind in KINDS]
    totals = [row for row in kinds if row["kernels"]]
    whole = _sum(ALL, rows)
    totals.append(whole)
    if a.wall_ms is None or b.wall_ms is None or a.busy_ms is None or b.busy_ms is None:
        return totals
    once = (a.busy_ms - whole["a_ms"], b.busy_ms - whole["b_ms"])
    none = (a.wall_ms - a.busy_ms, b.wall_ms - b.busy_ms)
    for name, (one, other) in ((AT_ONCE, once), (NO_KERNEL, none), (BATCH, (a.wall_ms, b.wall_ms))):
        totals.append({
            "change": name, "kernels": None, "a_ms": one, "b_ms": other, "difference_ms": other - one,
            "by_calls_ms": None, "by_duration_ms": None,
        })  # fmt: skip
    return totals


def _sum(name: str, of_kind: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    of_kind = list(of_kind)
    one, other = (sum(row[f"{side}_ms_per_step"] or 0.0 for row in of_kind) for side in "ab")
    known = {
        name: [row[name] for row in of_kind if row[name] is not None]
        for name in ("difference_ms", "by_calls_ms", "by_duration_ms")
    }
    sums = (sum(values) if values or not of_kind else None for values in known.values())
    return dict(zip(names_of(SUMMARY_METRICS), (name, len(of_kind), one, other, *sums), strict=True))


# --- the terminal -------------------------------------------------------------------------------------


def parts(
    shown: Rows, totals: Rows, said: tuple[str, str], naming: Sequence[Column], group: str = "kernel"
) -> list[Part]:
    """The total and what it is made of, then the kernels that differ most.

    Args:
        said: the title, and what A and B are.
        naming: the columns that name a kernel.
        group: what a row is, of :func:`group_in_words`.
    """
    title, caption = said
    figures = (
        "change", "a_ms_per_step", "b_ms_per_step", "difference_ms", "by_calls_ms", "by_duration_ms",
        "a_calls_per_step", "b_calls_per_step",
    )  # fmt: skip
    sums = [
        replace(column, header=f"{group}s") if column.header == "kernels" else column
        for column in columns(SUMMARY_METRICS)
    ]
    whole = "; step = all kernels + run at once + no kernel runs" if totals[-1]["change"] == BATCH else ""
    kinds = " + ".join(row["change"] for row in totals if is_kind(row))
    below = f"All kernels = {kinds}{whole}\n{caption}"
    of_kernels = [*naming, *columns(METRICS["duration"], *figures)]
    return [
        Part(f"{title}: the difference", totals, sums, below),
        Part("Largest differences", shown, of_kernels),
    ]


def group_in_words(names: Sequence[str]) -> str:
    """What a row is that is grouped by these fields: a kernel, a direction, a group."""
    if "kernel" in names:
        return "kernel"
    return names[0] if len(names) == 1 and names[0] != "class" else "group"


def is_kind(total: Mapping[str, Any]) -> bool:
    """Whether a row of :func:`summary` is of one of :data:`KINDS`, which add up to all kernels."""
    return total["change"] in KINDS
