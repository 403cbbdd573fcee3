"""Slices of a rank's timeline, from its tables, on the rank's own clock.

Slices that would overlap on a track (concurrent kernels of a stream, nested ranges) go to another track
of the same name, which Perfetto merges with the first.
"""

import gzip
import heapq
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from analysis.display.perfetto import MOST_KERNELS, TraceWriter
from analysis.frames.anatomy import in_time, trace_of
from analysis.frames.divide import STAGES, edges_of
from analysis.frames.matching import Clock
from analysis.frames.study import Source, Study
from analysis.measures.critical_path import kernels_of, paths_of
from profiling import tables
from profiling.errors import EXIT_DONE, UserError, did_you_mean
from profiling.findings import lines
from profiling.tables import whole_file

BATCH_COLUMNS = (
    "batch_index", "start_ns", "load_ns", "forward_ns", "backward_ns", "update_ns", "end_ns", "images",
    "loss", "attributed",
)  # fmt: skip
KERNEL_COLUMNS = (
    "batch_index", "start_ns", "duration_ns", "name", "short_name", "class", "direction", "operator", "layer",
    "device", "stream", "flops", "bytes",
)  # fmt: skip
_KINDS = ("", "communication", "loader")  # of tracks: kernels of the model, and what has tracks of its own


# The names of the tracks that their column ``track`` counts from 0, and slices (:meth:`TraceWriter.slices`).
Tracks = tuple[list[str], pd.DataFrame]


def of_batches(table: pa.Table) -> tuple[Tracks, Tracks]:
    """The batches of a rank, and their stages (five a batch), from its ``batches`` table in order."""
    rows = table.to_pandas()
    batches = rows[["start_ns", "end_ns"]].assign(
        track=0,
        name="step " + rows["batch_index"].astype(str),
        category=np.where(rows["attributed"], "recorded step", "step"),
        images=rows["images"].fillna(-1).astype(np.int64),
        loss=rows["loss"].astype(float),
    )
    staged = rows[rows["load_ns"].notna()].drop(columns=["images", "loss"]).astype(np.int64)
    edges = edges_of({str(name): staged[name].to_numpy() for name in staged})
    stages = pd.DataFrame({
        "start_ns": edges[:, :-1].ravel(), "end_ns": edges[:, 1:].ravel(), "track": 0,
        "name": np.tile(STAGES, len(staged)), "category": "stage",
        "step": np.repeat(staged["batch_index"].to_numpy(), len(STAGES)),
    })  # fmt: skip
    return (["steps"], _coded(batches)), (["stages"], _coded(stages))


def _coded(slices: pd.DataFrame) -> pd.DataFrame:
    """Texts as categories."""
    return slices.astype(dict.fromkeys(slices.select_dtypes(["object", "string"]), "category"))


def of_markers(table: pa.Table) -> tuple[Tracks, Tracks]:
    """The ranges of a rank's ``markers`` table, and its marks."""
    rows = table.to_pandas()
    is_range = rows.pop("kind") == "range"
    marked, marks = _of_threads(rows[~is_range], "marks")
    return _in_lanes(*_of_threads(rows[is_range], "ranges")), (marked, marks.drop(columns="end_ns"))


def _of_threads(rows: pd.DataFrame, what: str) -> Tracks:
    threads, track = np.unique(rows["thread"], return_inverse=True)
    end = rows[["start_ns", "end_ns"]].max(axis=1).astype(np.int64)
    slices = rows[["start_ns", "name"]].assign(track=track, end_ns=end)
    return [f"{what} · thread {number:g}" for number in threads], _in_order(slices)


def of_kernels(rows: pd.DataFrame) -> Tracks:
    """A rank's device activities (of a CPU, operators): rows of :data:`KERNEL_COLUMNS` with a place in time.

    With ``flow``, if their collectives are known.
    """
    for name in ("batch_index", "device", "stream", "flops", "bytes"):
        numbers = np.nan_to_num(rows[name].astype(float), nan=-1, posinf=-1, neginf=-1)
        rows[name] = np.rint(numbers).astype(np.int64)
    loader = (rows["class"] == "loader") | (rows["direction"] == "loader")
    kind = np.where(loader, 2, np.where(rows["class"] == "communication", 1, 0))  # of _KINDS
    streams = rows[["device", "stream"]].assign(kind=kind)[["kind", "device", "stream"]]
    names = []  # GPU 0 · stream 7, communication · thread 12
    for of_kind, device, stream in sorted(streams.drop_duplicates().itertuples(index=False, name=None)):
        name = _KINDS[of_kind] or (f"GPU {device}" if device >= 0 else "host")
        names.append(f"{name} · {'stream' if device >= 0 else 'thread'} {stream}" if stream >= 0 else name)
    slices = rows.drop(columns=["device", "stream", "duration_ns"]).assign(
        track=streams.groupby(list(streams)).ngroup(), end_ns=rows["start_ns"] + rows["duration_ns"]
    )
    shown = {"name": "kernel", "short_name": "name", "class": "category", "batch_index": "step"}
    return _in_lanes(names, _in_order(slices.rename(columns=shown)))


def of_path(pieces: pd.DataFrame) -> Tracks:
    """The pieces of critical paths that are of a rank."""
    pieces = pieces.sort_values("start_ns", kind="stable")
    # Where clocks drift, a piece may overlap the next by a nanosecond of rounding.
    reach = (pieces["start_ns"] + pieces["duration_ns"]).cummax()
    start = np.maximum(pieces["start_ns"], reach.shift(fill_value=pieces["start_ns"].iloc[0]))
    slices = pieces[["kernel", "operator", "layer", "step"]].assign(
        track=0, start_ns=start, end_ns=reach, name=pieces["part"], category="critical path"
    )
    return ["critical path"], _coded(slices)


def _in_order(slices: pd.DataFrame) -> pd.DataFrame:
    """By track and start; of those that start together the longest first."""
    return slices.iloc[np.lexsort((-slices["end_ns"], slices["start_ns"], slices["track"]))]


def _in_lanes(names: Sequence[str], slices: pd.DataFrame) -> Tracks:
    """Slices that are in order by track and start, with a further track for what overlaps."""
    lane = lanes(*(slices[name].to_numpy() for name in ("track", "start_ns", "end_ns")))
    deepest = int(lane.max(initial=0)) + 1
    used, track = np.unique(slices["track"] * deepest + lane, return_inverse=True)
    return [names[key // deepest] for key in used], slices.assign(track=track)


def lanes(track: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
    """A lane for each slice (in order by track and start), from 0: on one lane of a track none overlap."""
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


Span = tuple[int, int]  # the first and the last step
_Reader = Callable[[int, str, Sequence[str]], pa.Table | None]  # of a rank's table


# How many slices a timeline holds, by what they are (steps, stages, kernels, ...); and what the alignment of
# clocks leaves, median, ns (None: not aligned).
Written = tuple[Counter[str], float | None]


def write(study: Study, source: Source, path: Path, span: Span | None = None) -> Written:
    """Write a run's timeline, whole or not at all; UserError: no rank has steps of the span, or no file."""
    try:
        # The name inside and the time are left out: the same run gives the same bytes. Level 1 of compression
        # saves most of what can be, at a third of the time.
        with whole_file(path) as raw, gzip.GzipFile("", "wb", 1, raw, mtime=0) as file:
            trace = TraceWriter(file)
            written = _write(study, source, trace, span)
            trace.finish()
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; name a file with --output") from None
    return written


def _write(study: Study, source: Source, trace: TraceWriter, span: Span | None) -> Written:
    read = partial(_read, study, source)
    batches = _batches(source, read)
    clocks, flows, residual = _aligned(study, source, list(batches))
    spans = {rank: _limits(table, span) for rank, table in batches.items()}
    begins = [clocks[one].to_reference(np.array([low]))[0] for one, (low, end) in spans.items() if low < end]
    if not begins:
        index = np.concatenate([table["batch_index"].to_numpy() for table in batches.values()])
        raise UserError(f"--batches: {source.id} has steps {index.min()} to {index.max()}")
    trace.start(int(min(begins)))
    paths = study.use(source, partial(paths_of, study)) if source.tables("kernels") else None
    pieces = dict(list(paths.pieces.groupby("rank"))) if paths and len(paths.pieces) else {}
    counts: Counter[str] = Counter()
    for rank, (low, high) in spans.items():
        process = trace.process(rank, _name(source, rank))
        for what, (names, slices) in _of_rank(read, rank, batches[rank], pieces.get(rank), flows.get(rank)):
            if span is not None:
                slices = slices[slices["start_ns"].between(low, high, inclusive="left")]
            # On those of the named tracks that have any, at times of the common clock.
            used = set(slices["track"])
            numbers = [trace.track(process, name) if place in used else 0 for place, name in enumerate(names)]
            times = [name for name in ("start_ns", "end_ns") if name in slices]
            aligned = {name: clocks[rank].to_reference(slices[name].to_numpy()) for name in times}
            trace.slices(slices.assign(track=np.array(numbers, np.int64)[slices["track"]], **aligned))
            counts[what] += len(slices)
    return counts, residual


def _batches(source: Source, read: _Reader) -> dict[int, pa.Table]:
    """:data:`BATCH_COLUMNS` of the ranks that have steps with times, and of these."""
    found: dict[int, pa.Table] = {}
    for rank in (one.rank for one in source.job.ranks) if source.job else range(source.ranks):
        batches = read(rank, "batches", BATCH_COLUMNS)
        if batches is not None:
            timed = batches.filter(pc.field("start_ns").is_valid() & pc.field("end_ns").is_valid())
            found |= {rank: timed} if len(timed) else {}
    if not found:
        raise UserError(f"{source.id}: no rank has steps with times; a timeline needs them")
    return found


def _limits(batches: pa.Table, span: Span | None) -> tuple[int, int]:
    """When a rank's steps of a span begin and end, on its own clock; (0, 0) if it has none of them."""
    index, start, end = (batches[name].to_numpy() for name in ("batch_index", "start_ns", "end_ns"))
    inside = np.full(len(index), True) if span is None else (index >= span[0]) & (index <= span[1])
    return (int(start[inside].min()), int(end[inside].max())) if inside.any() else (0, 0)


def _aligned(
    study: Study, source: Source, ranks: Sequence[int]
) -> tuple[dict[int, Clock], dict[int, pd.DataFrame], float | None]:
    """The ranks' clocks, their collectives (``row`` of the kernels, ``call``), and what alignment leaves, ns.

    None are known if not all of the ranks recorded them.
    """
    if not source.tables("kernels"):
        study.note("not_recorded", source, what="kernels")
    elif len(ranks) > 1:
        traced = study.use(source, partial(trace_of, study))
        matched = traced.matched if traced else None
        clocks = len(ranks) if matched is None else len(np.unique(matched.reference))
        if clocks > 1:
            study.note("clocks_unmatched", source, n=clocks)
        if traced and matched and [one.rank for one in traced.ranks] == list(ranks):
            calls: dict[Any, pd.DataFrame] = dict(list(matched.calls.groupby("rank")))
            return dict(zip(ranks, matched.clocks, strict=True)), calls, matched.residual_ns
    return dict.fromkeys(ranks, Clock()), {}, None


def _of_rank(
    read: _Reader, rank: int, batches: pa.Table, pieces: pd.DataFrame | None, calls: pd.DataFrame | None
) -> Iterator[tuple[str, Tracks]]:
    """What is known of a rank, one table after the other, so that one is in memory at a time."""
    if pieces is not None:
        yield "pieces of the critical path", of_path(pieces)
    yield from zip(("steps", "stages"), of_batches(batches), strict=True)
    if (markers := read(rank, "markers", ("name", "kind", "start_ns", "end_ns", "thread"))) is not None:
        yield from zip(("ranges", "marks"), of_markers(markers), strict=True)
    if (kernels := read(rank, "kernels", KERNEL_COLUMNS)) is not None:
        rows = kernels.to_pandas()
        if calls is not None:
            rows["flow"] = np.zeros(len(rows), np.int64)
            rows.loc[calls["row"], "flow"] = calls["call"].astype(np.int64).to_numpy()
        yield "kernels", of_kernels(rows)


def _read(study: Study, source: Source, rank: int, name: str, columns: Sequence[str]) -> pa.Table | None:
    """A rank's table, of kernels those that have a place in time; None: there is none, or it is damaged."""
    directory = tables.rank_directory(source.path, rank)
    if not tables.table_path(directory, name).is_file():
        if name == "batches":
            study.note("not_recorded", source, rank=rank, what=name)
        return None
    try:
        table = tables.read(directory, name, list(columns))
    except UserError as error:
        study.note("run_left_out", source, rank=rank, what="unusable", reason=str(error))
        return None
    placed = in_time(table)[0] if name == "kernels" else table
    if untimed := len(table) - len(placed):
        study.note("rows_left_out", source, rank=rank, n=untimed, what=name)
    return placed


def _name(source: Source, rank: int) -> str:
    of_job = [(one.rank, one.host, one.device) for one in source.job.ranks] if source.job else []
    reports = source.manifest.ranks if source.manifest else []
    known = of_job or [(one.rank, one.hostname, one.device) for one in reports]
    texts = [text for number, *texts in known if number == rank for text in texts if text]
    return " · ".join([f"rank {rank}", *texts])


def choose(study: Study, run: str | None = None) -> Source:
    """The run whose timeline is written: the one named, or the largest that was profiled."""
    sources = {source.id: source for source in study.of_kind("run", "trace")}
    if not sources:
        raise UserError(f"{study.path} holds no run with timed steps: nothing to draw")
    if run is not None:
        if run not in sources:
            raise UserError(f"--run: no usable run {run!r}{did_you_mean(run, sources)}")
        return sources[run]
    # Of a job of which some ranks were recorded there is only these to draw.
    return max(
        sources.values(), key=lambda one: (kernels_of(one) > 0, len(one.tables("batches")), kernels_of(one))
    )


def write_of(study: Study, path: Path, run: str | None, batches: str | None) -> int:
    """Write the timeline of a study's run, and print what it holds; UserError also of too many kernels."""
    span = None
    if batches is not None:
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", batches)
        if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
            raise UserError(f"--batches: invalid value {batches!r}; expected a step or a range (40 or 40-42)")
        span = int(match[1]), int(match[2] or match[1])
    source = choose(study, run)
    if span is None and (count := kernels_of(source)) > MOST_KERNELS:
        raise UserError(f"{source.id} has {count:,} kernels, too many: select steps (--batches 40-42)")
    slices, residual = write(study, source, path, span)
    print(path)
    counts = ", ".join(f"{count} {what}" for what, count in slices.items() if count)
    aligned = "" if residual is None else f"; clocks aligned to {residual / 1000:.2g} us"
    findings = [one for one in study.findings if one.run == source.id]
    print(f"{source.id}: {counts}{aligned}", *lines(findings), sep="\n", file=sys.stderr)
    return EXIT_DONE
