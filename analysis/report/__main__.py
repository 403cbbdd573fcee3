"""The results as one HTML file that opens offline: summary, charts, tables, provenance.

    python -m analysis.report DIR                      writes DIR/report.html
    python -m analysis.report DIR --output FILE
    python -m analysis.report A B                      what changed from A to B
    python -m analysis.report DIR --images 1.28e6x90 --within 24h    also plans a training (analysis.plan)
    python -m analysis.report DIR --figures FOLDER     also writes each chart as SVG

Two folders of results (of runs, or of converted traces) are compared: A is before, B is after. The verdicts
are those of analysis.compare; the file is B/compared-with-A.html. Raw traces are converted first
(profiling.convert).
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from analysis.display import output
from analysis.frames.load import load
from analysis.frames.measure import PLAN, given_plan
from analysis.frames.study import Study, in_counts
from jobs.run_fields import OUTPUT, make_parser
from jobs.store import write_text
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, printable, run_command
from profiling.findings import MOST_SHOWN
from profiling.tables import file_to_write

if TYPE_CHECKING:
    from analysis.report.render import Page

_FILE = "report.html"


def main() -> int:
    arguments = _parser().parse_args()
    # Pandas, and all that is drawn: not for the help.
    from analysis.measures.studies import folders_of
    from analysis.report.build import build, build_studies

    path: Path = arguments.path[0]
    of_studies = len(arguments.path) == 1 and bool(folders_of(path))
    if len(arguments.path) > 2:
        raise UserError(f"{len(arguments.path)} sets of results: give one, or two to compare")
    found = [] if of_studies else [load(one, arguments.peaks) for one in arguments.path]
    if len(found) == 2:
        return _compare(arguments, *found)
    if arguments.across:
        raise UserError("--across names fields in which A and B may differ: give two folders of results")
    if of_studies:
        _write(arguments, beside(path, _FILE), build_studies(path, arguments.peaks))
        return EXIT_DONE
    (study,) = found
    _write(arguments, beside(study.path, _FILE), build(study, given_plan(arguments)))
    return _failed(study)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser("python -m analysis.report", __doc__)
    parser.add_argument(
        "path", type=Path, nargs="+", metavar="DIR",
        help="results of a sweep, a run, studies, converted traces, PyProf or TAU tables; two, to compare",
    )  # fmt: skip
    parser.add_argument(
        *OUTPUT, type=file_to_write, metavar="FILE",
        help="the file to write [DIR/report.html; with A B: B/compared-with-A.html]",
    )  # fmt: skip
    figures = "also write each chart as SVG; needs Chromium or Chrome"
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help=figures)
    parser.add_argument("--across", metavar="FIELD,...", help="with A B: fields in which they may differ")
    for name, settings in PLAN.items():
        parser.add_argument(name, **settings)
    output.add_peaks_flag(parser)
    return parser


def _compare(arguments: argparse.Namespace, a: Study, b: Study) -> int:
    from analysis.report.build import build_compared

    if given_plan(arguments):
        raise UserError("--images, --tokens and --within need one set of results")
    own = [name for study in (a, b) for name in study.own_factors]
    across = output.parse_fields(arguments.across, flag="--across", own=own)
    name = f"compared-with-{a.path.resolve().name}.html"
    _write(arguments, beside(b.path, name), build_compared(a, b, across))
    return max(_failed(a), _failed(b))


def _failed(study: Study) -> int:
    """The exit code, and a line for runs that failed."""
    failed = study.missing
    if failed:
        what = "jobs" if {source.kind for source in study.loaded} == {"trace"} else "runs"
        some = ", ".join(one.point for one in failed[:2]) + ", ..." * (len(failed) > 2)
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
    if arguments.figures:
        _draw(page, arguments.figures)
    said = [line.text for line in page.summary if line.heading != HEADINGS[-1]]
    for line in said[:MOST_SHOWN]:
        print(line, file=sys.stderr)
    print(target)


def _draw(page: "Page", folder: Path) -> None:
    """Each chart of the page as SVG, drawn by the machine's Chromium."""
    import kaleido
    from kaleido.errors import ChromeNotFoundError

    charts = [chart for section in page.sections for chart in section.charts]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = [{"fig": chart.figure, "path": folder / f"{chart.id}.svg"} for chart in charts]
        # Plotly's write_images does the same, but fetches MathJax from the network.
        kaleido.write_fig_from_object_sync(files, kopts={"mathjax": False})
    except ChromeNotFoundError:
        raise UserError("--figures needs Chromium or Chrome") from None
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        raise UserError(f"cannot write figures to {folder}: {why}") from None


def beside(path: Path, name: str) -> Path:
    """A file beside the results; beside the file, if the results are one file."""
    return (path.parent if path.is_file() else path) / name


if __name__ == "__main__":
    run_command(main)
