"""How well do the kernels use the device, as the reference counted it?

It took all launches of a PyProf table, grouped them by kernel name, and took plain means of ratios.
"""

from collections.abc import Sequence

from analysis.display.metrics import Rows, names_of
from analysis.display.numbers import sortable
from analysis.measures.kernels.costs import published_bound
from analysis.measures.kernels.efficiency import METRICS, group_of
from analysis.results.load import no_result
from analysis.results.pyprof_tables import per_table
from analysis.results.source import Source, Unusable
from analysis.results.study import Study
from profiling.errors import UserError
from profiling.readers import pyprof_batches

# Names are long: their 64-bit hashes, and the files' numbers, are grouped in less time and memory, and a few
# hundred hashes do not collide.
_PUBLISHED = f"""
with names as (
    select file_index, hash("Kernel") as name, sum("Sil(ns)") as ns, sum("FLOPs") as flops,
        sum("Bytes") as bytes
    from {pyprof_batches.TABLES} group by all
)
select $paths[file_index::bigint + 1], coalesce(sum(ns) filter (flops <> 0), 0) / sum(ns),
    coalesce(sum(flops), 0) / sum(ns), coalesce(sum(bytes), 0) / sum(ns)
from names group by file_index having sum(ns) > 0
"""


def rows(study: Study, group_by: Sequence[str]) -> Rows:
    """A row a group, ordered by its fields: these, then ``METRICS`` of measures/kernels/efficiency.py.

    Raises:
        UserError: there is no PyProf table, or none can be used.
    """
    sources = study.of_kind("pyprof")
    if not sources:
        raise UserError(f"{study.path} holds no PyProf kernel table, which the published method needs")
    peak_flops, peak_bytes = published_bound(study)
    sums = per_table(study, sources, _PUBLISHED)
    ratios: dict[tuple, list[list[float]]] = {}

    def of_table(source: Source) -> tuple:
        if source.path not in sums:
            raise Unusable(source, "none of its kernels took time")
        return sums[source.path]

    for source, (busy, flops_per_ns, bytes_per_ns) in study.each(sources, of_table):
        values = [
            100 * busy,
            flops_per_ns / 1e3,
            bytes_per_ns,
            100 * bytes_per_ns * 1e9 / peak_bytes,
            100 * flops_per_ns * 1e9 / peak_flops,
        ]
        ratios.setdefault(group_of(source, group_by), []).append(values)
    if not ratios:
        raise UserError(no_result(study))
    # Six decimals, as published; plain means over the configurations of a group.
    return [
        {
            **dict(zip(group_by, key, strict=True)),
            **{
                name: round(sum(column) / len(column), 6)
                for name, column in zip(names_of(METRICS), zip(*ratios[key], strict=True), strict=True)
            },
        }
        for key in sorted(ratios, key=sortable)
    ]
