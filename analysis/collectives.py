"""Which collectives did the ranks of a run make, and how much of them did no computing hide?

Kinds are told by names; calls overlap each other's time where a rank has several under way.
"""

from functools import cache

import numpy as np

from analysis.clocks import Calls, Matched, match
from analysis.costs import find_untimed
from analysis.divide import activities_of
from analysis.overlap import Intervals, covered, union
from analysis.study import Source, Study
from profiling import tables
from profiling.errors import UserError

READ = ["batch_index", "start_ns", "duration_ns", "class", "direction", "short_name", "bytes"]

# What a name of a collective holds, in any library -> its kind.
KINDS = {
    "allreduce": "allreduce",
    "reducescatter": "reducescatter",
    "allgather": "allgather",
    "alltoall": "alltoall",
    "broadcast": "broadcast",
    "bcast": "broadcast",
    "sendrecv": "sendrecv",
    "gather": "gather",
    "scatter": "scatter",
    "barrier": "barrier",
    "reduce": "reduce",
}


@cache
def kind_of(name: str) -> str:
    """The kind of collective that a kernel's (or operator's) name says; ``other`` if it says none.

    RCCL's ``ncclDevKernel_Generic`` is any of them.
    """
    plain = name.lower().replace("_", "")
    return next((kind for word, kind in KINDS.items() if word in plain), "other")


def calls_of(rank: int, kernels: dict[str, np.ndarray], attributed: np.ndarray) -> Calls:
    """A rank's collectives in its attributed batches.

    Args:
        kernels: the columns of :data:`READ`, rows with a place in time and a duration only.
        attributed: indexes of the attributed batches.
    """
    talks = (kernels["class"] == "communication") & np.isin(kernels["batch_index"], attributed)
    order = np.flatnonzero(talks)[np.argsort(kernels["start_ns"][talks], kind="stable")]
    mine = {name: column[order] for name, column in kernels.items()}
    end = mine["start_ns"] + mine["duration_ns"]
    compute = union(*activities_of(kernels).compute)
    return Calls(
        rank,
        len(attributed),
        mine["batch_index"],
        mine["start_ns"],
        end,
        np.array([kind_of(str(name)) for name in mine["short_name"]], dtype=object),
        mine["bytes"].astype(float),
        alone(mine["start_ns"], end) - covered(_own((mine["start_ns"], end)), compute),
    )


def _own(calls: Intervals) -> Intervals:
    """The calls cut so that none overlaps the one before it: time is counted once."""
    start, end = calls
    reach = np.maximum.accumulate(end) if len(end) else end
    before = np.concatenate([start[:1], reach[:-1]])
    begin = np.minimum(np.maximum(start, before), end)
    return begin, end


def alone(start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """How long each call lasts beyond those that began before it, in ns."""
    begin, end = _own((start, end))
    return end - begin


# --- of a run -----------------------------------------------------------------------------------------


def ranks_of(study: Study, source: Source) -> list[Calls]:
    """Each rank's collectives in its attributed batches; none, and the run is taken out, if a table is bad.

    Ranks without kernels are left out. A study reads them once.
    """
    if source.id not in study.collectives:
        found = _read_ranks(study, source)
        if source not in study.sources:
            return []
        study.collectives[source.id] = found
    return study.collectives[source.id]


def _read_ranks(study: Study, source: Source) -> list[Calls]:
    import pyarrow.compute as pc

    found = []
    for directory in sorted(source.path.glob("rank_*")):
        if not tables.table_path(directory, "kernels").is_file():
            continue
        try:
            batches = tables.read(directory, "batches", ["batch_index", "attributed"])
            table = tables.read(directory, "kernels", READ)
        except UserError as error:
            study.fail(source, str(error))
            return []
        in_time = pc.and_(pc.is_valid(table["start_ns"]), pc.is_valid(table["batch_index"]))
        table = table.filter(pc.and_(in_time, pc.greater_equal(table["duration_ns"], 0)))
        # Whether a batch was recorded may be null: that is no yes, and is dropped too.
        attributed = batches.filter(batches["attributed"])["batch_index"].drop_null().to_numpy()
        kernels = {name: table[name].to_numpy() for name in READ}
        found.append(calls_of(int(directory.name.rpartition("_")[2]), kernels, attributed))
    find_untimed(study, source)
    return found


def matched_of(study: Study, source: Source, ranks: list[Calls]) -> Matched | None:
    """The same collectives on all ranks, on one clock; None, and a finding says why, if that is not known."""
    if source.gpus_per_rank > 1:
        study.find(
            f"{source.id}: wait and transfer are not known: one process made the collectives of all its GPUs"
        )
        return None
    whole = len(ranks) == source.world_size
    matched = match(ranks) if whole else None
    if matched is None:
        why = (
            "ranks made different collectives" if whole else f"{len(ranks)} of {source.world_size} are there"
        )
        study.find(f"{source.id}: wait and transfer are not known: {why}")
    return matched
