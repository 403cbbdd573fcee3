"""How long does a batch take?"""

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
from analysis.measures.batches.series import STAGES, Series, all_series, series_of_traces
from analysis.measures.tau import applications
from analysis.measures.tau import applications as tau
from analysis.results.source import Source
from analysis.results.study import Study
from analysis.statistics import estimates, inside_run
from jobs.run_fields import ID_FIELDS, own_names
from profiling.wording import how_many, verb

if TYPE_CHECKING:
    import pandas as pd

METRICS = (
    Metric("steps", "number of steps of the run, with warmup"),
    Metric("warmup_dropped", "warmup steps at the start, left out of the columns after it", "warmup"),
    Metric("steady_steps", "steps of which step_ms is the median"),
    Metric(
        "step_ms",
        "median step duration of the job (its slowest rank) without warmup; of a profiled run, of its "
        "unprofiled steps, if there are any (the profiled ones: attributed_ms, analysis.anatomy). The "
        "interval is within the run and does not cover differences between runs (empty: too few steps, or "
        "too strongly correlated)",
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

_MOSTLY_ENOUGH = 50  # steps, unless successive ones are much alike (docs/methods.md: inside a run)
_WARMUP = "All values leave out warmup."
_UNRECORDED = (
    "Profiled runs: their unprofiled steps; analysis.anatomy shows the profiled ones, mean over ranks."
)
_OF_TRACES = (
    "Traces: recorded steps. Step: that of its slowest recorded rank. Stage: median over steps, then mean "
    "over ranks, so rare stalls do not show. analysis.anatomy shows means, which sum to the step."
)


def rows(study: Study) -> Rows:
    """A row a run, or a configuration of TAU tables; with :data:`METRICS`."""
    runs = []
    sources = {source.id: source for source in study.of_kind("run", "trace")}
    for name, series in (all_series(study) | series_of_traces(study)).items():
        runs.append(_row(sources[name], series))
    runs += _tau_rows(study)
    if not runs:
        raise study.nothing(f"{study.path} holds no step durations{_why_not(study)}")
    fields = (*ID_FIELDS, *own_names(*runs), "repetition")
    return sorted(runs, key=lambda row: sortable([row.get(name) for name in fields]))


def _why_not(study: Study) -> str:
    if traces := study.of_kind("trace"):
        if all(source.without_times for source in traces):
            return ""  # what these hold instead is said behind it
        return (
            ". No markers separate the steps of its traces: name ranges (profiling.convert --batch-marker "
            "REGEX)"
        )
    return (
        ". PyProf tables have none; TAU tables have them where a configuration has 50-batch and 1-batch runs"
    )


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
    return Part(
        "Steps of each run (ms; a step of the job ends with its slowest rank)",
        rows,
        filled(columns(shown), rows),
        "\n".join([*_too_short(rows), _WARMUP, *_recorded(rows)]),
    )


def _too_short(rows: Rows) -> list[str]:
    """Why runs have no interval, in a line; none: all have one."""
    timed = [row for row in rows if row.get("step_ms") is not None]
    counts = [row["steady_steps"] for row in timed if not np.isfinite(row["step_ms_low"])]
    if not counts:
        return []
    low, high = min(counts), max(counts)
    what = "job" if all(row.get("job") for row in rows) else "run"
    of = f"{len(counts)} of {how_many(len(timed), what)} {verb(len(counts), 'have')} no interval"
    steps = f"{f'{low} to ' if low < high else ''}{how_many(high, 'step')}"
    few = f"{steps} {verb(high, 'are')} too few, or too alike"
    more = "record 50 to 100" if high < _MOSTLY_ENOUGH else "record more, for successive steps are alike"
    return [f"{of if len(timed) > 1 else 'No interval'}: {few}; {more}."]


def _recorded(rows: Rows) -> list[str]:
    """Which steps the rows of recordings are of, where analysis.anatomy shows another number."""
    recorded = [row for row in rows if row.get("attributed_ms") is not None]
    traced = any(row.get("job") for row in rows)
    return [*([_UNRECORDED] if recorded else []), *([_OF_TRACES] if traced else [])]


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
    if study.tau_intervals and not common:
        study.note("the TAU tables hold no configuration with both 50-batch and 1-batch runs")
    return [
        {
            "run": "tau",
            **dict(zip(ID_FIELDS, key, strict=True)),
            "tau_step_ms": 1e3 * applications.tau_step_duration_s(list(timed[key]), list(started[key])),
        }
        for key in common
    ]
