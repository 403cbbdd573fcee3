"""Cost of MPI as TAU saw it: tables of the reference, runs of our own under TAU, converted profiles."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from analysis.display.metrics import Metric, Rows, columns, fields, telling
from analysis.display.numbers import sortable
from analysis.display.terminal import Answer, Part
from analysis.measures.tau.applications import (
    batches_of,
    fields_of_table,
    query_table,
    table_of,
    with_known_size,
)
from analysis.results.load import no_result
from analysis.results.query import query_arrays
from analysis.results.source import Source
from analysis.results.study import Study
from jobs.run_fields import ID_FIELDS, fields_of
from profiling.errors import UserError

# The functions whose time and messages count -> what TAU calls the event of their messages.
_EVENTS = {
    "mpi_allreduce": "Message size for all-reduce",
    "mpi_bcast": "Message size for broadcast",
    "mpi_gather": "Message size for gather",
    "mpi_allgather": "Message size for all-gather",
}
FUNCTIONS, EVENTS = tuple(_EVENTS), tuple(_EVENTS.values())
_OVER_RUNS = "95 % of runs"  # how much runs differ; no confidence interval
METRICS = (
    Metric("runs", "number of runs"),
    Metric("mpi_s", "time of MPI's allreduce, bcast, gather and allgather, all ranks", "MPI, s", _OVER_RUNS),
    Metric("messages", "number of messages of these functions, all ranks", "messages", _OVER_RUNS),
    Metric("volume_mbyte", "bytes of these messages, 1e6", interval=_OVER_RUNS),
)
_MORE_FIELDS = (
    "job",
    *(name for name in fields_of("workload", "size", "length") if name not in (*ID_FIELDS, "profile")),
)
FIGURES = tuple(metric.name for metric in METRICS[1:])
COLUMNS = {
    "TAU: fields of a run's id, world_size, then medians with the central 95 % of repetitions:": METRICS
}

_TIME = """
select {fields}, run, sum(inc_time) / 1e6 from {table}
where function in {functions!r} group by all
"""
_SIZES = """
select {fields}, run, sum(num_samples), sum(num_samples * mean) / 1e6 from {table}
where function in {events!r} group by all
"""
# Of a run of our own: TAU's names as it wrote them, call paths left out (they repeat what is in the timers).
_OWN = {
    "intervals": f"""
select coalesce(sum(inclusive_ns), 'nan'::double) / 1e9 as mpi_s from read_parquet($paths)
where replace(lower(trim(function::varchar)), '()', '') in {FUNCTIONS!r}
""",
    "atomics": f"""
select coalesce(sum(count), 'nan'::double) as messages,
    coalesce(sum(count * mean), 'nan'::double) / 1e6 as volume_mbyte
from read_parquet($paths)
where trim(event::varchar) in {EVENTS!r}
""",
}


def has_tau(study: Study) -> bool:
    """Whether there are TAU tables, or runs of several ranks under TAU."""
    return bool(study.tau_intervals or study.tau_atomics or _own_runs(study))


def _own_runs(study: Study) -> list[Source]:
    return [
        one
        for one in study.of_kind("run", "trace")
        if one.fields["profile"] == "tau" and (one.world_size or 1) > 1
    ]


def _of_own(study: Study, source: Source) -> dict[str, float]:
    """A run's figures, of those of :data:`FIGURES` that its tables hold."""
    figures: dict[str, float] = {}
    for name, sql in _OWN.items():
        paths = source.tables(name)
        columns = query_arrays(study, source, sql, paths=paths) if paths else {}
        known = {figure: float(values[0]) for figure, values in columns.items()}
        figures |= {figure: value for figure, value in known.items() if np.isfinite(value)}
    return figures


def _of_table(study: Study, sql: str, table: Source) -> list[tuple] | None:
    """The values of ID_FIELDS, the repetition and the figures of each run in a table of the reference's."""
    if table.kind == "tau_intervals" and batches_of(study, table) == 1:
        return None  # runs of one step measure startup
    relation = {"fields": fields_of_table(study, table), "table": table_of(study, table)}
    rows = query_table(study, table, sql.format(**relation, functions=FUNCTIONS, events=EVENTS))
    return with_known_size(study, table, rows)


def rows(study: Study) -> Rows:
    """A row a configuration of TAU tables and of runs under TAU; with :data:`METRICS`.

    Raises:
        UserError: no table can be read, or none says anything of MPI.
    """
    own = _own_runs(study)
    more = telling([dict(source.fields) for source in own], _MORE_FIELDS)
    named = (*ID_FIELDS, *more)
    values: dict[tuple, dict[str, list[float]]] = {}
    sizes: dict[tuple, int | None] = {}

    def add(key: tuple, figures: Mapping[str, float | None]) -> None:
        for name, figure in figures.items():
            if figure is not None:
                values.setdefault(key, {}).setdefault(name, []).append(float(figure))

    for tables, sql, names in (
        (study.tau_intervals, _TIME, FIGURES[:1]),
        (study.tau_atomics, _SIZES, FIGURES[1:]),
    ):
        for _, runs in study.each(tables, partial(_of_table, study, sql)):
            for run in runs:
                key, figures = run[: len(ID_FIELDS)], run[len(ID_FIELDS) + 1 :]
                add((*key, *(None for _ in more)), dict(zip(names, figures, strict=True)))
    for source, known in study.each(own, partial(_of_own, study)):
        key = tuple(source.fields.get(name) for name in named)
        sizes[key] = source.world_size
        add(key, known)
    if not values and study.failed:
        raise UserError(no_result(study))
    if not values:
        raise UserError(f"{study.path} holds no MPI function and no message size")
    return [
        {
            **dict(zip(named, key, strict=True)),
            "run": dict(zip(named, key, strict=True)).get("job"),
            "world_size": sizes[key] if key in sizes else key[0] * key[1],
            "runs": max(map(len, values[key].values())),
            **{column: end for name, some in values[key].items() for column, end in _ends(name, some)},
        }
        for key in sorted(values, key=sortable)
    ]


def _ends(name: str, values: list[float]) -> Iterator[tuple[str, float]]:
    low, centre, high = np.percentile(values, [2.5, 50, 97.5]).tolist()
    if len(values) < 2:  # of one run nobody knows how much runs differ
        low = high = np.nan
    yield from ((name, centre), (f"{name}_low", low), (f"{name}_high", high))


def answer(study: Study) -> Answer:
    """The answer of ``analysis.communication`` for TAU tables."""
    of_configurations = rows(study)
    named = [*ID_FIELDS, *(name for name in _MORE_FIELDS if name in of_configurations[0])]
    repeated = any(row["runs"] > 1 for row in of_configurations)
    figures = METRICS[1:] if repeated else [replace(metric, interval="") for metric in METRICS[1:]]
    shown = columns([*fields(telling(of_configurations, named)), *figures])
    part = Part("MPI (TAU)", of_configurations, shown)
    return Answer(of_configurations, [*fields((*named, "world_size")), *METRICS], parts=[part])
