"""How do TAU's profiles, in whichever format, become the same tables?

Times are microseconds in TAU and nanoseconds here; a user event keeps its own unit. Of several metrics the
wall clock is taken: the others are named in a finding.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

from profiling.coding import coded
from profiling.tables import as_table
from profiling.tau_xml import Definitions, Profile

# Metrics that are wall time in microseconds, the usual one first.
_TIMES = ("TIME", "GET_TIME_OF_DAY", "GETTIMEOFDAY", "LINUX_TIMERS", "TAUGPU_TIME", "CLOCK_GETTIME")
_NS = 1000.0
_LONGEST_US = 1e16


def clock_of(metrics: Sequence[str]) -> int | None:
    """Which of a profile's metrics is wall time; None if none is known to be."""
    return next((metrics.index(name) for name in _TIMES if name in metrics), None)


def thread_number(context: int, thread: int) -> int:
    """One number for a thread of a rank; other contexts than 0 (a GPU's) have numbers of their own."""
    return (context & 0x7FFF) << 16 | thread & 0xFFFF


def intervals_table(
    rank: int, thread: int, functions: pa.Array, rows: np.ndarray, timed: bool = True
) -> pa.Table:
    """Rows of calls, subcalls, exclusive and inclusive microseconds as table ``intervals``.

    Times that cannot be (over 300 years) are null.

    Args:
        timed: the metric is wall time; else the times are null.
    """
    times = np.where(np.abs(rows[:, 2:]) < _LONGEST_US, rows[:, 2:], np.nan) * (_NS if timed else np.nan)
    columns = {
        "rank": np.full(len(rows), rank, dtype=np.int32),
        "thread": np.full(len(rows), thread, dtype=np.int32),
        "function": functions,
        "calls": rows[:, 0],
        "subcalls": rows[:, 1],
        "exclusive_ns": times[:, 0],
        "inclusive_ns": times[:, 1],
    }
    return as_table("intervals", columns)


def atomics_table(rank: int, thread: int, events: pa.Array, rows: np.ndarray) -> pa.Table:
    """Rows of count, maximum, minimum, mean and sum of squares as table ``atomics``.

    Merged profiles list on every thread what happened on any: what never happened is no row.
    """
    happened = rows[:, 0] > 0
    events, rows = events.filter(pa.array(happened)), rows[happened]
    count, largest, smallest, mean, squares = rows.T
    with np.errstate(invalid="ignore", over="ignore"):
        spread = np.sqrt(np.maximum(squares / count - mean * mean, 0))
    columns = {
        "rank": np.full(len(rows), rank, dtype=np.int32),
        "thread": np.full(len(rows), thread, dtype=np.int32),
        "event": events,
        "count": count,
        "min": smallest,
        "max": largest,
        "mean": mean,
        "std": spread,
    }
    return as_table("atomics", columns)


class Names:
    """Names by TAU's numbers as columns of texts, each name looked up once."""

    def __init__(self, common: Definitions) -> None:
        self._common = common

    def column(self, kind: str, numbers: np.ndarray, own: Definitions) -> pa.DictionaryArray:
        """The names of ``numbers``: the thread's own definitions go before the common ones."""
        sound = np.where((numbers >= 0) & (numbers < 1 << 31), numbers, -1).astype(np.int64)
        distinct, which = np.unique(sound, return_inverse=True)
        known = [own.name(kind, number, self._common) for number in distinct.tolist()]
        return coded(which, known)


def profile_tables(
    profile: Profile, common: Definitions, rank: int | None = None
) -> Iterator[tuple[str, pa.Table]]:
    """A thread's profile from XML as pieces of tables."""
    node, context, thread = profile.thread
    rank, thread = node if rank is None else rank, thread_number(context, thread)
    names = Names(common)
    clock = clock_of(metrics_of(profile, common))
    if len(profile.intervals):
        functions = names.column("event", profile.intervals[:, 0], profile.own)
        at = 3 + 2 * (clock or 0)
        rows = profile.intervals[:, [1, 2, at, at + 1]]
        yield "intervals", intervals_table(rank, thread, functions, rows, clock is not None)
    if len(profile.atomics):
        events = names.column("userevent", profile.atomics[:, 0], profile.own)
        yield "atomics", atomics_table(rank, thread, events, profile.atomics[:, 1:])


def metrics_of(profile: Profile, common: Definitions) -> list[str]:
    """The names of a profile's metrics."""
    return [profile.own.name("metric", number, common) for number in profile.metrics]
