"""Timeline of a run as a file that Perfetto opens: ranks on one clock, their tables as tracks of slices."""

import argparse
import gzip
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from analysis.display.perfetto import Slices, TraceWriter, Words
from analysis.measures.anatomy import timeline_rows
from analysis.measures.anatomy.timeline_rows import Tracks
from analysis.results import matching
from analysis.results.matching import Ahead, Matched
from analysis.results.source import Source
from analysis.results.study import Study
from profiling import tables
from profiling.clocks import rounded
from profiling.errors import EXIT_DONE, UserError, did_you_mean
from profiling.findings import Finding, lines
from profiling.whole_file import whole_file

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
