"""What did the allreduces of a traced run take, and which ranks came late to them?"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from analysis.measures.anatomy.traces import RunTrace
from analysis.measures.batches.series import Series
from analysis.measures.lateness.lateness import STRAGGLER, Lateness, judge, of_collectives
from analysis.prediction.allreduce import Exchanges
from analysis.prediction.exchange_forms import Layout

# What NCCL's kernels say of themselves: ncclDevKernel_AllReduce_Sum_f32_RING_LL.
_ALGORITHM = re.compile(r"nccl.*_(ring|tree)_", re.IGNORECASE)

ALLREDUCE_NAMES = """
select distinct short_name::varchar as name from read_parquet($kernels)
where "class"::varchar = 'communication' and short_name::varchar ilike '%allreduce%'
"""


@dataclass(frozen=True)
class Late:
    """A rank that is late again and again; arrays of one element an attributed batch, ns."""

    late_ns: np.ndarray  # how long the others waited for it
    load_ns: np.ndarray  # what its loading took longer than the others'


@dataclass(frozen=True)
class Allreduces:
    """Of attributed batches, in order; arrays of one element a call, on rank 0's clock."""

    batch_index: np.ndarray
    bytes: np.ndarray  # NaN: not known
    start_ns: np.ndarray  # rank 0's
    arrived_ns: np.ndarray  # when the last rank had come
    end_ns: np.ndarray  # median over ranks
    algorithms: frozenset[str] = frozenset()  # ring, tree, where kernels are called after them
    late: Mapping[int, Late] = field(default_factory=dict)  # by rank


def exchanges(calls: Allreduces | None, layout: Layout) -> Exchanges:
    """The stretches of time in which allreduces ran; none where nothing, or no size, is known of them.

    A stretch that took no time (as floats hold it) says nothing of what a byte costs, and is left out.
    """
    if calls is None or not len(calls.end_ns) or not np.isfinite(calls.bytes).all():
        nothing = np.array([])
        return Exchanges(nothing, nothing, nothing, nothing, nothing)
    order = np.lexsort((calls.arrived_ns, calls.batch_index))
    begin, end = calls.arrived_ns[order], np.maximum(calls.end_ns, calls.arrived_ns + 1)[order]
    # Batches follow each other, so that no call of one runs into the next.
    reach = np.maximum.accumulate(end)
    first = np.concatenate([[True], begin[1:] >= reach[:-1]])
    heads = np.flatnonzero(first)
    tails = np.concatenate([heads[1:] - 1, [len(begin) - 1]])
    lasted = (reach[tails] - begin[heads]).astype(float)
    calls_of_each = np.diff(np.concatenate([heads, [len(begin)]]))
    bytes_of_each = np.add.reduceat(calls.bytes[order], heads)
    took = lasted > 0
    ranks, nodes = (np.full(int(took.sum()), count) for count in (layout.ranks, layout.nodes))
    return Exchanges(ranks, calls_of_each[took], bytes_of_each[took], lasted[took], nodes, calls.algorithms)


def together(parts: Sequence[Exchanges]) -> Exchanges:
    """The allreduces of several traces."""
    names = [one.name for one in fields(Exchanges) if one.name != "algorithms"]
    arrays: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in parts]) for name in names}
    return Exchanges(**arrays, algorithms=frozenset().union(*(one.algorithms for one in parts)))


def allreduces(
    trace: RunTrace, names: Iterable[str], series: Series
) -> tuple[Allreduces | None, Sequence[str]]:
    """A run's allreduces of all ranks; and in words what is not known of them, or is left out.

    None where they do not match, or tables are missing. Those of a process group of fewer ranks exchange no
    gradients of DDP's: they are left out.

    Args:
        names: of the kernels that made them.
        series: the run's batches.
    """
    source, ranks, matched = trace.source, trace.calls, trace.matched
    if len(ranks) != source.world_size or not trace.has_collectives:
        return None, ()
    if matched is None:
        return None, ["its ranks recorded different collectives: their cost is not available"]
    shared = [one for one in matched.shared if one.kind == "allreduce"]
    fewer = {one.members for one in shared if len(one.members) < len(ranks)}
    whole = [one.calls for one in shared if len(one.members) == len(ranks)]
    calls = np.concatenate([np.empty((len(ranks), 0), np.int64), *whole], axis=1)
    calls = calls[:, np.argsort(calls[0], kind="stable")]
    start, end = (
        np.stack([values[mine] for values, mine in zip(of_ranks, calls, strict=True)])
        for of_ranks in (matched.start_ns, matched.end_ns)
    )
    arrived = start.max(axis=0)
    # Since the arrival, so that a float holds it to the nanosecond.
    lasted = np.rint(np.median(end - arrived, axis=0)).astype(np.int64)
    batch, size = (getattr(ranks[0], name)[calls[0]] for name in ("batch_index", "bytes"))
    of_all = Allreduces(
        batch, size, start[0], arrived, arrived + lasted,
        algorithms_of(names),
        late_ranks(of_collectives(ranks, matched, series), source.hosts),
    )  # fmt: skip
    return of_all, [
        f"allreduces of process groups of {min(map(len, fewer))} of its {len(ranks)} ranks "
        "are left out of the simulation"
    ] if fewer else []


def algorithms_of(names: Iterable[str]) -> frozenset[str]:
    """What NCCL calls the algorithm of its kernels: ring, tree; none where a kernel does not say."""
    matches = [_ALGORITHM.search(name) for name in set(names)]
    return frozenset(one[1].lower() for one in matches if one) if all(matches) else frozenset()


def late_ranks(lateness: Lateness | None, nodes: Sequence[str]) -> dict[int, Late]:
    """The ranks that are late again and again, beyond chance (analysis/measures/lateness/verdicts.py)."""
    if lateness is None:
        return {}
    load = lateness.parts_ns["load"]
    return {
        rank: Late(lateness.late_ns[rank].astype(float), np.clip(load[rank], 0, lateness.late_ns[rank]))
        for rank, (verdict, _) in enumerate(judge(lateness, nodes))
        if verdict == STRAGGLER
    }
