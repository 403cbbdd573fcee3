"""Read TAU's profiles: the files of a run as tables, with findings about them.

A thread counts once: if several files contain it (copies, files of an earlier run), the first one read is
used. TAU's microseconds become nanoseconds; a user event keeps its unit. If there are several metrics, the
wall clock is used.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profiling.attribution.events import array_of, text_array
from profiling.attribution.windows import MARKED_ONCE, missing_marks
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.markers import STAGE_EVENT, stage_of_event
from profiling.readers.files import TAU_METRIC_FOLDER, TAU_THREAD_FILE, UNKNOWN, Origin, rank_in, read_head
from profiling.readers.tau_formats import NAME, Profile, Reader, Section, Thread, metric_of, read_text
from profiling.schemas import END_OF_BATCH
from profiling.tables import as_table
from profiling.traced_job import TraceFacts

_TRACE_FILE = re.compile(r"^(tautrace\..*|tau)\.trc$|^events\.\d{1,9}\.edf$")
_NO_TRACES = "a trace of TAU, which cannot be read; record a profile (TAU_TRACE=0 TAU_PROFILE=1)"
_END_OF_BATCH = re.compile(r"^End of Batch( \d+)?$")


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is a profile of TAU, by its first bytes; or a trace, by its name."""
    profile = b"<profile_xml>" in head[:4096] or metric_of(head) is not None
    return profile or _TRACE_FILE.match(path.name) is not None


def facts(path: Path) -> TraceFacts | None:
    """The rank of a profile, of whose job it says no more; None: it is a trace."""
    return None if _TRACE_FILE.match(path.name) else TraceFacts(rank=rank_in(path))


def stream(path: Path, findings: list[Finding], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """A file, or a folder of one run's, as pieces of tables ``intervals``, ``atomics`` and ``markers``.

    Ranks are as TAU says, where nothing else is known: without MPI each rank takes itself for node 0.
    """
    files, metric_folders = _files(path)
    run, checks = _Run(origin.rank), _Checks()
    for folder in metric_folders:
        run.add_metric(folder.name.removeprefix(TAU_METRIC_FOLDER))
    errors: list[str] = []
    for file in files:
        try:
            for name, piece in run.pieces(file):
                yield name, checks.add(name, piece)
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
    findings += run.findings + checks.findings(ranks, origin)


def _files(path: Path) -> tuple[list[Path], list[Path]]:
    """(the files to read, the folders of metrics that are not wall time)."""
    if not path.is_dir():
        if _TRACE_FILE.match(path.name):
            raise UserError(f"{path} is {_NO_TRACES}")
        return [path], []
    profiles = [file for file in path.iterdir() if TAU_THREAD_FILE.match(file.name) and file.is_file()]
    folders = sorted(folder for folder in path.iterdir() if folder.name.startswith(TAU_METRIC_FOLDER))
    if folders:
        clock = folders.pop(clock_of([one.name.removeprefix(TAU_METRIC_FOLDER) for one in folders]) or 0)
        profiles += [file for file in clock.iterdir() if TAU_THREAD_FILE.match(file.name)]
    profiles = profiles or sorted(file for file in path.iterdir() if file.suffix == ".xml" and file.is_file())
    if not profiles and any(_TRACE_FILE.match(file.name) for file in path.iterdir()):
        raise UserError(f"{path} holds {_NO_TRACES}")
    if not profiles:
        raise UserError(f"{path} holds no profile of TAU (profile.N.C.T, snapshot.N.C.T or merged XML)")
    by_thread = sorted(profiles, key=lambda file: (list(map(int, re.findall(r"\d+", file.name))), file.name))
    return by_thread, folders


class _Run:
    """Reads the files of a run one after the other.

    Attributes:
        rank: whose all of it is; None: as TAU says.
        threads, ranks: how many threads were read; one more than the highest rank read.
        other_metrics: names of metrics that the tables do not hold, but for other clocks.
    """

    def __init__(self, rank: int | None) -> None:
        self._rank = rank
        self.findings: list[Finding] = []
        self.threads = self.ranks = self._repeated = 0
        self.other_metrics: dict[str, None] = {}
        self._file_of: dict[Thread, Path] = {}
        self._snapshots: list[tuple[Thread, str, int]] = []

    def pieces(self, path: Path) -> Iterator[tuple[str, pa.Table]]:
        if metric_of(read_head(path, 1 << 12)) is not None:
            yield from self._text_profile(path)
            return
        reader, tables = Reader(path), Tables(path, self._rank)
        for profile in reader:
            if self._is_new(profile.thread, path):
                metrics = _metrics(profile)
                clock = clock_of(metrics)
                for name in (name for place, name in enumerate(metrics) if place != clock):
                    self.add_metric(name)
                yield from tables.add(profile)
        yield from tables.pieces()
        self._snapshots += [one for one in reader.snapshots if self._file_of.get(one[0], path) == path]
        if reader.unended:
            last = reader.snapshots[-1][1] if reader.snapshots else ""
            self.findings.append(Finding("recording_cut_short", data={"last": last}))

    def _text_profile(self, path: Path) -> Iterator[tuple[str, pa.Table]]:
        profile = read_text(path)
        match = NAME.match(path.name)
        node, context, thread = (int(number) for number in match.groups()) if match else (0, 0, 0)
        if not self._is_new((node, context, thread), path):
            return
        rank = node if self._rank is None else self._rank
        self.add_metric(profile.metric)
        number, timed = _thread_number(context, thread), clock_of([profile.metric]) is not None

        def of_rows(names: list[str]) -> tuple[np.ndarray, np.ndarray, pa.Array]:
            return *(np.full(len(names), one, np.int32) for one in (rank, number)), pa.array(names)

        if profile.functions:
            yield "intervals", intervals_table(*of_rows(profile.functions), profile.intervals, timed)
        if profile.events:
            yield "atomics", atomics_table(*of_rows(profile.events), profile.atomics)

    def _is_new(self, thread: Thread, path: Path) -> bool:
        if thread in self._file_of:
            self._repeated += 1
            return False
        self._file_of[thread] = path
        self.threads += 1
        self.ranks = max(self.ranks, thread[0] + 1)
        return True

    def add_metric(self, name: str) -> None:
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
            "thread": [_thread_number(*thread[1:]) for thread, _, _ in snapshots],
        }
        yield "markers", as_table("markers", columns)


# Metrics that are wall time in microseconds, the usual one first. TAU takes and writes them in any case.
_TIMES = (
    "TIME", "GET_TIME_OF_DAY", "GETTIMEOFDAY", "LINUX_TIMERS", "TAUGPU_TIME", "CLOCK_GET_TIME",
    "CLOCK_GETTIME", "P_WALL_CLOCK_TIME",
)  # fmt: skip
_NS = 1000.0
_LONGEST_US = 1e16
_PIECE_BYTES = 1 << 20  # of the numbers' text that becomes a piece


def parse_numbers(texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """(the numbers of all texts as float64, how many each holds); ValueError: something else is in them."""
    trimmed = pc.ascii_trim_whitespace(pa.array(texts, pa.string()))
    words = pc.ascii_split_whitespace(pc.if_else(pc.equal(trimmed, ""), None, trimmed))
    counts = pc.fill_null(pc.list_value_length(words), 0)
    return _as_numpy(pc.list_flatten(words).cast(pa.float64()), np.float64), _as_numpy(counts, np.int32)


def _as_numpy(array: pa.Array, kind: Any) -> np.ndarray:
    # to_numpy would import pandas.
    if not len(array):
        return np.empty(0, kind)
    return np.frombuffer(array.buffers()[1], kind, len(array), array.offset * np.dtype(kind).itemsize)


def clock_of(metrics: Sequence[str]) -> int | None:
    """Which of a profile's metrics is wall time; None if none is known to be."""
    upper = [name.upper() for name in metrics]
    return next((upper.index(name) for name in _TIMES if name in upper), None)


def _metrics(profile: Profile) -> list[str]:
    return [profile.name("metric", number) for number in profile.metrics]


def _thread_number(context: int, thread: int) -> int:
    """One number for a thread of a rank; other contexts than 0 (a GPU's) have numbers of their own."""
    return (context & 0x7FFF) << 16 | thread & 0xFFFF


def intervals_table(
    rank: np.ndarray, thread: np.ndarray, functions: pa.Array, rows: np.ndarray, timed: bool
) -> pa.Table:
    """Rows of calls, subcalls, exclusive and inclusive microseconds as table ``intervals``.

    Times are null that are not of the wall clock (``timed``), or cannot be (over 300 years).
    """
    times_us = rows[:, 2:4] if timed else np.full((len(rows), 2), np.nan)
    with np.errstate(over="ignore"):
        times_ns = np.where(np.abs(times_us) < _LONGEST_US, times_us * _NS, np.nan)
    columns = {
        "rank": rank,
        "thread": thread,
        "function": functions,
        "calls": rows[:, 0],
        "subcalls": rows[:, 1],
        "exclusive_ns": np.ascontiguousarray(times_ns[:, 0]),
        "inclusive_ns": np.ascontiguousarray(times_ns[:, 1]),
    }
    return as_table("intervals", columns)


def atomics_table(rank: np.ndarray, thread: np.ndarray, events: pa.Array, rows: np.ndarray) -> pa.Table:
    """Count, maximum, minimum, mean, sum of squares as table ``atomics``; what never happened is no row."""
    happened = rows[:, 0] > 0
    if not happened.all():
        events = events.take(array_of(np.flatnonzero(happened)))
        rank, thread, rows = (one[happened] for one in (rank, thread, rows))
    count, largest, smallest, mean, squares = rows.T
    with np.errstate(invalid="ignore", over="ignore"):
        std = np.sqrt(np.maximum(squares / count - mean * mean, 0))
    columns = {
        "rank": rank, "thread": thread, "event": events, "count": count,
        "min": smallest, "max": largest, "mean": mean, "std": std,
    }  # fmt: skip
    return as_table("atomics", columns)


class _Gathered:
    """Sections of many threads as one piece of a table: to read each alone takes longer than its numbers.

    ``kind``: "event" (timers) or "userevent"; ``columns``: numbers of a row, first TAU's number of its name.
    """

    def __init__(self, path: Path, kind: str, columns: int) -> None:
        self._path, self._kind, self._columns = path, kind, columns
        self._texts: dict[str, int] = {}  # names of the whole file so far
        self._column = text_array([])
        self._sections: list[tuple[Profile, int, Section]] = []  # with their ranks
        self.bytes = 0

    def add(self, profile: Profile, rank: int, section: Section) -> None:
        self._sections.append((profile, rank, section))
        self.bytes += len(section.text)

    def take(self) -> tuple[np.ndarray, np.ndarray, pa.DictionaryArray, np.ndarray]:
        """(rank, thread, name, numbers) of all rows since the last time."""
        profiles, ranks, sections = zip(*self._sections, strict=True)
        try:
            values, counts = parse_numbers([section.text for section in sections])
        except ValueError:
            raise UserError(
                f"{self._path} is damaged behind byte {sections[0].at} of its text: numbers expected"
            ) from None
        uneven = np.flatnonzero(counts % self._columns)
        if len(uneven):
            raise UserError(
                f"{self._path} is damaged at byte {sections[uneven[0]].at} of its text: a row does not have "
                f"{self._columns} numbers"
            )
        rows, counts = values.reshape(-1, self._columns), counts // self._columns

        def definitions(pair: tuple[Profile, int]) -> tuple[int, int]:
            return id(pair[0].own) if pair[0].own else 0, id(pair[0].common)

        codes, at = [], 0
        for _, group in groupby(zip(profiles, counts.tolist(), strict=True), definitions):
            pairs = list(group)
            length = sum(count for _, count in pairs)
            codes.append(self._codes(rows[at : at + length, 0], pairs[0][0]))
            at += length
        thread = np.array([_thread_number(*profile.thread[1:]) for profile in profiles], dtype=np.int32)
        if len(self._column) < len(self._texts):
            self._column = text_array(self._texts)
        names = pa.DictionaryArray.from_arrays(array_of(np.concatenate(codes)), self._column)
        self._sections, self.bytes = [], 0
        rank = np.array(ranks, dtype=np.int32)
        return np.repeat(rank, counts), np.repeat(thread, counts), names, rows[:, 1:]

    def _codes(self, numbers: np.ndarray, profile: Profile) -> np.ndarray:
        """Places of the names in ``self._texts``, for TAU's own numbers."""
        sound = np.where((numbers >= 0) & (numbers < 1 << 31), numbers, -1).astype(np.int64)
        distinct, which = np.unique(sound, return_inverse=True)
        names = (profile.name(self._kind, number) for number in distinct.tolist())
        codes = [self._texts.setdefault(name, len(self._texts)) for name in names]
        return np.array(codes, np.int32)[which]


class Tables:
    """Profiles from XML as pieces of tables, many threads a piece; ``rank``: of all of it, None: TAU's."""

    def __init__(self, path: Path, rank: int | None = None) -> None:
        self._path, self._rank = path, rank
        # By kind, by which of the metrics is the clock, and how many columns there are.
        self._gathered: dict[tuple[str, int | None, int], _Gathered] = {}

    def add(self, profile: Profile) -> Iterator[tuple[str, pa.Table]]:
        """Add a thread's profile; the pieces that are full."""
        rank = profile.thread[0] if self._rank is None else self._rank
        timers = "event", clock_of(_metrics(profile)), 3 + 2 * len(profile.metrics)
        for key, section in ((timers, profile.intervals), (("userevent", None, 6), profile.atomics)):
            if section:
                gathered = self._gathered.setdefault(key, _Gathered(self._path, key[0], key[2]))
                gathered.add(profile, rank, section)
        yield from self.pieces(_PIECE_BYTES)

    def pieces(self, least: int = 1) -> Iterator[tuple[str, pa.Table]]:
        """What has been gathered, where it is at least so many bytes."""
        for (kind, clock, _), gathered in self._gathered.items():
            if gathered.bytes < least:
                continue
            rank, thread, names, rows = gathered.take()
            if kind == "userevent":
                yield "atomics", atomics_table(rank, thread, names, rows)
            else:
                place = 2 + 2 * (clock or 0)
                of_clock = rows if rows.shape[1] == 4 else rows[:, [0, 1, place, place + 1]]
                yield "intervals", intervals_table(rank, thread, names, of_clock, clock is not None)


_COLLECTIVE = r"MPI_I?(all|bcast|reduce|gather|scatter)|nccl"
_STAGE = f"^({'|'.join(MARKED_ONCE)})$"
# What TAU adds to the name of a timer that it has switched off.
_THROTTLED = r" *\[THROTTLED\]$"
# What a mode records: TAU without -iowrapper times no reading (a Python that starts does some), and with MPI
# it samples from MPI_Init on alone.
_MODE_TIMERS = {"io": r"^(read|open|open64|fopen|fopen64)\(\)$", "ebs": r"\[(SAMPLE|SUMMARY|CONTEXT)\]"}


class _Checks:
    """Counts what is odd in pieces of tables ``intervals`` and ``atomics``."""

    def __init__(self) -> None:
        # By timers and by events: rank -> stage -> how often.
        self._timed: dict[int, defaultdict[str, float]] = {}
        self._triggered: dict[int, defaultdict[str, float]] = {}
        self._negative = self._absurd = 0
        self._communicates = False
        self._has_mode = dict.fromkeys(_MODE_TIMERS, False)
        self._throttled: set[str] = set()

    def add(self, table: str, piece: pa.Table) -> pa.Table:
        """Count a piece; it is returned with the names of throttled timers put right."""
        if table == "atomics":  # where Python's functions are timed, stages are events
            for rank, event, count in _matching(piece, "event", "count", STAGE_EVENT):
                self._triggered.setdefault(rank, defaultdict(float))[stage_of_event(event)[0]] += count
        if table != "intervals":
            return piece
        if _has(piece, _THROTTLED):
            piece = self._unthrottled(piece)
        for rank in pc.unique(piece["rank"]).to_pylist():
            self._timed.setdefault(rank, defaultdict(float))
        for rank, name, calls in _matching(piece, "function", "calls", _STAGE):
            self._timed[rank][name] += calls
        self._communicates = self._communicates or _has(piece, _COLLECTIVE)
        self._has_mode = {
            mode: self._has_mode[mode] or _has(piece, one) for mode, one in _MODE_TIMERS.items()
        }
        # To compare with a Python number would import pandas.
        self._negative += pc.sum(pc.less(piece["exclusive_ns"], array_of(np.zeros(1))[0])).as_py() or 0
        nulls = piece["inclusive_ns"].null_count
        self._absurd += nulls if nulls < len(piece) else 0  # all of another metric's times are null
        return piece

    def _unthrottled(self, piece: pa.Table) -> pa.Table:
        names = piece["function"].cast("string")
        original = pc.replace_substring_regex(names, _THROTTLED, "")
        self._throttled |= set(original.filter(pc.not_equal(names, original)).to_pylist())
        at = piece.column_names.index("function")
        return piece.set_column(at, piece.field(at), original.dictionary_encode())

    def findings(self, ranks: int, origin: Origin) -> list[Finding]:
        """What is odd; ``ranks``: how many the profile is of; 0: no thread wrote any."""
        found = [] if ranks else [Finding("recording_empty")]
        if ranks and not self._communicates and max(ranks, origin.world_size) > 1:
            found.append(Finding("no_collectives", data={"ranks": max(ranks, origin.world_size)}))
        if self._throttled:
            found.append(Finding("timers_throttled", data={"timers": self._throttled}))
        if ranks and not self._has_mode.get(origin.mode, True):
            found.append(Finding("not_recorded", data={"what": f"mode {origin.mode}"}))
        for count, what in ((self._absurd, "times of timers"), (self._negative, "negative times")):
            if count:
                found.append(Finding("records_damaged", data={"n": count, "what": what}))
        # How often the threads of each rank passed the stages of a batch: by a timer, else by an event.
        passed = {
            rank: {**self._triggered.get(rank, {}), **self._timed.get(rank, {})}
            for rank in sorted(self._timed.keys() | self._triggered.keys())
        }
        return found + missing_marks(passed, ranks)


def _has(piece: pa.Table, pattern: str) -> bool:
    """Whether the name of a timer matches a regular expression; there are far fewer names than rows."""
    names = piece["function"].chunk(0).dictionary
    return bool(pc.any(pc.match_substring_regex(names, pattern, ignore_case=True)).as_py())


def _matching(piece: pa.Table, column: str, figure: str, pattern: str) -> Iterator[tuple[int, str, float]]:
    """(rank, name, figure) of the rows whose name matches a regular expression."""
    names = piece[column].chunk(0)
    codes = pc.indices_nonzero(pc.match_substring_regex(names.dictionary, pattern))
    rows = piece.filter(pc.is_in(names.indices, codes.cast(names.indices.type)))
    figures = (value or 0.0 for value in rows[figure].to_pylist())
    yield from zip(rows["rank"].to_pylist(), rows[column].to_pylist(), figures, strict=True)
