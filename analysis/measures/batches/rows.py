"""How long does a batch take?

The columns are explained in analysis/batches.py.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.display import output
from analysis.display.terminal import Rows, sortable
from analysis.measures.batches.series import Series, all_series
from analysis.measures.tau import applications as tau
from analysis.measures.tau import published_formulas
from analysis.results.study import Source, Study
from analysis.statistics import estimates
from jobs.run import ID_FIELDS, Run

if TYPE_CHECKING:
    import pandas as pd

FIGURES = (
    "batches", "warmup", "batch_ms", "batch_ms_low", "batch_ms_high", "p95_ms", "p99_ms", "max_ms",
    "images_per_s", "load_ms", "forward_ms", "backward_ms", "update_ms", "attributed_ms", "startup_s",
)  # fmt: skip
TAU_COLUMNS = ("tau_batch_ms",)


def rows(study: Study) -> Rows:
    """A row a run, or a configuration of TAU tables; the columns: analysis/batches.py."""
    made = []
    sources = {source.id: source for source in study.of_kind("run")}
    for name, series in all_series(study).items():
        made.append(_row(sources[name], series))
    made += _tau_rows(study)
    if not made:
        raise study.nothing(
            f"{study.path} holds no durations of batches: PyProf tables have none, "
            "TAU tables only where 50-batch and 1-batch runs of a configuration are there"
        )
    return sorted(made, key=lambda row: sortable([row.get(name) for name in (*ID_FIELDS, "repetition")]))


def table(study: Study) -> "pd.DataFrame":
    """The same as a DataFrame."""
    made = rows(study)
    return output.to_frame(made, columns_of(made))


def columns_of(made: Rows) -> list[str]:
    tau = TAU_COLUMNS if any("tau_batch_ms" in row for row in made) else ()
    # "batches" is a field of Run and what was done: of a run that counts the two are one.
    return list(dict.fromkeys(["id", *Run.model_fields, "repetition", *FIGURES, *tau]))


def _row(source: Source, series: Series) -> dict[str, Any]:
    steady = series.steady_ns / 1e6
    estimate = estimates.inside_run(steady)
    attributed = series.step_ns[series.attributed]
    manifest = source.manifest
    return {
        "id": source.id,
        **source.fields,
        "repetition": source.repetition,
        "batches": len(series.step_ns),
        "warmup": series.warmup,
        "batch_ms": estimate.value,
        "batch_ms_low": estimate.low,
        "batch_ms_high": estimate.high,
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
            "id": "tau",
            **dict(zip(ID_FIELDS, key, strict=True)),
            "tau_batch_ms": 1e3
            * published_formulas.tau_batch_duration_s(list(timed[key]), list(started[key])),
        }
        for key in common
    ]
