"""What TAU recorded: scaling of whole applications, MPI's functions and messages, and the duration of a step.

The reference (SURFBoard, 2020) measured scaling from the inclusive time of ``.tau application`` by rank,
startup included.
"""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd

from analysis import estimates
from analysis.display.metrics import IN_RUN, RANK, Metric, fields, names_of, telling
from analysis.display.numbers import in_order
from analysis.display.output import Answer
from analysis.frames.kernel_sums import query
from analysis.frames.load import no_result
from analysis.frames.measure import measure
from analysis.frames.study import Source, Study, Unusable
from analysis.measures.activities import sums_of_tools
from jobs.run import Run
from jobs.run_fields import ID_FIELDS, fields_of
from profiling.errors import UserError
from profiling.markers import STAGE_EVENT, stage_of_event
from profiling.schemas import BACKWARD, END_OF_BATCH, FORWARD, SCHEMAS, UPDATE

BATCHES = 50  # optimizer steps of a timed run
PROFILED_BATCHES = 25  # steps the reference divides the FLOPs of a PyProf table by
EPOCH_IMAGES = 1_000_000
CUT_SIGMAS = 2.0

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


def _query(study: Study, table: Source, sql: str) -> pd.DataFrame:
    """The answer to a query over a TAU table.

    In ``sql``, ``{table}`` has figures that are numbers, however they were written (else null), and
    ``{fields}`` are ID_FIELDS and ``repetition``.
    """
    named = query(study, table, "select name from parquet_schema($path)", path=[table.path])
    have = {*named["name"]}
    fields = [
        f"try_cast({_COLUMNS[name] if _COLUMNS[name] in have else 'null'} as "
        f"{'int' if name in _NUMBERS else 'varchar'}) as {name}"
        for name in ID_FIELDS
    ]
    casts = [f"nullif(try_cast({one} as double), 'nan'::double) as {one}" for one in _FIGURES if one in have]
    relation = f"(select * replace ({', '.join(casts)}) from read_parquet($path))"
    sql = sql.format(fields=", ".join([*fields, "run as repetition"]), table=relation)
    return query(study, table, sql, path=[table.path])


def _runs_of(study: Study, table: Source, sql: str) -> pd.DataFrame:
    """The runs in a table that say how large they were: ID_FIELDS, ``repetition``, and what ``sql`` sums."""
    rows = _query(study, table, sql)
    rows = rows.astype(dict.fromkeys(_NUMBERS, "Int64")).astype(dict.fromkeys(ID_FIELDS, object))
    rows[list(ID_FIELDS)] = rows[list(ID_FIELDS)].where(rows[list(ID_FIELDS)].notna(), None)
    known = (rows[list(_NEEDED)].astype(float) > 0).all(axis=1)
    if not known.all():
        study.note("rows_left_out", table.id, n=int((~known).sum()), what="runs without nodes")
    return rows[known]


def batches_of(study: Study, table: Source) -> int:
    """How many batches the runs of a TAU table did: 1 (`batch1_...`, runs that measure start-up) or 50.

    Where the name does not say it, Horovod's coordinator does: it gathers at least once a batch.
    """
    if re.search(r"(?:^|[_.-])batch_?1(?![0-9])", table.id):
        return 1
    gathers = _query(study, table, "select min(calls) from {table} where function = 'mpi_gather'")
    return 1 if (gathers.to_numpy(float) < BATCHES).all() else BATCHES


def applications(study: Study, rank_0_only: bool = False) -> pd.DataFrame:
    """How long the runs in TAU's tables took (of GPU 0, thread 0, or the maximum over ranks); a row a run.

    Columns: ID_FIELDS, ``repetition, seconds``, and ``batches``: its steps (1 or 50).
    """
    ranks = "and gpu = 0 and thread = 0" if rank_0_only else ""
    sql = f"""select {{fields}}, max(inc_time) / 1e6 as seconds from {{table}}
        where function = '.tau application' and inc_time > 0 {ranks} group by all order by all"""

    def of_table(table: Source) -> pd.DataFrame:
        batches, runs = batches_of(study, table), _runs_of(study, table, sql)
        if runs.empty:
            raise Unusable(table, "holds no timer '.tau application'")
        return runs.assign(batches=batches)

    none = pd.DataFrame(columns=[*ID_FIELDS, "repetition", "seconds", "batches"])
    frames = [runs for _, runs in study.each(study.of_kind("tau_intervals"), of_table)]
    return pd.concat(frames or [none], ignore_index=True)


def step_durations(study: Study) -> pd.DataFrame:
    """Of configurations that have runs of 50 steps and of one: their difference as a step's duration.

    Columns: ID_FIELDS; ``published_s``: (maximum over repetitions of the runs of 50 steps - median of those
    of one) / 50; ``step_s``: the difference of the medians over 49.
    """
    runs, keys = applications(study, rank_0_only=True), list(ID_FIELDS)
    seconds = runs.groupby([*keys, "batches"], dropna=False, sort=False)["seconds"]
    of = seconds.agg(["max", "median"]).reset_index()
    starts = of.loc[of["batches"] == 1, [*keys, "median"]].rename(columns={"median": "start_s"})
    both = of[of["batches"] == BATCHES].merge(starts, on=keys)
    return both[keys].assign(
        published_s=(both["max"] - both["start_s"]) / BATCHES,
        step_s=(both["median"] - both["start_s"]) / (BATCHES - 1),
    )


# --- epochs and their scaling -------------------------------------------------------------------------


def tau_rows(study: Study) -> pd.DataFrame:
    """A row a configuration of the TAU tables of timed runs: Run's fields, then :data:`METRICS`."""
    runs, names = applications(study), list(ID_FIELDS)
    runs = runs[runs["batches"] == BATCHES]
    key, seconds = _group(runs[names]), runs["seconds"].astype(float)
    groups = seconds.groupby(key)
    # Values less than two standard deviations (of the population) from their mean; all where none is.
    kept = abs(seconds - groups.transform("mean")) < CUT_SIGMAS * groups.transform("std", ddof=0)
    kept |= ~kept.groupby(key).transform("any")
    rows = runs.loc[~key.duplicated(), names].reset_index(drop=True)
    ranks = rows["nodes"].astype(int) * rows["gpus_per_node"].astype(int)
    rows = rows.assign(world_size=ranks, runs=groups.size(), runs_kept=kept.groupby(key).sum())
    rows["application_s"] = seconds[kept].groupby(key).median()
    # The application's time scaled to 1e6 images.
    images = (BATCHES * rows["batch"] * ranks).astype(float)
    rows["epoch_duration_s"] = rows["application_s"] * EPOCH_IMAGES / images

    def like(varying: str, which: Literal["idxmin", "idxmax"]) -> pd.DataFrame:
        """Of each row the least (or most) in one field of the rows that agree in all others."""
        alike = _group(rows[[name for name in names if name != varying]])
        return rows.loc[rows[varying].astype(int).groupby(alike).transform(which)].set_axis(rows.index)

    base = like("nodes", "idxmin")
    rows["base_nodes"] = base["nodes"]
    speedup = base["epoch_duration_s"] / rows["epoch_duration_s"]
    rows["scaling_efficiency_pct"] = 100 * speedup * base["world_size"] / rows["world_size"]
    small, large = like("batch", "idxmin"), like("batch", "idxmax")
    more = (large["batch"] - small["batch"]).astype(float)
    # a of a + b x batch
    growth = (large["application_s"] - small["application_s"]) / more.where(more > 0)
    fixed = small["application_s"] - growth * small["batch"].astype(float)
    rows["batch_independent_pct"] = 100 * fixed / rows["application_s"]
    return in_order(rows, (*ID_FIELDS[2:], "gpus_per_node", "nodes"))


def _group(fields_of_rows: pd.DataFrame) -> pd.Series:
    """The number of each row's combination of values, from 0 in the order of the rows."""
    return fields_of_rows.groupby(list(fields_of_rows), dropna=False, sort=False).ngroup()


def grouped(rows: pd.DataFrame, group_by: Sequence[str]) -> pd.DataFrame:
    """Rows by fields: plain means over a group, as the reference formed them; counts are summed."""
    if not group_by:
        return rows
    figures = [name for name in rows if name not in Run.model_fields]
    groups = rows[figures].astype(float).groupby([rows[name] for name in group_by], dropna=False, sort=False)
    means = groups.mean()
    for name in {"world_size", "base_nodes"} & set(figures):
        means[name] = means[name].where(groups[name].nunique() == 1)
    for name in {"runs", "runs_kept"} & set(figures):
        means[name] = groups[name].sum(min_count=1)
    return in_order(means.reset_index(), group_by)


# --- MPI ----------------------------------------------------------------------------------------------

# The functions whose time counts, and what TAU calls the events of their messages.
FUNCTIONS = ("mpi_allreduce", "mpi_bcast", "mpi_gather", "mpi_allgather")
EVENTS = tuple(f"Message size for {kind}" for kind in ("all-reduce", "broadcast", "gather", "all-gather"))
_OVER_RUNS = "95 % of runs"  # how much runs differ; no confidence interval
CALLS = (
    Metric("runs", "number of runs"),
    Metric(
        "mpi_s", "time of allreduce, bcast, gather and allgather, all ranks", "4 MPI calls, s", _OVER_RUNS
    ),
    Metric("messages", "number of messages of these functions, all ranks", "messages", _OVER_RUNS),
    Metric("volume_mbyte", "bytes of these messages, 1e6", interval=_OVER_RUNS),
)
_MORE_FIELDS = (
    "job",
    *(name for name in fields_of("workload", "size", "length") if name not in (*ID_FIELDS, "profile")),
)
FIGURES = tuple(metric.name for metric in CALLS[1:])
COLUMNS = {"TAU: fields of a run's id, world_size, then medians with the central 95 % of repetitions:": CALLS}

# Sums over a run in tables of timers and of events.
_SUMMED = {
    "tau_intervals": f"""
select {{fields}}, sum(inc_time) / 1e6 as mpi_s from {{table}} where function in {FUNCTIONS!r} group by all
""",
    "tau_atomics": f"""
select {{fields}}, sum(num_samples) as messages, sum(num_samples * mean) / 1e6 as volume_mbyte
from {{table}} where function in {EVENTS!r} group by all
""",
}
# Of a run of our own: TAU's names as it wrote them, call paths left out (they repeat what is in the timers).
_OWN = {
    "intervals": f"""
select sum(inclusive_ns) / 1e9 as mpi_s from read_parquet($paths)
where replace(lower(trim(function::varchar)), '()', '') in {FUNCTIONS!r}
""",
    "atomics": f"""
select sum(count) as messages, sum(count * mean) / 1e6 as volume_mbyte from read_parquet($paths)
where trim(event::varchar) in {EVENTS!r}
""",
}


def has_tau(study: Study) -> bool:
    """Whether there are TAU tables, or runs of several ranks under TAU."""
    return bool(study.of_kind("tau_intervals") or study.of_kind("tau_atomics") or _own_runs(study))


def _own_runs(study: Study) -> list[Source]:
    under = [one for one in study.of_kind("run", "trace") if one.fields["profile"] == "tau"]
    return [one for one in under if (one.world_size or 1) > 1]


def messages(study: Study) -> pd.DataFrame:
    """A row a configuration of TAU tables and of runs under TAU; with :data:`CALLS`."""
    own = _own_runs(study)
    fields_of_own = pd.DataFrame([source.fields for source in own], dtype=object)
    named = [*ID_FIELDS, *telling(fields_of_own, _MORE_FIELDS)]

    def of_table(table: Source) -> pd.DataFrame | None:
        if table.kind == "tau_intervals" and batches_of(study, table) == 1:
            return None  # runs of one step measure startup
        found = _runs_of(study, table, _SUMMED[table.kind])
        return found.assign(world_size=found["nodes"] * found["gpus_per_node"])

    def of_own(source: Source) -> pd.DataFrame | None:
        found = [query(study, source, sql, paths=source.tables(name)) for name, sql in _OWN.items()
                 if source.tables(name)]  # fmt: skip
        figures = pd.concat([pd.DataFrame(), *found], axis=1).dropna(axis="columns")
        return None if figures.empty else figures

    runs = [found for _, found in study.each(study.of_kind("tau_intervals", "tau_atomics"), of_table)]
    for source, figures in study.each(own, of_own):
        values = {name: source.fields.get(name) for name in named} | {"world_size": source.world_size}
        runs.append(figures.assign(**values).astype(object))
    every = pd.concat(runs or [pd.DataFrame()], ignore_index=True)
    if every.empty:
        none = f"{study.path} holds no MPI function and no message size"
        raise UserError(no_result(study) if study.failed else none)
    every = every.reindex(columns=[*named, "world_size", *FIGURES])
    key = _group(every[named])
    rows = every.loc[~key.duplicated(), [*named, "world_size"]].reset_index(drop=True)
    groups = every[list(FIGURES)].astype(float).groupby(key)
    rows["run"] = rows.get("job")
    rows["runs"] = groups.count().max(axis=1)
    low, centre, high = (groups.quantile(share) for share in (0.025, 0.5, 0.975))
    for name in FIGURES:
        several = groups[name].count() > 1  # of one run nobody knows how much runs differ
        rows[name] = centre[name]
        rows[f"{name}_low"], rows[f"{name}_high"] = low[name].where(several), high[name].where(several)
    return in_order(rows, named)


def answer(study: Study) -> Answer:
    """The answer of ``analysis.communication`` for TAU tables."""
    rows = messages(study)
    named = [*ID_FIELDS, *(name for name in _MORE_FIELDS if name in rows)]
    return Answer(rows, [*fields((*named, "world_size")), *CALLS], title="MPI (TAU)")


# --- the duration of a step, by a profile -----------------------------------------------------------------

STEPS = (
    RANK,
    Metric("estimator", "event, timers, marks, stages or difference", text=True, key=True),
    Metric("steps", "number of steps"),
    Metric("step_ms", "step duration; interval of the difference: of the startup", interval=IN_RUN),
    Metric("preferred", "whether it is the best available estimate"),
)
_APPLICATION = ".TAU application"
_STAGES = (FORWARD, BACKWARD, UPDATE, "Load Data", "Optimizer Step", "Allreduce Gradients")
# Of Student's t: start-up is skewed, so that the quantile of 95 % holds the truth in 90 % of cases
# (python -m benchmarks.interval_coverage --only differences).
_QUANTILE = 0.995
_LEAST_STARTS = 3  # of two the scatter is not known: Student's t is then 12.7 times it

Estimate = tuple[int, float, float, float]  # steps; ns, low, high (NaN: not known)


@measure({"Columns:": STEPS})
def tau_batches(study: Study, startup: Sequence[Path] = (), batches: int | None = None) -> Answer:
    """A row a rank and estimator of its step's duration, the best first.

    ``study``: its path is the profile's; ``startup``: profiles of runs of one step; ``batches``: steps of the
    run, where nothing in the profile says it.
    """
    profile, starts = _read(study), [_read(Study(path)) for path in startup]
    rows = [
        (rank, name, count, *(ns / 1e6 for ns in estimate), place == 0)
        for rank in profile.timers.index.unique("rank")
        for place, (name, (count, *estimate)) in enumerate(_estimates(profile, rank, starts, batches).items())
    ]
    if not rows:
        raise UserError(f"{study.path} holds no steps: give --startup and --batches")
    return Answer(pd.DataFrame(rows, columns=names_of(STEPS)), STEPS, title="Step duration (TAU)")


class _Profile(NamedTuple):
    """What TAU recorded of a run; times in ns."""

    timers: pd.DataFrame  # calls and inclusive_ns by rank and function, threads summed
    stages: pd.DataFrame  # count and ns (mean) by rank and stage, of its events
    marks: pd.Series  # start_ns of each step's end on a rank's first thread, by rank


def _read(study: Study) -> _Profile:
    """The profile in a study's path: a file or folder of TAU's, or the tables of a run or rank."""
    names = ("intervals", "atomics", "markers")
    none = {name: pd.DataFrame(columns=["run", *SCHEMAS[name].names]) for name in names}
    intervals, atomics, markers = (none | sums_of_tools(study, names, "tau")).values()
    if len(runs := intervals["run"].unique()) > 1:
        raise UserError(f"{study.path} holds runs under TAU: name one of them, e.g. {study.path / runs[0]}")
    intervals["function"] = intervals["function"].astype(object)
    # Other threads' applications are parts of the first one's.
    intervals = intervals[(intervals["function"] != _APPLICATION) | (intervals["thread"] == 0)]
    timers = intervals.groupby(["rank", "function"])[["calls", "inclusive_ns"]].sum()
    events = atomics[atomics["event"].astype(str).str.match(STAGE_EVENT) & (atomics["count"] > 0)]
    named = [stage_of_event(str(event)) for event in events["event"]]
    events = events.join(pd.DataFrame(named, events.index, ["stage", "unit"]))
    stages = events.assign(ns=events["mean"] * events["unit"].astype(float))
    stages = stages.drop_duplicates(["rank", "stage"], keep="last").set_index(["rank", "stage"])
    marks = markers[markers["thread"] == 0].set_index("rank")["start_ns"]
    return _Profile(timers, stages[["count", "ns"]], marks)


def difference(whole_ns: float, starts_ns: Sequence[float], steps: int | None) -> Estimate | None:
    """By what a run of so many steps took longer than runs of one step did."""
    took = np.array(starts_ns, float)
    took = took[np.isfinite(took)]
    if not len(took) or not steps or steps < 2 or math.isnan(whole_ns):
        return None
    value, reach = (whole_ns - float(np.median(took))) / (steps - 1), math.nan
    if len(took) >= _LEAST_STARTS:
        from scipy import stats

        # The run's own start-up is one more draw of what the others scatter by, and their median is off, too.
        scatter = float(took.std(ddof=1)) * math.sqrt(1 + math.pi / 2 / len(took)) / (steps - 1)
        reach = float(stats.t.ppf(_QUANTILE, len(took) - 1)) * scatter
    return steps, value, value - reach, value + reach


def _estimates(
    profile: _Profile, rank: int, starts: Sequence[_Profile], steps: int | None
) -> Mapping[str, Estimate]:
    """Of a rank, the best first."""
    timers, stages = (
        frame[frame.index.get_level_values("rank") == rank].droplevel("rank")
        for frame in (profile.timers, profile.stages)
    )
    marks = np.sort(profile.marks[profile.marks.index == rank].to_numpy())
    of_steps = timers["inclusive_ns"][timers.index.astype(str).str.fullmatch(r"Batch \d+")]
    of_stages = timers[timers.index.isin(_STAGES)].set_axis(["count", "ns"], axis=1)
    if of_stages.empty:  # of events
        of_stages = stages[stages.index.isin(_STAGES)].assign(ns=stages["count"] * stages["ns"])
    found: dict[str, Estimate] = {}
    if END_OF_BATCH in stages.index:
        of_event = int(stages["count"][END_OF_BATCH]), float(stages["ns"][END_OF_BATCH])
        found["event"] = (*of_event, math.nan, math.nan)
    for name, took in (("timers", of_steps.to_numpy()), ("marks", np.diff(marks))):
        if len(took):
            found[name] = len(took), *estimates.mean_in_run(took)
    if len(of_stages):  # timed in every step; what their scatter is TAU does not keep
        count = int(of_stages["count"].max())
        found["stages"] = count, of_stages["ns"].sum() / count, math.nan, math.nan
    # Of the first step there is no mark before it.
    known = max((one[0] + (name == "marks") for name, one in found.items()), default=None) or steps
    whole_ns, *starts_ns = (
        float(one.timers["inclusive_ns"].get((rank, _APPLICATION), math.nan)) for one in (profile, *starts)
    )
    by_starts = difference(whole_ns, starts_ns, known)
    return found | ({"difference": by_starts} if by_starts else {})
