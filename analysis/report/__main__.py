"""The results as one HTML file that opens offline: summary, charts, tables, provenance.

    python -m analysis.report DIR                      writes DIR/report.html
    python -m analysis.report DIR --output FILE
    python -m analysis.report A B                      what changed from A to B
    python -m analysis.report TRACES...                first converts traces, into a folder next to the report
    python -m analysis.report DIR --images 1.28e6x90 --within 24h    also plans a training (analysis.plan)

Two folders of results (of runs, or of converted traces) are compared: A is before, B is after. The verdicts
are those of analysis.compare; the file is B/compared-with-A.html. Raw traces go into one report, however many
are named. To compare two jobs by their traces, convert each of them first (profiling.convert).
"""

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.display import output
from analysis.frames.load import first_trace, load
from analysis.frames.study import Study, in_counts
from analysis.prediction.training import FLAGS, given
from jobs.flags import OUTPUT, make_parser
from jobs.store import write_text
from profiling.convert import convert
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, printable, run_command
from profiling.findings import MOST_SHOWN
from profiling.traces import units
from profiling.traces.jobs import others_in
from profiling.whole_file import file_to_write

if TYPE_CHECKING:
    from analysis.report.render import Page

_FILE = "report.html"
_MOST_NAMED = 2  # runs that failed


def main() -> int:
    arguments = _parser().parse_args()
    # Pandas, and all that is drawn: not for the help.
    from analysis.report.build import build, build_studies, holds_studies

    path: Path = arguments.path[0]
    of_studies = len(arguments.path) == 1 and holds_studies(path)
    found = [] if of_studies else results_in(arguments.path, arguments.peaks)
    if len(found) == 2:
        return _compare(arguments, *found)
    if arguments.across:
        raise UserError("--across names fields in which A and B may differ: give two folders of results")
    if of_studies:
        _write(arguments, beside(path, _FILE), build_studies(path, arguments.peaks))
        return EXIT_DONE
    study, code = (found[0], EXIT_DONE) if found else converted(arguments)
    _write(arguments, beside(study.path, _FILE), build(study, given(arguments)))
    return max(code, _failed(study))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("python -m analysis.report", __doc__)
    parser.add_argument(
        "path", type=Path, nargs="+", metavar="DIR",
        help="results of a sweep, a run, studies, PyProf or TAU tables; two, to compare; or raw traces",
    )  # fmt: skip
    parser.add_argument(
        *OUTPUT, type=file_to_write, metavar="FILE",
        help="the file to write [DIR/report.html; with A B: B/compared-with-A.html]",
    )  # fmt: skip
    parser.add_argument("--across", metavar="FIELD,...", help="with A B: fields in which they may differ")
    for name, settings in FLAGS.items():
        parser.add_argument(name, **settings)
    output.add_peaks_flag(parser)
    return parser


def _compare(arguments: argparse.Namespace, a: Study, b: Study) -> int:
    from analysis.report import changes

    if given(arguments):
        raise UserError("--images, --tokens and --within need one set of results")
    own = [name for study in (a, b) for name in study.own_factors]
    across = output.parse_fields(arguments.across, flag="--across", own=own)
    name = f"compared-with-{a.path.resolve().name}.html"
    _write(arguments, beside(b.path, name), changes.build(a, b, across))
    return max(_failed(a), _failed(b))


def _failed(study: Study) -> int:
    """The exit code, and a line for runs that failed."""
    failed = study.missing
    if failed:
        what = "jobs" if {source.kind for source in study.loaded} == {"trace"} else "runs"
        some = ", ".join(one.point for one in failed[:_MOST_NAMED]) + ", ..." * (len(failed) > _MOST_NAMED)
        print(printable(f"{in_counts(failed, what)}; listed in the report: {some}"), file=sys.stderr)
    return EXIT_FAILED if failed else EXIT_DONE


def _write(arguments: argparse.Namespace, file: Path, page: "Page") -> None:
    """The report, in ``file`` if no other is named."""
    from analysis.diagnosis.evidence import HEADINGS
    from analysis.report.render import render

    target: Path = arguments.output or file
    try:
        write_text(target, render(page))
    except (FileNotFoundError, FileExistsError, NotADirectoryError, PermissionError) as error:
        raise UserError(f"cannot write {target}: {error.strerror}; name a file with --output") from None
    said = [line.text for line in page.summary if line.heading != HEADINGS[-1]]
    for line in said[:MOST_SHOWN]:
        print(line, file=sys.stderr)
    print(target)


def beside(path: Path, name: str) -> Path:
    """A file beside the results; beside the file, if the results are one file."""
    return (path.parent if path.is_file() else path) / name


# --- raw traces, which are converted first -------------------------------------------------------------

_CONVERTED = "-converted"  # how the folder of converted traces ends


def results_in(paths: Sequence[Path], own_peaks: Path | None = None) -> list[Study]:
    """The results in paths: one, or two to be compared; none: they are raw traces, which are of one report.

    Raises:
        UserError: one does not exist, some are results and others are not, or more than two are results.
    """
    found, raw = [], []
    for path in paths:
        try:
            found.append(load(path, own_peaks))
        except UserError:
            if first_trace(path) is None:
                raise
            raw.append(path)
    if raw and found:
        how = f"python -m profiling.convert {shlex.quote(str(raw[0]))}"
        raise UserError(f"{raw[0]} holds raw traces: convert them first: {how}")
    if len(found) > 2:
        raise UserError(f"{len(paths)} sets of results: give one, or two to compare")
    return found


def converted(arguments: argparse.Namespace) -> tuple[Study, int]:
    """Raw traces, converted into a folder beside the report or themselves; and the exit code of that.

    Raises:
        UserError: nothing can be converted, or there is no room for it.
    """
    paths = arguments.path
    out = target_of(paths, arguments.output)
    place = out if out.exists() else out.parent
    if not (place.is_dir() and os.access(place, os.W_OK)):
        raise UserError(f"the traces cannot be converted into {out}: name a file elsewhere with --output")
    # Standard output is the answer's: where tables went is said beside it.
    print(f"scaleprof: converting the traces into {out}", file=sys.stderr)
    with redirect_stdout(sys.stderr):
        done = convert(paths, out=out, skip_existing=True)
    if not (done.converted or done.skipped):
        raise UserError(f"nothing in {', '.join(map(str, paths))} is a result or a readable trace")
    for directory, job in others_in(out, [unit.path for unit in units.units_of(paths, None, out)]).items():
        raise UserError(
            f"{directory} was converted from other files (e.g. {job.files[0]}): remove it, "
            "or name a file in another folder with --output"
        )
    return load(out, arguments.peaks), EXIT_FAILED if done.failed else EXIT_DONE


def target_of(paths: Sequence[Path], output: Path | None) -> Path:
    """Where the traces of such paths are converted to; not among the traces, which are searched again."""
    first = paths[0].resolve()
    folder = first if first.is_dir() else units.target_of(first, None)
    beside = output.resolve().parent if output else folder.parent
    inside = any(path.is_dir() and beside.is_relative_to(path.resolve()) for path in paths)
    return (folder.parent if inside else beside) / f"{folder.name}{_CONVERTED}"


if __name__ == "__main__":
    run_command(main)
