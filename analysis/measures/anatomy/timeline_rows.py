"""Slices of a rank's timeline, from its tables, on the rank's own clock.

On one track slices do not overlap: what ran at the same time (kernels of a stream that overlap, a range
inside another) gets a further track of the same name; Perfetto shows both as one.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from analysis.display.perfetto import Slices, Words
from analysis.measures.anatomy.divide import STAGES, edges_of
from analysis.measures.anatomy.traces import groups, kinds
from analysis.results.matching import Calls
from analysis.results.traces import GROUP, column_of

BATCH_COLUMNS = (
    "batch_index", "start_ns", "load_ns", "forward_ns", "backward_ns", "update_ns", "end_ns", "images",
    "loss", "attributed",
)  # fmt: skip
_TEXT = ("name", "short_name", "class", "direction", "operator", "layer")
KERNEL_COLUMNS = (
    "batch_index", "start_ns", "duration_ns", *_TEXT, "device", "stream", "flops", "bytes",
)  # fmt: skip
CALL_COLUMNS = ("batch_index", "start_ns", "duration_ns", "class", "short_name", *GROUP)
_APART = ("", "communication", "loader")  # what has tracks of its own: no kernel of the model


@dataclass(frozen=True)
class Tracks:
    """Slices, and the names of the tracks that their ``track`` counts from 0; tables' rows without a time."""

    names: list[str]
    slices: Slices
    timeless: int = 0


def of_batches(table: "pa.Table") -> tuple[Tracks, Tracks]:
    """The batches of a rank, and their stages (five a batch), from its ``batches`` table in order.

    Of a trace the images are not known, and of some batches the stages are not.
    """
    unknown = {"images": -1, "loss": math.nan, **dict.fromkeys([f"{stage}_ns" for stage in STAGES[:-1]], -1)}
    column = {
        name: (table[name].fill_null(unknown[name]) if name in unknown else table[name]).to_numpy()
        for name in BATCH_COLUMNS
    }
    index, start, end = (column[name] for name in ("batch_index", "start_ns", "end_ns"))
    rows = len(index)
    names = Words(np.arange(rows, dtype=np.int32), [f"step {number}" for number in index])
    recorded = Words(column["attributed"].astype(np.int32), ["step", "recorded step"])
    arguments = {"images": column["images"].astype(np.int64), "loss": column["loss"].astype(float)}
    batches = Slices(np.zeros(rows, np.int32), start, end, names, recorded, arguments)
    staged = column["load_ns"] >= 0
    edges = edges_of({name: values[staged] for name, values in column.items()})
    index, rows = index[staged], int(staged.sum())
    stages = Slices(
        np.zeros(rows * len(STAGES), np.int32),
        edges[:, :-1].ravel(),
        edges[:, 1:].ravel(),
        Words(np.tile(np.arange(len(STAGES), dtype=np.int32), rows), STAGES),
        Words.same("stage", rows * len(STAGES)),
        {"step": np.repeat(index, len(STAGES)).astype(np.int64)},
    )
    return Tracks(["steps"], batches), Tracks(["stages"], stages)


def of_markers(table: "pa.Table") -> tuple[Tracks, Tracks]:
    """The ranges of a rank's ``markers`` table, and its marks."""
    is_range = _is(_words(table["kind"]), "range")
    names, ranges = _of_threads(table, is_range, "ranges")
    marked, marks = _of_threads(table, ~is_range, "marks")
    return _in_lanes(names, ranges), Tracks(marked, replace(marks, end_ns=None))


def _of_threads(table: "pa.Table", rows: np.ndarray, what: str) -> tuple[list[str], Slices]:
    """These rows, in order by thread and start; and the names of the threads' tracks."""
    start, end, thread = (table[name].to_numpy()[rows] for name in ("start_ns", "end_ns", "thread"))
    threads, track = np.unique(thread, return_inverse=True)
    order = np.lexsort((-end, start, track))
    name = _words(table["name"])
    words = Words(name.codes[rows][order], name.texts)
    slices = Slices(track[order], start[order], np.maximum(start, end)[order], words)
    return [f"{what} · thread {number:g}" for number in threads], slices


def of_kernels(table: "pa.Table", calls: np.ndarray | None = None) -> Tracks:
    """A rank's device activities (of a CPU, operators), from :data:`KERNEL_COLUMNS` of its ``kernels`` table.

    Args:
        calls: of each call of :func:`calls_of` the number that it has on all ranks, whose arrows join them.
    """
    whole = len(table)
    table = in_time(table)
    text = {name: _words(table[name]) for name in _TEXT}
    number = {name: _integers(table[name]) for name in ("batch_index", "device", "stream", "flops", "bytes")}
    start = table["start_ns"].to_numpy()
    end = start + table["duration_ns"].to_numpy()
    loader = _is(text["class"], "loader") | _is(text["direction"], "loader")
    apart = np.where(loader, 2, np.where(_is(text["class"], "communication"), 1, 0))  # of _APART
    names, track = _streams(apart, number["device"], number["stream"])
    order = np.lexsort((-end, start, track))

    def word(name: str) -> Words:
        return Words(text[name].codes[order], text[name].texts)

    numbered = None
    if calls is not None:  # in the order of the rank's calls; 0: it is none
        numbered = np.zeros(len(table), np.uint64)
        numbered[_calls(table)] = calls
        numbered = numbered[order]
    slices = Slices(
        track[order],
        start[order],
        end[order],
        word("short_name"),
        word("class"),
        {
            **{name: word(name) for name in ("direction", "layer", "operator")},
            "kernel": word("name"),
            **{name: number[name][order] for name in ("flops", "bytes")},
            "step": number["batch_index"][order],
        },
        numbered,
    )
    return _in_lanes(names, slices, whole - len(table))


def in_time(table: "pa.Table") -> "pa.Table":
    """The rows that have a place in time."""
    has = pc.and_(pc.greater_equal(table["start_ns"], 0), pc.greater_equal(table["duration_ns"], 0))
    return table.filter(has)  # a null is no place


def calls_of(rank: int, table: "pa.Table") -> Calls:
    """A rank's collectives within batches, in order of their start, from :data:`CALL_COLUMNS`."""
    rows = _calls(table)
    start = table["start_ns"].to_numpy()[rows]
    text = {name: column_of(table, name)[rows] for name in ("short_name", *GROUP)}
    index = table["batch_index"].to_numpy()[rows].astype(np.int64)
    end = start + table["duration_ns"].to_numpy()[rows]
    return Calls(
        rank,
        len(np.unique(index)),
        index,
        start,
        end,
        kinds(text["collective"], text["short_name"]),
        np.zeros(len(rows)),
        groups(text["process_group"], text["group_ranks"], text["group_size"]),
        np.where(text["group_size"] > 0, text["group_size"], 0).astype(np.int64),
    )


def _calls(table: "pa.Table") -> np.ndarray:
    """The rows of :func:`calls_of`, in its order."""
    talks = _is(_words(table["class"]), "communication")
    rows = np.flatnonzero(talks & table["batch_index"].is_valid().to_numpy())
    return rows[np.argsort(table["start_ns"].to_numpy()[rows], kind="stable")]


def _is(column: Words, word: str) -> np.ndarray:
    """Which rows of a column are this word."""
    return np.isin(column.codes, [code for code, known in enumerate(column.texts) if known == word])


def _streams(apart: np.ndarray, device: np.ndarray, stream: np.ndarray) -> tuple[list[str], np.ndarray]:
    """The names of the tracks that these rows need, and which each row is on."""
    key = apart
    parts = [np.arange(len(_APART))]
    for column in (device, stream):
        known, place = np.unique(column, return_inverse=True)
        key = key * len(known) + place
        parts.append(known)
    used, track = np.unique(key, return_inverse=True)
    places = np.unravel_index(used, [max(1, len(part)) for part in parts])
    rows = zip(*(part[place].tolist() for part, place in zip(parts, places, strict=True)), strict=True)
    names = []
    for kind, of_device, line in rows:  # GPU 0 · stream 7, communication · thread 12
        name = _APART[kind] or (f"GPU {of_device}" if of_device >= 0 else "host")
        names.append(f"{name} · {'stream' if of_device >= 0 else 'thread'} {line}" if line >= 0 else name)
    return names, track


def _in_lanes(names: Sequence[str], slices: Slices, timeless: int = 0) -> Tracks:
    """Slices that are in order by track and start, with a further track for what overlaps."""
    assert slices.end_ns is not None
    lane = lanes(slices.track, slices.start_ns, slices.end_ns)
    deepest = int(lane.max(initial=0)) + 1
    used, track = np.unique(slices.track * deepest + lane, return_inverse=True)
    return Tracks([names[key // deepest] for key in used], replace(slices, track=track), timeless)


def lanes(track: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """A lane for each slice, from 0, so that on one lane of a track none overlap.

    Args:
        track, start_ns, end_ns: in order by track and start.
    """
    lane = np.zeros(len(track), np.int64)
    bounds = np.flatnonzero(np.diff(track, prepend=-1, append=-1)) if len(track) else np.array([], int)
    for begin, behind in pairwise(bounds):
        rows = slice(begin, behind)
        reached = np.maximum.accumulate(end_ns[rows])[:-1]
        late = np.flatnonzero(start_ns[rows][1:] < reached) + 1 + begin
        busy: list[tuple[int, int]] = []  # until when, which: the lane that is free for longest is the next
        for place in late.tolist():
            free = heapq.heappop(busy)[1] if busy and busy[0][0] <= start_ns[place] else len(busy) + 1
            heapq.heappush(busy, (int(end_ns[place]), free))
            lane[place] = free
    return lane


def _words(column: "pa.ChunkedArray") -> Words:
    whole = column.unify_dictionaries().combine_chunks()
    if isinstance(whole, pa.ChunkedArray):  # of no rows
        return Words(np.array([], np.int32), [])
    return Words(whole.indices.fill_null(-1).to_numpy(zero_copy_only=False), whole.dictionary.to_pylist())


def _integers(column: "pa.ChunkedArray") -> np.ndarray:
    """Whole numbers; -1 where there is none."""
    values = column.to_numpy().astype(float) if pa.types.is_floating(column.type) else column.fill_null(-1)
    if isinstance(values, np.ndarray):
        return np.rint(np.where(np.isfinite(values), values, -1)).astype(np.int64)
    return values.to_numpy().astype(np.int64)
