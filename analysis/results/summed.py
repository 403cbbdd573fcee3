"""What did a run launch, as sums by rank, step and kernel?

A run may have 80 million launches, and several questions are asked of them: what they cost, which kernels
take the time, how ranks compare in the same kernels. The launches are read once; the questions are asked of
these sums, a row for each kernel of a rank's step.
"""

from collections.abc import Sequence

from analysis.results.borrowed import PLAIN
from analysis.results.source import Source, reading
from analysis.results.study import Study
from profiling.schemas import IS_MODEL

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
