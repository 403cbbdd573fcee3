"""TAU's numbers as tables."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from profiling.attribution.coding import array_of, distinct, text_array
from profiling.errors import UserError
from profiling.readers.tau_profiles import Definitions, Profile, Section
from profiling.tables import as_table


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


def _as_numpy(array: pa.Array, kind: type) -> np.ndarray:
    # to_numpy would import pandas.
    data = array.buffers()[1]
    return (
        np.frombuffer(data, kind, len(array), array.offset * np.dtype(kind).itemsize)
        if len(array)
        else np.empty(0, kind)
    )


# Metrics that are wall time in microseconds, the usual one first. TAU takes and writes them in any case.
_TIMES = (
    "TIME", "GET_TIME_OF_DAY", "GETTIMEOFDAY", "LINUX_TIMERS", "TAUGPU_TIME", "CLOCK_GET_TIME",
    "CLOCK_GETTIME", "P_WALL_CLOCK_TIME",
)  # fmt: skip
_NS = 1000.0
_LONGEST_US = 1e16
_BYTES = 1 << 20  # of the numbers' text that becomes a piece
_MOST_NAMES = 1 << 20  # TAU numbers names from 0 on; beyond this they are no such numbers

Each = int | np.ndarray  # one value for all rows, or one a row


def clock_of(metrics: Sequence[str]) -> int | None:
    """Which of a profile's metrics is wall time; None if none is known to be."""
    upper = [name.upper() for name in metrics]
    return next((upper.index(name) for name in _TIMES if name in upper), None)


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
    exclusive, inclusive = (
        _possible(rows[:, column]) if timed else np.full(len(rows), np.nan) for column in (2, 3)
    )
    columns = {
        "rank": _each(rank, len(rows)),
        "thread": _each(thread, len(rows)),
        "function": functions,
        "calls": rows[:, 0],
        "subcalls": rows[:, 1],
        "exclusive_ns": exclusive,
        "inclusive_ns": inclusive,
    }
    return as_table("intervals", columns)


def _possible(times_us: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):
        times_ns = times_us * _NS
    if not (np.abs(times_ns) < _LONGEST_US * _NS).all():
        times_ns[~(np.abs(times_ns) < _LONGEST_US * _NS)] = np.nan
    return times_ns


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


class Names:
    """Numbers of texts for TAU's own numbers, over all threads of a file; each name is looked up once.

    Args:
        kind: "event" or "userevent".
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._texts: dict[str, int] = {}
        self._of = np.empty(
            0, dtype=np.int32
        )  # by TAU's number, as these common definitions have it; -1: new
        self._common: Definitions | None = None
        self._column = text_array([])

    def codes(self, numbers: np.ndarray, own: Definitions, common: Definitions) -> np.ndarray:
        """Numbers of the names of ``numbers``: the thread's own definitions go before the common ones."""
        sound = np.where((numbers >= 0) & (numbers < 1 << 31), numbers, -1).astype(np.int64)
        most = int(sound.max(initial=0))
        if getattr(own, self.kind) or most >= _MOST_NAMES or sound.min(initial=0) < 0:
            each, which = np.unique(sound, return_inverse=True)
            return np.array([self._code(one, own, common) for one in each.tolist()], np.int32)[which]
        if self._common is not common:
            self._common, self._of = common, np.empty(0, dtype=np.int32)
        if most >= len(self._of):
            self._of = np.concatenate([self._of, np.full(most + 1 - len(self._of), -1, dtype=np.int32)])
        codes = self._of[sound]
        if (codes < 0).any():
            for one in distinct(sound[codes < 0]).tolist():
                self._of[one] = self._code(one, own, common)
            codes = self._of[sound]
        return codes

    def _code(self, number: int, own: Definitions, common: Definitions) -> int:
        return self._texts.setdefault(own.name(self.kind, number, common), len(self._texts))

    def column(self, codes: np.ndarray) -> pa.DictionaryArray:
        """Texts by their numbers; the dictionary holds those of the whole file so far."""
        if len(self._column) < len(self._texts):
            self._column = text_array(self._texts)
        # pa.array would import pandas.
        numbers = pa.Array.from_buffers(pa.int32(), len(codes), [None, pa.py_buffer(codes)])
        return pa.DictionaryArray.from_arrays(numbers, self._column)


class Gathered:
    """Sections of many threads as one piece of a table: to read each alone takes longer than its numbers.

    Args:
        path: of the file, for errors.
        kind: "event" (timers) or "userevent".
        columns: how many numbers a row of a section has.
    """

    def __init__(self, path: Path, kind: str, columns: int) -> None:
        self._path, self._columns = path, columns
        self._names = Names(kind)
        self._sections: list[Section] = []
        self._of: list[tuple[Definitions, Definitions]] = []
        self._whose: list[tuple[int, int]] = []  # rank and thread
        self.bytes = 0

    def add(self, profile: Profile, rank: int, section: Section) -> None:
        """Add a thread's rows, the first column of which is TAU's number of the name."""
        _, context, thread = profile.thread
        self._sections.append(section)
        self._of.append((profile.own, profile.common))
        self._whose.append((rank, thread_number(context, thread)))
        self.bytes += len(section.text)

    def take(self) -> tuple[np.ndarray, np.ndarray, pa.DictionaryArray, np.ndarray]:
        """(rank, thread, name, numbers) of all rows since the last time.

        Raises:
            UserError: something else is among the numbers, or a row is not whole.
        """
        rows, counts = self._rows()
        codes, at = [], 0
        for (own, common), length in self._spans(counts):
            codes.append(self._names.codes(rows[at : at + length, 0], own, common))
            at += length
        rank, thread = np.array(self._whose, dtype=np.int32).T
        names = self._names.column(np.concatenate(codes))
        self._sections, self._of, self._whose, self.bytes = [], [], [], 0
        return np.repeat(rank, counts), np.repeat(thread, counts), names, rows[:, 1:]

    def _rows(self) -> tuple[np.ndarray, np.ndarray]:
        """(all rows, how many each section has)."""
        try:
            values, counts = parse_numbers([section.text for section in self._sections])
        except ValueError:
            broken = next(section for section in self._sections if not _are_numbers(section.text))
            raise UserError(
                f"{self._path} is damaged at byte {broken.at} of its text: numbers expected"
            ) from None
        uneven = np.flatnonzero(counts % self._columns)
        if len(uneven):
            raise UserError(
                f"{self._path} is damaged at byte {self._sections[uneven[0]].at} of its text: a row does "
                f"not have {self._columns} numbers"
            )
        return values.reshape(-1, self._columns), counts // self._columns

    def _spans(self, counts: np.ndarray) -> Iterator[tuple[tuple[Definitions, Definitions], int]]:
        """Runs of sections with the same definitions, and how many rows each has."""
        of = ((id(own) if getattr(own, self._names.kind) else 0, id(common)) for own, common in self._of)
        at = [0, *(place for place, (one, two) in enumerate(pairwise(of), 1) if one != two), len(self._of)]
        for first, last in pairwise(at):
            yield self._of[first], int(counts[first:last].sum())


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
        # By which of the metrics is the clock, and how many columns there are.
        self._intervals: dict[tuple[int | None, int], Gathered] = {}
        self._atomics = Gathered(path, "userevent", 6)

    def add(self, profile: Profile) -> Iterator[tuple[str, pa.Table]]:
        """Add a thread's profile; the pieces that are full."""
        rank = profile.thread[0] if self._rank is None else self._rank
        if profile.intervals:
            key = clock_of(metrics_of(profile)), 3 + 2 * len(profile.metrics)
            if key not in self._intervals:
                self._intervals[key] = Gathered(self._path, "event", key[1])
            self._intervals[key].add(profile, rank, profile.intervals)
        if profile.atomics:
            self._atomics.add(profile, rank, profile.atomics)
        yield from self.pieces(_BYTES)

    def pieces(self, least: int = 1) -> Iterator[tuple[str, pa.Table]]:
        """What has been gathered, where it is at least so many bytes."""
        for (clock, _), gathered in self._intervals.items():
            if gathered.bytes >= least:
                rank, thread, names, rows = gathered.take()
                place = 2 + 2 * (clock or 0)
                chosen = rows if rows.shape[1] == 4 else rows[:, [0, 1, place, place + 1]]
                yield "intervals", intervals_table(rank, thread, names, chosen, clock is not None)
        if self._atomics.bytes >= least:
            yield "atomics", atomics_table(*self._atomics.take())


def metrics_of(profile: Profile) -> list[str]:
    """The names of a profile's metrics."""
    return [profile.own.name("metric", number, profile.common) for number in profile.metrics]
