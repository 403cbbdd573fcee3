"""Duration and stages of steps, one row per run; the parts of profiled steps, which add up to them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from analysis import estimates
from analysis.display.metrics import IN_RUN, OF_A_RUN, RANK, STEP, Metric, columns, fields, names_of, telling
from analysis.display.numbers import digits, in_order
from analysis.display.output import Answer, Part
from analysis.frames.anatomy import anatomy as anatomy_frame
from analysis.frames.anatomy import traces_of
from analysis.frames.divide import BESIDE, EVERY, PARTS, STAGES, WITHIN
from analysis.frames.matching import BEHIND, WAITS
from analysis.frames.measure import measure
from analysis.frames.steps import ALL, Series, all_series, series_of_traces
from analysis.frames.steps import STAGES as STAGES_OF_STEPS
from analysis.frames.study import A_STEP, RECORDING, Study
from analysis.measures import tau
from jobs.run_fields import ID_FIELDS

# Stage -> how tables and meanings call it.
STAGES_SHOWN = {stage: (stage, f"the {stage} stage") for stage in STAGES_OF_STEPS} | {
    "other": ("own\ncode", "own code (in no stage)")
}
DURATIONS = (
    Metric("steps", "number of steps of the run, with warmup", table=False),
    Metric("warmup_dropped", "warmup steps at the start, left out of the columns after it", "warmup"),
    Metric("steady_steps", "steps without warmup, of which step_ms is the median", table=False),
    Metric("step_ms", "median step of the job (slowest rank), without warmup", "step\nmedian", IN_RUN),
    Metric("p95_ms", "95th percentile, without warmup (empty below 20 steps)", "p95"),
    Metric("p99_ms", "99th percentile (empty below 100 steps)", "p99", table=False),
    Metric("max_ms", "longest step", "max"),
    Metric("images_per_s", "images of all ranks divided by the job's time, without warmup"),
    *(
        Metric(f"{stage}_ms", f"median of {name}, mean over ranks", f"{head}\nmedian", significant=3)
        for stage, (head, name) in STAGES_SHOWN.items()
    ),
    Metric("attributed_ms", "median of the profiled steps, without warmup", table=False),
)  # fmt: skip
TAU_STEP = Metric("tau_step_ms", "published estimate of the step duration", "TAU\nestimate")


@measure({
    "Columns: run, the fields of the run, repetition, then": DURATIONS,
    "For TAU tables of the reference (both 50-batch and 1-batch runs of a configuration):": (TAU_STEP,),
})  # fmt: skip
def batches(study: Study) -> Answer:
    """A row a run, or a configuration of TAU tables."""
    frame = study.with_fields(durations(all_series(study) | series_of_traces(study)))
    of_tau = tau.step_durations(study)
    published = of_tau[list(ID_FIELDS)].assign(run="tau", tau_step_ms=1e3 * of_tau["published_s"])
    if frame.empty and published.empty:
        unmarked = any(not source.without_times for source in study.of_kind("trace"))
        how = ": no markers separate them (profiling.convert --batch-marker REGEX)" if unmarked else ""
        raise study.nothing(f"{study.path} holds no step durations{how}")
    if few := int(frame["step_ms_low"].isna().sum()):
        study.note("few_steps", n=few, of=len(frame))
    frame = pd.concat([frame, published.astype(object)], ignore_index=True)
    frame = frame.astype(dict.fromkeys(("steps", "warmup_dropped", "steady_steps"), "Int64"))
    rows = in_order(frame, (*ID_FIELDS, *study.own_factors, "repetition"))
    metrics = [*OF_A_RUN, *DURATIONS, *([TAU_STEP] if len(published) else [])]
    return Answer(rows, metrics, title="Steps of each run (ms; a step of the job ends with its slowest rank)")


def durations(series: Mapping[str, Series]) -> pd.DataFrame:
    """The figures of runs, a row each."""
    rows = []
    for run, one in series.items():
        steady, ms, recorded_ns = one.steady, one.steady_ns / 1e6, one.recorded_ns
        rows.append({
            "run": run, "steps": len(steady), "warmup_dropped": int(np.argmax(steady)),
            "steady_steps": len(ms),
            **dict(zip(("step_ms", "step_ms_low", "step_ms_high"), estimates.median_in_run(ms), strict=True)),
            "p95_ms": estimates.percentile(ms, 95), "p99_ms": estimates.percentile(ms, 99),
            "max_ms": ms.max(), "images_per_s": one.images_per_s,
            **{f"{stage}_ms": np.median(ns[steady]) / 1e6 for stage, ns in one.stages.items()},
            "attributed_ms": np.median(recorded_ns) / 1e6 if len(recorded_ns) else np.nan,
        })  # fmt: skip
    return pd.DataFrame(rows, columns=["run", *names_of(DURATIONS)])


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


@measure(COLUMNS)
def anatomy(study: Study, by: Sequence[str] = ()) -> Answer:
    """A row a run: the mean of its profiled steps; or one a rank, step or stage of it, as ``by`` names them.

    By step no mean is made, and those of the warmup have rows as well.
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
    dropped = {name: trace.counted.dropped for name, trace in traces.items() if trace.counted is not ALL}
    frame["warmup_dropped"] = frame["run"].map({} if "step" in by else dropped).astype("Int64")
    metrics = [*OF_A_RUN, *(LEVELS[name] for name in by), *METRICS]
    frame = study.with_fields(frame)
    return Answer(frame, metrics, tables(frame, by, study.a_step(frame["run"])))


def means(parts: pd.DataFrame, by: Sequence[str] = ()) -> pd.DataFrame:
    """Means of an anatomy frame over the steps of ranks, ms; NaN: one of them does not know it."""
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
    """The terminal's tables: the parts of a step, each with its share of it, and what some are made of."""
    keys = [*columns(fields(telling(frame))), *(LEVELS[name] for name in by)]
    whole = columns(METRICS, *(["attributed_steps"] if of != RECORDING else []), "wall_ms")
    beside = columns(METRICS, *(f"{name}_ms" for name in BESIDE))
    within, sums = [name for names in WITHIN.values() for name in names], "The parts sum to the wall time."
    return [
        Part(f"Anatomy of {of}, ms", frame, [*keys, *whole, *map(_with_share, PARTS), *beside], sums),
        Part("Components, ms", frame, [*keys, *map(_with_share, within)]),
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
