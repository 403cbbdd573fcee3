"""TAU's profiles: the files of a run as tables, and what is wrong with them.

A thread counts once: of files that hold the same one (a copy beside its original, a file an earlier run left)
the first one read is taken.
"""

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
from profiling.findings import Finding
from profiling.markers import STAGE_EVENT, stage_of_event
from profiling.readers.chunks import read_head
from profiling.readers.origin import TAU_METRIC_FOLDER, TAU_THREAD_FILE, UNKNOWN, Origin, rank_in
from profiling.readers.tau_formats import NAME, Reader, Thread, metric_of, read_text
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
from profiling.traced_job import TraceFacts

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


def stream(path: Path, findings: list[Finding], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """A file, or a folder of one run's, as pieces of tables ``intervals``, ``atomics`` and ``markers``.

    Ranks are as TAU says, where nothing else is known: without MPI each rank takes itself for node 0.
    """
    run, tally = _Run(origin.rank), _Tally()
    files, left = _files(path)
    errors: list[str] = []
    for folder in left:
        run.add_metric(folder.name.removeprefix(TAU_METRIC_FOLDER))
    for file in files:
        try:
            for name, piece in run.pieces(file):
                if name == "atomics":
                    tally.add_events(piece)
                yield name, tally.add(piece) if name == "intervals" else piece
        except UserError as error:
            if len(files) == 1:
                raise
            errors.append(str(error))  # what the others hold is read
    if len(errors) == len(files):
        raise UserError(f"no file of {path} can be read ({len(files)} tried): {errors[0]}")
    unread = [*errors, *(f"metric {name}" for name in run.other_metrics)]
    findings += [Finding("parts_unread", data={"what": unread})] if unread else []
    yield from run.markers()
    ranks = run.ranks if origin.rank is None else min(run.threads, 1)
    findings += run.findings + tally.findings(ranks, origin)


def _files(path: Path) -> tuple[list[Path], list[Path]]:
    """(the files to read, the folders of metrics that are not wall time)."""
    if not path.is_dir():
        if _OF_A_TRACE.match(path.name):
            raise UserError(f"{path} is {_A_TRACE}")
        return [path], []
    profiles = [file for file in path.iterdir() if TAU_THREAD_FILE.match(file.name) and file.is_file()]
    left = sorted(folder for folder in path.iterdir() if folder.name.startswith(TAU_METRIC_FOLDER))
    if left:
        clock = left.pop(clock_of([folder.name.removeprefix(TAU_METRIC_FOLDER) for folder in left]) or 0)
        profiles += [file for file in clock.iterdir() if TAU_THREAD_FILE.match(file.name)]
    profiles = profiles or sorted(file for file in path.iterdir() if file.suffix == ".xml" and file.is_file())
    if not profiles and any(_OF_A_TRACE.match(file.name) for file in path.iterdir()):
        raise UserError(f"{path} holds {_A_TRACE}")
    if not profiles:
        raise UserError(f"{path} holds no profile of TAU (profile.N.C.T, snapshot.N.C.T or merged XML)")
    return sorted(profiles, key=lambda file: (list(map(int, re.findall(r"\d+", file.name))), file.name)), left


class _Run:
    """Reads the files of a run one after the other.

    Args:
        rank: whose all of it is; None: as TAU says.

    Attributes:
        threads: how many threads were read.
        ranks: one more than the highest rank met.
        other_metrics: names of metrics that the tables do not hold, but for other clocks.
    """

    def __init__(self, rank: int | None) -> None:
        self._rank = rank
        self.findings: list[Finding] = []
        self.threads = self.ranks = self._repeated = 0
        self.other_metrics: dict[str, None] = {}
        self._where: dict[Thread, Path] = {}  # each thread's file
        self._snapshots: list[tuple[Thread, str, int]] = []

    def pieces(self, path: Path) -> Iterator[tuple[str, pa.Table]]:
        """The pieces of tables in one file."""
        if metric_of(read_head(path, 1 << 12)) is not None:
            yield from self._text(path)
            return
        reader, tables = Reader(path), Tables(path, self._rank)
        for profile in reader:
            if self._meet(profile.thread, path):
                metrics = metrics_of(profile)
                clock = clock_of(metrics)
                for name in (name for place, name in enumerate(metrics) if place != clock):
                    self.add_metric(name)
                yield from tables.add(profile)
        yield from tables.pieces()
        self._snapshots += [one for one in reader.snapshots if self._where.get(one[0], path) == path]
        if reader.unended:
            self.findings.append(Finding("recording_cut_short", data={"last": reader.snapshots[-1][1]}))

    def _text(self, path: Path) -> Iterator[tuple[str, pa.Table]]:
        profile = read_text(path)
        named = NAME.match(path.name)
        node, context, thread = (int(number) for number in named.groups()) if named else (0, 0, 0)
        if not self._meet((node, context, thread), path):
            return
        rank = node if self._rank is None else self._rank
        self.add_metric(profile.metric)
        number = thread_number(context, thread)
        if profile.functions:
            timed = clock_of([profile.metric]) is not None
            functions = pa.array(profile.functions)
            yield "intervals", intervals_table(rank, number, functions, profile.intervals, timed)
        if profile.events:
            yield "atomics", atomics_table(rank, number, pa.array(profile.events), profile.atomics)

    def _meet(self, thread: Thread, path: Path) -> bool:
        """Whether a thread is met for the first time."""
        if thread in self._where:
            self._repeated += 1
            return False
        self._where[thread] = path
        self.threads += 1
        self.ranks = max(self.ranks, thread[0] + 1)
        return True

    def add_metric(self, name: str) -> None:
        """A metric is there."""
        if clock_of([name]) is None:
            self.other_metrics[name] = None

    def markers(self) -> Iterator[tuple[str, pa.Table]]:
        """The snapshots that were taken at the end of a batch, as marks."""
        if self._repeated:
            self.findings.append(Finding("recorded_twice", data={"what": "threads", "n": self._repeated}))
        back = sum(one[0] == two[0] and two[2] < one[2] for one, two in pairwise(self._snapshots))
        if back:
            self.findings.append(Finding("records_damaged", data={"n": back, "what": "times of snapshots"}))
        snapshots = [one for one in self._snapshots if _END_OF_BATCH.match(one[1])]
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


# --- checks -------------------------------------------------------------------------------------------

_COLLECTIVE = r"MPI_I?(all|bcast|reduce|gather|scatter)|nccl"
_STAGE = f"^({'|'.join(MARKED_ONCE)})$"
# What TAU adds to the name of a timer that it has switched off.
_THROTTLED = r" *\[THROTTLED\]$"
# What a mode records: TAU without -iowrapper times no reading (a Python that starts does some), and with MPI
# it samples from MPI_Init on alone.
_OF_MODE = {"io": r"^(read|open|open64|fopen|fopen64)\(\)$", "ebs": r"\[(SAMPLE|SUMMARY|CONTEXT)\]"}


class _Tally:
    """Counts what is odd in pieces of tables ``intervals`` and ``atomics``."""

    def __init__(self) -> None:
        # By timers and by events: rank -> stage -> how often.
        self._timed: dict[int, defaultdict[str, float]] = {}
        self._triggered: dict[int, defaultdict[str, float]] = {}
        self._negative = self._absurd = 0
        self._talks = False
        self._has_mode = dict.fromkeys(_OF_MODE, False)
        self._throttled: set[str] = set()

    def add_events(self, piece: pa.Table) -> None:
        """Count a piece of table ``atomics``: where Python's functions are timed, stages are events."""
        for rank, event, count in _chosen(piece, "event", "count", STAGE_EVENT):
            self._triggered.setdefault(rank, defaultdict(float))[stage_of_event(event)[0]] += count

    def add(self, piece: pa.Table) -> pa.Table:
        """Count a piece of table ``intervals``; it is returned with every timer called by its own name."""
        if _has(piece, _THROTTLED):
            piece = self._unthrottled(piece)
        for rank in pc.unique(piece["rank"]).to_pylist():
            self._timed.setdefault(rank, defaultdict(float))
        for rank, name, calls in _chosen(piece, "function", "calls", _STAGE):
            self._timed[rank][name] += calls
        self._talks = self._talks or _has(piece, _COLLECTIVE)
        self._has_mode = {mode: self._has_mode[mode] or _has(piece, one) for mode, one in _OF_MODE.items()}
        # To compare with a Python number would import pandas.
        negative = pc.less(piece["exclusive_ns"], array_of(np.zeros(1))[0])
        self._negative += pc.sum(negative).as_py() or 0
        nulls = piece["inclusive_ns"].null_count
        self._absurd += nulls if nulls < len(piece) else 0  # all of another metric's times are null
        return piece

    def _unthrottled(self, piece: pa.Table) -> pa.Table:
        names = piece["function"].cast("string")
        own = pc.replace_substring_regex(names, _THROTTLED, "")
        self._throttled |= set(own.filter(pc.not_equal(names, own)).to_pylist())
        at = piece.column_names.index("function")
        return piece.set_column(at, piece.field(at), own.dictionary_encode())

    def findings(self, ranks: int, origin: Origin) -> list[Finding]:
        """What is odd.

        Args:
            ranks: how many the profile is of; 0: no thread wrote any.
        """
        found = [] if ranks else [Finding("recording_empty")]
        if ranks and not self._talks and max(ranks, origin.world_size) > 1:
            found.append(Finding("no_collectives", data={"ranks": max(ranks, origin.world_size)}))
        if self._throttled:
            found.append(Finding("timers_throttled", data={"timers": self._throttled}))
        if ranks and not self._has_mode.get(origin.mode, True):
            found.append(Finding("not_recorded", data={"what": f"mode {origin.mode}"}))
        for count, what in (
            (self._absurd, "times of timers"),
            (self._negative, "negative times"),
        ):
            if count:
                found.append(Finding("records_damaged", data={"n": count, "what": what}))
        # How often the threads of each rank passed the stages of a batch: by a timer, else by an event.
        passed = {
            rank: {**self._triggered.get(rank, {}), **self._timed.get(rank, {})}
            for rank in sorted(self._timed.keys() | self._triggered.keys())
        }
        return found + missing_marks(passed, ranks)


def _has(piece: pa.Table, names: str) -> bool:
    """Whether there is a function that matches ``names``, a regular expression."""
    chunks = (chunk.dictionary for chunk, _ in _by_names(piece, "function"))
    return any(pc.any(pc.match_substring_regex(one, names, ignore_case=True)).as_py() for one in chunks)


def _chosen(piece: pa.Table, column: str, figure: str, names: str) -> Iterator[tuple[int, str, float]]:
    """(rank, name, figure) of the rows whose name is one of ``names``, a regular expression."""
    for chunk, rows in _by_names(piece, column):
        codes = pc.indices_nonzero(pc.match_substring_regex(chunk.dictionary, names))
        mine = rows.filter(pc.is_in(chunk.indices, codes.cast(chunk.indices.type)))
        figures = (value or 0.0 for value in mine[figure].to_pylist())
        yield from zip(mine["rank"].to_pylist(), mine[column].to_pylist(), figures, strict=True)


def _by_names(piece: pa.Table, column: str) -> Iterator[tuple[pa.DictionaryArray, pa.Table]]:
    """The rows that share a dictionary of names, and it: there are far fewer names than rows."""
    at = 0
    for chunk in piece[column].chunks:
        yield chunk, piece.slice(at, len(chunk))
        at += len(chunk)
