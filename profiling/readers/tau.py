"""TAU's profiles: the files of a run as tables."""

import re
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profiling.attribution.checks import MARKED_ONCE, missing_marks
from profiling.attribution.coding import array_of
from profiling.errors import UserError
from profiling.readers.chunks import read_head
from profiling.readers.origin import TAU_METRIC_FOLDER, TAU_THREAD_FILE, UNKNOWN, Origin, rank_in
from profiling.readers.tau_profiles import NAME, Reader, Thread, metric_of, read_text
from profiling.readers.tau_tables import (
    Tables,
    atomics_table,
    clock_of,
    intervals_table,
    metrics_of,
    thread_number,
)
from profiling.schemas import END_OF_BATCH
from profiling.tables import as_table
from profiling.tau_markers import STAGE_EVENT, stage_of_event
from profiling.traced_job import TraceFacts
from profiling.wording import how_many, left_out, verb

_OF_A_TRACE = re.compile(r"^(tautrace\..*|tau)\.trc$|^events\.\d{1,9}\.edf$")
_A_TRACE = "a trace of TAU, which cannot be read; record a profile (TAU_TRACE=0 TAU_PROFILE=1)"
_END_OF_BATCH = re.compile(r"^End of Batch( \d+)?$")


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is a profile of TAU, by its first bytes; or a trace, by its name."""
    profile = b"<profile_xml>" in head[:4096] or metric_of(head) is not None
    return profile or _OF_A_TRACE.match(path.name) is not None


def facts(path: Path) -> TraceFacts | None:
    """That a profile may be of a job, of which it says no more than its ranks; None: it is a trace."""
    return None if _OF_A_TRACE.match(path.name) else TraceFacts(rank=rank_in(path), shapes=False)


def stream(path: Path, findings: list[str], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """A file, or a folder of one run's, as pieces of tables ``intervals``, ``atomics`` and ``markers``.

    Ranks are as TAU says, where nothing else is known: without MPI each rank takes itself for node 0.
    """
    reading, tally = Reading(findings, origin.rank), Tally()
    files, left = _files(path)
    unread: list[str] = []
    for folder in left:
        reading.tell_metric(folder.name.removeprefix(TAU_METRIC_FOLDER), folder)
    for file in files:
        try:
            for name, piece in reading.pieces(file):
                if name == "atomics":
                    tally.add_events(piece)
                yield name, tally.add(piece) if name == "intervals" else piece
        except UserError as error:
            if len(files) == 1:
                raise
            unread.append(str(error))  # what the others hold is read
    if len(unread) == len(files):
        raise UserError(f"no file of {path} can be read ({len(files)} tried): {unread[0]}")
    findings += unread
    yield from reading.markers(_END_OF_BATCH)
    reading.tell_copies()
    ranks = reading.ranks if origin.rank is None else min(reading.threads, 1)
    whose = path.name if origin.rank is None else "TAU"
    findings += [f"{whose}: {one}" for one in tally.of_run(ranks, origin.world_size, origin.mode)]
    whose = path.name if origin.rank is None else f"rank {origin.rank}"
    of_ranks = tally.of_ranks(ranks)
    findings += [one if one.startswith(f"{whose}: ") else f"{whose}: {one}" for one in of_ranks]


def _files(path: Path) -> tuple[list[Path], list[Path]]:
    """(the files to read, the folders of metrics that are not wall time)."""
    if not path.is_dir():
        if _OF_A_TRACE.match(path.name):
            raise UserError(f"{path} is {_A_TRACE}")
        return [path], []
    profiles = [file for file in path.iterdir() if TAU_THREAD_FILE.match(file.name) and file.is_file()]
    clock, *left = _wall_clock_first(path) or [path]
    if clock is not path:
        profiles += [file for file in clock.iterdir() if TAU_THREAD_FILE.match(file.name)]
    profiles = profiles or sorted(file for file in path.iterdir() if file.suffix == ".xml" and file.is_file())
    if not profiles and any(_OF_A_TRACE.match(file.name) for file in path.iterdir()):
        raise UserError(f"{path} holds {_A_TRACE}")
    if not profiles:
        raise UserError(f"{path} holds no profile of TAU (profile.N.C.T, snapshot.N.C.T or merged XML)")
    return sorted(profiles, key=lambda file: (list(map(int, re.findall(r"\d+", file.name))), file.name)), left


def _wall_clock_first(path: Path) -> list[Path]:
    """The folders of a run's metrics, the one of wall time first."""
    folders = sorted(folder for folder in path.iterdir() if folder.name.startswith(TAU_METRIC_FOLDER))
    first = clock_of([folder.name.removeprefix(TAU_METRIC_FOLDER) for folder in folders]) or 0
    return folders[first : first + 1] + folders[:first] + folders[first + 1 :]


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
