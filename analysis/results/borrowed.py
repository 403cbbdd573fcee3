"""What did launches cost that a tool recorded which knows no shapes (nvprof, Nsight Systems, CUPTI)?

The run under PyTorch's profiler of the same point launched the same kernels, and knows what each cost.
Launches are matched batch by batch: the k-th launch of a kernel in a direction is the k-th launch of that
kernel in that direction, if both runs launch it equally often in a batch. Where they do not (another
algorithm was chosen), what is left of a class of kernels in a direction is matched in its order, if it is
equally many. What remains has no FLOPs and bytes; how much that is, is a finding.
"""

from collections.abc import Sequence

import duckdb

from analysis.results.source import Source, reading
from analysis.results.study import Study
from profiling.schemas import ATTRIBUTED, IS_MODEL

PLAIN = "read_parquet($kernels)"
# In these the two runs may differ: what a batch launches does not depend on them.

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
        kept[source.id] = PLAIN
        try:
            kept[source.id] = _relation(study, source)
        except (duckdb.Error, OSError):
            # Whoever reads the damaged table says so, and takes its run out.
            study.note("FLOPs and bytes are not joined to its launches: a table is damaged", source)
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
            study.note(
                "its profiler records no shapes, so FLOPs and bytes are unknown; they can be taken from a "
                "run of the same configuration under PyTorch's profiler (profile: torch)",
                source,
            )
        return PLAIN
    number = len(study.kept("relations of launches"))
    names = {"lent": f"lent_{number}", "credit": f"credit_{number}"}
    # Ranks launch the same: one of them tells for all.
    of_lender = _paths(lender=lender, lender_batches=lender)
    study.connection.execute(_LENT.format(**names), {**of_lender, "lender": of_lender["lender"][:1]})
    columns = "rank integer, row bigint, flops double, bytes double, by_name boolean"
    study.connection.execute(f"create temp table {names['credit']} ({columns})")
    for one in paths["kernels"]:  # a rank at a time: a run of many need not be in memory
        study.connection.execute(_CREDIT.format(**names), {**paths, "kernels": [one]})
    whole, by_name, by_class = study.connection.execute(_COVERED.format(**names), paths).fetchall()[0]
    _tell(study, source, lender, 100 * by_name / (whole or 1), 100 * by_class / (whole or 1))
    return (
        "(select of_run.* replace (coalesce(of_run.flops, credit.flops) as flops, "
        "coalesce(of_run.bytes, credit.bytes) as bytes) "
        "from read_parquet($kernels, file_row_number = true) as of_run "
        f"left join {names['credit']} as credit "
        "on credit.rank = of_run.rank and credit.row = of_run.file_row_number)"
    )


def _tell(study: Study, source: Source, lender: Source, by_name: float, by_class: float) -> None:
    study.note(
        f"its profiler records no shapes; FLOPs and bytes are taken from the same launches in {lender.id} "
        f"and cover {by_name + by_class:.1f} % of its kernel time ({by_name:.1f} % matched by kernel and "
        f"order, {by_class:.1f} % by class and order)",
        source,
    )


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
        alike,
        key=lambda other: (other.repetition != source.repetition, other.repetition),
        default=None,
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

    Raises:
        Unusable: a table of kernels is damaged.
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
