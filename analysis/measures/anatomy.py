"""Parts of the profiled step of each run, rank, step or stage: they sum to its wall time."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from analysis.display.metrics import (
    OF_A_RUN,
    RANK,
    RUNS,
    STEP,
    Column,
    Metric,
    Rows,
    columns,
    fields,
    picked,
    telling,
)
from analysis.display.numbers import digits
from analysis.display.terminal import Part
from analysis.frames.anatomy import RunTrace, anatomy_of, traces_of
from analysis.frames.divide import BESIDE, EVERY, PARTS, STAGES, WITHIN
from analysis.frames.study import A_STEP, RECORDING, Study

STEPS_OF_RANKS = "steps averaged, each counted once for every rank that recorded it"
LEVELS = {
    "rank": RANK,
    "step": STEP,
    "stage": Metric(
        "stage", "load, forward, backward, update or end",
        text=True, key=True,
    ),
}  # fmt: skip
# A name of divide.EVERY -> header and meaning.
_PARTS = {
    "compute": ("compute", "time in which kernels of the model run (on a CPU: operators)"),
    "exposed_communication": ("exposed\ncomm.", "time with collectives and no kernel of the model"),
    "exposed_transfer": ("exposed\ntransfer", "part of exposed communication after the last rank entered"),
    "exposed_wait": ("wait for\nranks", "part of exposed communication until the last rank entered"),
    "exposed_loader": ("exposed\nloader", "time with only loader's work, or waiting for the next batch"),
    "loader_kernels": ("loader's\nkernels", "part of exposed loader: kernels of the loader"),
    "loader_copies": ("loader's\ncopies", "part of exposed loader: copies of the loader"),
    "loader_wait": ("wait for\nthe loader", "part of exposed loader: waiting for the next batch"),
    "exposed_copies": ("other\ncopies", "time in which only other copies and memory sets run"),
    "idle": ("idle", "time in which nothing runs; on a GPU the sum of the next two"),
    "idle_host_bound": ("idle,\nhost-bound", "part of idle in which the device waits for the next launch"),
    "idle_other": ("idle,\nother", "part of idle in which launched work had not started"),
    "overlapped_communication": ("overlapped\ncomm.", "not a part: collectives and kernels of the model"),
    "overlapped_loader": ("overlapped\nloader", "not a part: loader and kernels of the model"),
}  # fmt: skip
# What a narrow terminal shows last, and first.
_PRIORITIES = {
    "exposed_copies": 0, "overlapped_communication": 0, "overlapped_loader": 0, "loader_kernels": 0,
    "loader_copies": 0, "compute": 2, "exposed_communication": 2, "idle": 2,
}  # fmt: skip
METRICS = (
    Metric("attributed_steps", STEPS_OF_RANKS, "steps x\nranks"),
    Metric("warmup_dropped", "first profiled steps that are left out: warmup, or recorded in part", "warmup"),
    Metric("wall_ms", "duration of a profiled step, mean over steps and ranks: sum of the parts", "wall"),
    *(
        Metric(f"{name}_ms", meaning, head, priority=_PRIORITIES.get(name, 1))
        for name, (head, meaning) in _PARTS.items()
    ),
)
COLUMNS = {
    "Columns: run, the fields of the run, repetition, the fields of --by, then the parts of a step:": (
        *LEVELS.values(),
        *METRICS,
    )
}


def rows(study: Study, by: Sequence[str] = ()) -> Rows:
    """The answer's rows; with :data:`METRICS`.

    Raises:
        UserError: no run has attributed batches with kernels that have a place in time.
    """
    traces = traces_of(study, study.recorded)
    if "stage" in by:
        for trace in traces:
            if not trace.staged:
                study.note("not_recorded", trace.source, what="stages of steps")
        traces = [trace for trace in traces if trace.staged]
    answer = [row for trace in traces for row in means(trace, by)]
    if not answer:
        raise study.nothing(
            f"{study.path} holds no profiled step with timed kernels: needed is profile: torch, or a trace"
        )
    return answer


def means(trace: RunTrace, by: Sequence[str] = ()) -> Rows:
    """The rows of a run: the mean of its batches, by rank, batch or stage where these are asked for.

    By batch no mean is made, and those of the warm-up have rows as well.
    """
    import pandas as pd

    with_warmup = "step" in by
    ranks = anatomy_of(trace, with_warmup)
    if not ranks:
        return []
    source, counted = trace.source, None if with_warmup else trace.counted
    every = pd.concat([pd.DataFrame(columns) for columns in ranks], ignore_index=True)
    groups = every.groupby(list(by), sort=False, observed=True) if by else [((), every)]
    rows = []
    for values, group in groups:
        # What one of its ranks does not know is not known of the run.
        row = group.sum(numeric_only=True, skipna=False)
        # A batch has a window a stage.
        count = len(group) / (1 if "stage" in by else len(STAGES))
        rows.append({
            "run": source.id,
            **source.fields,
            "repetition": source.repetition,
            **dict(zip(by, values, strict=True)),
            "attributed_steps": round(count),
            "warmup_dropped": counted.dropped if counted else None,
            "wall_ms": row["wall_ns"] / count / 1e6,
            **{f"{name}_ms": row.get(f"{name}_ns", math.nan) / count / 1e6 for name in EVERY},
        })  # fmt: skip
    return rows


def columns_of(by: Sequence[str] = ()) -> list[Metric]:
    """The columns of :func:`rows`."""
    return [*OF_A_RUN, *(LEVELS[name] for name in by), *METRICS]


def parts(rows: Rows, by: Sequence[str] = (), of: str = A_STEP) -> list[Part]:
    """The terminal's tables: the parts of a batch, and what some of them are made of.

    Args:
        of: what they are the parts of, from :meth:`Study.a_step`.
    """
    keys = [*columns(fields(telling(rows))), *(LEVELS[name].column() for name in by)]
    runs = [RUNS.column()] if any(row.get("runs", 1) > 1 for row in rows) else []
    counted = [] if of == RECORDING else ["attributed_steps"]
    whole = columns(METRICS, *counted, "wall_ms")
    beside = columns(METRICS, *(f"{name}_ms" for name in BESIDE))
    within = _shares(name for names in WITHIN.values() for name in names)
    whole_columns = [*keys, *runs, *whole, *_shares(PARTS), *beside]
    title = f"Anatomy of {of}, ms" + ("" if of == RECORDING else " (mean of profiled steps)")
    return [
        Part(
            title, rows, whole_columns, "The parts sum to the wall time; overlapped times are not among them."
        ),
        Part("Components, ms", rows, [*keys, *within]),
    ]


def _shares(names: Iterable[str]) -> list[Column]:
    """Columns of parts, each beside its share of the wall time: ``12.34 (10 %)``."""

    def of(metric: Metric) -> Column:
        def printed(row: Mapping[str, Any]) -> str:
            took, wall = row[metric.name], row["wall_ms"]
            if not wall or took is None or math.isnan(took):
                return "-"
            shown = f"{took:.2f}" if wall >= 1 else digits(took, 3)
            return f"{shown} ({100 * took / wall:.0f} %)"

        return metric.column(printed=printed)

    return [of(metric) for metric in picked(METRICS, *(f"{name}_ms" for name in names))]
