"""Match a late rank with its likely cause: its node, its loader, its GPU, or what feeds the GPU.

What its stages and kernels took longer than those of the others, against how late it was. Kernels are
compared with the same kernels (by direction and name, launched as often) of the other ranks; a run without a
profiler borrows that comparison from a profiled run of its point.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from analysis.display.numbers import digits, span
from analysis.measures.lateness.lateness import Lateness, over_others
from analysis.measures.scaling.point import point_fields
from analysis.results.attributed import kept_sums
from analysis.results.counted_steps import attributed_that_count
from analysis.results.query import query_arrays
from analysis.results.source import Source
from analysis.results.study import Study
from profiling.schemas import IS_MODEL

# Kernels that take as long as on the other ranks, to within this share, speak against the device.
AS_LONG = 0.05
# A part is the cause if it makes up this share of the lateness or more.
MOST = 0.5

_KERNELS = f"""
select rank, batch_index, direction || ' ' || short_name as name, sum(calls)::bigint as calls,
    sum(ns)::double as ns
from {{sums}} semi join {{attributed}} using (rank, batch_index)
where {IS_MODEL} and calls > 0
group by all
"""


@dataclass(frozen=True)
class KernelTimes:
    """Of the kernels that all ranks launched equally often, by rank and batch: (ranks, batches).

    Attributes:
        batch_index: of the batches.
        own_ns: how long they take; over_ns: how much longer than on the others.
        borrowed: from another run of the point, whose late batches are others.
    """

    batch_index: np.ndarray
    own_ns: np.ndarray
    over_ns: np.ndarray
    borrowed: bool

    def of(self, place: int, batches: np.ndarray) -> tuple[float, float]:
        """What a rank's take longer than the others', ns a batch, and how many times as long they take.

        Args:
            batches: indices of those that count; of another run all do.
        """
        which = np.full(len(self.batch_index), True) if self.borrowed else np.isin(self.batch_index, batches)
        if not which.any():
            return 0.0, 1.0
        own, over = self.own_ns[place, which].mean(), self.over_ns[place, which].mean()
        return float(over), float(own / (own - over))


def kernel_times(study: Study, source: Source) -> KernelTimes | None:
    """How a run's ranks compare in the same kernels; None if no run of its point recorded them."""
    if source.fields["profile"] != "none" and (own := _times_of(study, source)) is not None:
        return own
    others = [
        other
        for other in study.of_kind("run")
        if other is not source
        and other.fields["profile"] != "none"
        and source.kind == "run"
        and point_fields(other.fields) == point_fields(source.fields)
    ]
    each = study.each(others, lambda other: _times_of(study, other, borrowed=True))
    return next((times for _, times in each), None)


def _times_of(study: Study, source: Source, borrowed: bool = False) -> KernelTimes | None:
    kernels, batches, ranks = source.tables("kernels"), source.tables("batches"), source.world_size or 1
    if len(kernels) != ranks or len(batches) != ranks:
        return None
    of = {"sums": kept_sums(study, source), "attributed": attributed_that_count(study, source)}
    return compare(query_arrays(study, source, _KERNELS.format(**of), batches=batches), ranks, borrowed)


def compare(rows: Mapping[str, np.ndarray], ranks: int, borrowed: bool = False) -> KernelTimes | None:
    """Ranks compared in the kernels that all launched equally often; None if there are none.

    Args:
        rows: ``rank, batch_index, name, calls, ns``, a row a kernel in a batch of a rank.
    """
    if not len(rows["rank"]):
        return None
    names, name = np.unique(rows["name"].astype(str), return_inverse=True)
    batches, batch = np.unique(rows["batch_index"], return_inverse=True)
    calls = np.zeros((ranks, len(names)), dtype=np.int64)
    np.add.at(calls, (rows["rank"], name), rows["calls"])
    same = (calls == calls[0]).all(axis=0)[name]
    own = np.zeros((ranks, len(batches)))
    np.add.at(own, (rows["rank"][same], batch[same]), rows["ns"][same])
    whole = own.all(axis=0)  # of a batch that a rank did not record nothing can be said
    if not whole.any():
        return None
    return KernelTimes(batches[whole], own[:, whole], over_others(own[:, whole]), borrowed)


def cause_of(
    place: int,
    lateness: Lateness,
    kernels: KernelTimes | None,
    device: str,
    node: Sequence[int],
    node_name: str,
) -> tuple[str, str]:
    """The likely cause of a rank's lateness, and the figures that support it.

    Args:
        place: the rank's, in the arrays of ``lateness``.
        device: the rank's; ``cpu`` has a processor for a GPU.
        node: the places of all late ranks of its node, if those are all the ranks of the node and there are
            several, on several nodes; else empty.
    """
    cause, evidence = _of_rank(place, lateness, kernels, "processor" if device == "cpu" else "GPU")
    if not node:
        return cause, evidence
    each = sorted(_mean_late(lateness, one) for one in node)
    return "node", f"all {len(node)} ranks of {node_name}: {span(_ms(each[0]), _ms(each[-1]))} ms; {evidence}"


def _of_rank(place: int, lateness: Lateness, kernels: KernelTimes | None, device: str) -> tuple[str, str]:
    late = _mean_late(lateness, place)
    when = lateness.late[place]
    parts = {name: float(over[place, when].mean()) for name, over in lateness.parts_ns.items()}
    if parts["load"] >= MOST * late:
        return "loader", f"load +{_ms(parts['load'])} ms"
    longest = max(parts, key=lambda name: parts[name])
    stage = f"{longest} +{_ms(parts[longest])} ms"
    if kernels is None:
        return f"{device} or host", stage
    # A rank that is late at times is slow at these times; which those are in another run is not known.
    over_ns, ratio = kernels.of(place, lateness.batch_index[when])
    behind = float(lateness.late_ns[place].mean()) if kernels.borrowed else late
    same = f"{'profiled run: ' if kernels.borrowed else ''}kernels {ratio:.2f} x"
    if over_ns >= MOST * behind:
        return device, f"{same}, +{_ms(over_ns)} ms"
    # Only what supports it: kernels that are faster than elsewhere, or somewhat slower, do not.
    supports = [stage] if parts[longest] >= MOST * late else []
    return "host", "; ".join([*supports, *([same] if abs(ratio - 1) <= AS_LONG else [])])


def _mean_late(lateness: Lateness, place: int) -> float:
    return float(lateness.late_ns[place, lateness.late[place]].mean())


def _ms(nanoseconds: float) -> str:
    return digits(nanoseconds / 1e6, 3)
