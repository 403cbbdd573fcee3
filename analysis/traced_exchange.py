"""What did the allreduces of a traced run take, and which ranks came late to them?"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from analysis.allreduce import Exchanges
from analysis.batches import Series
from analysis.clocks import Calls, match
from analysis.collectives import kind_of
from analysis.costs import query_arrays
from analysis.exchange_forms import Layout
from analysis.late_verdicts import STRAGGLER, judge
from analysis.lateness import Lateness, of_collectives
from analysis.stragglers import nodes_of
from analysis.study import Source, Study

# What NCCL's kernels say of themselves: ncclDevKernel_AllReduce_Sum_f32_RING_LL.
_ALGORITHM = re.compile(r"nccl.*_(ring|tree)_", re.IGNORECASE)

_CALLS = """
select rank, batch_index, start_ns, start_ns + duration_ns as end_ns, short_name::varchar as name,
    coalesce(bytes, 'nan'::double) as bytes
from read_parquet($kernels) semi join (
    select rank, batch_index from read_parquet($batches) where attributed
) using (rank, batch_index)
where "class"::varchar = 'communication' and start_ns is not null and duration_ns >= 0
order by rank, start_ns
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


def together(found: Sequence[Exchanges]) -> Exchanges:
    """The allreduces of several traces."""
    names = [one.name for one in fields(Exchanges) if one.name != "algorithms"]
    arrays: dict[str, Any] = {name: np.concatenate([getattr(one, name) for one in found]) for name in names}
    return Exchanges(**arrays, algorithms=frozenset().union(*(one.algorithms for one in found)))


def allreduces(study: Study, source: Source, series: Series) -> Allreduces | None:
    """A run's allreduces; None where its ranks' do not match, or their tables are not all there."""
    kernels, batches = source.tables("kernels"), source.tables("batches")
    found = query_arrays(study, source, _CALLS, kernels=kernels, batches=batches)
    if found is None or not len(found["rank"]):
        return None
    kind = np.array([kind_of(str(name)) for name in found["name"]], dtype=object)
    size = found["bytes"]
    ranks = []
    for rank in range(source.world_size or 1):
        mine = found["rank"] == rank
        index, start, end = (found[name][mine] for name in ("batch_index", "start_ns", "end_ns"))
        nothing = np.zeros(len(index))
        ranks.append(Calls(rank, 0, index, start, end, kind[mine], size[mine], nothing))
    matched = match(ranks)
    if matched is None:
        study.find(f"{source.id}: its ranks recorded different collectives: what they cost is not known")
        return None
    taken = ranks[0].kind == "allreduce"
    return Allreduces(
        ranks[0].batch_index[taken],
        ranks[0].bytes[taken],
        matched.start_ns[0, taken],
        matched.start_ns.max(axis=0)[taken],
        np.median(matched.end_ns, axis=0)[taken],
        algorithms_of(str(name) for name in found["name"][kind == "allreduce"]),
        late_ranks(of_collectives(ranks, matched, series), nodes_of(source)),
    )


def algorithms_of(names: Iterable[str]) -> frozenset[str]:
    """What NCCL calls the algorithm of its kernels: ring, tree; none where a kernel does not say."""
    found = [_ALGORITHM.search(name) for name in set(names)]
    return frozenset(one[1].lower() for one in found if one) if all(found) else frozenset()


def late_ranks(lateness: Lateness | None, nodes: Sequence[str]) -> dict[int, Late]:
    """The ranks that are late again and again, beyond chance (analysis/late_verdicts.py)."""
    if lateness is None:
        return {}
    load = lateness.parts_ns["load"]
    return {
        rank: Late(lateness.late_ns[rank].astype(float), np.clip(load[rank], 0, lateness.late_ns[rank]))
        for rank, (verdict, _) in enumerate(judge(lateness, nodes))
        if verdict == STRAGGLER
    }
