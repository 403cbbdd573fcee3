"""One HTML file that opens offline: the answer in words, charts, tables, provenance.

python -m analysis.report DIR                      writes DIR/report.html
python -m analysis.report DIR --output FILE
"""

import sys
from pathlib import Path

from analysis import output
from analysis.load import load
from analysis.report import studies
from analysis.report.build import build
from analysis.report.render import Page, render
from jobs.run import make_parser
from jobs.store import write_text
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, run_command


def main() -> int:
    parser = make_parser("python -m analysis.report", __doc__)
    parser.add_argument(
        "path", type=Path, metavar="DIR", help="a sweep's results, a run, studies, or reference files"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="[DIR/report.html]")
    output.add_peaks_flag(parser)
    arguments = parser.parse_args()
    target = arguments.output or default_output(arguments.path)
    if studies.holds_studies(arguments.path):
        _write(target, studies.page(arguments.path, arguments.peaks))
        return EXIT_DONE
    study = load(arguments.path, arguments.peaks)
    _write(target, build(study))
    failed = [failure for failure in study.failed if failure.kind != "excluded"]
    if failed:
        print(f"{len(failed)} points failed; the report names them", file=sys.stderr)
    return EXIT_FAILED if failed else EXIT_DONE


def _write(target: Path, page: Page) -> None:
    try:
        write_text(target, render(page))
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise UserError(f"cannot write {target}: {error.strerror}; name a file with --output") from None
    print(target)


def default_output(path: Path) -> Path:
    """Beside the results; beside the file, if the results are one file."""
    return (path.parent if path.is_file() else path) / "report.html"


if __name__ == "__main__":
    run_command(main)
