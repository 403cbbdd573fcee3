"""What did a profiler record of each rank of a run: its batches and its kernels, as arrays.

A rank's kernels may be gigabytes: ranks are read one after the other, and a measure keeps of each what it
needs before it takes the next.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.results.study import Source, reading
from profiling import tables

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
        batches: ``tables.TIMES_OF_BATCHES`` of the attributed batches that lack no time.
        kernels: :data:`KERNEL_COLUMNS` of the kernels that have a start and a duration; texts are None, bytes
            and group sizes NaN, and other numbers -1, where they are not recorded. Names are of collectives
            alone (None elsewhere): those of all kernels would take as long as all the rest.
        untimed_batches: attributed batches that lack a time, which ``batches`` leaves out.
        untimed_kernels: launches without a duration, or with one below 0, which ``kernels`` leaves out.
    """

    rank: int
    batches: dict[str, np.ndarray]
    kernels: dict[str, np.ndarray]
    untimed_batches: int
    untimed_kernels: int


def read_ranks(source: Source) -> Iterator[RankTables]:
    """The tables of each rank that has kernels, one rank at a time.

    Raises:
        Unusable: a table is missing, damaged or wrong.
    """
    for path in source.tables("kernels"):
        rank = path.parent
        with reading(source):
            batches = tables.read(rank, "batches", tables.TIMES_OF_BATCHES)
            kernels = tables.read(rank, "kernels", list(KERNEL_COLUMNS))
        yield _as_arrays(int(rank.name.rpartition("_")[2]), batches, kernels)


def _as_arrays(rank: int, batches: pa.Table, kernels: pa.Table) -> RankTables:
    attributed = batches.filter(batches["attributed"])  # null is not attributed
    whole = attributed.drop_null()
    in_time, untimed = _in_time(kernels)
    return RankTables(
        rank,
        {name: whole[name].to_numpy() for name in tables.TIMES_OF_BATCHES},
        arrays_of(in_time),
        len(attributed) - len(whole),
        untimed,
    )


def _in_time(kernels: pa.Table) -> tuple[pa.Table, int]:
    """The kernels that have a place in time; how many have no duration, or one below 0."""
    lasts = pc.fill_null(pc.greater_equal(kernels["duration_ns"], 0), False)
    in_time = pc.and_(pc.is_valid(kernels["start_ns"]), lasts)
    return kernels.filter(in_time), len(kernels) - (pc.sum(lasts).as_py() or 0)


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
