"""Kernels as the reference counted them: durations and efficiency by name, plain means of ratios."""

from collections.abc import Callable, Sequence

from analysis.display.metrics import Metric, Rows, names_of
from analysis.display.numbers import sortable
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
    of_a = {name: ns / 1e9 for name, ns, _ in _by_name(first, direction, only)}
    if second is None:
        return [{"kernel": name, "a_s": round(value, 6)} for name, value in of_a.items()], DURATION_METRICS[
            :2
        ]
    of_b = {name: ns / 1e9 for name, ns, _ in _by_name(second, direction, only)}
    both = [name for name in of_a if name in of_b]
    kernels = [{"kernel": name, "a_s": round(of_a[name], 6), "b_s": round(of_b[name], 6)} for name in both]
    return kernels, DURATION_METRICS


def efficiencies(study: Study, direction: str | None, only: OneOf) -> tuple[Rows, Sequence[Metric]]:
    """FLOPS efficiency by kernel name, highest first, to the seven digits that were published."""
    peak, _ = published_bound(study)
    rated = [
        (flops / ns * 1e9, name, ns, flops) for name, ns, flops in _by_name(study, direction, only) if ns
    ]
    kernels = [
        {
            "kernel": name,
            "duration_ns": int(ns),
            "flops": _seven_digits(flops),
            "flops_per_s": _seven_digits(rate),
            "flops_efficiency_pct": round(100 * rate / peak, 6),
        }
        for rate, name, ns, flops in sorted(rated, key=lambda each: (-each[0], each[1]))
    ]
    return kernels, EFFICIENCY_METRICS


def _seven_digits(value: float) -> float:
    return float(f"{value:.7g}")


def _by_name(study: Study, direction: str | None, only: OneOf) -> list[tuple[str, float, float]]:
    source = only(study)
    if source.kind != "pyprof":
        raise UserError(f"{study.path} is not a PyProf kernel table, which the published method needs")
    if direction is not None and direction not in DIRECTIONS:
        raise UserError(f"PyProf has no direction {direction}; the published method has fprop and bprop")
    kernels = per_name(study, source, direction)
    if not kernels:
        raise UserError(f"{study.path} holds no kernel with direction {direction or 'known'}")
    return kernels


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
