"""Which collectives did the ranks of a run make, and how much of them did no computing hide?

Kinds and process groups are those that the profiler recorded; where it did not (older results), kinds are
told by names and the group is taken to be all ranks. Calls overlap each other's time where a rank has several
under way. What is exposed and what is hidden is as :mod:`analysis.measures.anatomy.divide` has it,
of the recorded batches: a collective that outlasts the last of them is cut where that ends.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.measures.anatomy.divide import Activities, activities_of, split
from analysis.measures.batches import recorded
from analysis.measures.batches.overlap import Intervals, covered, union
from analysis.results.matching import Calls, Matched, match, unmatched
from analysis.results.query import note_untimed, note_without_kernels, reading
from analysis.results.study import Source, Study
from profiling import tables
from profiling.attribution.messages import ONE_OF_SEVERAL, kind_of

GROUP = ["collective", "process_group", "group_ranks", "group_size"]
READ = ["batch_index", "start_ns", "duration_ns", "class", "direction", "short_name", "bytes", *GROUP]


def calls_of(rank: int, kernels: dict[str, np.ndarray], batches: dict[str, np.ndarray]) -> Calls:
    """A rank's collectives in its attributed batches.

    Args:
        kernels: the columns of :data:`READ`, rows with a place in time and a duration only; in no batch is
            what has an index below 0.
        batches: columns ``batch_index, start_ns, end_ns`` of the attributed batches.
    """
    attributed = np.isin(kernels["batch_index"], batches["batch_index"])
    talks = (kernels["class"] == "communication") & attributed
    order = np.flatnonzero(talks)[np.argsort(kernels["start_ns"][talks], kind="stable")]
    mine = {name: column[order] for name, column in kernels.items()}
    end = mine["start_ns"] + mine["duration_ns"]
    busy = recorded.with_kernels(batches, kernels)
    windows = (batches["start_ns"][busy], batches["end_ns"][busy])
    exposed, hidden = _shares((mine["start_ns"], end), windows, activities_of(kernels))
    return Calls(
        rank,
        len(np.unique(kernels["batch_index"][attributed])),
        mine["batch_index"],
        mine["start_ns"],
        end,
        kinds(mine["collective"], mine["short_name"]),
        mine["bytes"].astype(float),
        groups(mine["process_group"], mine["group_ranks"], mine["group_size"]),
        np.where(mine["group_size"] > 0, mine["group_size"], 0).astype(np.int64),
        exposed,
        hidden,
        int(busy.sum()),
    )


def column_of(table: "pa.Table", name: str) -> np.ndarray:
    """A column of a kernels table; texts are None where they are null, numbers NaN.

    Arrow's own conversion takes a null text for the last one that it knows.
    """
    column = table[name]
    if not pa.types.is_dictionary(column.type):
        return column.to_numpy()
    parts = [
        np.array([*chunk.dictionary.to_pylist(), None], object)[
            chunk.indices.fill_null(len(chunk.dictionary)).to_numpy(zero_copy_only=False)
        ]
        for chunk in column.chunks
    ]
    return np.concatenate([np.empty(0, object), *parts])


def kinds(recorded: np.ndarray, names: np.ndarray) -> np.ndarray:
    """The kind of each collective: as recorded, else as its name says."""
    pairs = zip(recorded, names, strict=True)
    return np.array([said if isinstance(said, str) else kind_of(str(name)) for said, name in pairs], object)


def groups(names: np.ndarray, ranks: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The process group of each collective in one text, ``NAME [RANKS]``; empty: not recorded."""
    known: dict[tuple, str] = {}
    rows = zip(names.tolist(), ranks.tolist(), np.where(sizes > 0, sizes, 0).tolist(), strict=True)
    return np.array([known.get(one) or known.setdefault(one, _group(*one)) for one in rows], object)


def _group(name: str | None, ranks: str | None, size: float) -> str:
    if isinstance(ranks, str):
        return f"{name or ''} [{ranks}]".strip()
    if size and name in (None, ONE_OF_SEVERAL):
        return f"of {size:.0f} ranks"  # the same on all ranks, and enough if that is all of them
    return name or ""


def _own(calls: Intervals) -> Intervals:
    """The calls cut so that none overlaps the one before it: time is counted once."""
    start, end = calls
    reach = np.maximum.accumulate(end) if len(end) else end
    before = np.concatenate([start[:1], reach[:-1]])
    begin = np.minimum(np.maximum(start, before), end)
    return begin, end


def _shares(calls: Intervals, windows: Intervals, activities: Activities) -> tuple[np.ndarray, np.ndarray]:
    """What of the exposed and of the hidden communication of the windows is each call's, in ns.

    Each has what it lasts in the windows beyond calls that began before it. A call of an earlier batch may
    reach into the first window: the others bear its time in proportion, so that the shares add up.
    """
    own, before = _own(calls), np.array([-_EVER], np.int64)
    start, end = union(*windows)
    outside = (np.concatenate([before, end]), np.concatenate([start, -before]))
    computing = union(*activities.compute)
    elsewhere = union(*(np.concatenate(pair) for pair in zip(outside, computing, strict=True)))
    inside = own[1] - own[0] - covered(own, outside)
    exposed = own[1] - own[0] - covered(own, elsewhere)
    parts = split(windows, Activities(compute=computing, communication=activities.communication))
    return (
        _scaled(exposed, parts["exposed_communication"].sum()),
        _scaled(inside - exposed, parts["overlapped_communication"].sum()),
    )


_EVER = 1 << 60  # ns, 36 years


def _scaled(weights: np.ndarray, total: float) -> np.ndarray:
    whole = weights.sum()
    return weights * (total / whole) if whole else np.full(len(weights), total / max(len(weights), 1))


# --- of a run -----------------------------------------------------------------------------------------


def ranks_of(study: Study, source: Source) -> list[Calls]:
    """Each rank's collectives in its attributed batches.

    Ranks, and batches, without kernels are left out. A study reads them once.

    Raises:
        Unusable: a table is missing, damaged or wrong.
    """
    kept: dict[str, list[Calls]] = study.kept("collectives")
    if source.id not in kept:
        kept[source.id] = _read_ranks(study, source)
    return kept[source.id]


def _read_ranks(study: Study, source: Source) -> list[Calls]:
    ranks: list[Calls] = []
    batches_read = 0
    for directory in sorted(source.path.glob("rank_*")):
        if not tables.table_path(directory, "kernels").is_file():
            continue
        with reading(source):
            batches = recorded.attributed(study, source, directory)
            table = tables.read(directory, "kernels", READ)
        in_time = pc.and_(pc.is_valid(table["start_ns"]), pc.greater_equal(table["duration_ns"], 0))
        table = table.filter(in_time)
        kernels = {name: column_of(table, name) for name in READ if name != "batch_index"}
        # What is in no batch hides collectives, too.
        kernels["batch_index"] = pc.fill_null(table["batch_index"], -1).to_numpy()
        ranks.append(calls_of(int(directory.name.rpartition("_")[2]), kernels, batches))
        batches_read += len(batches["batch_index"]) if len(table) else 0
    note_without_kernels(study, source, batches_read - sum(one.batches for one in ranks), batches_read)
    note_untimed(study, source)
    return ranks


def matched_of(study: Study, source: Source, ranks: list[Calls]) -> Matched | None:
    """The same collectives of all ranks, on one clock; None if none is known. A finding says what is not."""
    if source.gpus_per_rank > 1:
        study.note(
            "wait and transfer are not known: one process made the collectives of all its GPUs", source
        )
        return None
    whole = len(ranks) == source.world_size
    matched = match(ranks) if whole else None
    if matched is None:
        there = f"those of {len(ranks)} of {source.world_size} ranks are there"
        why = "; ".join(unmatched(ranks)) if whole else there
        study.note(f"wait and transfer are not known: {why}", source)
    for words in matched.unmatched if matched else ():
        study.note(f"wait and transfer are not known of {words}", source)
    return matched
