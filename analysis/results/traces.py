"""Recorded batches and kernels of each rank of a run, as arrays.

A rank's kernels may be gigabytes: ranks are read some at a time, and a measure keeps of each what it needs
before the next is read.
"""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.results.source import Source, reading
from profiling import schemas, tables
from profiling.workers import in_threads

Reduced = TypeVar("Reduced")

_STAGES = ("load_ns", "forward_ns", "backward_ns", "update_ns")
# What the process group of a collective is told by.
GROUP = ("collective", "process_group", "group_ranks", "group_size")
KERNEL_COLUMNS = (
    "batch_index", "start_ns", "duration_ns", "class", "direction", "device", "launch_ns", "bytes",
    "short_name", *GROUP,
)  # fmt: skip


@dataclass(frozen=True)
class RankTables:
    """The tables of one rank as arrays by column, times in ns on the rank's own clock.

    Attributes:
        batches: ``schemas.TIMES_OF_BATCHES`` of the attributed batches that lack no time.
        kernels: :data:`KERNEL_COLUMNS` of the kernels that have a start and a duration; texts are None, bytes
            and group sizes NaN, and other numbers -1, where they are not recorded. Names are of collectives
            alone (None elsewhere): those of all kernels would take as long as all the rest.
        untimed_batches: attributed batches that lack a time, which ``batches`` leaves out.
        untimed_kernels: launches without a duration, or with one below 0, which ``kernels`` leaves out.
        staged: whether the stages of all batches are known; of those that are not all time is after the last.
    """

    rank: int
    batches: dict[str, np.ndarray]
    kernels: dict[str, np.ndarray]
    untimed_batches: int
    untimed_kernels: int
    staged: bool = True


def each_rank(source: Source, reduce: Callable[[RankTables], Reduced]) -> Iterator[Reduced]:
    """What ``reduce`` makes of the tables of each rank that has kernels, in order.

    Some ranks at a time, one a core: Arrow and NumPy let other threads go on.
    """
    return in_threads(lambda path: reduce(_read_rank(source, path.parent)), source.tables("kernels"))


def _read_rank(source: Source, directory: Path) -> RankTables:
    with reading(source):
        batches = tables.read(directory, "batches", schemas.TIMES_OF_BATCHES)
        kernels = tables.read(directory, "kernels", list(KERNEL_COLUMNS))
    attributed = batches.filter(batches["attributed"])  # null is not attributed
    whole = attributed.filter(timed(attributed))
    placed, untimed = in_time(kernels)
    return RankTables(
        tables.rank_of(directory),
        # Of a batch without stages all is after its last.
        {
            name: (whole[name].fill_null(0) if name in _STAGES else whole[name]).to_numpy()
            for name in schemas.TIMES_OF_BATCHES
        },
        arrays_of(placed),
        len(attributed) - len(whole),
        untimed,
        staged=not any(whole[name].null_count for name in _STAGES),
    )


def timed(batches: pa.Table) -> pa.ChunkedArray:
    """Which batches have all times, or lack those of their stages alone, all of them."""
    lacking = [pc.is_null(batches[name]) for name in _STAGES]
    edges = pc.and_(pc.is_valid(batches["start_ns"]), pc.is_valid(batches["end_ns"]))
    same = functools.reduce(pc.and_, [pc.equal(one, lacking[0]) for one in lacking])
    return pc.and_(edges, same)


def in_time(kernels: pa.Table) -> tuple[pa.Table, int]:
    """The kernels that have a place in time; how many have no duration, or one below 0."""
    lasts = pc.fill_null(pc.greater_equal(kernels["duration_ns"], 0), False)
    in_time = pc.and_(pc.is_valid(kernels["start_ns"]), lasts)
    placed = kernels if pc.all(in_time).as_py() else kernels.filter(in_time)
    return placed, len(kernels) - (pc.sum(lasts).as_py() or 0)


def arrays_of(kernels: pa.Table) -> dict[str, np.ndarray]:
    """:data:`KERNEL_COLUMNS` of a kernels table, as :class:`RankTables` has them."""
    numbers = ("start_ns", "duration_ns", "bytes", "group_size")
    found = {name: column_of(kernels, name) for name in (*numbers, "class", "direction")}
    talks = found["class"] == "communication"
    calls = kernels.filter(pa.array(talks))
    for name in ("short_name", "collective", "process_group", "group_ranks"):
        found[name] = np.full(len(kernels), None)
        found[name][talks] = column_of(calls, name)
    # In no batch is what has an index below 0; a launch below 0 is not known.
    for name in ("batch_index", "device", "launch_ns"):
        found[name] = pc.fill_null(kernels[name], -1).to_numpy()
    return found


def column_of(table: pa.Table, name: str) -> np.ndarray:
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
