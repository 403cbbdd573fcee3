"""What did MPI cost, as TAU saw it?

From TAU tables of the reference, and from runs of our own under TAU (each a repetition): a row a
configuration.
"""

from typing import Any

import numpy as np

from analysis.display.metrics import Metric, Rows, columns, fields, telling
from analysis.display.numbers import sortable
from analysis.display.terminal import Answer, Part
from analysis.measures.kernels.costs import query_arrays
from analysis.measures.tau.applications import (
    batches_of,
    fields_of_table,
    query_table,
    table_of,
    with_known_size,
)
from analysis.results.load import no_result
from analysis.results.study import Failure, Source, Study
from jobs.run import ID_FIELDS
from profiling.errors import UserError, no_command

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
    Metric("repetitions", "how many runs", "runs"),
    Metric(
        "mpi_s",
        "inclusive time of mpi_allreduce, _bcast, _gather and _allgather, summed over ranks",
        "MPI, s",
        _OVER_RUNS,
    ),
    Metric(
        "messages",
        "how many messages these four functions sent, summed over ranks",
        "messages",
        _OVER_RUNS,
    ),
    Metric("volume_mb", "the bytes of these messages, 1e6", "MB", _OVER_RUNS),
)
FIGURES = tuple(metric.name for metric in METRICS[1:])
COLUMNS = {
    "For TAU tables, and runs under TAU: the ten fields of a run's id, world_size, then (medians and the "
    "central 95 % of repetitions: percentiles, which say how much runs differ, no confidence "
    "intervals):": METRICS
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
    coalesce(sum(count * mean), 'nan'::double) / 1e6 as volume_mb
from read_parquet($paths)
where trim(event::varchar) in {EVENTS!r}
""",
}


def has_tau(study: Study) -> bool:
    """Whether there are TAU tables, or runs of several ranks under TAU."""
    return bool(study.tau_intervals or study.tau_atomics or _own_runs(study))


def _own_runs(study: Study) -> list[Source]:
    return [
        one for one in study.of_kind("run") if one.fields["profile"] == "tau" and (one.world_size or 1) > 1
    ]


def _of_own(study: Study, source: Source) -> dict[str, float]:
    """A run's figures, of those of :data:`FIGURES` that its tables hold."""
    found: dict[str, float] = {}
    for name, sql in _OWN.items():
        paths = source.tables(name)
        columns = query_arrays(study, source, sql, paths=paths) if paths else None
        known = {figure: float(values[0]) for figure, values in (columns or {}).items()}
        found |= {figure: value for figure, value in known.items() if np.isfinite(value)}
    return found


def rows(study: Study) -> Rows:
    """A row a configuration of TAU tables and of runs under TAU; with :data:`METRICS`.

    Raises:
        UserError: no table can be read, or none says anything of MPI.
    """
    found: dict[tuple, dict[str, list[float]]] = {}
    for paths, query, names in (
        (study.tau_intervals, _TIME, FIGURES[:1]),
        (study.tau_atomics, _SIZES, FIGURES[1:]),
    ):
        for path in list(paths):
            try:
                if paths is study.tau_intervals and batches_of(study, path) == 1:
                    study.find(
                        f"{path.name}: runs of one batch measure start-up; their messages are left out"
                    )
                    continue
                sql = query.format(
                    fields=fields_of_table(study, path), table=table_of(study, path), functions=FUNCTIONS,
                    events=EVENTS,
                )  # fmt: skip
                table = with_known_size(study, path, query_table(study, path, sql))
            except UserError as error:
                paths.remove(path)
                study.failed.append(Failure(path.name, str(error), "unreadable"))
                continue
            for values in table:
                key, figures = values[: len(ID_FIELDS)], values[len(ID_FIELDS) + 1 :]
                for name, figure in zip(names, figures, strict=True):
                    if figure is not None:
                        found.setdefault(key, {}).setdefault(name, []).append(float(figure))
    for source in _own_runs(study):
        key = tuple(source.fields[name] for name in ID_FIELDS)
        for name, figure in _of_own(study, source).items():
            found.setdefault(key, {}).setdefault(name, []).append(figure)
    if not found and study.failed:
        raise UserError(no_result(study))
    if not found:
        raise UserError(f"{study.path} holds no MPI function and no message size")
    return [
        {**dict(zip(ID_FIELDS, key, strict=True)), "world_size": key[0] * key[1], **_summary(found[key])}
        for key in sorted(found, key=sortable)
    ]


def _summary(values: dict[str, list[float]]) -> dict[str, Any]:
    row: dict[str, Any] = {"repetitions": max(len(of_figure) for of_figure in values.values())}
    for name, of_figure in values.items():
        low, centre, high = np.percentile(of_figure, [2.5, 50, 97.5])
        row |= {name: float(centre), f"{name}_low": float(low), f"{name}_high": float(high)}
    return row


def answer(study: Study) -> Answer:
    """The answer of ``analysis.communication`` for TAU tables."""
    made = rows(study)
    shown = columns([*fields(telling(made, ID_FIELDS)), *METRICS[1:]])
    part = Part("MPI in TAU's tables (median and central 95 % of repetitions)", made, shown)
    return Answer(made, [*fields((*ID_FIELDS, "world_size")), *METRICS], parts=[part])


if __name__ == "__main__":
    no_command("analysis.measures.tau.messages", "analysis.communication")
