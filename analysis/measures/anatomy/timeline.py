"""What happened when, on all ranks of a run? A timeline that Perfetto (ui.perfetto.dev) opens.

Which run is drawn, which of its batches, and what is said of it; :mod:`analysis.timeline` explains the rest.
"""

import argparse
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from analysis.measures.anatomy.timeline_file import Added, Span, write
from analysis.results.offered import offer_runs
from analysis.results.source import Source
from analysis.results.study import Study
from profiling.clocks import rounded
from profiling.errors import EXIT_DONE, UserError, did_you_mean
from profiling.wording import how_many

FILE = "trace.pftrace.gz"
_MOST_NAMED = 4
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
        sources,
        key=lambda source: (_kernels(source) > 0, len(source.tables("batches")), _kernels(source)),
    )


def _others(study: Study, chosen: Source) -> str:
    """Which of several runs or jobs was drawn unasked, and how to name another; empty: there is only one."""
    others = [source.id for source in study.of_kind("run", "trace") if source is not chosen]
    if not others:
        return ""
    what = "job" if chosen.kind == "trace" else "run"
    largest = "largest profiled" if what == "run" and _kernels(chosen) else "largest"
    named = ", ".join(others[:_MOST_NAMED]) + (", ..." if len(others) > _MOST_NAMED else "")
    return (
        f"timeline of {chosen.id}, the {largest} of {how_many(len(others) + 1, what)}; for another use --run "
        f"{named if len(others) == 1 else f'ID: {named}'}"
    )


def _kernels(source: Source) -> int:
    try:
        return sum(pq.read_metadata(path).num_rows for path in source.tables("kernels"))
    except (pa.ArrowException, OSError, UnicodeDecodeError):
        return 0  # damaged: another run is the better one to draw


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Which run is drawn, and which of its batches."""
    run = parser.add_argument("--run", metavar="ID", help="run of the timeline [the largest profiled run]")
    offer_runs(run, profiled=True)
    parser.add_argument(
        "--batches", metavar="N[-M]", help=f"steps to draw [all, for up to {MOST_KERNELS:,} kernels]"
    )


def parse_span(text: str) -> Span:
    """``40`` or ``40-42`` as the first and the last batch.

    Raises:
        UserError: it is neither.
    """
    match = _SPAN.fullmatch(text)
    if match is None or (match[2] is not None and int(match[2]) < int(match[1])):
        raise UserError(f"--batches: invalid value {text!r}; expected a step or a range (40 or 40-42)")
    return int(match[1]), int(match[2] or match[1])


def write_of(
    study: Study,
    path: Path,
    run: str | None,
    batches: str | None,
    more: Callable[[Study, Source], Added],
) -> int:
    """Write the timeline of a study's run; says which, what it holds and what it does not.

    Args:
        more: what it holds beside the run's tables.

    Raises:
        UserError: there is no such run, it has too many kernels to draw all, or as :func:`write`.
    """
    span = None if batches is None else parse_span(batches)
    source = choose(study, run)
    if span is None and (count := _kernels(source)) > MOST_KERNELS:
        raise UserError(
            f"{source.id} has {count:,} kernels, too many for one timeline; select steps (--batches 40 or "
            "--batches 40-42)"
        )
    timeline = write(source, path, span, more(study, source))
    print(timeline.path)
    if run is None and (others := _others(study, source)):
        print(others, file=sys.stderr)
    counts = ", ".join(f"{count} {what}" for what, count in timeline.slices.items() if count)
    print(f"{timeline.run}: {counts}; open it at ui.perfetto.dev", file=sys.stderr)
    if timeline.clock_residual_ns is not None:
        print(
            f"the ranks' clocks are aligned to within {rounded(timeline.clock_residual_ns)}",
            file=sys.stderr,
        )
    for note in timeline.notes:
        print(note, file=sys.stderr)
    return EXIT_DONE
