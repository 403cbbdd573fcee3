"""How do TAU's profiles, in whichever format, become the same tables?

Times are microseconds in TAU and nanoseconds here; a user event keeps its own unit. Of several metrics the
wall clock is taken: the others are named in a finding.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from profiling.tables import as_table
from profiling.tau_xml import Definitions, Profile

# Metrics that are wall time in microseconds, the usual one first.
_TIMES = (
    "TIME", "GET_TIME_OF_DAY", "GETTIMEOFDAY", "LINUX_TIMERS", "TAUGPU_TIME", "CLOCK_GETTIME",
    "P_WALL_CLOCK_TIME",
)  # fmt: skip
_NS = 1000.0
_LONGEST_US = 1e16
_ROWS = 1 << 16  # of a piece
_MOST_NAMES = 1 << 20  # TAU numbers names from 0 on; beyond this they are no such numbers

Each = int | np.ndarray  # one value for all rows, or one a row


def clock_of(metrics: Sequence[str]) -> int | None:
    """Which of a profile's metrics is wall time; None if none is known to be."""
    return next((metrics.index(name) for name in _TIMES if name in metrics), None)


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
    times = np.where(np.abs(rows[:, 2:]) < _LONGEST_US, rows[:, 2:], np.nan) * (_NS if timed else np.nan)
    columns = {
        "rank": _each(rank, len(rows)),
        "thread": _each(thread, len(rows)),
        "function": functions,
        "calls": rows[:, 0],
        "subcalls": rows[:, 1],
        "exclusive_ns": times[:, 0],
        "inclusive_ns": times[:, 1],
    }
    return as_table("intervals", columns)


def atomics_table(rank: Each, thread: Each, events: pa.Array, rows: np.ndarray) -> pa.Table:
    """Rows of count, maximum, minimum, mean and sum of squares as table ``atomics``.

    Merged profiles list on every thread what happened on any: what never happened is no row.
    """
    happened = rows[:, 0] > 0
    if not happened.all():
        events, rows = events.filter(pa.array(happened)), rows[happened]
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
        self._kind = kind
        self._texts: dict[str, int] = {}
        self._of = np.empty(0, dtype=np.int32)  # by TAU's number, as the common definitions have it; -1: new
        self._seen: tuple[int, int] | None = None
        self._last = np.empty(0), np.empty(0, dtype=np.int32)  # what was asked last, and the answer
        self._column = pa.array([], pa.string())

    def codes(self, numbers: np.ndarray, own: Definitions, common: Definitions) -> np.ndarray:
        """Numbers of the names of ``numbers``: the thread's own definitions go before the common ones."""
        known = not getattr(own, self._kind) and self._seen == (id(common), common.changes)
        if known and np.array_equal(numbers, self._last[0]):  # most threads list the same timers
            return self._last[1]
        sound = np.where((numbers >= 0) & (numbers < 1 << 31), numbers, -1).astype(np.int64)
        most = int(sound.max(initial=0))
        if getattr(own, self._kind) or most >= _MOST_NAMES or sound.min(initial=0) < 0:
            distinct, which = np.unique(sound, return_inverse=True)
            return np.array([self._code(one, own, common) for one in distinct.tolist()], np.int32)[which]
        if self._seen != (id(common), common.changes):
            self._seen, self._of = (id(common), common.changes), np.empty(0, dtype=np.int32)
        if most >= len(self._of):
            self._of = np.concatenate([self._of, np.full(most + 1 - len(self._of), -1, dtype=np.int32)])
        codes = self._of[sound]
        if (codes < 0).any():
            for one in np.unique(sound[codes < 0]).tolist():
                self._of[one] = self._code(one, own, common)
            codes = self._of[sound]
        self._last = numbers.copy(), codes
        return codes

    def _code(self, number: int, own: Definitions, common: Definitions) -> int:
        return self._texts.setdefault(own.name(self._kind, number, common), len(self._texts))

    def column(self, codes: np.ndarray) -> pa.DictionaryArray:
        """Texts by their numbers; the dictionary holds those of the whole file so far."""
        if len(self._column) < len(self._texts):
            self._column = pa.array(list(self._texts), pa.string())
        # pa.array would import pandas.
        numbers = pa.Array.from_buffers(pa.int32(), len(codes), [None, pa.py_buffer(codes)])
        return pa.DictionaryArray.from_arrays(numbers, self._column)


class Gathered:
    """Rows of many threads as one piece of a table: a table for each thread takes longer than its rows.

    Args:
        kind: "event" (timers) or "userevent".
    """

    def __init__(self, kind: str) -> None:
        self._names = Names(kind)
        self._rows: list[np.ndarray] = []
        self._codes: list[np.ndarray] = []
        self._whose: list[tuple[int, int, int]] = []  # rank, thread, how many rows
        self.count = 0

    def add(self, profile: Profile, common: Definitions, rank: int, rows: np.ndarray) -> None:
        """Add a thread's rows, the first column of which is TAU's number of the name."""
        _, context, thread = profile.thread
        self._codes.append(self._names.codes(rows[:, 0], profile.own, common))
        self._rows.append(rows[:, 1:])
        self._whose.append((rank, thread_number(context, thread), len(rows)))
        self.count += len(rows)

    def take(self) -> tuple[np.ndarray, np.ndarray, pa.DictionaryArray, np.ndarray]:
        """(rank, thread, name, numbers) of all rows since the last time."""
        rank, thread, count = np.array(self._whose, dtype=np.int32).T
        names = self._names.column(np.concatenate(self._codes))
        taken = np.repeat(rank, count), np.repeat(thread, count), names, np.concatenate(self._rows)
        self._rows, self._codes, self._whose, self.count = [], [], [], 0
        return taken


class Tables:
    """Profiles from XML as pieces of tables, many threads a piece.

    Args:
        rank: whose all of it is; None: as TAU says.
    """

    def __init__(self, rank: int | None = None) -> None:
        self._rank = rank
        self._timed, self._untimed, self._atomics = (
            Gathered("event"),
            Gathered("event"),
            Gathered("userevent"),
        )

    def add(self, profile: Profile, common: Definitions) -> Iterator[tuple[str, pa.Table]]:
        """Add a thread's profile; the pieces that are full."""
        rank = profile.thread[0] if self._rank is None else self._rank
        clock = clock_of(metrics_of(profile, common))
        if len(profile.intervals):
            gathered, rows = self._untimed if clock is None else self._timed, profile.intervals
            if clock:
                rows = np.delete(rows, np.s_[3 : 3 + 2 * clock], axis=1)
            gathered.add(profile, common, rank, rows[:, :5])
        if len(profile.atomics):
            # Merged profiles list on every thread what happened on any: what never happened is no row.
            self._atomics.add(profile, common, rank, profile.atomics[profile.atomics[:, 1] > 0])
        yield from self.pieces(_ROWS)

    def pieces(self, least: int = 1) -> Iterator[tuple[str, pa.Table]]:
        """What has been gathered, where it is at least so many rows."""
        for gathered, timed in ((self._timed, True), (self._untimed, False)):
            if gathered.count >= least:
                yield "intervals", intervals_table(*gathered.take(), timed)
        if self._atomics.count >= least:
            yield "atomics", atomics_table(*self._atomics.take())


def metrics_of(profile: Profile, common: Definitions) -> list[str]:
    """The names of a profile's metrics."""
    return [profile.own.name("metric", number, common) for number in profile.metrics]
