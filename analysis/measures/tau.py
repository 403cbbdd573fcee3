"""Scaling as the reference measured it: by how long whole applications took, startup included.

TAU tables hold the inclusive time of ``.tau application`` by rank; runs of our own are timed by their whole
wall time. The formulas are the reference's, published with SURFBoard (2020).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import duckdb
import numpy as np

from analysis.display.metrics import Metric, Rows, columns, fields, names_of, telling
from analysis.display.numbers import sortable
from analysis.display.terminal import Answer, Part
from analysis.frames.kernel_sums import ask, query_arrays
from analysis.frames.load import no_result
from analysis.frames.study import Source, Study, Unusable
from jobs.run import Run
from jobs.run_fields import ID_FIELDS, fields_of
from profiling.errors import UserError

BATCHES = 50  # optimizer steps of a timed run
PROFILED_BATCHES = 25  # batches the reference divides the FLOPs of a PyProf table by
EPOCH_IMAGES = 1_000_000
CUT_SIGMAS = 2.0


def rate_per_s(total: float, time_ns: float) -> float:
    """FLOP rate (or bandwidth): sum of FLOPs (or Bytes) over the sum of ``Sil(ns)``, a second."""
    return total / time_ns * 1e9


def efficiency_pct(rate: float, peak: float) -> float:
    """FLOPS (or bandwidth) efficiency: the rate over the peak, in percent."""
    return 100 * rate / peak


def tau_step_duration_s(of_50_batches_s: Sequence[float], of_1_batch_s: Sequence[float]) -> float:
    """(Max over repetitions of `.tau application` of the 50-batch runs - median of the 1-batch runs) / 50."""
    return (max(of_50_batches_s) - float(np.median(of_1_batch_s))) / BATCHES


def step_duration_s(estimates: Sequence[float]) -> float:
    """The least of the three estimates (of those that there are)."""
    return min(estimate for estimate in estimates if np.isfinite(estimate))


def scaled_efficiency_pct(
    total: float, batch_s: float, peak: float, batches: int = PROFILED_BATCHES
) -> float:
    """Scaled FLOPS (or bandwidth) efficiency: sum FLOPs (or Bytes) / (25 x batch duration) / peak, %.

    The reference printed the two under each other's header.
    """
    return 100 * total / (batches * batch_s) / peak


def two_sigma_cut(values: np.ndarray) -> np.ndarray:
    """The values less than two standard deviations (of the population, as numpy's) from their mean.

    All of them where they are one or the same, of which the definition would leave none.
    """
    kept = values[np.abs(values - values.mean()) < CUT_SIGMAS * values.std()]
    return kept if len(kept) else values


def epoch_duration_s(application_s: np.ndarray, batch: int, ranks: int, batches: int = BATCHES) -> float:
    """Epoch duration: application time of 50 batches scaled to 1e6 images; 2-sigma cut; median.

    Args:
        application_s: by repetition, the maximum over ranks of the inclusive time of `.tau application`.
        batch: batch size of one GPU.
    """
    return float(np.median(two_sigma_cut(application_s))) * EPOCH_IMAGES / (batches * batch * ranks)


def scaling_efficiency_pct(base_s: float, base_ranks: int, epoch_s: float, ranks: int) -> float:
    """t(smallest) / t(n) x n(smallest) / n of the epoch duration, in percent."""
    return 100 * base_s / epoch_s * base_ranks / ranks


METRICS = (
    Metric("runs", "number of runs of the configuration"),
    Metric("runs_kept", "number of runs within the 2-sigma cut", "runs\nkept"),
    Metric("application_s", "median duration of the application", "application\ns", places=2),
    Metric("epoch_duration_s", "application_s scaled to 1e6 images", "epoch of 1e6\nimages, s"),
    Metric("base_nodes", "smallest number of nodes with the same number of GPUs per node (the baseline)"),
    Metric("scaling_efficiency_pct", "from epoch durations", "scaling\nefficiency %", places=2),
    Metric("batch_independent_pct", "share of the duration", "does not depend\non batch size %", places=1),
)

# Run's field -> the table's column; the last five may be absent.
_COLUMNS = {
    "nodes": "nodes", "gpus_per_node": "gpus_per_node", "workers": "workers", "loader": "data_loader",
    "batch": "batch_size_per_gpu", "network": "network_backend", "profile": "profile_level",
    "model": "neural_network", "grad": "grad_precision", "compute": "compute_precision",
}  # fmt: skip
_NUMBERS = ("nodes", "gpus_per_node", "workers", "batch")
_NEEDED = ("nodes", "gpus_per_node", "batch")  # without these there is no throughput
# A launcher that takes them from file names writes numbers as text.
_FIGURES = ("gpu", "thread", "calls", "inc_time", "num_samples", "mean")

# Fields in which the runs of one configuration may differ.
_OF_A_RUN = ("attribute_from", "seed")

_APPLICATIONS = """
select {fields}, run, max(inc_time) / 1e6 from {table}
where function = '.tau application' and inc_time > 0 {where} group by all order by all
"""
_RANK_0 = "and gpu = 0 and thread = 0"
_GATHERS = "select min(calls) from {table} where function = 'mpi_gather'"

Key = tuple[Any, ...]  # the values of ID_FIELDS


def applications(study: Study, table: Source, rank_0_only: bool = False) -> dict[Key, np.ndarray]:
    """Application times of a TAU table in s, one a repetition, by the values of ID_FIELDS.

    Args:
        rank_0_only: of GPU 0, thread 0; else the maximum over ranks.

    Raises:
        Unusable: the table is damaged, or holds no `.tau application`.
    """
    where = _RANK_0 if rank_0_only else ""
    named = {"fields": fields_of_table(study, table), "table": table_of(study, table), "where": where}
    rows = query_table(study, table, _APPLICATIONS.format(**named))
    if not rows:
        raise Unusable(table, "holds no timer '.tau application'")
    seconds_by_key: dict[Key, list[float]] = {}
    for *key, _run, seconds in with_known_size(study, table, rows):
        seconds_by_key.setdefault(tuple(key), []).append(float(seconds))
    return {key: np.array(values) for key, values in seconds_by_key.items()}


def table_of(study: Study, table: Source) -> str:
    """A TAU table as a relation whose figures are numbers, however they were written; NaN is null."""
    numbers = [
        f"nullif(try_cast({name} as double), 'nan'::double) as {name}"
        for name in _FIGURES
        if name in _columns_in(study, table)
    ]
    return f"(select * replace ({', '.join(numbers)}) from read_parquet($path))"


def fields_of_table(study: Study, table: Source) -> str:
    """What to select of a TAU table for the values of ID_FIELDS; a number that is none is null."""
    have = _columns_in(study, table)
    written = []
    for name in ID_FIELDS:
        value = f'"{_COLUMNS[name]}"' if _COLUMNS[name] in have else "null"
        written.append(f"try_cast({value} as {'int' if name in _NUMBERS else 'varchar'}) as {name}")
    return ", ".join(written)


def with_known_size(study: Study, table: Source, rows: Sequence[tuple]) -> list[tuple]:
    """The rows (which begin with the values of ID_FIELDS) that say how large their run was."""
    needed = [ID_FIELDS.index(name) for name in _NEEDED]
    known = [row for row in rows if all(row[position] and row[position] > 0 for position in needed)]
    if len(known) < len(rows):
        study.log.note("rows_left_out", table.id, n=len(rows) - len(known), what="runs without nodes")
    return known


def _columns_in(study: Study, table: Source) -> set[str]:
    return {name for (name,) in query_table(study, table, "select name from parquet_schema($path)")}


def query_table(study: Study, table: Source, sql: str) -> list[tuple]:
    try:
        return ask(study, sql, {"path": str(table.path)})
    except (duckdb.Error, OSError) as error:
        raise Unusable(table, f"is damaged or truncated ({str(error).splitlines()[0]})") from None


def batches_of(study: Study, table: Source) -> int:
    """How many batches the runs of a TAU table did: 1 (`batch1_...`, runs that measure start-up) or 50.

    The tables do not say it. Where the name does not either, Horovod's coordinator does: it gathers at least
    once a batch, so fewer than 50 gathers are not 50 batches.
    """
    if re.search(r"(?:^|[_.-])batch_?1(?![0-9])", table.id):
        return 1
    ((gathers,),) = query_table(study, table, _GATHERS.format(table=table_of(study, table)))
    return 1 if gathers is not None and gathers < BATCHES else BATCHES


def timed_and_started(
    study: Study, rank_0_only: bool = False
) -> tuple[dict[Key, np.ndarray], dict[Key, np.ndarray]]:
    """Application times of the 50-batch and of the 1-batch runs of all TAU tables.

    A table that cannot be read is listed as failed, and the others count.
    """
    timed: dict[Key, np.ndarray] = {}
    started: dict[Key, np.ndarray] = {}

    def of_table(table: Source) -> tuple[int, dict[Key, np.ndarray]]:
        return batches_of(study, table), applications(study, table, rank_0_only)

    for _, (batches, seconds_by_key) in study.each(study.tau_intervals, of_table):
        into = started if batches == 1 else timed
        for key, seconds in seconds_by_key.items():
            into[key] = np.concatenate([into.get(key, np.array([])), seconds])
    return timed, started


# --- rows ---------------------------------------------------------------------------------------------


def tau_rows(study: Study) -> Rows:
    """A row a configuration of the TAU tables of timed runs: Run's fields, then :data:`METRICS`."""
    timed, _ = timed_and_started(study)
    fields = [dict(zip(ID_FIELDS, key, strict=True)) for key in timed]
    return _rows(fields, list(timed.values()), [BATCHES] * len(timed))


def run_rows(study: Study) -> Rows:
    """The same of our own runs, by whole wall time; the unprofiled ones, if there are any."""
    seconds: dict[Key, list[float]] = {}
    fields: dict[Key, dict[str, Any]] = {}
    sources = study.of_kind("run")
    for source in [source for source in sources if source.fields["profile"] == "none"] or sources:
        assert source.manifest is not None
        own = {name: value for name, value in source.fields.items() if name not in _OF_A_RUN}
        key = tuple(str(value) for value in own.values())
        fields[key] = own
        seconds.setdefault(key, []).append(source.manifest.seconds)
    batches = [own["batches"] for own in fields.values()]
    return _rows(list(fields.values()), [np.array(values) for values in seconds.values()], batches)


def _rows(fields: Sequence[dict[str, Any]], seconds: Sequence[np.ndarray], batches: Sequence[int]) -> Rows:
    rows = [_row(*each) for each in zip(fields, seconds, batches, strict=True)]
    for row in rows:
        _add_relations(row, rows)
    order = (*ID_FIELDS[2:], "gpus_per_node", "nodes")
    return sorted(rows, key=lambda row: sortable([row[name] for name in order]))


def _row(fields: dict[str, Any], seconds: np.ndarray, batches: int) -> dict[str, Any]:
    kept = two_sigma_cut(seconds)
    ranks = fields["nodes"] * fields["gpus_per_node"]
    return {
        **fields,
        "world_size": ranks,
        "runs": len(seconds),
        "runs_kept": len(kept),
        "application_s": float(np.median(kept)),
        "epoch_duration_s": epoch_duration_s(seconds, fields["batch"], ranks, batches),
    }


def _like(row: Mapping[str, Any], rows: Rows, varying: str) -> Rows:
    """The rows that differ from ``row`` in one field at most."""
    names = [name for name in Run.model_fields if name in row and name != varying]
    return [other for other in rows if all(other[name] == row[name] for name in names)]


def _add_relations(row: dict[str, Any], rows: Rows) -> None:
    """The row's efficiency relative to the fewest nodes, and what does not depend on the batch size."""
    base = min(_like(row, rows, "nodes"), key=lambda other: other["nodes"])
    row["base_nodes"] = base["nodes"]
    row["scaling_efficiency_pct"] = scaling_efficiency_pct(
        base["epoch_duration_s"], base["world_size"], row["epoch_duration_s"], row["world_size"]
    )
    sizes = _like(row, rows, "batch")
    one, other = (pick(sizes, key=lambda other: other["batch"]) for pick in (min, max))
    row["batch_independent_pct"] = None
    if one is not other:
        # a of a + b x batch
        growth = (other["application_s"] - one["application_s"]) / (other["batch"] - one["batch"])
        fixed = one["application_s"] - growth * one["batch"]
        row["batch_independent_pct"] = 100 * fixed / row["application_s"]


def grouped(rows: Rows, group_by: Sequence[str]) -> Rows:
    """Rows by fields: plain means over a group, as the reference formed them; counts are summed."""
    if not group_by:
        return rows
    groups: dict[tuple, Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row.get(name) for name in group_by), []).append(row)
    return [
        {**dict(zip(group_by, key, strict=True)), **_mean_row(groups[key])}
        for key in sorted(groups, key=sortable)
    ]


def _mean_row(members: Rows) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name in dict.fromkeys(
        ["world_size", *names_of(METRICS), *(name for member in members for name in member)]
    ):
        if name in Run.model_fields:
            continue
        values = [member[name] for member in members if member.get(name) is not None]
        if not values:
            row[name] = None
        elif name in ("world_size", "base_nodes"):
            row[name] = values[0] if len(set(values)) == 1 else None
        elif name in ("runs", "runs_kept"):
            row[name] = sum(values)
        else:
            row[name] = sum(values) / len(values)
    return row


# The functions whose time and messages count -> what TAU calls the event of their messages.
_EVENTS = {
    "mpi_allreduce": "Message size for all-reduce",
    "mpi_bcast": "Message size for broadcast",
    "mpi_gather": "Message size for gather",
    "mpi_allgather": "Message size for all-gather",
}
FUNCTIONS, EVENTS = tuple(_EVENTS), tuple(_EVENTS.values())
_OVER_RUNS = "95 % of runs"  # how much runs differ; no confidence interval
CALLS = (
    Metric("runs", "number of runs"),
    Metric("mpi_s", "time of MPI's allreduce, bcast, gather and allgather, all ranks", "MPI, s", _OVER_RUNS),
    Metric("messages", "number of messages of these functions, all ranks", "messages", _OVER_RUNS),
    Metric("volume_mbyte", "bytes of these messages, 1e6", interval=_OVER_RUNS),
)
_MORE_FIELDS = (
    "job",
    *(name for name in fields_of("workload", "size", "length") if name not in (*ID_FIELDS, "profile")),
)
FIGURES = tuple(metric.name for metric in CALLS[1:])
COLUMNS = {"TAU: fields of a run's id, world_size, then medians with the central 95 % of repetitions:": CALLS}

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
    """A row a configuration of TAU tables and of runs under TAU; with :data:`CALLS`.

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
    figures = CALLS[1:] if repeated else [replace(metric, interval="") for metric in CALLS[1:]]
    shown = columns([*fields(telling(of_configurations, named)), *figures])
    part = Part("MPI (TAU)", of_configurations, shown)
    return Answer(of_configurations, [*fields((*named, "world_size")), *CALLS], parts=[part])
