"""The results as one HTML file that opens offline: summary, charts, tables, provenance.

python -m analysis.report DIR                      writes DIR/report.html
python -m analysis.report DIR --output FILE
python -m analysis.report TRACES...                first converts traces into a folder next to them
python -m analysis.report DIR --trace              also writes the timeline of a run, DIR/trace.pftrace.gz
python -m analysis.report DIR --figures FOLDER     also writes each chart as SVG, with its caption and data
"""

import argparse
import sys
from pathlib import Path

from analysis.display import output
from analysis.display.images import FORMATS
from analysis.measures.anatomy import timeline
from analysis.measures.critical_path import track
from analysis.report.render import Page, render
from analysis.results.log import in_counts
from analysis.results.raw import load_or_convert
from jobs.flags import make_parser
from jobs.store import write_text
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, run_command

_BESIDE = Path()  # --trace without a name


def main() -> int:
    parser = make_parser("python -m analysis.report", __doc__)
    parser.add_argument(
        "path", type=Path, nargs="+", metavar="DIR",
        help="a sweep's results, a run, studies, reference files; or traces, which are converted first",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, metavar="FILE", help="[DIR/report.html]")
    parser.add_argument(
        "--trace",
        type=Path,
        nargs="?",
        const=_BESIDE,
        metavar="FILE",
        help=f"also write the timeline of a run, for Perfetto [{timeline.FILE} beside the report]",
    )
    timeline.add_flags(parser)
    parser.add_argument(
        "--figures", type=Path, metavar="FOLDER",
        help="also write each chart as an image for a paper, with its caption and its data as CSV; needs "
        "Chromium or Chrome",
    )  # fmt: skip
    parser.add_argument("--figure-format", choices=FORMATS, help=f"of the images [{FORMATS[0]}]")
    parser.add_argument("--overwrite", action="store_true", help="replace the files that --figures writes")
    output.add_peaks_flag(parser)
    arguments = parser.parse_args()
    # Pandas, and all that is drawn: not for the help.
    from analysis.report import figures, studies
    from analysis.report.build import build

    if arguments.figures:
        figures.check_folder(arguments.figures, arguments.overwrite)
    elif arguments.overwrite or arguments.figure_format:
        raise UserError("--overwrite and --figure-format are about figures: use them with --figures")
    for flag in ("run", "batches"):
        if getattr(arguments, flag) and not arguments.trace:
            raise UserError(f"--{flag} selects what the timeline holds: use it with --trace")
    path: Path = arguments.path[0]
    if len(arguments.path) == 1 and studies.holds_studies(path):
        _write(arguments, path, studies.page(path, arguments.peaks))
        if arguments.trace:
            raise UserError(f"{path} holds single-node studies: --trace needs a run with ranks")
        return EXIT_DONE
    study = load_or_convert(arguments.path, arguments.peaks)
    path = study.path
    _write(arguments, path, build(study))
    if arguments.trace:
        folder = arguments.output.parent if arguments.output else path
        own = arguments.trace if arguments.trace != _BESIDE else beside(folder, timeline.FILE)
        timeline.write_of(study, own, arguments.run, arguments.batches, track.added)
    failed = [failure for failure in study.failed if failure.kind != "excluded"]
    if failed:
        what = "job" if study.of_kind("trace") and not study.of_kind("run") else "run"
        print(f"{in_counts(failed, what)}; the report says why", file=sys.stderr)
    return EXIT_FAILED if failed else EXIT_DONE


def _write(arguments: argparse.Namespace, path: Path, page: Page) -> None:
    """The report of ``path``, and its figures if they are wanted."""
    from analysis.report.figures import write_figures

    target: Path = arguments.output or beside(path, "report.html")
    try:
        write_text(target, render(page))
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise UserError(f"cannot write {target}: {error.strerror}; name a file with --output") from None
    print(target)
    if arguments.figures:
        files = write_figures(page, target, arguments.figures, arguments.figure_format or FORMATS[0])
        print(f"{arguments.figures}: {len(files)} files", file=sys.stderr)


def beside(path: Path, name: str) -> Path:
    """A file beside the results; beside the file, if the results are one file."""
    return (path.parent if path.is_file() else path) / name


if __name__ == "__main__":
    run_command(main)
