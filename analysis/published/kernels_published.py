"""Kernels as the reference counted them: durations and efficiency by name, plain means of ratios."""

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd

from analysis.display.metrics import Metric, Rows, names_of, records
from analysis.display.numbers import in_order
from analysis.frames.load import no_result
from analysis.frames.pyprof import per_name, per_table
from analysis.frames.study import Source, Study, Unusable
from analysis.measures.efficiency import METRICS, group_of
from analysis.measures.peaks import published_bound
from profiling.errors import UserError
from profiling.readers import pyprof

# What PyProf calls the direction of a kernel; it has no others.
DIRECTIONS = ("fprop", "bprop")

_KERNEL = Metric("kernel", "kernel name, as in PyProf", text=True, key=True)
DURATION_METRICS = (
    _KERNEL,
    Metric("a_s", "sum of Sil(ns) over all launches with that direction in PyProf", "A\ns"),
    Metric("b_s", "the same in B, joined by name", "B\ns"),
)
EFFICIENCY_METRICS = (
    _KERNEL,
    Metric("duration_ns", "sum of Sil(ns)"),
    Metric("flops", "sum of FLOPs"),
    Metric("flops_per_s", "flops divided by duration"),
    Metric("flops_efficiency_pct", "flops_per_s divided by the datasheet's peak"),
)

OneOf = Callable[[Study], Source]


def with_method(title: str, study: Study, method: str) -> str:
    """A title that names the method where the reference published a result of its own: of its tables."""
    return f"{title}, {method} method" if method == "published" or study.of_kind("pyprof") else title


def durations(
    first: Study, second: Study | None, direction: str | None, only: OneOf
) -> tuple[Rows, Sequence[Metric]]:
    """Sum of ``Sil(ns)`` by kernel name of one direction, s, largest first; two runs joined on the name.

    Args:
        only: the one table of a study.
    """
    sides = [
        _by_name(study, direction, only).assign(**{side: lambda kernels: (kernels["ns"] / 1e9).round(6)})
        for study, side in ((first, "a_s"), (second, "b_s"))
        if study is not None
    ]
    kernels = sides[0][["kernel", "a_s"]]
    if second is None:
        return records(kernels), DURATION_METRICS[:2]
    return records(kernels.merge(sides[1][["kernel", "b_s"]], on="kernel")), DURATION_METRICS


def efficiencies(study: Study, direction: str | None, only: OneOf) -> tuple[Rows, Sequence[Metric]]:
    """FLOPS efficiency by kernel name, highest first, to the seven digits that were published."""
    peak, _ = published_bound(study)
    kernels = _by_name(study, direction, only).query("ns > 0")
    rate = kernels["flops"] / kernels["ns"] * 1e9
    kernels = kernels.assign(
        duration_ns=kernels["ns"].astype(int),
        flops=kernels["flops"].map(_seven_digits),
        rate=rate,
        flops_per_s=rate.map(_seven_digits),
        flops_efficiency_pct=(100 * rate / peak).round(6),
    )
    ordered = kernels.sort_values(["rate", "kernel"], ascending=[False, True])
    return records(ordered[names_of(EFFICIENCY_METRICS)]), EFFICIENCY_METRICS


def _seven_digits(value: float) -> float:
    return float(f"{value:.7g}")


def _by_name(study: Study, direction: str | None, only: OneOf) -> pd.DataFrame:
    source = only(study)
    if source.kind != "pyprof":
        raise UserError(f"{study.path} is not a PyProf kernel table, which the published method needs")
    if direction is not None and direction not in DIRECTIONS:
        raise UserError(f"PyProf has no direction {direction}; the published method has fprop and bprop")
    kernels = per_name(study, source, direction)
    if not kernels:
        raise UserError(f"{study.path} holds no kernel with direction {direction or 'known'}")
    return pd.DataFrame(kernels, columns=["kernel", "ns", "flops"])


# Names are long: their 64-bit hashes, and the files' numbers, are grouped in less time and memory, and a few
# hundred hashes do not collide.
_PUBLISHED = f"""
with names as (
    select file_index, hash("Kernel") as name, sum("Sil(ns)") as ns, sum("FLOPs") as flops,
        sum("Bytes") as bytes
    from {pyprof.TABLES} group by all
)
select $paths[file_index::bigint + 1], coalesce(sum(ns) filter (flops <> 0), 0) / sum(ns),
    coalesce(sum(flops), 0) / sum(ns), coalesce(sum(bytes), 0) / sum(ns)
from names group by file_index having sum(ns) > 0
"""


def rows(study: Study, group_by: Sequence[str]) -> Rows:
    """A row a group, ordered by its fields: these, then ``METRICS`` of measures/efficiency.py.

    Raises:
        UserError: there is no PyProf table, or none can be used.
    """
    sources = study.of_kind("pyprof")
    if not sources:
        raise UserError(f"{study.path} holds no PyProf kernel table, which the published method needs")
    peak_flops, peak_bytes = published_bound(study)
    sums = per_table(study, sources, _PUBLISHED)

    def of_table(source: Source) -> tuple:
        if source.path not in sums:
            raise Unusable(source, "none of its kernels took time")
        return sums[source.path]

    known = list(study.each(sources, of_table))
    if not known:
        raise UserError(no_result(study))
    busy, flops_per_ns, bytes_per_ns = np.array([of for _, of in known]).T
    peaks_pct = 100e9 * bytes_per_ns / peak_bytes, 100e9 * flops_per_ns / peak_flops
    figures = dict(
        zip(names_of(METRICS), (100 * busy, flops_per_ns / 1e3, bytes_per_ns, *peaks_pct), strict=True)
    )
    fields = pd.DataFrame(
        [group_of(source, group_by) for source, _ in known], columns=list(group_by), dtype=object
    )
    # Plain means over the tables of a group, six decimals, as published.
    groups = fields.assign(**figures).groupby(list(group_by), dropna=False, sort=False)
    return records(in_order(groups.mean().round(6).reset_index(), group_by))
