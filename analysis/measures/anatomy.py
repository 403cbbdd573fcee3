"""Parts of a profiled step, by run, rank, step or stage; they add up to its wall time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from analysis.display.metrics import (
    OF_A_RUN,
    RANK,
    STEP,
    Metric,
    columns,
    fields,
    records,
    telling,
)  # fmt: skip
from analysis.display.numbers import digits
from analysis.display.terminal import Answer, Part
from analysis.frames.anatomy import anatomy as anatomy_frame
from analysis.frames.anatomy import traces_of
from analysis.frames.behind import BEHIND, WAITS
from analysis.frames.divide import BESIDE, EVERY, PARTS, STAGES, WITHIN
from analysis.frames.measure import measure
from analysis.frames.study import A_STEP, RECORDING, Study

STEPS_OF_RANKS = "profiled steps averaged, counted once per rank that recorded them"
LEVELS = {
    "rank": RANK,
    "step": STEP,
    "stage": Metric("stage", "load, forward, backward, update or end", text=True, key=True),
}
# A name of divide.EVERY -> header and meaning.
_PARTS = {
    "compute": ("compute", "time in which kernels of the model run (on a CPU: operators)"),
    "exposed_communication": ("exposed\ncomm.", "time in which a collective and no kernel of the model runs"),
    "exposed_transfer": ("exposed\ntransfer", "part of exposed communication after the last rank entered"),
    "exposed_wait": ("wait for\nranks", "part of exposed communication until the last rank entered"),
    "exposed_loader": ("exposed\nloader", "time in which only the loader works or is waited for"),
    "loader_kernels": ("loader's\nkernels", "part of exposed loader: kernels of the loader"),
    "loader_copies": ("loader's\ncopies", "part of exposed loader: copies of the loader"),
    "loader_wait": ("wait for\nthe loader", "part of exposed loader: waiting for the next batch"),
    "exposed_copies": ("other\ncopies", "time in which only other copies and memory sets run"),
    "idle": ("idle", "time in which nothing runs; on a GPU the sum of host-bound and other"),
    "idle_host_bound": ("idle,\nhost-bound", "part of idle in which the device waits for the next launch"),
    "idle_other": ("idle,\nother", "part of idle in which launched work had not yet started"),
    "overlapped_communication": ("overlapped\ncomm.", "not a part: collectives during kernels of the model"),
    "overlapped_loader": ("overlapped\nloader", "not a part: loader during kernels of the model"),
}  # fmt: skip
# What a narrow terminal leaves out first; the parts of a sum it keeps.
_PRIORITIES = dict.fromkeys(PARTS, 2) | dict.fromkeys((*BESIDE, "loader_kernels", "loader_copies"), 0)
METRICS = (
    Metric("attributed_steps", STEPS_OF_RANKS, "steps x\nranks", priority=0),
    Metric("warmup_dropped", "profiled steps left out at the start: warmup, or partly recorded", "warmup"),
    Metric("wall_ms", "duration of a profiled step: sum of the parts, mean over steps and ranks", "wall"),
    *(
        Metric(f"{name}_ms", meaning, head, priority=_PRIORITIES.get(name, 1))
        for name, (head, meaning) in _PARTS.items()
    ),
    *(
        Metric(f"{name}_ms", f"part of waiting: the last rank was late due to {what}", detail=True)
        for name, what in BEHIND.items()
    ),
)
COLUMNS = {
    "Columns: run, the fields of the run, repetition, the fields of --by, then the parts of a step:":
    (*LEVELS.values(), *METRICS),
}  # fmt: skip
_SUM = "The parts sum to the wall time."


@measure(COLUMNS)
def anatomy(study: Study, by: Sequence[str] = ()) -> Answer:
    """A row a run: the mean of its profiled steps; or one a rank, step or stage of it, as ``by`` names them.

    By step no mean is made, and those of the warmup have rows as well.

    Raises:
        UserError: no run has profiled steps with kernels that have a place in time.
    """
    traces = {trace.source.id: trace for trace in traces_of(study, study.recorded)}
    parts = anatomy_frame(study, study.recorded, with_warmup="step" in by)
    if "stage" in by:
        unstaged = [name for name, trace in traces.items() if not trace.staged]
        for name in unstaged:
            study.note("not_recorded", traces[name].source, what="stages of steps")
        parts = parts[~parts["run"].isin(unstaged)]
    if parts.empty:
        raise study.nothing(
            f"{study.path} holds no profiled step with timed kernels: needed is profile: torch, or a trace"
        )
    frame = means(parts, by)
    dropped = {name: trace.counted.dropped for name, trace in traces.items() if trace.counted}
    frame["warmup_dropped"] = frame["run"].map({} if "step" in by else dropped).astype("Int64")
    metrics = [*OF_A_RUN, *(LEVELS[name] for name in by), *METRICS]
    frame = study.with_fields(frame)
    return Answer(frame, metrics, tables(frame, by, study.a_step(frame["run"])))


def means(parts: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """Means over the steps of ranks, ms; what one of them does not know is not known of their mean.

    Args:
        parts: of :func:`analysis.frames.anatomy.anatomy`.
    """
    keys = ["run", *by]
    columns = ["wall_ns", *(f"{name}_ns" for name in (*EVERY, *WAITS))]
    grouped = parts.groupby(keys, sort=False, observed=True)
    # A step has a row a stage.
    count = grouped.size() / (1 if "stage" in by else len(STAGES))
    sums = grouped[columns].sum().where(parts[columns].notna().groupby([parts[key] for key in keys]).all())
    ms = sums.div(count, axis=0) / 1e6
    ms.columns = [f"{name.removesuffix('_ns')}_ms" for name in columns]
    return ms.assign(attributed_steps=count.round().astype(int)).reset_index()


def tables(frame: pd.DataFrame, by: Sequence[str] = (), of: str = A_STEP) -> list[Part]:
    """The terminal's tables: the parts of a step, each with its share of it, and what some are made of.

    Args:
        of: what they are the parts of (:meth:`Study.a_step`).
    """
    rows = records(frame)
    keys = [*columns(fields(telling(rows))), *(LEVELS[name] for name in by)]
    whole = columns(METRICS, *(["attributed_steps"] if of != RECORDING else []), "wall_ms")
    beside = columns(METRICS, *(f"{name}_ms" for name in BESIDE))
    within = [name for names in WITHIN.values() for name in names]
    return [
        Part(f"Anatomy of {of}, ms", rows, [*keys, *whole, *map(_with_share, PARTS), *beside], _SUM),
        Part("Components, ms", rows, [*keys, *map(_with_share, within)]),
    ]


def _with_share(name: str) -> Metric:
    """The column of a part, beside it its share of the wall time: ``12.34 (10 %)``."""
    (metric,) = columns(METRICS, f"{name}_ms")

    def printed(row: Mapping[str, Any]) -> str:
        took, wall = row.get(metric.name), row["wall_ms"]
        if not wall or took is None or math.isnan(took):
            return "-"
        shown = f"{took:.2f}" if wall >= 1 else digits(took, 3)
        return f"{shown} ({100 * took / wall:.0f} %)"

    return replace(metric, cell=printed)
