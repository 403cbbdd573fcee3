"""What did the reference call scaled efficiency? FLOPs and bytes over the peak for a whole batch's duration.

The FLOPs are of PyProf tables; the duration is the least of three estimates of a batch, of which TAU tables
hold one (50-batch and 1-batch runs of the configuration). Where they hold none, there is no figure.
"""

from typing import Any

from analysis.display.metrics import Metric, Rows
from analysis.display.numbers import sortable
from analysis.measures.kernels.costs import published_bound
from analysis.measures.tau import applications
from analysis.measures.tau import applications as tau
from analysis.results.pyprof_tables import table_sums
from analysis.results.study import Study
from jobs.run_fields import ID_FIELDS
from profiling.wording import how_many

METRICS = (
    Metric("step_duration_s", "published estimate of the step duration, from TAU's times", "step, s\n(TAU)"),
    Metric(
        "flops_efficiency_of_step_pct",
        "FLOPs divided by 25 step durations and the published peak",
        "FLOPS eff. %\nof step",
        places=2,
    ),
    Metric(
        "bandwidth_efficiency_of_step_pct",
        "bytes divided by 25 step durations and the published peak",
        "bandw. eff. %\nof step",
        places=2,
    ),
)


def scaled_rows(study: Study) -> Rows:
    """A row a PyProf table whose configuration TAU timed: its fields, then :data:`METRICS`.

    The reference printed each efficiency under the other's header; these are under their own.
    """
    sources = study.of_kind("pyprof")
    durations = _durations(study) if sources and study.tau_intervals else {}
    timed = [source for source in sources if _point(source.fields) in durations]
    if sources and len(timed) < len(sources):
        study.note(
            f"the published scaled efficiencies of {how_many(len(sources) - len(timed), 'PyProf table')} "
            "need a step duration, which no TAU table here holds; analysis.efficiency --method published "
            "gives the other values"
        )
    peak_flops, peak_bytes = published_bound(study)
    sums = table_sums(study, timed)
    rows = []
    for source in [source for source in timed if source.id in sums]:
        batch_s = durations[_point(source.fields)]
        flops_pct, bytes_pct = (
            applications.scaled_efficiency_pct(total, batch_s, peak)
            for total, peak in ((sums[source.id].flops, peak_flops), (sums[source.id].bytes, peak_bytes))
        )
        rows.append({
            **{name: source.fields.get(name) for name in ID_FIELDS},
            "world_size": source.world_size,
            "step_duration_s": batch_s,
            "flops_efficiency_of_step_pct": flops_pct,
            "bandwidth_efficiency_of_step_pct": bytes_pct,
        })  # fmt: skip
    return sorted(rows, key=lambda row: sortable([row[name] for name in ID_FIELDS]))


def _durations(study: Study) -> dict[tuple, float]:
    timed, started = tau.timed_and_started(study, rank_0_only=True)
    durations: dict[tuple, float] = {}
    for key in timed:
        if key in started:
            estimate = applications.tau_step_duration_s(list(timed[key]), list(started[key]))
            point = _point(dict(zip(ID_FIELDS, key, strict=True)))
            # Two ways of running TAU are two estimates, of which the least counts.
            durations[point] = applications.step_duration_s([estimate, durations.get(point, float("inf"))])
    return {point: duration for point, duration in durations.items() if duration > 0}


def _point(fields: Any) -> tuple:
    """A configuration, whatever the profiler."""
    values = {name: fields.get(name) for name in ID_FIELDS if name != "profile"}
    return tuple(value.lower() if isinstance(value, str) else value for value in values.values())
