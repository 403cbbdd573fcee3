"""Durations of the steps of each run: a row a run."""

from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.display import output
from analysis.display.metrics import (
    IN_RUN,
    OF_A_RUN,
    TELLING,
    Metric,
    Rows,
    columns,
    fields,
    filled,
    picked,
    telling,
)
from analysis.display.numbers import sortable
from analysis.display.terminal import Part
from analysis.frames.steps import STAGES, Series, all_series, series_of_traces
from analysis.frames.study import Source, Study
from analysis.measures import tau
from analysis.measures import tau as applications
from analysis.statistics import estimates, inside_run
from jobs.run_fields import ID_FIELDS, own_names

if TYPE_CHECKING:
    import pandas as pd


METRICS = (
    Metric("steps", "number of steps of the run, with warmup"),
    Metric("warmup_dropped", "warmup steps at the start, left out of the columns after it", "warmup"),
    Metric("steady_steps", "steps of which step_ms is the median"),
    Metric(
        "step_ms",
        "median step of the job (its slowest rank), unprofiled ones if any, without warmup",
        "step\nmedian",
        IN_RUN,
    ),
    Metric("p95_ms", "95th percentile, without warmup (empty below 20 steps)", "p95"),
    Metric("p99_ms", "99th percentile (empty below 100 steps)", "p99"),
    Metric("max_ms", "longest step", "max"),
    Metric("images_per_s", "images of all ranks divided by the job's time, without warmup"),
    *(
        Metric(
            f"{stage}_ms", f"median of the {stage} stage, mean over ranks", f"{stage}\nmedian", significant=3
        )
        for stage in STAGES
    ),
    Metric("attributed_ms", "median of the profiled steps, without warmup"),
    Metric("startup_s", "start of the process to first step, slowest rank"),
)
TAU_METRICS = (Metric("tau_step_ms", "published estimate of the step duration", "TAU\nestimate"),)
COLUMNS = {
    "Columns: run, the fields of the run, repetition, then": METRICS,
    "For TAU tables of the reference (both 50-batch and 1-batch runs of a configuration):": TAU_METRICS,
}
SHOWN = (
    "repetition",
    "warmup_dropped",
    "step_ms",
    "p95_ms",
    "max_ms",
    "images_per_s",
    *(f"{stage}_ms" for stage in STAGES),
)

_TITLE = "Steps of each run (ms; a step of the job ends with its slowest rank)"


def rows(study: Study) -> Rows:
    """A row a run, or a configuration of TAU tables; with :data:`METRICS`."""
    runs = []
    sources = {source.id: source for source in study.of_kind("run", "trace")}
    for name, series in (all_series(study) | series_of_traces(study)).items():
        runs.append(_row(sources[name], series))
    runs += _tau_rows(study)
    if not runs:
        if any(not source.without_times for source in study.of_kind("trace")):
            raise study.nothing(
                f"{study.path} holds no step durations: no markers separate them (profiling.convert "
                "--batch-marker REGEX)"
            )
        raise study.nothing(f"{study.path} holds no step durations")
    timed = [row for row in runs if row.get("step_ms") is not None]
    if few := sum(not np.isfinite(row["step_ms_low"]) for row in timed):
        study.note("few_steps", n=few, of=len(timed))
    fields = (*ID_FIELDS, *own_names(*runs), "repetition")
    return sorted(runs, key=lambda row: sortable([row.get(name) for name in fields]))


def table(study: Study) -> "pd.DataFrame":
    """The same as a DataFrame."""
    answer = rows(study)
    return output.to_frame(answer, columns_of(answer))


def columns_of(rows: Rows) -> list[Metric]:
    """The columns of such rows."""
    return [*OF_A_RUN, *METRICS, *(TAU_METRICS if any("tau_step_ms" in row for row in rows) else ())]


def part(rows: Rows) -> Part:
    """The terminal's table; recordings of jobs are no repetitions."""
    traced = all(row.get("job") for row in rows)
    names = [name for name in SHOWN if name != "repetition" or not traced]
    shown = [*fields(telling(rows, TELLING)), *picked(columns_of(rows), *names)]
    shown += TAU_METRICS
    return Part(_TITLE, rows, filled(columns(shown), rows))


def _row(source: Source, series: Series) -> dict[str, Any]:
    steady = series.steady_ns / 1e6
    estimate = inside_run.of_median(steady)
    attributed = series.recorded_ns
    manifest = source.manifest
    return {
        "run": source.id,
        **source.fields,
        "repetition": source.repetition,
        "steps": len(series.step_ns),
        "steady_steps": len(steady),
        "warmup_dropped": series.warmup,
        "step_ms": estimate.value,
        "step_ms_low": estimate.low,
        "step_ms_high": estimate.high,
        "p95_ms": estimates.percentile(steady, 95),
        "p99_ms": estimates.percentile(steady, 99),
        "max_ms": float(steady.max()),
        "images_per_s": series.images_per_s,
        **{
            f"{name}_ms": float(np.median(values[series.steady])) / 1e6
            for name, values in series.stages.items()
        },
        "attributed_ms": float(np.median(attributed)) / 1e6 if len(attributed) else None,
        "startup_s": max(rank.startup_ns for rank in manifest.ranks) / 1e9 if manifest else None,
    }


def _tau_rows(study: Study) -> Rows:
    timed, started = tau.timed_and_started(study, rank_0_only=True)
    common = [key for key in timed if key in started]
    return [
        {
            "run": "tau",
            **dict(zip(ID_FIELDS, key, strict=True)),
            "tau_step_ms": 1e3 * applications.tau_step_duration_s(list(timed[key]), list(started[key])),
        }
        for key in common
    ]
