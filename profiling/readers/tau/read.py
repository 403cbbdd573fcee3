"""Which threads, metrics and snapshots do the files of one TAU run hold?

A thread counts once: of files that hold the same one (a copy beside its original, a file an earlier run left)
the first one read is taken, and a finding names both.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pyarrow as pa

from profiling.readers.chunks import read_head
from profiling.readers.tau.tables import (
    Tables,
    atomics_table,
    clock_of,
    intervals_table,
    metrics_of,
    thread_number,
)
from profiling.readers.tau.text import NAME, metric_of, read_text
from profiling.readers.tau.xml import Reader, Thread
from profiling.schemas import END_OF_BATCH
from profiling.tables import as_table
from profiling.wording import how_many, verb


class Reading:
    """Reads the files of a run one after the other.

    Args:
        rank: whose all of it is; None: as TAU says.

    Attributes:
        threads: how many threads were read.
        ranks: one more than the highest rank met.
    """

    def __init__(self, findings: list[str], rank: int | None = None) -> None:
        self.findings, self._rank = findings, rank
        self.threads = self.ranks = 0
        self._where: dict[Thread, Path] = {}  # each thread's file
        self._again: list[tuple[Thread, Path]] = []
        self._snapshots: list[tuple[Thread, str, int]] = []
        self._other_metrics: set[str] = set()

    def pieces(self, path: Path) -> Iterator[tuple[str, pa.Table]]:
        """The pieces of tables in one file."""
        if metric_of(read_head(path, 1 << 12)) is not None:
            yield from self._text(path)
        else:
            yield from self._xml(path)

    def _text(self, path: Path) -> Iterator[tuple[str, pa.Table]]:
        profile = read_text(path)
        named = NAME.match(path.name)
        node, context, thread = (int(number) for number in named.groups()) if named else (0, 0, 0)
        if not self._meet((node, context, thread), path):
            return
        rank = node if self._rank is None else self._rank
        timed = clock_of([profile.metric]) is not None
        if not timed:
            self.tell_metric(profile.metric, path)
        number = thread_number(context, thread)
        if profile.functions:
            functions = pa.array(profile.functions)
            yield "intervals", intervals_table(rank, number, functions, profile.intervals, timed)
        if profile.events:
            yield "atomics", atomics_table(rank, number, pa.array(profile.events), profile.atomics)

    def _xml(self, path: Path) -> Iterator[tuple[str, pa.Table]]:
        reader, tables = Reader(path), Tables(path, self._rank)
        for profile in reader:
            if not self._meet(profile.thread, path):
                continue
            metrics = metrics_of(profile)
            for place, name in enumerate(metrics):
                if place != clock_of(metrics):
                    self.tell_metric(name, path)
            yield from tables.add(profile)
        yield from tables.pieces()
        self._snapshots += [one for one in reader.snapshots if self._where.get(one[0], path) == path]
        if reader.unended:
            last = reader.snapshots[-1][1]
            self.findings.append(
                f"{path.name} ends in the middle because its process was killed: it is read up to snapshot "
                f"{last!r}"
            )

    def _meet(self, thread: Thread, path: Path) -> bool:
        """Whether a thread is met for the first time."""
        if thread in self._where:
            self._again.append((thread, path))
            return False
        self._where[thread] = path
        self.threads += 1
        self.ranks = max(self.ranks, thread[0] + 1)
        return True

    def tell_copies(self) -> None:
        """Threads are there more than once."""
        if not self._again:
            return
        first, copy = self._again[0]
        number = ".".join(map(str, first))
        places = f"in {_place(self._where[first])} and in {_place(copy)}"
        self.findings.append(
            f"{how_many(len(self._again), 'thread')} {verb(len(self._again), 'appear')} twice, {number} "
            f"{places}: each counts once, as in the first"
        )

    def tell_metric(self, name: str, path: Path) -> None:
        """A metric is there that the tables do not hold; another clock is not worth a word."""
        if name not in self._other_metrics and clock_of([name]) is None:
            self._other_metrics.add(name)
            self.findings.append(f"{path.name}: metric {name} is not wall time; it is not in the tables")

    def markers(self, pattern: re.Pattern[str]) -> Iterator[tuple[str, pa.Table]]:
        """The snapshots that were taken at the end of a batch, as marks."""
        back = sum(one[0] == two[0] and two[2] < one[2] for one, two in pairwise(self._snapshots))
        if back:
            self.findings.append(
                f"{how_many(back, 'snapshot')} {verb(back, 'are')} older than the one before: the clock went "
                "backwards"
            )
        snapshots = [one for one in self._snapshots if pattern.match(one[1])]
        if not snapshots:
            return
        time_ns = [timestamp * 1000 for _, _, timestamp in snapshots]
        columns = {
            "rank": [thread[0] if self._rank is None else self._rank for thread, _, _ in snapshots],
            "name": [END_OF_BATCH] * len(snapshots),
            "kind": ["mark"] * len(snapshots),
            "start_ns": time_ns,
            "end_ns": time_ns,
            "thread": [thread_number(*thread[1:]) for thread, _, _ in snapshots],
        }
        yield "markers", as_table("markers", columns)


def _place(path: Path) -> str:
    return f"{path.parent.name}/{path.name}"
