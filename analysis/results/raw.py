"""Raw traces where results are expected: they are converted first, beside the answer or beside themselves."""

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from analysis.results.load import first_trace, load
from analysis.results.study import Study
from profiling.convert import convert
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError
from profiling.traces import units
from profiling.traces.jobs import others_in

BESIDE = "-converted"


def load_or_convert(
    paths: Sequence[Path], output: Path | None = None, own_peaks: Path | None = None
) -> tuple[Study, int]:
    """The results in a folder, or traces in files and folders, converted first; and the exit code of that.

    Args:
        output: the file of the answer, beside which the folder of the converted traces goes; None: beside
            the traces.

    Raises:
        UserError: as :func:`analysis.results.load.load`, or nothing can be converted.
    """
    if len(paths) > 1:
        return _of_traces(paths, output, own_peaks)
    try:
        return load(paths[0], own_peaks), EXIT_DONE
    except UserError:
        if first_trace(paths[0]) is None:
            raise
    return _of_traces(paths, output, own_peaks)


def are_two_results(paths: Sequence[Path]) -> bool:
    """Whether two paths are results to be compared; else they are one set of results, or raw traces of one.

    Raises:
        UserError: one does not exist, some are results and others are not, or more than two are results.
    """
    if len(paths) < 2:
        return False
    errors = {path: error for path in paths if (error := _why_no_results(path))}
    for path, error in errors.items():
        if not path.exists():
            raise error
    results = [path for path in paths if path not in errors]
    if not results:
        return False
    for path, error in errors.items():
        if first_trace(path) is None:
            raise error
        how = f"python -m profiling.convert {shlex.quote(str(path))}"
        raise UserError(f"{path} holds raw traces: convert them first: {how}")
    if len(results) > 2:
        raise UserError(f"{len(results)} sets of results: give one, or two to compare")
    return True


def _why_no_results(path: Path) -> UserError | None:
    try:
        load(path)
    except UserError as error:
        return error
    return None


def target_of(paths: Sequence[Path], output: Path | None = None) -> Path:
    """Where the traces of such paths are converted to; not among the traces, which are searched again."""
    first = paths[0].resolve()
    folder = first if first.is_dir() else units.target_of(first, None)
    beside = output.resolve().parent if output else folder.parent
    inside = any(path.is_dir() and beside.is_relative_to(path.resolve()) for path in paths)
    return (folder.parent if inside else beside) / f"{folder.name}{BESIDE}"


def _of_traces(paths: Sequence[Path], output: Path | None, own_peaks: Path | None) -> tuple[Study, int]:
    out, failed = _converted(paths, output)
    return load(out, own_peaks), EXIT_FAILED if failed else EXIT_DONE


def _converted(paths: Sequence[Path], output: Path | None) -> tuple[Path, int]:
    """The folder of what the traces became; and how many could not be read, which was said."""
    out = target_of(paths, output)
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
    return out, done.failed
