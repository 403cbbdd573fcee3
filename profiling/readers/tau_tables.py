"""TAU's profiles, in whichever format, as tables.

Times are microseconds in TAU and nanoseconds here; a user event keeps its own unit. Of several metrics the
wall clock is taken.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profiling.attribution.coding import array_of, text_array
from profiling.errors import UserError
from profiling.readers.tau_formats import Profile, Section
from profiling.tables import as_table

# Metrics that are wall time in microseconds, the usual one first. TAU takes and writes them in any case.
_TIMES = (
    "TIME", "GET_TIME_OF_DAY", "GETTIMEOFDAY", "LINUX_TIMERS", "TAUGPU_TIME", "CLOCK_GET_TIME",
    "CLOCK_GETTIME", "P_WALL_CLOCK_TIME",
)  # fmt: skip
_NS = 1000.0
_LONGEST_US = 1e16
_BYTES = 1 << 20  # of the numbers' text that becomes a piece

Each = int | np.ndarray  # one value for all rows, or one a row


def parse_numbers(texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """(the numbers of all texts as float64, how many each holds); they stand between white space.

    Short texts are read faster together than each alone.

    Raises:
        ValueError: something else is among them.
    """
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


def metrics_of(profile: Profile) -> list[str]:
    """The names of a profile's metrics."""
    return [profile.name("metric", number) for number in profile.metrics]


def thread_number(context: int, thread: int) -> int:
    """One number for a thread of a rank; other contexts than 0 (a GPU's) have numbers of their own."""
    return (context & 0x7FFF) << 16 | thread & 0xFFFF


def _each(value: Each, rows: int) -> np.ndarray:
    return value if isinstance(value, np.ndarray) else np.full(rows, value, dtype=np.int32)


def intervals_table(
    rank: Each, thread: Each, functions: pa.Array, rows: np.ndarray, timed: bool = True
) -> pa.Table:
    """Rows of calls, subcalls, exclusive and inclusive microseconds as table ``intervals``.

    Times that cannot be (over 300 years) are null.

    Args:
        timed: the metric is wall time; else the times are null.
    """
    times_us = rows[:, 2:4] if timed else np.full((len(rows), 2), np.nan)
    with np.errstate(over="ignore"):
        times_ns = np.where(np.abs(times_us) < _LONGEST_US, times_us * _NS, np.nan)
    columns = {
        "rank": _each(rank, len(rows)),
        "thread": _each(thread, len(rows)),
        "function": functions,
        "calls": rows[:, 0],
        "subcalls": rows[:, 1],
        "exclusive_ns": np.ascontiguousarray(times_ns[:, 0]),
        "inclusive_ns": np.ascontiguousarray(times_ns[:, 1]),
    }
    return as_table("intervals", columns)


def atomics_table(rank: Each, thread: Each, events: pa.Array, rows: np.ndarray) -> pa.Table:
    """Rows of count, maximum, minimum, mean and sum of squares as table ``atomics``.

    Merged profiles list on every thread what happened on any: what never happened is no row.
    """
    happened = rows[:, 0] > 0
    if not happened.all():
        events, rows = events.take(array_of(np.flatnonzero(happened))), rows[happened]
        rank, thread = (one[happened] if isinstance(one, np.ndarray) else one for one in (rank, thread))
    count, largest, smallest, mean, squares = rows.T
    with np.errstate(invalid="ignore", over="ignore"):
        spread = np.sqrt(np.maximum(squares / count - mean * mean, 0))
    columns = {
        "rank": _each(rank, len(rows)),
        "thread": _each(thread, len(rows)),
        "event": events,
        "count": count,
        "min": smallest,
        "max": largest,
        "mean": mean,
        "std": spread,
    }
    return as_table("atomics", columns)


class _Gathered:
    """Sections of many threads as one piece of a table: to read each alone takes longer than its numbers.

    Args:
        path: of the file, for errors.
        kind: "event" (timers) or "userevent".
        columns: how many numbers a row of a section has, the first of which is TAU's number of the name.
    """

    def __init__(self, path: Path, kind: str, columns: int) -> None:
        self._path, self._kind, self._columns = path, kind, columns
        self._texts: dict[str, int] = {}  # names of the whole file so far
        self._column = text_array([])
        self._sections: list[Section] = []
        self._of: list[Profile] = []
        self._ranks: list[int] = []
        self.bytes = 0

    def add(self, profile: Profile, rank: int, section: Section) -> None:
        """Add a thread's rows."""
        self._sections.append(section)
        self._of.append(profile)
        self._ranks.append(rank)
        self.bytes += len(section.text)

    def take(self) -> tuple[np.ndarray, np.ndarray, pa.DictionaryArray, np.ndarray]:
        """(rank, thread, name, numbers) of all rows since the last time.

        Raises:
            UserError: something else is among the numbers, or a row is not whole.
        """
        try:
            values, counts = parse_numbers([section.text for section in self._sections])
        except ValueError:
            at = next(section.at for section in self._sections if not _are_numbers(section.text))
            raise UserError(f"{self._path} is damaged at byte {at} of its text: numbers expected") from None
        uneven = np.flatnonzero(counts % self._columns)
        if len(uneven):
            raise UserError(
                f"{self._path} is damaged at byte {self._sections[uneven[0]].at} of its text: a row does "
                f"not have {self._columns} numbers"
            )
        rows, counts = values.reshape(-1, self._columns), counts // self._columns

        def definitions(pair: tuple[Profile, int]) -> tuple[int, int]:
            return id(pair[0].own) if pair[0].own else 0, id(pair[0].common)

        codes, at = [], 0
        for _, some in groupby(zip(self._of, counts.tolist(), strict=True), definitions):
            pairs = list(some)
            length = sum(count for _, count in pairs)
            codes.append(self._codes(rows[at : at + length, 0], pairs[0][0]))
            at += length
        rank = np.array(self._ranks, dtype=np.int32)
        thread = np.array([thread_number(*profile.thread[1:]) for profile in self._of], dtype=np.int32)
        if len(self._column) < len(self._texts):
            self._column = text_array(self._texts)
        # pa.array would import pandas.
        numbers = pa.py_buffer(np.concatenate(codes))
        names = pa.DictionaryArray.from_arrays(
            pa.Array.from_buffers(pa.int32(), len(rows), [None, numbers]), self._column
        )
        self._sections, self._of, self._ranks, self.bytes = [], [], [], 0
        return np.repeat(rank, counts), np.repeat(thread, counts), names, rows[:, 1:]

    def _codes(self, numbers: np.ndarray, profile: Profile) -> np.ndarray:
        """Numbers of names for TAU's own."""
        sound = np.where((numbers >= 0) & (numbers < 1 << 31), numbers, -1).astype(np.int64)
        each, which = np.unique(sound, return_inverse=True)
        names = (profile.name(self._kind, number) for number in each.tolist())
        codes = [self._texts.setdefault(name, len(self._texts)) for name in names]
        return np.array(codes, np.int32)[which]


def _are_numbers(text: bytes) -> bool:
    try:
        parse_numbers([text])
    except ValueError:
        return False
    return True


class Tables:
    """Profiles from XML as pieces of tables, many threads a piece.

    Args:
        path: of the file, for errors.
        rank: whose all of it is; None: as TAU says.
    """

    def __init__(self, path: Path, rank: int | None = None) -> None:
        self._path, self._rank = path, rank
        # By kind, by which of the metrics is the clock, and how many columns there are.
        self._gathered: dict[tuple[str, int | None, int], _Gathered] = {}

    def add(self, profile: Profile) -> Iterator[tuple[str, pa.Table]]:
        """Add a thread's profile; the pieces that are full."""
        rank = profile.thread[0] if self._rank is None else self._rank
        of_timers = "event", clock_of(metrics_of(profile)), 3 + 2 * len(profile.metrics)
        for key, section in ((of_timers, profile.intervals), (("userevent", None, 6), profile.atomics)):
            if section:
                if key not in self._gathered:
                    self._gathered[key] = _Gathered(self._path, key[0], key[2])
                self._gathered[key].add(profile, rank, section)
        yield from self.pieces(_BYTES)

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
                chosen = rows if rows.shape[1] == 4 else rows[:, [0, 1, place, place + 1]]
                yield "intervals", intervals_table(rank, thread, names, chosen, clock is not None)
