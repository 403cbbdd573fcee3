"""What is wrong with a profile of TAU? Counted while its pieces come by, said when all have.

Times that cannot be, stages and ranks that are missing, ranks of which none communicates.
"""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profiling.attribution.checks import MARKED_ONCE, missing_marks
from profiling.attribution.coding import array_of
from profiling.tau_markers import STAGE_EVENT, stage_of_event
from profiling.wording import how_many, left_out, verb

_COLLECTIVE = r"MPI_I?(all|bcast|reduce|gather|scatter)|nccl"
_STAGE = f"^({'|'.join(MARKED_ONCE)})$"
# What TAU adds to the name of a timer that it has switched off.
_THROTTLED = r" *\[THROTTLED\]$"
_SAMPLES = r"\[(SAMPLE|SUMMARY|CONTEXT)\]"
_READS = r"^(read|open|open64|fopen|fopen64)\(\)$"  # a Python that starts does all of these


class Tally:
    """What pieces of tables ``intervals`` and ``atomics`` hold that is to be said."""

    def __init__(self) -> None:
        # By timers and by events: rank -> stage -> how often.
        self._timed: dict[int, defaultdict[str, float]] = {}
        self._triggered: dict[int, defaultdict[str, float]] = {}
        self._negative = self._absurd = 0
        self._talks = self._reads = self._samples = False
        self._throttled: set[str] = set()

    def add_events(self, piece: "pa.Table") -> None:
        """Count a piece of table ``atomics``: where Python's functions are timed, stages are events."""
        for rank, event, count in _chosen(piece, "event", "count", STAGE_EVENT):
            self._triggered.setdefault(rank, defaultdict(float))[stage_of_event(event)[0]] += count

    def add(self, piece: "pa.Table") -> "pa.Table":
        """Count a piece of table ``intervals``; it is returned with every timer called by its own name."""
        if _has(piece, _THROTTLED):
            piece = self._unthrottled(piece)
        for rank in pc.unique(piece["rank"]).to_pylist():
            self._timed.setdefault(rank, defaultdict(float))
        for rank, name, calls in _chosen(piece, "function", "calls", _STAGE):
            self._timed[rank][name] += calls
        self._talks = self._talks or _has(piece, _COLLECTIVE)
        self._reads = self._reads or _has(piece, _READS)
        self._samples = self._samples or _has(piece, _SAMPLES)
        # To compare with a Python number would import pandas.
        negative = pc.less(piece["exclusive_ns"], array_of(np.zeros(1))[0])
        self._negative += pc.sum(negative).as_py() or 0
        nulls = piece["inclusive_ns"].null_count
        self._absurd += nulls if nulls < len(piece) else 0  # all of another metric's times are null
        return piece

    def _unthrottled(self, piece: "pa.Table") -> "pa.Table":
        names = piece["function"].cast("string")
        own = pc.replace_substring_regex(names, _THROTTLED, "")
        self._throttled |= set(own.filter(pc.not_equal(names, own)).to_pylist())
        at = piece.column_names.index("function")
        return piece.set_column(at, piece.field(at), own.dictionary_encode())

    def of_run(self, ranks: int, world_size: int, mode: str) -> list[str]:
        """What is to be said of the run: each of its ranks' profiles says it alike.

        Args:
            ranks: how many the profile is of; 0: no thread wrote any.
            world_size: how many ranks there are, if more.
            mode: that of the tool in which it was recorded.
        """
        findings = []
        if ranks and not self._talks and max(ranks, world_size) > 1:
            findings.append(
                f"{max(ranks, world_size)} ranks, and no collective among the timers: TAU times MPI's "
                "collectives, not NCCL's and Gloo's, so communication was not recorded"
            )
        if self._throttled:
            findings.append(
                "TAU stopped timing functions that were called often and took little time, such as "
                f"{min(self._throttled)!r}: their calls and times are too low (TAU_THROTTLE)"
            )
        if ranks and mode == "io" and not self._reads:
            findings.append(
                "mode io, but no timer of reading or writing: this TAU was built without -iowrapper, so "
                "file access was not recorded"
            )
        if ranks and mode == "ebs" and not self._samples:
            findings.append(
                "mode ebs, but no sample: a TAU built with MPI samples from MPI_Init on, which no rank "
                "called; use a TAU without MPI, or train over MPI (--backend=horovod under mpirun)"
            )
        return findings

    def of_ranks(self, ranks: int) -> list[str]:
        """What is to be said of the ranks in the profile; see :meth:`of_run`."""
        findings = []
        if not ranks:
            findings.append("the profile is empty: no thread wrote anything")
        if self._absurd:
            findings.append(f"{left_out(self._absurd, 'timer')}: impossible times")
        if self._negative:
            findings.append(
                f"{how_many(self._negative, 'timer')} {verb(self._negative, 'have')} negative exclusive "
                "times: on the same thread timers overlapped, or were never closed"
            )
        return findings + missing_marks(self._passed(), ranks)

    def _passed(self) -> dict[int, dict[str, float]]:
        """How often the threads of each rank passed the stages of a batch: by a timer, else by an event."""
        ranks = sorted(self._timed.keys() | self._triggered.keys())
        return {rank: {**self._triggered.get(rank, {}), **self._timed.get(rank, {})} for rank in ranks}


def _has(piece: "pa.Table", names: str) -> bool:
    """Whether there is a function that matches ``names``, a regular expression."""
    chunks = (chunk.dictionary for chunk, _ in _by_names(piece, "function"))
    return any(pc.any(pc.match_substring_regex(one, names, ignore_case=True)).as_py() for one in chunks)


def _chosen(piece: "pa.Table", column: str, figure: str, names: str) -> Iterator[tuple[int, str, float]]:
    """(rank, name, figure) of the rows whose name is one of ``names``, a regular expression."""
    for chunk, rows in _by_names(piece, column):
        codes = pc.indices_nonzero(pc.match_substring_regex(chunk.dictionary, names))
        mine = rows.filter(pc.is_in(chunk.indices, codes.cast(chunk.indices.type)))
        figures = (value or 0.0 for value in mine[figure].to_pylist())
        yield from zip(mine["rank"].to_pylist(), mine[column].to_pylist(), figures, strict=True)


def _by_names(piece: "pa.Table", column: str) -> "Iterator[tuple[pa.DictionaryArray, pa.Table]]":
    """The rows that share a dictionary of names, and it: there are far fewer names than rows."""
    at = 0
    for chunk in piece[column].chunks:
        yield chunk, piece.slice(at, len(chunk))
        at += len(chunk)
