"""Slices of a rank's timeline, from its tables, on the rank's own clock.

On one track slices do not overlap: what ran at the same time (kernels of a stream that overlap, a range
inside another) gets a further track of the same name; Perfetto shows both as one.
"""

import argparse
import gzip
import heapq
import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis.display.perfetto import Slices, TraceWriter, Words
from analysis.frames import matching
from analysis.frames.anatomy import GROUP, column_of, groups, kinds
from analysis.frames.divide import STAGES, edges_of
from analysis.frames.matching import Ahead, Calls, Matched
from analysis.frames.study import Source, Study
from analysis.measures import timeline as timeline_rows
from profiling import tables
from profiling.clocks import rounded
from profiling.errors import EXIT_DONE, UserError, did_you_mean
from profiling.findings import Finding, lines
from profiling.whole_file import whole_file

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


_COMPRESSION = 1  # most of what gzip can save, at a third of the time

Span = tuple[int, int]  # the first and the last batch
Added = tuple[str, Mapping[int, Tracks]]
NOTHING_MORE: Added = ("", {})


@dataclass
class Written:
    """What a timeline holds.

    Attributes:
        slices: how many, by what they are: steps, stages, ranges, marks, kernels; and what was added.
        clock_residual_ns: what the alignment of clocks leaves, median; None: not aligned.
        findings: on what is not there.
    """

    run: str
    slices: dict[str, int] = field(default_factory=dict)
    clock_residual_ns: float | None = None
    findings: list[Finding] = field(default_factory=list)

    def note(self, code: str, rank: int | None = None, **data: object) -> None:
        self.findings.append(Finding(code, self.run, rank, data=data))


@dataclass(frozen=True)
class _Rank:
    """A rank that is drawn.

    Attributes:
        number: in the job.
        directory: of its tables.
        batches: :data:`timeline_rows.BATCH_COLUMNS` of those that have times; one at least.
    """

    number: int
    directory: Path
    batches: pa.Table


def write(source: Source, path: Path, span: Span | None = None, more: Added = NOTHING_MORE) -> Written:
    """Write a run's timeline, whole or not at all; ranks are read one after the other.

    Args:
        span: the first and the last batch that are drawn; None: all.
        more: further tracks of each rank, on its own clock, and what their slices are.

    Raises:
        UserError: no rank has such batches, or the file cannot be written.
    """
    timeline = Written(source.id)
    try:
        # The name inside and the time are left out: the same run gives the same bytes.
        with whole_file(path) as raw, gzip.GzipFile("", "wb", _COMPRESSION, raw, mtime=0) as file:
            trace = TraceWriter(file)
            _write(source, timeline, trace, span, more)
            trace.finish()
    except (
        FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError, PermissionError,
    ) as error:  # fmt: skip
        raise UserError(f"cannot write {path}: {error.strerror}; name a file with --output") from None
    return timeline


def _write(source: Source, timeline: Written, trace: TraceWriter, span: Span | None, more: Added) -> None:
    ranks = _ranks(source, timeline)
    matched = _align(ranks, timeline)
    ahead = matched.ahead if matched else (Ahead(),) * len(ranks)
    limits = [_limits(rank.batches, span) for rank in ranks]
    drawn = [(low, clock) for (low, high), clock in zip(limits, ahead, strict=True) if low < high]
    if not drawn:
        index = np.concatenate([rank.batches["batch_index"].to_numpy() for rank in ranks])
        raise UserError(f"--batches: {source.id} has steps {index.min()} to {index.max()}")
    start = min(int(clock.remove(np.array([low]))[0]) for low, clock in drawn)
    trace.start(start)
    _about(source, timeline, ranks, ahead, trace, start)
    calls = matched.numbers if matched and len(ranks) > 1 else (None,) * len(ranks)
    for rank, (low, high), clock, numbers in zip(ranks, limits, ahead, calls, strict=True):
        process = trace.process(rank.number, _name(source, rank.number))
        added = [(more[0], more[1][rank.number])] if rank.number in more[1] else []
        for what, tracks in (*added, *_of_rank(rank, numbers, timeline)):
            slices = tracks.slices
            if span is not None:
                slices = slices.only((slices.start_ns >= low) & (slices.start_ns < high))
            _draw(trace, process, tracks.names, slices, clock)
            timeline.slices[what] = timeline.slices.get(what, 0) + len(slices)


def _draw(trace: TraceWriter, process: int, names: Sequence[str], slices: Slices, clock: Ahead) -> None:
    """Slices on those of the named tracks that have any, at times of the common clock."""
    used = set(slices.track.tolist())
    tracks = [trace.track(process, name) if place in used else 0 for place, name in enumerate(names)]
    start = clock.remove(slices.start_ns)
    end = None if slices.end_ns is None else clock.remove(slices.end_ns)
    numbers = np.array(tracks, np.int64)[slices.track]
    trace.slices(replace(slices, track=numbers, start_ns=start, end_ns=end))


def _limits(batches: pa.Table, span: Span | None) -> tuple[int, int]:
    """From when to when a rank's batches of a span last, on its own clock; (0, 0) if it has none of them."""
    index, start, end = (batches[name].to_numpy() for name in ("batch_index", "start_ns", "end_ns"))
    first, last = span or (0, int(index.max()))
    mine = (index >= first) & (index <= last)
    return (int(start[mine].min()), int(end[mine].max())) if mine.any() else (0, 0)


def _ranks(source: Source, timeline: Written) -> list[_Rank]:
    """The ranks that have batches with times."""
    ranks = []
    for rank in range(source.ranks):
        directory = tables.rank_directory(source.path, rank)
        batches = _read(rank, directory, "batches", list(timeline_rows.BATCH_COLUMNS), timeline)
        if batches is not None:
            timed = pc.and_(pc.is_valid(batches["start_ns"]), pc.is_valid(batches["end_ns"]))
            if len(batches := batches.filter(timed)):
                ranks.append(_Rank(rank, directory, batches))
    if not ranks:
        raise UserError(f"{source.id}: no rank has steps with times; a timeline needs them")
    return ranks


def _of_rank(rank: _Rank, calls: np.ndarray | None, timeline: Written) -> Iterator[tuple[str, Tracks]]:
    """What a rank's tables hold, one table after the other, so that one is in memory at a time."""
    directory = rank.directory
    yield from zip(("steps", "stages"), timeline_rows.of_batches(rank.batches), strict=True)
    if tables.table_path(directory, "markers").is_file():
        markers = _read(
            rank.number, directory, "markers", ["name", "kind", "start_ns", "end_ns", "thread"], timeline
        )
        if markers is not None:
            yield from zip(("ranges", "marks"), timeline_rows.of_markers(markers), strict=True)
    if tables.table_path(directory, "kernels").is_file():
        kernels = _read(rank.number, directory, "kernels", list(timeline_rows.KERNEL_COLUMNS), timeline)
        if kernels is not None:
            tracks = timeline_rows.of_kernels(kernels, calls)
            if tracks.timeless:
                timeline.note("rows_left_out", rank.number, n=tracks.timeless, what="kernels")
            yield "kernels", tracks


def _read(rank: int, directory: Path, name: str, columns: list[str], timeline: Written) -> pa.Table | None:
    try:
        return tables.read(directory, name, columns)
    except UserError as error:
        if tables.table_path(directory, name).exists():
            timeline.note("run_left_out", rank, what="unusable", reason=str(error))
        else:
            timeline.note("not_recorded", rank, what=name)
        return None


def _align(ranks: Sequence[_Rank], timeline: Written) -> Matched | None:
    """The ranks' collectives on one clock; None if the clocks are not known."""
    having = [rank for rank in ranks if tables.table_path(rank.directory, "kernels").is_file()]
    if not having:
        timeline.note("not_recorded", what="kernels")
        return None
    if len(ranks) == 1:
        return None
    calls = []
    for rank in having:
        unsaid = Written(timeline.run)  # whoever draws the kernels notes that they are damaged
        table = _read(rank.number, rank.directory, "kernels", list(timeline_rows.CALL_COLUMNS), unsaid)
        if table is not None:
            calls.append(timeline_rows.calls_of(rank.number, timeline_rows.in_time(table)))
    matched = matching.match(calls) if len(calls) == len(ranks) and len(calls[0].kind) else None
    if matched is None:
        timeline.note("clocks_unmatched", n=len(ranks))
        return None
    timeline.clock_residual_ns = matched.residual_ns
    if (apart := len(np.unique(matched.clock))) > 1:
        timeline.note("clocks_unmatched", n=apart)
    return matched


def _name(source: Source, rank: int) -> str:
    if source.job is not None:
        traced = [one for one in source.job.ranks if one.rank == rank]
        said = [text for one in traced for text in (one.host, one.device) if text]
        return " · ".join([f"rank {rank}", *said])
    reports = {report.rank: report for report in source.manifest.ranks} if source.manifest else {}
    said = [reports[rank].hostname, reports[rank].device] if rank in reports else []
    return " · ".join([f"rank {rank}", *said])


def _about(
    source: Source,
    timeline: Written,
    ranks: Sequence[_Rank],
    ahead: Sequence[Ahead],
    trace: TraceWriter,
    start_ns: int,
) -> None:
    """The track "about": the run, what the alignment leaves, how far each rank's clock was ahead."""
    track = np.array([trace.track(None, "about")])
    at = np.array([start_ns])
    residual = np.nan if timeline.clock_residual_ns is None else timeline.clock_residual_ns
    arguments: dict[str, Words | np.ndarray] = {"clock_residual_ns": np.array([residual])}
    for rank, clock in zip(ranks, ahead, strict=True):
        if timeline.clock_residual_ns is not None:
            arguments[f"clock_of_rank_{rank.number}_ahead_ns"] = clock.at(at).astype(float)
    for number, line in enumerate(lines(timeline.findings)):
        arguments[f"note_{number + 1}"] = Words.same(line, 1)
    trace.slices(Slices(track, at, None, Words.same(source.id, 1), None, arguments))


FILE = "trace.pftrace.gz"
MOST_KERNELS = 1_000_000  # drawn without being asked: 20 s, and what a browser opens
_SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")


def choose(study: Study, run: str | None = None) -> Source:
    """The run whose timeline is written: the one named, or the largest that was profiled.

    Raises:
        UserError: no such run, or none at all.
    """
    sources = study.of_kind("run", "trace")
    if not sources:
        raise UserError(f"{study.path} holds no run with timed steps: nothing to draw")
    if run is not None:
        named = [source for source in sources if source.id == run]
        if not named:
            raise UserError(f"--run: no usable run {run!r}{did_you_mean(run, [s.id for s in sources])}")
        return named[0]
    # Of a job of which some ranks were recorded there is only these to draw.
    return max(
        sources, key=lambda source: (_kernels(source) > 0, len(source.tables("batches")), _kernels(source))
    )


def _kernels(source: Source) -> int:
    try:
        return sum(pq.read_metadata(path).num_rows for path in source.tables("kernels"))
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return 0  # damaged: another run is the better one to draw


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Which run is drawn, and which of its batches."""
    parser.add_argument("--run", metavar="ID", help="run of the timeline [the largest profiled run]")
    parser.add_argument(
        "--batches", metavar="N[-M]", help=f"steps to draw [all, for up to {MOST_KERNELS:,} kernels]"
    )


def write_of(
    study: Study, path: Path, run: str | None, batches: str | None, more: Callable[[Study, Source], Added]
) -> int:
    """Write the timeline of a study's run, and print what it holds.

    Args:
        more: what it holds beside the run's tables.

    Raises:
        UserError: there is no such run, it has too many kernels to draw all, or as :func:`write`.
    """
    span = None
    if batches is not None:
        match = _SPAN.fullmatch(batches)
        if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
            raise UserError(f"--batches: invalid value {batches!r}; expected a step or a range (40 or 40-42)")
        span = int(match[1]), int(match[2] or match[1])
    source = choose(study, run)
    if span is None and (count := _kernels(source)) > MOST_KERNELS:
        raise UserError(f"{source.id} has {count:,} kernels, too many: select steps (--batches 40-42)")
    timeline = write(source, path, span, more(study, source))
    print(path)
    counts = ", ".join(f"{count} {what}" for what, count in timeline.slices.items() if count)
    residual = timeline.clock_residual_ns
    aligned = "" if residual is None else f"; clocks aligned to {rounded(residual)}"
    print(f"{timeline.run}: {counts}{aligned}", *lines(timeline.findings), sep="\n", file=sys.stderr)
    return EXIT_DONE
