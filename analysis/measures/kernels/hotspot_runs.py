"""Which runs tell of the hottest kernels, of which batches, and how sure are their times?"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from analysis.display.metrics import Rows
from analysis.results.query import query
from analysis.results.study import Source, Study
from analysis.statistics import inside_run
from jobs.run import Run, fields_of
from profiling import tables
from profiling.errors import UserError, did_you_mean
from profiling.tables import ATTRIBUTED

TOOLS = ("ncu", "nvprof", "vtune")  # that count, the best first
# In these the run that was timed and the one whose counters were read differ, though they are of one point.
TOOLS_FIELDS = fields_of("observation", "length")
_SUMS = f"""
select short_name::varchar, "class"::varchar, batch_index,
    sum(duration_ns)::double / (select count(distinct rank) from read_parquet($kernels)) / 1e6
from read_parquet($kernels)
semi join {ATTRIBUTED} using (rank, batch_index)
where duration_ns >= 0 group by all
"""


def timed(study: Study, wanted: str | None = None) -> Source:
    """The run under the torch profiler that is asked for; else the first whose point had counters read.

    Where other points were timed too, a finding names it.

    Raises:
        UserError: there is none, or none of this id.
    """
    runs = [source for source in study.of_kind("run") if source.fields["profile"] == "torch"]
    if not runs:
        raise UserError(
            f"{study.path} holds no kernels of a run under the torch profiler; "
            "python -m jobs.hotspots makes one"
        )
    ids = [source.id for source in runs]
    if wanted is not None:
        if wanted not in ids:
            raise UserError(
                f"--run: {study.path} holds no run {wanted!r} under torch{did_you_mean(wanted, ids)}"
            )
        return runs[ids.index(wanted)]
    chosen = next((source for source in runs if counting(study, source)), runs[0])
    if len({_point(source) for source in runs}) > 1:
        study.note(
            f"of several points that were timed these are the kernels of {chosen.id}; "
            "python -m analysis.hotspots DIR --run ID shows another's"
        )
    return chosen


def counting(study: Study, timing: Source) -> Source | None:
    """The run of the same point whose counters a tool read; of several that of the best tool."""
    of_point = [
        source
        for source in study.of_kind("run")
        if source.fields["profile"] in TOOLS and _point(source) == _point(timing)
    ]
    return min(of_point, key=lambda source: TOOLS.index(source.fields["profile"]), default=None)


def _point(source: Source) -> tuple[Any, ...]:
    return tuple(source.fields.get(name) for name in Run.model_fields if name not in TOOLS_FIELDS)


Intervals = dict[tuple[str, str], tuple[float, float]]  # low and high in ms, by short name and class


def intervals(study: Study, timing: Source) -> Intervals:
    """Intervals of the time that kernels take a batch, ms, by short name and class.

    Over the recorded batches of the run; none where they are too few.
    """
    paths = {"kernels": timing.tables("kernels"), "batches": timing.tables("batches")}
    rows = study.use(timing, lambda timing: query(study, timing, _SUMS, **paths)) or []
    places = {batch: place for place, batch in enumerate(sorted({row[2] for row in rows}))}
    series: dict[tuple[str, str], np.ndarray] = {}
    for name, kind, batch, milliseconds in rows:
        # A batch that did not launch a kernel spent no time in it.
        series.setdefault((name, kind), np.zeros(len(places)))[places[batch]] = milliseconds
    estimates = {key: inside_run.of_mean(values) for key, values in series.items()}
    return {key: (one.low, one.high) for key, one in estimates.items() if not one.note}


def read(study: Study, timing: Source) -> tuple[Intervals, Source | None, Rows, Rows]:
    """What is known beside a run's kernels: (intervals of their times; the run whose counters were read;
    what was counted, rows of its ``atomics``; VTune's timers, rows of its ``intervals``).
    """
    source = counting(study, timing)
    events = _table(study, source, "atomics") if source else []
    timers = _table(study, source, "intervals") if source and source.fields["profile"] == "vtune" else []
    return intervals(study, timing), source, events, timers


def _table(study: Study, source: Source, name: str) -> Rows:
    paths = source.tables(name)
    if not paths:
        study.note(f"{source.fields['profile']} left no {name}", source)
        return []
    names = tables.SCHEMAS[name].names
    sql = f"select {', '.join(names)} from read_parquet($paths)"
    rows = study.use(source, lambda source: query(study, source, sql, paths=paths))
    return [dict(zip(names, values, strict=True)) for values in rows or []]


def caption(timing: Source, counted: Source | None, known: Mapping | Sequence) -> str:
    """Of which batches the figures are, what was left out before them, and what their intervals are of.

    Args:
        known: the intervals, empty where there is none.
    """
    ranks = f"{timing.ranks} rank{'s' if timing.ranks > 1 else ''}"
    said = [f"Times: one run on {ranks}, {_batches(timing)}."]
    said.append(
        "Their intervals are over these batches, not over runs."
        if known
        else "Of so few batches there is no interval."
    )
    if counted is not None and counted.fields["profile"] == "vtune":
        said.append("Counters: vtune, over the whole of another run.")
    elif counted is not None:
        said.append(
            f"Counters: {counted.fields['profile']}, means over the launches of another run, "
            f"{_batches(counted)}."
        )
    return " ".join(said)


def _batches(source: Source) -> str:
    run = source.manifest.run if source.manifest else Run(**source.fields)
    spans = [f"{one.start} to {one.stop - 1}" if len(one) > 1 else f"{one.start}" for one in run.recordings]
    before = f"; the {run.first_attributed} before are warm-up" if run.first_attributed else ""
    return f"batches {', '.join(spans)} of {run.batches}{before}"
