"""Step durations, one row per run."""

from typing import Any

import numpy as np
import pandas as pd

from analysis.display.metrics import IN_RUN, OF_A_RUN, Metric, names_of
from analysis.display.numbers import in_order
from analysis.display.terminal import Answer
from analysis.frames.measure import measure
from analysis.frames.steps import STAGES, job_steps, steps
from analysis.frames.study import Study
from analysis.measures import tau
from analysis.statistics import estimates, inside_run
from jobs.run_fields import ID_FIELDS

# Stage -> how tables and meanings call it.
STAGES_SHOWN = {stage: (stage, f"the {stage} stage") for stage in STAGES} | {
    "other": ("own code", "own code (in no stage)")
}
METRICS = (
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
    Metric("startup_s", "start of the process to first step, slowest rank", table=False),
)  # fmt: skip
TAU_METRICS = (Metric("tau_step_ms", "published estimate of the step duration", "TAU\nestimate"),)
COLUMNS = {
    "Columns: run, the fields of the run, repetition, then": METRICS,
    "For TAU tables of the reference (both 50-batch and 1-batch runs of a configuration):": TAU_METRICS,
}
_TITLE = "Steps of each run (ms; a step of the job ends with its slowest rank)"


@measure(COLUMNS)
def batches(study: Study) -> Answer:
    """A row a run, or a configuration of TAU tables.

    Raises:
        UserError: no steps are known.
    """
    frame = study.with_fields(figures(steps(study)))
    of_tau = tau.step_durations(study)
    published = of_tau[list(ID_FIELDS)].assign(run="tau", tau_step_ms=1e3 * of_tau["published_s"])
    if frame.empty and published.empty:
        unmarked = any(not source.without_times for source in study.of_kind("trace"))
        how = ": no markers separate them (profiling.convert --batch-marker REGEX)" if unmarked else ""
        raise study.nothing(f"{study.path} holds no step durations{how}")
    if few := int(frame["step_ms_low"].isna().sum()):
        study.note("few_steps", n=few, of=len(frame))
    started = {
        source.id: max(rank.startup_ns for rank in source.manifest.ranks) / 1e9
        for source in study.sources
        if source.manifest
    }
    frame["startup_s"] = frame["run"].map(started)
    frame = pd.concat([frame, published.astype(object)], ignore_index=True)
    frame = frame.astype(dict.fromkeys(("steps", "warmup_dropped", "steady_steps"), "Int64"))
    ordered = in_order(frame, (*ID_FIELDS, *study.own_factors, "repetition"))
    return Answer(ordered, [*OF_A_RUN, *METRICS, *(TAU_METRICS if len(published) else ())], title=_TITLE)


def figures(of_ranks: pd.DataFrame) -> pd.DataFrame:
    """The figures of runs, a row each, from their :func:`~analysis.frames.steps.steps`."""
    jobs = dict(list(job_steps(of_ranks).groupby("run", sort=False)))
    rows = [_figures(of_run, jobs[run]) | {"run": run} for run, of_run in of_ranks.groupby("run", sort=False)]
    return pd.DataFrame(rows, columns=["run", *names_of(METRICS)])


def _figures(of_ranks: pd.DataFrame, job: pd.DataFrame) -> dict[str, Any]:
    steady = job[job["steady"]]
    ms = steady["duration_ns"].to_numpy() / 1e6
    median = inside_run.of_median(ms)
    # The job's time is that of the rank that took longest for all of them: ranks may be late by turns.
    taken_ns = of_ranks[of_ranks["steady"]].groupby("rank")["duration_ns"].sum().max()
    return {
        "steps": len(job),
        "warmup_dropped": int(steady["step"].iloc[0]),
        "steady_steps": len(steady),
        "step_ms": median.value,
        "step_ms_low": median.low,
        "step_ms_high": median.high,
        "p95_ms": estimates.percentile(ms, 95),
        "p99_ms": estimates.percentile(ms, 99),
        "max_ms": ms.max(),
        "images_per_s": steady["images"].sum(skipna=False) / taken_ns * 1e9,
        **{f"{stage}_ms": np.median(steady[f"{stage}_ns"]) / 1e6 for stage in STAGES},
        "attributed_ms": job.loc[job["counted"], "duration_ns"].median() / 1e6,
    }
