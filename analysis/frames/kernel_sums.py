"""The kernel_sums frame: launches of profiled steps, summed by run, rank, step and kernel.

Launches are never all in memory: DuckDB sums them once per study, and answers are computed from the sums.
PyProf's tables become rows of the same frame.

Tools that do not record shapes (nvprof, Nsight Systems, CUPTI) give no FLOPs and bytes. These are taken from
the torch profiler's run of the same configuration, which launched the same kernels: the k-th launch of a
kernel in a direction is matched with the k-th there, if both runs launch it equally often per step. Where
they do not (another algorithm was chosen), the remaining launches of a class in a direction are matched in
order, if there are equally many. All others have no FLOPs and bytes.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import duckdb
import pandas as pd

from analysis.frames.steps import attributed_that_count
from analysis.frames.study import Source, Study, Unusable, reading
from profiling import tables
from profiling.cost.classify import classify
from profiling.errors import UserError
from profiling.readers import pyprof
from profiling.schemas import APART, ATTRIBUTED, IS_MODEL


def query(study: Study, source: Source, sql: str, **paths: Sequence[Path]) -> pd.DataFrame:
    """The answer to a query over a run's tables; what was asked before is not read again."""
    kept: dict[tuple, pd.DataFrame] = study.kept("answers of queries")
    right = study.kept("batches numbered right")
    key = sql, repr(sorted(paths.items()))
    if key not in kept:
        with reading(source):
            # A query joins kernels to batches by their number, and would not notice that it is wrong.
            for path in [path for path in paths.get("batches", ()) if path not in right]:
                tables.read(path.parent, "batches", ["batch_index"])
                right[path] = True
            tables.verify(paths.get("kernels", ()), "kernels", sql)
            arguments = {name: [str(path) for path in value] for name, value in paths.items()}
            kept[key] = study.connection.execute(sql, arguments).df()
    return kept[key]


def note_left_out(study: Study, source: Source, without: int, batches: int, untimed: int = 0) -> None:
    """Note what figures of a run leave out: batches ``without`` kernels, launches without a duration."""
    if without:
        study.note("rows_left_out", source, n=without, what=f"of {batches} steps without kernels")
    if untimed:
        study.note("rows_left_out", source, n=untimed, what="launches without a duration")


def untimed_launches(study: Study, source: Source) -> int:
    """How many launches of a run have no duration, or one below 0: nobody counts these."""
    sql = f"select count(*) from {PLAIN} where duration_ns is null or duration_ns < 0"
    kernels = source.tables("kernels")
    return int(query(study, source, sql, kernels=kernels).to_numpy()[0, 0]) if kernels else 0


PLAIN = "read_parquet($kernels)"
# The model's launches in attributed batches, numbered by kernel and direction within each batch.
_LAUNCHES = f"""
    select *, row_number() over (kernel order by start_ns, row) as k, count(*) over kernel as n,
        start_ns - min(start_ns) over (partition by rank, batch_index) as since
    from (
        select rank, batch_index, file_row_number as row, direction::varchar as direction,
            "class"::varchar as class, short_name::varchar as name, start_ns, flops, bytes
        from read_parquet($kernels, file_row_number = true) semi join {ATTRIBUTED} using (rank, batch_index)
        where {IS_MODEL} and start_ns is not null
    )
    window kernel as (partition by rank, batch_index, direction, name)
"""
# What a launch costs in the lending run: mean over the batches that launch its kernel as often as most do.
_LENT = f"""
create temp table {{lent}} as
with launches as ({_LAUNCHES}),
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
with launches as materialized ({_LAUNCHES}),
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
_CREDITED = """(
    select of_run.* replace (
        coalesce(of_run.flops, credit.flops) as flops, coalesce(of_run.bytes, credit.bytes) as bytes
    )
    from read_parquet($kernels, file_row_number = true) as of_run
    left join {credit} as credit on credit.rank = of_run.rank and credit.row = of_run.file_row_number
)"""


def relation(study: Study, source: Source) -> str:
    """The launches of a run as a relation of SQL over ``$kernels``, with the FLOPs and bytes that it lacks.

    Where they come from, and how much of the run they cover, is noted.
    """
    with suppress(duckdb.Error, OSError):  # who reads the damaged table says so, and takes its run out
        return study.once("relations of launches", source.id, lambda: _relation(study, source))
    return PLAIN


def _relation(study: Study, source: Source) -> str:
    if source.fields["profile"] in ("none", "torch") or not source.tables("kernels"):
        return PLAIN
    connection, paths = study.connection, _tables_in(_CREDIT, source)
    knows = f"select count(*) filter (flops > 0), count(*) from {PLAIN} where {IS_MODEL}"
    known, model = connection.execute(knows, {"kernels": paths["kernels"]}).fetchall()[0]
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
    of_lender = _tables_in(_LENT, lender)
    connection.execute(_LENT.format(**names), of_lender | {"kernels": of_lender["kernels"][:1]})
    of_row = "rank integer, row bigint, flops double, bytes double, by_name boolean"
    connection.execute(f"create temp table {names['credit']} ({of_row})")
    for one in paths["kernels"]:  # a rank at a time: a run of many need not be in memory
        connection.execute(_CREDIT.format(**names), paths | {"kernels": [one]})
    whole, by_name, by_class = connection.execute(_COVERED.format(**names), paths).fetchall()[0]
    pct, by_class_pct = (100 * ns / (whole or 1) for ns in (by_name + by_class, by_class))
    study.note("flops_borrowed", source, pct=pct, by_class_pct=by_class_pct, lender=lender.id)
    return _CREDITED.format(**names)


def _tables_in(sql: str, source: Source) -> dict[str, list[str]]:
    """The parameters of a query over a run's tables."""
    names = [name for name in ("kernels", "batches") if f"${name}" in sql]
    return {name: [str(path) for path in source.tables(name)] for name in names}


def lender_of(study: Study, source: Source) -> Source | None:
    """The run under PyTorch's profiler of a run's point; of its repetition, if there are several."""
    runs = [one for one in study.of_kind("run") if one.fields["profile"] == "torch" and one.tables("kernels")]
    of_point = [one for one in runs if one.point == source.point]
    return min(of_point, key=lambda one: (one.repetition != source.repetition, one.repetition), default=None)


# What launches can be summed by -> the column of their tables.
BY = {
    "rank": "rank", "step": "batch_index", "kernel": "short_name",
    **{name: name for name in ("class", "direction", "operator", "layer")},
}  # fmt: skip
DEFAULT_BY = ("kernel", "class", "direction")
KEYS = tuple(BY[name] for name in DEFAULT_BY)
_FIGURES = (
    "steps", "calls", "ns", "least_ns", "most_ns", "flops", "bytes", "counted_ns", "placed_ns",
    "placed_flops", "placed_bytes",
)  # fmt: skip
# Launches that have a place on the roofline (SQL over kernels): of the model, with known bytes.
_PLACED = f"{IS_MODEL} and bytes > 0 and duration_ns > 0"
_STEP_SUMS = f"""
select rank, batch_index, {{keys}}, count(duration_ns) as calls, sum(duration_ns) as ns,
    min(duration_ns) as least_ns, max(duration_ns) as most_ns, sum(flops) as flops, sum(bytes) as bytes,
    sum(duration_ns) filter (flops > 0) as counted_ns, sum(duration_ns) filter ({_PLACED}) as placed_ns,
    sum(flops) filter ({_PLACED}) as placed_flops, sum(bytes) filter ({_PLACED}) as placed_bytes
from (
    select * replace (
        if(duration_ns >= 0, duration_ns, null) as duration_ns,
        if(duration_ns >= 0, nullif(flops, 'nan'::double), null) as flops,
        if(duration_ns >= 0, nullif(bytes, 'nan'::double), null) as bytes
    ) from {{launches}}
)
group by all
"""
_SUMS = """
select {named}, sum(calls)::bigint as calls, sum(ns)::double as ns, min(least_ns)::double as least_ns,
    max(most_ns)::double as most_ns, sum(flops) as flops, sum(bytes) as bytes,
    coalesce(sum(counted_ns), 0)::double as counted_ns, coalesce(sum(placed_ns), 0)::double as placed_ns,
    coalesce(sum(placed_flops), 0) as placed_flops, coalesce(sum(placed_bytes), 0) as placed_bytes
from {sums} where calls > 0 group by {columns} order by sum(ns) desc, {columns}
"""
# How many attributed steps have kernels, and how many there are of the ranks that have any: a profiler may
# watch some ranks alone, or its recording be cut.
_COUNTED = """
with attributed as {attributed}, recorded as (
    select distinct rank, batch_index from {sums} semi join attributed using (rank, batch_index)
)
select (select count(*) from recorded) as recorded,
    (select count(*) from attributed where rank in (select rank from recorded)) as attributed
"""


def kept_sums(study: Study, source: Source, launches: str = PLAIN, keys: Sequence[str] = KEYS) -> str:
    """The DuckDB table of a run's launches by rank, step and kernel; a study makes it once.

    ``launches``: a relation over ``$kernels``; ``keys``: columns of text that it must have.
    Columns: ``rank, batch_index``, the keys; ``calls, ns, least_ns, most_ns, flops, bytes`` of launches that
    have a duration (flops and bytes: null where no launch has any); ``counted_ns`` of those with FLOPs;
    ``placed_ns, placed_flops, placed_bytes`` of those that have a place on the roofline.
    """
    kept: dict[tuple, str] = study.kept("sums of launches")
    keys = _with_keys(keys)
    if (key := (source.path, keys, launches)) not in kept:
        name, columns = f"sums_{len(kept)}", ", ".join(f'"{one}"::varchar as "{one}"' for one in keys)
        sql = _STEP_SUMS.format(keys=columns, launches=launches)
        with reading(source):
            arguments = _tables_in(sql, source)
            tables.verify(map(Path, arguments.get("kernels", ())), "kernels", sql)
            study.connection.execute(f"create temp table {name} as {sql}", arguments)
        kept[key] = name
    return kept[key]


def _with_keys(names: Sequence[str]) -> tuple[str, ...]:
    needed = tuple(name for name in names if name not in ("rank", "batch_index"))
    return KEYS if set(needed) <= set(KEYS) else needed


def has_kernels(source: Source) -> bool:
    """Whether a profiler left kernels of it."""
    return source.kind == "pyprof" or bool(source.tables("kernels"))


def kernel_sums(study: Study, sources: Iterable[Source], by: Sequence[str] = DEFAULT_BY) -> pd.DataFrame:
    """Launches of the attributed steps that count, summed; of each source that has any.

    Findings name the sources that have none, and what is left out. A row a source and value of ``by``, in the
    order of the sources, what takes longest first. Columns: ``run``; ``by`` (of :data:`BY`; None: not
    recorded); the figures of :func:`kept_sums`; ``steps``: how many the sums are of, over all ranks (of a
    rank with several GPUs one counts for each).
    """
    sources = [source for source in sources if has_kernels(source)]
    keys = _with_keys([BY[name] for name in by])
    tables_of_pyprof(study, study.usable(sources))  # all of them at once
    kept: dict[tuple, pd.DataFrame | None] = study.kept("frames of kernels")

    def sums(source: Source) -> pd.DataFrame | None:
        key = source.path, *by
        if key not in kept:
            found = (_of_table if source.kind == "pyprof" else _of_run)(study, source, keys)
            kept[key] = _grouped(study, source, by, *found) if found else None
        return kept[key]

    frames = [frame for _, frame in study.each(sources, sums)]
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=["run", *by, *_FIGURES])


def _of_run(study: Study, source: Source, keys: tuple[str, ...]) -> tuple[str, int] | None:
    """The relation of a run's sums in attributed steps, and how many of these there are."""
    batches = source.tables("batches")
    if not batches:
        return None
    sums = kept_sums(study, source, relation(study, source), keys)
    attributed = attributed_that_count(study, source)
    counted = _COUNTED.format(sums=sums, attributed=attributed)
    recorded, every = map(int, query(study, source, counted, batches=batches).iloc[0])
    note_left_out(study, source, every - recorded if recorded else 0, every, untimed_launches(study, source))
    if not recorded:
        study.note("not_recorded", source, what="profiled steps")
        return None
    # One rank of DataParallel has the kernels of all its GPUs.
    return f"{sums} semi join {attributed} using (rank, batch_index)", recorded * source.gpus_per_rank


def _of_table(study: Study, source: Source, keys: tuple[str, ...]) -> tuple[str, int] | None:
    """The same of a table of PyProf's."""
    batches, _ = tables_of_pyprof(study, [source])[source.id]
    if not batches.backward:
        study.note("not_recorded", source, what="attributed backward passes")
        return None
    try:
        optional = ["Layer"] if "layer" in keys else []
        table = pyprof.read_table(source.path, None, batches, optional, study.connection)
    except UserError as error:
        raise Unusable(source, str(error)) from None
    study.connection.register("launches_of_pyprof", table.tables["kernels"])
    launches = f"(select * from launches_of_pyprof where batch_index >= {batches.first_attributed})"
    return kept_sums(study, source, launches, keys), batches.backward


def _grouped(study: Study, source: Source, by: Sequence[str], sums: str, steps: int) -> pd.DataFrame:
    columns = [f'"{BY[name]}"' for name in by]
    named = ", ".join(f'{column} as "{name}"' for column, name in zip(columns, by, strict=True))
    sql = _SUMS.format(named=named, sums=sums, columns=", ".join(columns))
    with reading(source):
        frame = study.connection.execute(sql, _tables_in(sql, source)).df()
    for name in set(by) - {"rank", "step"}:
        frame[name] = frame[name].astype(object).where(frame[name].notna(), None)
    return frame.assign(run=source.id, steps=steps)[["run", *by, *_FIGURES]]


# The first step's forward pass has trials of autotuning; what PyProf could not assign it calls fprop.
_BY_NAME = f"""
select file_index::bigint as file, "Kernel" as kernel, "Direction" as direction,
    coalesce("Idx" < $second[file_index::bigint + 1], false) as first,
    coalesce("Idx" >= $attributed[file_index::bigint + 1] and "Sil(ns)" >= 0, false) as attributed,
    coalesce("Op", '') in ('', 'na', '-') and not {pyprof.IS_LOADER} as unassigned,
    sum("Sil(ns)") as ns, sum("FLOPs") as flops, sum("Bytes") as bytes,
    sum("Sil(ns)") filter ("FLOPs" <> 0) as launched_ns
from {pyprof.TABLES} group by all
"""


def tables_of_pyprof(
    study: Study, sources: Iterable[Source]
) -> dict[str, tuple[pyprof.TableBatches, pd.DataFrame]]:
    """The steps of each table of PyProf's that can be read, and its launches by name; by the table's id.

    They are read some at a time, and each for itself where one of them is damaged.
    """

    def read(some: Sequence[Source]) -> dict[str, tuple[pyprof.TableBatches, pd.DataFrame]]:
        batches = pyprof.find_batches(study.connection, [one.path for one in some])
        arguments = {
            "paths": [str(one.path) for one in some],
            "second": [next(iter(batches[one.path].starts[1:]), None) for one in some],
            "attributed": [batches[one.path].attributed_from for one in some],
        }
        rows = study.connection.execute(_BY_NAME, arguments).df()
        rows = rows.fillna(dict.fromkeys(("ns", "flops", "bytes", "launched_ns"), 0.0))  # of nothing
        of = rows.pop("file")
        return {one.id: (batches[one.path], rows[of == n].assign(run=one.id)) for n, one in enumerate(some)}

    def alone(source: Source) -> dict[str, tuple[pyprof.TableBatches, pd.DataFrame]]:
        with reading(source):
            return read([source])

    kept = study.kept("tables of PyProf")
    known = {one.path: one for one in sources if one.kind == "pyprof"}
    for paths in pyprof.in_portions([path for path, one in known.items() if one.id not in kept]):
        some = [known[path] for path in paths]
        try:
            kept |= read(some)
        except (duckdb.Error, OSError):
            for _, value in study.each(some, alone):
                kept |= value
    return {one.id: kept[one.id] for one in known.values() if one.id in kept}


def launches_by_name(study: Study, sources: Iterable[Source]) -> pd.DataFrame:
    """The launches of PyProf tables by their names, as the reference counted them: all, also of warmup.

    Columns: ``run, kernel, direction`` (as PyProf has it); ``first``: of the first forward pass;
    ``attributed``: of steps whose backward pass is; ``unassigned`` to an operator; ``ns, flops, bytes``;
    ``launched_ns`` of launches with FLOPs.
    """
    flags = ["first", "attributed", "unassigned"]
    names = ["kernel", "direction", *flags, "ns", "flops", "bytes", "launched_ns", "run"]
    frames = [names_of_table for _, names_of_table in tables_of_pyprof(study, sources).values()]
    every = pd.concat(frames or [pd.DataFrame(columns=names)], ignore_index=True)
    return every.astype(dict.fromkeys(flags, bool))


def table_sums(study: Study, sources: Iterable[Source]) -> pd.DataFrame:
    """Sums of each PyProf table that can be read and has rows, and its batches.

    By run: ``ns, flops, bytes`` of all launches; ``launched_ns`` of those with FLOPs, ``named_ns`` of all
    launches of such kernels; ``fprop_ns`` of what PyProf calls fprop, of it ``lost_ns`` that it could not
    assign; ``fprop_flops, bprop_flops``, and ``first_flops`` of the first forward pass; ``forward``,
    ``backward`` passes and ``starts`` of batches; ``fprop_per_batch, bprop_per_batch``: FLOPs (NaN: no pass).
    """
    names = launches_by_name(study, sources)
    forward = names["direction"].eq("fprop")
    with_flops = names.groupby(["run", "kernel"])["flops"].transform("sum") != 0
    names = names.assign(
        named_ns=names["ns"].where(with_flops, 0.0),
        fprop_ns=names["ns"].where(forward, 0.0),
        lost_ns=names["ns"].where(forward & names["unassigned"], 0.0),
        fprop_flops=names["flops"].where(forward, 0.0),
        bprop_flops=names["flops"].where(names["direction"].eq("bprop"), 0.0),
        first_flops=names["flops"].where(forward & names["first"], 0.0),
    ).drop(columns=["kernel", "direction", "first", "attributed", "unassigned"])
    found = tables_of_pyprof(study, sources)
    counts = {run: (of.forward, of.backward, len(of.starts)) for run, (of, _) in found.items()}
    passes = pd.DataFrame.from_dict(counts, "index", columns=["forward", "backward", "starts"])
    sums = names.groupby("run", sort=False).sum().join(passes)
    return sums.assign(
        fprop_per_batch=sums["fprop_flops"] / sums["forward"].mask(sums["forward"] == 0),
        bprop_per_batch=sums["bprop_flops"] / sums["backward"].mask(sums["backward"] == 0),
    )


def _classes_of_pyprof(study: Study, sources: Iterable[Source]) -> pd.DataFrame:
    """:func:`kernel_sums` by class of PyProf tables, without their launches as rows (a third of the time)."""
    found = tables_of_pyprof(study, sources)
    for one in sources:
        if one.id in found and not found[one.id][0].backward:
            study.note("not_recorded", one, what="attributed backward passes")
    names = launches_by_name(study, sources)
    names = names[names["attributed"]]
    loader = names["kernel"].str.startswith(("dali::", "nvjpeg::"))
    return names.assign(**{
        "class": names["kernel"].map({name: classify(name) for name in names["kernel"].unique()}),
        "direction": names["direction"].mask(loader.astype(bool), "loader"),
        "steps": names["run"].map({run: of.backward for run, (of, _) in found.items()}),
    }).rename(columns={"launched_ns": "counted_ns"})  # fmt: skip


COSTS = ("kernel_ns", "counted_ns", "flops", "bytes", "loader_ns", "communication_ns", "copy_ns")


def costs(study: Study, sources: Sequence[Source]) -> pd.DataFrame:
    """Costs of an attributed step, of each source that has kernels of the model in these: means of a rank.

    Of DataParallel's one rank they are those of a GPU. Runs of PyTorch's profiler without FLOPs are noted.
    By run: ``batches``: how many steps, over all ranks; ``kernel_ns``: the model's kernels, launch by launch;
    ``counted_ns``: of launches with FLOPs; ``flops, bytes`` (0: not known); and the other classes.
    """
    others = kernel_sums(study, [one for one in sources if one.kind != "pyprof"], ("class", "direction"))
    sums = pd.concat([one for one in (others, _classes_of_pyprof(study, sources)) if len(one)] or [others])
    kind = sums["class"]
    model = ~kind.isin(APART) & (sums["direction"] != "loader")
    communication, copies = kind.eq("communication"), kind.isin(("memcpy", "memset"))
    parts = {
        "batches": sums["steps"], "kernel_ns": sums["ns"].where(model),
        **{name: sums[name].where(model) for name in ("counted_ns", "flops", "bytes")},
        "loader_ns": sums["ns"].where(~(model | communication | copies)),
        "communication_ns": sums["ns"].where(communication), "copy_ns": sums["ns"].where(copies),
    }  # fmt: skip
    of_runs = pd.DataFrame(parts).astype(float).groupby(sums["run"], sort=False)
    figures = of_runs.sum().assign(batches=of_runs["batches"].max().astype(int))
    figures[list(COSTS)] = figures[list(COSTS)].div(figures["batches"], axis=0)
    without = set(figures.index[figures["flops"] == 0])
    for source in sources:
        if source.id in without and source.fields["profile"] == "torch":
            study.note("not_recorded", source, what="FLOPs of kernels")
    return figures[figures["kernel_ns"] > 0]
