"""Process a recording of any length in windows of several steps, in bounded memory, and count its problems.

A recording that does not fit in memory (:mod:`profiling.attribution.events`) is cut at the ends of steps.
Host events belong to the window in which they began, ranges to every window they overlap, and device work to
the window of its launch. Correlation ids of launches increase with time, so a window is a range of ids; the
few that two windows share (threads that launch concurrently) are looked up one by one.

This uses NumPy, not DuckDB: it splits a recording in a fifth of the time that DuckDB takes to spill and read
windows, and joins a window in a tenth (benchmarks.joins).
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

import numpy as np

from profiling.attribution.batch_times import (
    OPTIMIZER_STEP,
    WHOLE,
    Period,
    find_batches,
    find_period,
    tells_batch,
)
from profiling.attribution.events import (
    CLASS,
    COMMUNICATION,
    MEMCPY,
    MEMSET,
    OPERATOR,
    RANGE,
    Columns,
    Events,
    Split,
    Trace,
    classes_of,
    distinct,
    joined,
    name_flags,
)
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.schemas import MARKS

ROWS = 1 << 18  # of its largest table that a window should hold
MOST_OPERATORS = 1 << 21  # of a window; they take 0.5 GB
_MOST_NAMED = 5  # ranges that a finding names
_MOST_DISPUTED = 1 << 20  # numbers of launches; more, and they do not rise with time
_MOMENTS = 1 << 20  # that are looked at to find one at which nothing is open
_FIRST, _LAST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


@dataclass(frozen=True)
class Window:
    """Some batches of a recording: what happened after ``first_ns`` and until ``last_ns``."""

    events: Events  # of the window, with the ranges that reach into it
    first_ns: int = _FIRST
    last_ns: int = _LAST

    def owns(self, times: np.ndarray) -> np.ndarray:
        """Whether times are the window's, not only of ranges that reach into it."""
        return (times > self.first_ns) & (times <= self.last_ns)


class Windows:
    """The windows of a recording, in order.

    Args:
        first_batch, marker: see :func:`profiling.attribution.batch_times.find_batches`.
        alone: the recording is all there is of its batches: they are numbered from 0, and where nothing marks
            them found by a period of the kernels.

    Attributes:
        marks: the ranges that tell batches and their stages, of the whole recording; columns as of events.
        batches: in which batch a time lies.
        by_launch: whether launches were recorded, which then tie work on a device to the host.
    """

    def __init__(self, trace: Trace, first_batch: int | None, marker: str = "", alone: bool = False) -> None:
        self._trace = trace
        marking = name_flags(trace.names, lambda name: name in MARKED_ONCE or tells_batch(name, marker))
        host = trace.tables["host"]
        pieces = [
            {name: column[marking[piece["name"]]] for name, column in piece.items()}
            for piece in host.pieces()
        ]
        groups = {name: joined(table.types, []) for name, table in trace.tables.items()}
        self.marks = trace.events(groups | {"host": joined(host.types, pieces)}).host
        period = self._period if alone else lambda: None
        batches = find_batches(trace.names, self.marks, first_batch, marker, period)
        self.batches = batches.or_whole(self._last_ns()).from_0() if alone else batches
        if marker and not any(re.search(marker, name) for name in self._names_of(self.marks)):
            counts = Counter(name for piece in host.pieces() for name in self._names_of(piece))
            there = [f"{name} ({count})" for name, count in counts.most_common(_MOST_NAMED)]
            trace.findings.append(Finding("batch_marker_unmatched", data={"marker": marker, "ranges": there}))
        self.by_launch = any((piece["correlation"] >= 0).any() for piece in trace.tables["launches"].pieces())

    def _names_of(self, host: Columns) -> list[str]:
        return [self._trace.names[name] for name in host["name"][host["kind"] == RANGE].tolist()]

    def _last_ns(self) -> int:
        device, host = self._trace.tables["device"], self._trace.tables["host"]
        ends = [int((piece["start_ns"] + piece["duration_ns"]).max(initial=0)) for piece in device.pieces()]
        ends += [] if ends else [int(piece["end_ns"].max(initial=0)) for piece in host.pieces()]
        return max(ends, default=0) + self._trace.shift_ns

    def _period(self) -> Period | None:
        """A period of what runs on the device's busiest stream, collectives, copies and sets left out."""
        pieces = list(self._trace.tables["device"].pieces())
        if not pieces:
            return None
        kind = classes_of(self._trace.names)
        names = ("name", "start_ns", "duration_ns", "stream", "device")
        rows = {name: np.concatenate([piece[name] for piece in pieces]) for name in names}
        works = ~np.isin(kind[rows["name"]], (COMMUNICATION, MEMCPY, MEMSET, CLASS["loader"]))
        if not works.any():
            return None
        streams, count = np.unique(rows["stream"][works], return_counts=True)
        chosen = np.flatnonzero(works & (rows["stream"] == streams[np.argmax(count)]))
        chosen = chosen[np.argsort(rows["start_ns"][chosen], kind="stable")]
        start_ns = rows["start_ns"][chosen] + self._trace.shift_ns
        updates = np.flatnonzero(kind == CLASS["optimizer"]).tolist()
        return find_period(rows["name"][chosen], start_ns, start_ns + rows["duration_ns"][chosen], updates)

    def __iter__(self) -> Iterator[Window]:
        cuts = self._cuts()
        parts = _split(self._trace, cuts, self.by_launch) if len(cuts) else None
        if parts is None:
            yield Window(self._trace.whole())
            return
        edges = [_FIRST, *(cuts + self._trace.shift_ns).tolist(), _LAST]
        for number, (first_ns, last_ns) in enumerate(pairwise(edges)):
            rows = {name: part.window(number) for name, part in parts.items()}
            yield Window(self._trace.events(rows), first_ns, last_ns)

    def _cuts(self) -> np.ndarray:
        """The last times of all windows but the last, as the recording's clock tells them; may be empty."""
        tables = self._trace.tables
        rows = max((table.rows for table in tables.values() if table.spilled), default=0)
        windows = -(-rows // ROWS)
        if windows < 2:
            return np.empty(0, np.int64)
        if self.batches.source in ("", WHOLE):
            return self._quiet(windows)
        ends = self.batches.ends_ns - self._trace.shift_ns
        places = np.linspace(0, len(ends), min(windows, len(ends) + 1) + 1)[1:-1].astype(np.int64)
        return distinct(ends[np.maximum(places, 1) - 1])

    def _quiet(self, windows: int) -> np.ndarray:
        """Cuts of a recording without batches: moments at which no operator is open, if there are any.

        Raises:
            UserError: between two of them lie more operators of a CPU than memory should hold.
        """
        least = min(start.min(initial=_LAST) for start, _ in self._work())
        last = max(end.max(initial=0) for _, end in self._work())
        moments = np.linspace(least, last, _MOMENTS, endpoint=False).astype(np.int64)
        begun, ended = np.zeros((2, _MOMENTS + 1), np.int64)
        for times in self._work():
            for total, one in zip((begun, ended), times, strict=True):
                total += np.bincount(np.searchsorted(moments, one), minlength=_MOMENTS + 1)
        before = np.cumsum(begun)[:-1]
        quiet = np.flatnonzero(before == np.cumsum(ended)[:-1])
        chosen = np.searchsorted(before[quiet], np.linspace(0, begun.sum(), windows + 1)[1:-1])
        at = quiet[chosen[chosen < len(quiet)]]
        most = np.diff([0, *before[at], begun.sum()]).max()
        if most > MOST_OPERATORS and not self._trace.on_device:
            why = f"{most:,} operators without steps, nor a pause between them"
            raise UserError(f"{self._trace.path}: {why}; record fewer, or steps (profiler.step())")
        return distinct(moments[at])

    def _work(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """When operators began and ended, and when work of a device was launched, a piece at a time."""
        launches = self._trace.tables["launches" if self.by_launch else "device"]
        yield from ((one["start_ns"], one["start_ns"]) for one in launches.pieces())
        for one in self._trace.tables["host"].pieces():
            works = one["kind"] == OPERATOR
            yield one["start_ns"][works], one["end_ns"][works]


def _split(trace: Trace, cuts: np.ndarray, by_launch: bool) -> dict[str, Split] | None:
    """Each table by window; None if the device's work cannot be split so."""
    tables, windows = trace.tables, len(cuts) + 1

    def window_of(times: np.ndarray) -> np.ndarray:
        return np.searchsorted(cuts, times, side="left")

    launches = tables["launches"].split("start_ns", window_of, windows)
    host = tables["host"].split("start_ns", window_of, windows)
    key = "correlation" if by_launch else "external"
    window_of_link = _window_by_key(launches if by_launch else host, windows, key)
    if window_of_link is None:
        return None
    for piece in tables["host"].pieces():
        _reach_on(host, piece, cuts)
    return {
        "host": host,
        "launches": launches,
        "device": tables["device"].split(key, window_of_link, windows),
        "memory": tables["memory"].split("time_ns", window_of, windows),
    }


def _reach_on(host: Split, piece: Columns, cuts: np.ndarray) -> None:
    """Add ranges to the windows after their first into which they reach."""
    first, last = (np.searchsorted(cuts, piece[time], side="left") for time in ("start_ns", "end_ns"))
    long = (last > first) & (piece["kind"] != OPERATOR)
    if not long.any():
        return
    rows, first, last = {name: column[long] for name, column in piece.items()}, first[long], last[long]
    for window in range(int(first.min()) + 1, int(last.max()) + 1):
        host.add(rows, np.where((first < window) & (window <= last), window, -1))


def _window_by_key(links: Split, windows: int, key: str) -> Callable[[np.ndarray], np.ndarray] | None:
    """From numbers of launches to windows (nobody's number: to one near); None if they do not rise."""

    def numbers(window: int) -> np.ndarray:
        values = links.column(window, key)
        return values[values >= 0]

    spans = [(values.min(initial=_LAST), values.max(initial=-1)) for values in map(numbers, range(windows))]
    least, most = np.array(spans).T
    # The highest number until the end of each window, and the lowest after it; both rise. A number above all
    # of the windows before and below all of those behind is of the first window whose ``reached`` is not
    # below it. Numbers of which that is not so lie between ``after`` and ``reached`` of some window: these
    # are disputed, and each is looked up.
    reached = np.maximum.accumulate(most)
    after = np.append(np.minimum.accumulate(least[::-1])[::-1][1:], _LAST)
    disputed = [(low, high) for low, high in zip(after, reached, strict=True) if low <= high]
    claims: list[tuple[np.ndarray, np.ndarray]] = []
    for window in range(windows) if disputed else ():
        values = numbers(window)
        chosen = np.logical_or.reduce([(values >= low) & (values <= high) for low, high in disputed])
        claims.append((values[chosen], np.full(int(chosen.sum()), window)))
        if sum(len(number) for number, _ in claims) > _MOST_DISPUTED:
            return None
    number = np.concatenate([np.empty(0, np.int64), *(one for one, _ in claims)])
    window_of = np.concatenate([np.empty(0, np.int64), *(one for _, one in claims)])
    order = np.argsort(number, kind="stable")
    number, window_of = number[order], window_of[order]

    def window_of_key(keys: np.ndarray) -> np.ndarray:
        window = np.minimum(np.searchsorted(reached, keys, side="left"), windows - 1)
        if len(number):
            place = np.minimum(np.searchsorted(number, keys), len(number) - 1)
            window = np.where(number[place] == keys, window_of[place], window)
        return window

    return window_of_key


_SHOWN = 1 << 10
# What marks a batch once, by our loop and by others'.
MARKED_ONCE = (*MARKS, "Load Data", "Optimizer Step", "Allreduce Gradients")


def missing_marks(counts: Mapping[int, Mapping[str, float]], world_size: int = 0) -> list[Finding]:
    """What is wrong with how often each rank passed each stage; ``world_size``: ranks expected."""
    marked = {rank: {name: of[name] for name in MARKED_ONCE if name in of} for rank, of in counts.items()}
    most = max((count for of in marked.values() for count in of.values()), default=0)
    if most == 0:
        return [Finding("steps_unmarked", data={"by": "nothing"})] if counts else []
    findings = [
        Finding("marks_missing", rank=rank, data={"stage": name, "n": count, "of": most})
        for rank in sorted(marked)
        for name in MARKED_ONCE
        if any(name in of for of in marked.values()) and (count := marked[rank].get(name, 0)) < most
    ]
    return findings + missing_ranks(counts, world_size)


def missing_ranks(there: Collection[int], world_size: int) -> list[Finding]:
    """That ranks are missing, if some are: how many, and the first of them (a world size may be damaged)."""
    if len(there) >= world_size:
        return []
    first = list(islice((rank for rank in range(world_size) if rank not in there), _SHOWN))
    return [
        Finding("profiles_missing", data={"n": world_size - len(there), "of": world_size, "ranks": first})
    ]


def stage_findings(rank: int, names: Sequence[str], start_ns: np.ndarray) -> list[Finding]:
    """What is wrong with the stages of a rank's batches, by its ranges' names and starts, shape (names,)."""
    counts = Counter(name for name in names if name in MARKED_ONCE)
    findings = missing_marks({rank: counts}) if counts else []
    if findings or not all(name in counts for name in MARKS):
        return findings
    place = {name: number for number, name in enumerate(MARKS)}
    stage = np.array([place.get(name, -1) for name in names])
    begun = start_ns[stage >= 0]
    stage = stage[stage >= 0][np.argsort(begun, kind="stable")]
    wrong = int((stage != np.arange(len(stage)) % len(MARKS)).sum())
    return [Finding("stages_out_of_order", rank=rank, data={"n": wrong, "of": len(stage)})] if wrong else []


class Tally:
    """Counts over the rows of all windows of a recording.

    ``marks``: its ranges that tell batches and stages, columns as of host events; ``source``: what marks its
    batches; empty if nothing does.
    """

    def __init__(self, trace: Trace, marks: Columns, source: str, rank: int) -> None:
        self._trace, self._marks, self._source, self._rank = trace, marks, source, rank
        self._rows = self._collectives = self._launched = self._early = self._earliest_ns = 0

    def add(self, launched_ns: np.ndarray, start_ns: np.ndarray, is_collective: np.ndarray) -> None:
        """Count a window's rows: when each was launched (-1: not known) and began, in ns."""
        early = np.where(launched_ns >= 0, launched_ns - start_ns, 0)
        self._rows += len(early)
        self._collectives += int(is_collective.sum())
        self._launched += int((launched_ns >= 0).sum())
        self._early += int((early > 0).sum())
        self._earliest_ns = max(self._earliest_ns, int(early.max(initial=0)))

    def findings(self) -> list[Finding]:
        trace, marks, rows = self._trace, self._marks, self._rows
        found = list(trace.findings)
        if trace.malformed:
            found.append(Finding("records_damaged", data={"n": trace.malformed, "what": "events"}))
        if trace.overruns:
            found.append(Finding("overruns_cut", data={"n": trace.overruns, "of": rows}))
        if rows and trace.world_size > 1 and not self._collectives:
            found.append(Finding("no_collectives", data={"ranks": trace.world_size}))
        if self._early:
            data = {"n": self._early, "of": self._launched, "by_ns": self._earliest_ns}
            found.append(Finding("begun_before_launch", data=data))
        ranges = marks["kind"] == RANGE
        names = [trace.names[name] for name in marks["name"][ranges]]
        found += stage_findings(self._rank, names, marks["start_ns"][ranges])
        if self._launched < rows:
            found.append(Finding("launches_missing", data={"n": rows - self._launched, "of": rows}))
        if rows and self._source in ("", OPTIMIZER_STEP):
            found.append(Finding("steps_unmarked", data={"by": self._source or "nothing"}))
        if rows and trace.may_have_shapes and not trace.inputs:
            found.append(Finding("not_recorded", data={"what": "input shapes"}))
        return found
