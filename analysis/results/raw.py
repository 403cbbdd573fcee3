"""Raw traces where results are expected: they are converted beside themselves first."""

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path

from analysis.results.load import load
from analysis.results.study import Study
from profiling import convert
from profiling.errors import UserError
from profiling.tools import tool

BESIDE = "-converted"


def load_or_convert(paths: Sequence[Path], own_peaks: Path | None = None) -> Study:
    """The results in a folder; or the traces in files and folders, converted into a folder beside them.

    Raises:
        UserError: as :func:`analysis.results.load.load`, or nothing can be converted.
    """
    if len(paths) > 1:
        return load(_converted(paths), own_peaks)
    try:
        return load(paths[0], own_peaks)
    except UserError:
        if not _holds_traces(paths[0]):
            raise
    return load(_converted(paths), own_peaks)


def target_of(paths: Sequence[Path]) -> Path:
    """Where the traces of such paths are converted to."""
    first = paths[0].resolve()
    folder = first if first.is_dir() else convert.target_of(first, None)
    return folder.with_name(folder.name + BESIDE)


def _holds_traces(path: Path) -> bool:
    """Whether a file, or one in a folder, is a trace of a job."""
    if not path.exists():
        return False
    return any(_is_trace(file) for file in convert.files_of([path]))


def _is_trace(path: Path) -> bool:
    try:
        name = convert.recognise(path)
        return name is not None and tool(name).facts(path) is not None
    except UserError:
        return False


def _converted(paths: Sequence[Path]) -> Path:
    out = target_of(paths)
    # Standard output is the answer's: where tables went is said beside it.
    with redirect_stdout(sys.stderr):
        done = convert.convert(paths, out=out)
    if not done or not done[0]:
        raise UserError(f"nothing in {', '.join(map(str, paths))} is a result or a readable trace")
    return out
