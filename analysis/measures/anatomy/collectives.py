"""Which collectives did a rank make?

Kinds and process groups are those that the profiler recorded; where it did not (older results), kinds are
told by names and the group is taken to be all ranks. What of a collective is exposed and what is hidden
:mod:`analysis.measures.anatomy.divide` says, of the recorded batches: one that outlasts the last of them is
cut where that ends.
"""

from collections.abc import Collection

import numpy as np

from analysis.measures.anatomy.divide import Activities, shares
from analysis.measures.batches.overlap import Intervals
from analysis.results.counted_steps import in_steps
from analysis.results.matching import Calls, Matched, match, unmatched
from profiling.attribution.messages import ONE_OF_SEVERAL, kind_of
from profiling.wording import verb, which_ranks


def calls_of(
    rank: int,
    kernels: dict[str, np.ndarray],
    attributed: np.ndarray,
    windows: Intervals,
    activities: Activities,
    steps: range | None = None,
) -> Calls:
    """A rank's collectives in its attributed batches.

    Args:
        kernels: ``traces.KERNEL_COLUMNS``, rows with a place in time and a duration only; in no batch is what
            has an index below 0.
        attributed: indices of the attributed batches.
        windows: when the batches were whose kernels lie in their time, of those that count: what is exposed
            is of these.
        activities: what runs on the rank.
        steps: the batches that count; None: all.
    """
    mine = np.isin(kernels["batch_index"], attributed)
    talks = (kernels["class"] == "communication") & mine
    order = np.flatnonzero(talks)[np.argsort(kernels["start_ns"][talks], kind="stable")]
    call = {name: column[order] for name, column in kernels.items()}
    end = call["start_ns"] + call["duration_ns"]
    counted = in_steps(call["batch_index"], steps)
    exposed, hidden = np.zeros(len(order)), np.zeros(len(order))
    exposed[counted], hidden[counted] = shares((call["start_ns"][counted], end[counted]), windows, activities)
    indices = np.unique(kernels["batch_index"][mine])
    return Calls(
        rank,
        len(indices),
        call["batch_index"],
        call["start_ns"],
        end,
        kinds(call["collective"], call["short_name"]),
        call["bytes"].astype(float),
        groups(call["process_group"], call["group_ranks"], call["group_size"]),
        np.where(call["group_size"] > 0, call["group_size"], 0).astype(np.int64),
        exposed,
        hidden,
        len(windows[0]),
        counted,
        int(in_steps(indices, steps).sum()),
    )


def kinds(recorded: np.ndarray, names: np.ndarray) -> np.ndarray:
    """The kind of each collective: as recorded, else as its name says."""
    pairs = list(zip(recorded.tolist(), names.tolist(), strict=True))
    known = {pair: pair[0] if isinstance(pair[0], str) else kind_of(str(pair[1])) for pair in set(pairs)}
    return np.array([known[pair] for pair in pairs], object)


def groups(names: np.ndarray, ranks: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """The process group of each collective in one text, ``NAME [RANKS]``; empty: not recorded."""
    rows = list(zip(names.tolist(), ranks.tolist(), np.where(sizes > 0, sizes, 0).tolist(), strict=True))
    known = {row: _group(*row) for row in set(rows)}
    return np.array([known[row] for row in rows], object)


def _group(name: str | None, ranks: str | None, size: float) -> str:
    if isinstance(ranks, str):
        return f"{name or ''} [{ranks}]".strip()
    if size and name in (None, ONE_OF_SEVERAL):
        return f"of {size:.0f} ranks"  # the same on all ranks, and enough if that is all of them
    return name or ""


def recorded_only(ranks: Collection[int], world_size: int | None) -> str:
    """That a job has more ranks than those: ``only rank 0 of 8 was recorded``."""
    of = "an unknown number" if world_size is None else world_size
    return f"only {which_ranks(ranks)} of {of} {verb(len(ranks), 'were')} recorded"


def match_ranks(
    ranks: list[Calls], world_size: int | None, gpus_per_rank: int
) -> tuple[Matched | None, list[str]]:
    """The same collectives of all ranks, on one clock; None if none is known. And in words what is not."""
    if gpus_per_rank > 1:
        return None, [_not_separated("", "one process made the collectives of all its GPUs")]
    whole = len(ranks) == world_size
    # Of some of the ranks those groups are told apart that say how many they are.
    sized = all((one.group_size > 0).all() for one in ranks)
    matched = match(ranks) if whole or sized else None
    if matched is None and not whole:
        return None, [_not_separated("", recorded_only([one.rank for one in ranks], world_size))]
    left = unmatched(ranks) if matched is None else matched.unmatched
    return matched, [_not_separated(f" of {kinds}", why) for kinds, why in left]


def _not_separated(of: str, why: str) -> str:
    return f"transfer and wait{of} cannot be separated: {why}"
