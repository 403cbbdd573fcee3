"""What is wrong with a profile of TAU? Counted while its pieces come by, said when all have.

Times that cannot be, stages and ranks that are missing, ranks of which none communicates.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from profiling.checks import STAGES, missing_marks
from profiling.coding import array_of, text_array

if TYPE_CHECKING:
    import pyarrow as pa

_COLLECTIVE = r"MPI_I?(all|bcast|reduce|gather|scatter)|nccl"


class Tally:
    """What pieces of table ``intervals`` hold that is to be said."""

    def __init__(self) -> None:
        self._stages: dict[int, Counter[str]] = {}  # rank -> stage -> how often
        self._negative = self._absurd = 0
        self._talks = False

    def add(self, piece: "pa.Table") -> None:
        """Count a piece of table ``intervals``."""
        import pyarrow.compute as pc

        self._count_stages(piece)
        self._talks = self._talks or _has_collectives(piece)
        # To compare with a Python number would import pandas.
        negative = pc.less(piece["exclusive_ns"], array_of(np.zeros(1))[0])
        self._negative += pc.sum(negative).as_py() or 0
        nulls = piece["inclusive_ns"].null_count
        self._absurd += nulls if nulls < len(piece) else 0  # all of another metric's times are null

    def findings(self, ranks: int, world_size: int) -> list[str]:
        """What is to be said.

        Args:
            ranks: how many the profile is of; 0: no thread wrote any.
            world_size: how many ranks there are, if more.
        """
        found = []
        if not ranks:
            found.append("the profile is empty: no thread wrote anything")
        if self._absurd:
            found.append(f"{self._absurd} timers have no time that can be; their times are left out")
        if ranks and not self._talks and max(ranks, world_size) > 1:
            found.append(
                f"{max(ranks, world_size)} ranks, and no collective among the timers: TAU times those of "
                "MPI, not NCCL's and Gloo's; communication is not recorded, not absent"
            )
        if self._negative:
            found.append(
                f"{self._negative} timers have negative exclusive times: on their threads timers "
                "overlapped, or were never closed"
            )
        return found + missing_marks(self._stages, ranks)

    def _count_stages(self, piece: "pa.Table") -> None:
        """How often the threads of each rank passed the stages of a batch."""
        import pyarrow.compute as pc

        for rank in pc.unique(piece["rank"]).to_pylist():
            self._stages.setdefault(rank, Counter())
        for chunk, rows in _by_names(piece):
            codes = pc.indices_nonzero(pc.is_in(chunk.dictionary, text_array(STAGES))).cast(
                chunk.indices.type
            )
            mine = rows.filter(pc.is_in(chunk.indices, codes))
            columns = (mine[one].to_pylist() for one in ("rank", "function", "calls"))
            for rank, name, calls in zip(*columns, strict=True):
                self._stages[rank][name] += calls or 0


def _has_collectives(piece: "pa.Table") -> bool:
    import pyarrow.compute as pc

    found = (
        pc.match_substring_regex(chunk.dictionary, _COLLECTIVE, ignore_case=True)
        for chunk, _ in _by_names(piece)
    )
    return any(pc.any(one).as_py() for one in found)


def _by_names(piece: "pa.Table") -> "Iterator[tuple[pa.DictionaryArray, pa.Table]]":
    """The rows that share a dictionary of names, and it: there are far fewer names than rows."""
    at = 0
    for chunk in piece["function"].chunks:
        yield chunk, piece.slice(at, len(chunk))
        at += len(chunk)
