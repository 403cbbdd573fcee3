"""Launches in attributed batches, whoever recorded them: sums by rank, step and kernel, and costs.

Our runs have tables of kernels and batches, a rank each; PyProf's tables are read as such here. What launches
cost that a tool recorded which knows no shapes (nvprof, Nsight Systems, CUPTI) is taken from the run under
PyTorch's profiler of the same point, which launched the same kernels: the k-th launch of a kernel in a
direction is the k-th launch of that kernel in that direction, if both runs launch it equally often in a
batch. Where they do not (another algorithm was chosen), what is left of a class of kernels in a direction is
matched in its order, if it is equally many. What remains has no FLOPs and bytes.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import numpy as np

from analysis.frames.pyprof import TableSums, batches_of, table_sums
from analysis.frames.steps import attributed_that_count
from analysis.frames.study import Source, Study, Unusable, reading
from profiling import tables, tools
from profiling.errors import UserError
from profiling.readers import pyprof
from profiling.schemas import ATTRIBUTED, IS_MODEL
from profiling.workers import in_threads

if TYPE_CHECKING:
    import pyarrow as pa


def query(study: Study, source: Source, sql: str, **paths: Sequence[Path]) -> list[tuple]:
    """Rows of a query over a run's tables."""
    with reading(source):
        _check_numbers(study, paths.get("batches", ()))
        return ask(study, sql, _as_text(paths))


def ask(study: Study, sql: str, arguments: Mapping[str, Any]) -> list[tuple]:
    """The rows of a query over files; what was asked before is not read again.

    Raises:
        duckdb.Error: a file is damaged, or has other columns.
    """
    kept = study.kept("answers of queries")
    key = sql, repr(sorted(arguments.items()))
    if key not in kept:
        kept[key] = study.connection.execute(sql, dict(arguments)).fetchall()
    return list(kept[key])


def query_arrays(study: Study, source: Source, sql: str, **paths: Sequence[Path]) -> dict[str, np.ndarray]:
    """The same, as arrays by column."""
    with reading(source):
        _check_numbers(study, paths.get("batches", ()))
        columns = study.connection.execute(sql, _as_text(paths)).fetchnumpy()
    return {name: np.asarray(values) for name, values in columns.items()}


def _as_text(paths: Mapping[str, Sequence[Path]]) -> dict[str, list[str]]:
    return {name: [str(path) for path in value] for name, value in paths.items()}


def _check_numbers(study: Study, batches: Sequence[Path]) -> None:
    """A query joins kernels to batches by their number, and would not notice that it is wrong."""
    right = study.kept("batches numbered right")
    for path in [path for path in batches if path not in right]:
        tables.read(path.parent, "batches", ["batch_index"])
        right[path] = True


# --- what is left out ---------------------------------------------------------------------------------


def note_left_out(study: Study, source: Source, without: int, batches: int, untimed: int = 0) -> None:
    """Note what figures of a run leave out.

    Args:
        without: attributed batches (of ranks that have kernels) that hold no kernel, of ``batches``.
        untimed: launches without a duration (:func:`untimed_launches`).
    """
    if without:
        study.note("rows_left_out", source, n=without, what=f"of {batches} steps without kernels")
    if untimed:
        study.note("rows_left_out", source, n=untimed, what="launches without a duration")


_UNTIMED = "select count(*) from read_parquet($kernels) where duration_ns is null or duration_ns < 0"


def untimed_launches(study: Study, source: Source) -> int:
    """How many launches of a run have no duration, or one below 0: nobody counts these."""
    kernels = source.tables("kernels")
    ((untimed,),) = query(study, source, _UNTIMED, kernels=kernels) if kernels else [(0,)]
    return int(untimed)


PLAIN = "read_parquet($kernels)"
# The model's launches in attributed batches, numbered by kernel and direction within each batch.
_LAUNCHES = f"""
    select *, row_number() over (kernel order by start_ns, row) as k, count(*) over kernel as n,
        start_ns - min(start_ns) over (partition by rank, batch_index) as since
    from (
        select rank, batch_index, file_row_number as row, direction::varchar as direction,
            "class"::varchar as class, short_name::varchar as name, start_ns, flops, bytes
        from read_parquet($KERNELS, file_row_number = true)
        semi join {ATTRIBUTED.replace("batches", "BATCHES")}
            using (rank, batch_index)
        where {IS_MODEL} and start_ns is not null
    )
    window kernel as (partition by rank, batch_index, direction, name)
"""
# What a launch costs in the lending run: mean over the batches that launch its kernel as often as most do.
_LENT = f"""
create temp table {{lent}} as
with launches as ({_LAUNCHES.replace("KERNELS", "lender").replace("BATCHES", "lender_batches")}),
usual as (
    select direction, name, mode(n) as n
    from (select distinct batch_index, direction, name, n from launches) group by direction, name
    having 2 * count(*) >= (select count(distinct batch_index) from launches)
)
select direction, name, n, k, any_value(class) as class, avg(flops) as flops, avg(bytes) as bytes,
    avg(since) as since
from launches join usual using (direction, name, n) group by direction, name, n, k
"""
_CREDIT = f"""
insert into {{credit}}
with launches as materialized ({_LAUNCHES.replace("KERNELS", "kernels").replace("BATCHES", "batches")}),
by_name as (
    select rank, row, lent.flops, lent.bytes, true as by_name
    from launches join {{lent}} as lent using (direction, name, n, k)
),
left_over as (
    select rank, batch_index, row, direction, class,
        row_number() over (kind order by start_ns, row) as k, count(*) over kind as n
    from launches anti join {{lent}} using (direction, name, n)
    window kind as (partition by rank, batch_index, direction, class)
),
not_lent as (
    select rank, batch_index, direction, name, n
    from (select distinct rank, batch_index from left_over)
        cross join (select distinct direction, name, n from {{lent}})
        anti join launches using (rank, batch_index, direction, name, n)
),
offered as (
    select rank, batch_index, direction, lent.class, lent.flops, lent.bytes,
        row_number() over (kind order by lent.since, lent.name, lent.k) as k, count(*) over kind as n
    from not_lent join {{lent}} as lent using (direction, name, n)
    window kind as (partition by rank, batch_index, direction, lent.class)
)
select * from by_name
union all by name
select rank, row, offered.flops, offered.bytes, false as by_name
from left_over join offered using (rank, batch_index, direction, class, n, k)
"""
_COVERED = f"""
select coalesce(sum(duration_ns), 0), coalesce(sum(duration_ns) filter (by_name), 0),
    coalesce(sum(duration_ns) filter (not by_name), 0)
from read_parquet($kernels, file_row_number = true) as of_run
semi join {ATTRIBUTED} using (rank, batch_index)
left join {{credit}} as credit on credit.rank = of_run.rank and credit.row = of_run.file_row_number
where {IS_MODEL}
"""
_CREDITS = """
create temp table {credit} (rank integer, row bigint, flops double, bytes double, by_name boolean)
"""
_CREDITED = """(
    select of_run.* replace (
        coalesce(of_run.flops, credit.flops) as flops, coalesce(of_run.bytes, credit.bytes) as bytes
    )
    from read_parquet($kernels, file_row_number = true) as of_run
    left join {credit} as credit on credit.rank = of_run.rank and credit.row = of_run.file_row_number
)"""
_KNOWS = f"""
select count(*) filter (flops > 0), count(*) from read_parquet($kernels)
where {IS_MODEL}
"""


def relation(study: Study, source: Source) -> str:
    """The launches of a run as a relation of SQL over ``$kernels``, with the FLOPs and bytes that it lacks.

    Where they come from, and how much of the run they cover, is noted.
    """
    kept: dict[str, str] = study.kept("relations of launches")
    if source.id not in kept:
        try:
            kept[source.id] = _relation(study, source)
        except (duckdb.Error, OSError):
            kept[source.id] = PLAIN  # who reads the damaged table says so, and takes its run out
    return kept[source.id]


def _relation(study: Study, source: Source) -> str:
    if source.fields["profile"] in ("none", "torch") or not source.tables("kernels"):
        return PLAIN
    paths = _paths(kernels=source, batches=source)
    known, model = study.connection.execute(_KNOWS, {"kernels": paths["kernels"]}).fetchall()[0]
    if known or not model:
        return PLAIN
    lender = lender_of(study, source)
    if lender is None:
        if source.kind == "run":  # what a trace says itself is among its findings
            study.note("not_recorded", source, what="FLOPs of kernels")
        return PLAIN
    number = len(study.kept("relations of launches"))
    names = {"lent": f"lent_{number}", "credit": f"credit_{number}"}
    # Ranks launch the same: one of them tells for all.
    of_lender = _paths(lender=lender, lender_batches=lender)
    study.connection.execute(_LENT.format(**names), {**of_lender, "lender": of_lender["lender"][:1]})
    study.connection.execute(_CREDITS.format(**names))
    for one in paths["kernels"]:  # a rank at a time: a run of many need not be in memory
        study.connection.execute(_CREDIT.format(**names), {**paths, "kernels": [one]})
    whole, by_name, by_class = study.connection.execute(_COVERED.format(**names), paths).fetchall()[0]
    pct, by_class_pct = (100 * ns / (whole or 1) for ns in (by_name + by_class, by_class))
    study.note("flops_borrowed", source, pct=pct, by_class_pct=by_class_pct, lender=lender.id)
    return _CREDITED.format(**names)


def _paths(**sources: Source) -> dict[str, list[str]]:
    tables = {name: "batches" if name.endswith("batches") else "kernels" for name in sources}
    return {name: [str(path) for path in source.tables(tables[name])] for name, source in sources.items()}


def lender_of(study: Study, source: Source) -> Source | None:
    """The run under PyTorch's profiler of a run's point; of its repetition, if there are several."""
    alike = [
        other
        for other in study.of_kind("run")
        if other.fields["profile"] == "torch" and other.tables("kernels") and other.point == source.point
    ]
    return min(
        alike, key=lambda other: (other.repetition != source.repetition, other.repetition), default=None
    )


KEYS = ("short_name", "class", "direction")
# Launches that have a place on the roofline (SQL over kernels): of the model, with known bytes.
PLACED = f"{IS_MODEL} and bytes > 0 and duration_ns > 0"

_SUMS = f"""
select {{keys}}, count(*) filter (duration_ns >= 0) as calls,
    sum(duration_ns) filter (duration_ns >= 0) as ns,
    min(duration_ns) filter (duration_ns >= 0) as least_ns,
    max(duration_ns) filter (duration_ns >= 0) as most_ns,
    sum(flops) filter (duration_ns >= 0) as flops,
    sum(bytes) filter (duration_ns >= 0) as bytes,
    sum(duration_ns) filter (duration_ns >= 0 and flops > 0) as counted_ns,
    sum(duration_ns) filter ({PLACED}) as placed_ns,
    sum(flops) filter ({PLACED}) as placed_flops,
    sum(bytes) filter ({PLACED}) as placed_bytes
from (
    select * replace (nullif(flops, 'nan'::double) as flops, nullif(bytes, 'nan'::double) as bytes)
    from {{launches}}
)
group by all
"""


def sums_of(launches: str, keys: Sequence[str], by_step: bool = False) -> str:
    """SQL: launches summed by some of their columns.

    Args:
        launches: a relation with the columns of our tables of kernels.
        keys: columns that are texts.
        by_step: by rank and step as well.

    Returns:
        A query. Columns: ``rank, batch_index`` (if ``by_step``), the keys; ``calls, ns, least_ns, most_ns,
        flops, bytes`` of launches that have a duration (flops and bytes: null where no launch has any);
        ``counted_ns`` of those with FLOPs; ``placed_ns, placed_flops, placed_bytes`` of :data:`PLACED`.
    """
    names = [*(("rank", "batch_index") if by_step else ()), *(f'"{key}"::varchar as "{key}"' for key in keys)]
    return _SUMS.format(keys=", ".join(names), launches=launches)


def kept_sums(study: Study, source: Source, launches: str = PLAIN, keys: Sequence[str] = KEYS) -> str:
    """The table of a run's launches by rank, step and kernel (:func:`sums_of`); a study makes it once.

    Args:
        launches: a relation over ``$kernels``.
        keys: that it must have; one of :data:`KEYS` serves all questions that need no others.
    """
    wanted = KEYS if set(keys) <= set(KEYS) else tuple(keys)
    kept: dict[tuple[str, str, tuple[str, ...]], str] = study.kept("sums of launches")
    key = source.id, launches, wanted
    if key not in kept:
        name = f"sums_{len(kept)}"
        sql = f"create temp table {name} as {sums_of(launches, wanted, by_step=True)}"
        with reading(source):
            study.connection.execute(sql, {"kernels": [str(path) for path in source.tables("kernels")]})
        kept[key] = name
    return kept[key]


def has_kernels(source: Source) -> bool:
    """Whether a profiler left kernels of it."""
    return source.kind == "pyprof" or bool(source.tables("kernels"))


def kernels(source: Source) -> "pa.Table | list[Path]":
    """All its kernels as tables of them: in memory, or the ranks' files; empty: it has none.

    Raises:
        UserError: a table of PyProf's is damaged.
    """
    if source.kind == "pyprof":
        return tools.read(source.path, "pyprof").tables["kernels"]
    return source.tables("kernels")


# --- sums ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Costs:
    """Of attributed batches, all of them or one in the mean (ns, FLOP, bytes).

    Attributes:
        batches: of a rank that have kernels, over all ranks; of a rank with several GPUs one counts for each.
        kernel_ns: time of the model's kernels, launch by launch.
        counted_ns: that of launches to which FLOPs are credited.
        flops, bytes: credited to them; 0: not known.
        loader_ns, communication_ns, copy_ns: the classes apart.
    """

    batches: int
    kernel_ns: float
    counted_ns: float
    flops: float
    bytes: float
    loader_ns: float
    communication_ns: float = 0.0
    copy_ns: float = 0.0

    @property
    def per_batch(self) -> "Costs":
        """Of one batch of one rank, the mean, where these are of all."""
        return replace(self, **{name: getattr(self, name) / self.batches for name in COSTS})


COSTS = tuple(one.name for one in fields(Costs) if one.name != "batches")

_COSTS = f"""
select sum(ns) filter ({IS_MODEL}), sum(counted_ns) filter ({IS_MODEL}),
    sum(flops) filter ({IS_MODEL}), sum(bytes) filter ({IS_MODEL}),
    sum(ns) filter (not {IS_MODEL} and class not in ('communication', 'memcpy', 'memset')),
    sum(ns) filter (class = 'communication'), sum(ns) filter (class in ('memcpy', 'memset'))
from {{sums}} semi join {{attributed}} using (rank, batch_index)
"""
# How many attributed batches have kernels, and how many there are of the ranks that have any: a profiler may
# watch some ranks alone, or its recording be cut.
_COUNTED = """
with attributed as {attributed}, recorded as (
    select distinct rank, batch_index from {sums} semi join attributed using (rank, batch_index)
)
select (select count(*) from recorded) as recorded,
    (select count(*) from attributed where rank in (select rank from recorded)) as attributed
"""


_OF_ATTRIBUTED = "(select * from {sums} semi join {attributed} using (rank, batch_index))"


def sums_of_each(study: Study, sources: Sequence[Source]) -> Iterator[tuple[Source, Costs]]:
    """The sums of each source that has attributed kernels; of the others a note says so."""
    of_tables = table_sums(study, [source for source in sources if source.kind == "pyprof"])

    def sums(source: Source) -> Costs | None:
        if source.kind == "pyprof":
            return _sums_of_table(study, source, of_tables.get(source.id))
        return _sums_of_run(study, source)

    return study.each(sources, sums)


def _sums_of_table(study: Study, source: Source, sums: TableSums | None) -> Costs | None:
    # A table without rows has no sums.
    if sums is None or sums.batches.attributed_from is None:
        study.note("not_recorded", source, what="attributed backward passes")
        return None
    if not sums.kernel_ns:
        study.note("not_recorded", source, what="times of launches")
        return None
    return Costs(
        sums.batches.backward,
        sums.kernel_ns,
        sums.counted_ns,
        sums.kernel_flops,
        sums.kernel_bytes,
        sums.loader_ns,
    )


def _sums_of_run(study: Study, source: Source) -> Costs | None:
    batches = source.tables("batches")
    if not batches or not source.tables("kernels"):
        return None
    table = kept_sums(study, source, relation(study, source))
    of = {"sums": table, "attributed": attributed_that_count(study, source)}
    ((recorded, attributed),) = query(study, source, _COUNTED.format(**of), batches=batches)
    (sums,) = query(study, source, _COSTS.format(**of), batches=batches)
    untimed = untimed_launches(study, source)
    # Only batches that have kernels count: a profiler may watch some ranks alone, or its recording be cut.
    if not recorded or sums[0] is None:
        note_left_out(study, source, 0, attributed, untimed)
        study.note("not_recorded", source, what="profiled steps")
        return None
    note_left_out(study, source, attributed - recorded, attributed, untimed)
    # One rank of DataParallel has the kernels of all its GPUs.
    return Costs(recorded * source.gpus_per_rank, *(float(value or 0) for value in sums))


# --- groups -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """A query over the launches of a run's attributed batches.

    Attributes:
        sql: ``{sums}`` in it are the launches, summed by ``keys`` at least, with the columns of
            :func:`summed.sums_of`.
        keys: columns of kernels that it groups them by, or chooses them by.
        optional: columns of PyProf's tables that it needs beside those that are always read.
    """

    sql: str
    keys: tuple[str, ...] = KEYS
    optional: tuple[str, ...] = ()


@dataclass(frozen=True)
class Groups:
    """The rows of a question, and how many batches (of a rank; see :class:`Costs`) they are of."""

    batches: int
    rows: list[tuple]


def groups_of_each(
    study: Study, sources: Sequence[Source], question: Question
) -> Iterator[tuple[Source, Groups]]:
    """What each source answers, in order; tables of PyProf are read by several threads."""
    tables = [source for source in sources if source.kind == "pyprof"]
    batches = batches_of(study, tables)
    tables = study.usable(tables)
    asking = [_asking(study, one.path, batches, question) for one in tables]
    in_turn = zip((one.path for one in tables), in_threads(lambda ask: ask(), asking), strict=True)

    def groups(source: Source) -> Groups | None:
        if source.kind != "pyprof":
            return groups_of_run(study, source, question)
        # One that was found unusable meanwhile is not asked about: its rows are passed over.
        rows = next(rows for path, rows in in_turn if path == source.path)
        if isinstance(rows, UserError):
            raise Unusable(source, str(rows))
        if rows is None:
            study.note("not_recorded", source, what="attributed backward passes")
            return None
        return Groups(batches[source.path].backward, rows)

    return study.each(sources, groups)


_Rows = list[tuple] | UserError | None


def _asking(
    study: Study, path: Path, batches: dict[Path, pyprof.TableBatches], question: Question
) -> Callable[[], _Rows]:
    """The rows of a table of PyProf, or what is wrong with it; None without an attributed batch."""
    counted, connection = batches[path], study.connection

    def ask() -> _Rows:
        if not counted.backward:
            return None
        # A thread may not use another's connection; a cursor is one of its own.
        with closing(connection.cursor()) as own:
            try:
                read = pyprof.read_table(
                    path, batches=counted, optional=list(question.optional), connection=own
                )
            except UserError as error:
                return error
            own.register("launches_of_pyprof", read.tables["kernels"])
            launches = f"(select * from launches_of_pyprof where batch_index >= {counted.first_attributed})"
            sums = f"({sums_of(launches, question.keys)})"
            return own.execute(question.sql.format(sums=sums)).fetchall()

    return ask


def groups_of_run(study: Study, source: Source, question: Question) -> Groups | None:
    """What a run of our own answers; None without kernels in an attributed batch."""
    batches = source.tables("batches")
    if not batches or not source.tables("kernels"):
        return None
    table = kept_sums(study, source, relation(study, source), question.keys)
    of = {"sums": table, "attributed": attributed_that_count(study, source)}
    ((recorded, attributed),) = query(study, source, _COUNTED.format(**of), batches=batches)
    if not recorded:
        return None
    sums = _OF_ATTRIBUTED.format(**of)
    rows = query(study, source, question.sql.format(sums=sums), batches=batches)
    untimed = untimed_launches(study, source)
    note_left_out(study, source, attributed - recorded, attributed, untimed)
    return Groups(recorded * source.gpus_per_rank, rows)
