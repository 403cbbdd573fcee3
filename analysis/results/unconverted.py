"""Is a file, or one in a folder, a raw trace that profiling.convert makes results of?"""

from pathlib import Path

from profiling.errors import UserError
from profiling.tools import tool
from profiling.tools.recognition import recognise
from profiling.traces.units import files_of
from profiling.wording import command


def first_trace(path: Path) -> tuple[Path, str] | None:
    """The first file that is the trace of a job, and the tool that wrote it; None: there is none."""
    if not path.exists():
        return None
    return next(((file, name) for file in files_of([path]) if (name := _tool_of(file))), None)


def how_to_convert(path: Path) -> str | None:
    """In a line that traces have to be converted first; None: there are none."""
    found = first_trace(path)
    if found is None:
        return None
    file, name = found
    of = "the torch profiler" if name == "torch" else name
    held = f"is a raw trace of {of}" if file == path else f"holds raw traces of {of} ({_below(file, path)})"
    again = command("profiling.convert", path, "--out", "DIR")
    return f"{path} {held}; convert {'it' if file == path else 'them'} first: {again}"


def _below(file: Path, folder: Path) -> Path:
    """Where in the folder a file is."""
    return file.relative_to(folder) if file.is_relative_to(folder) else file


def _tool_of(path: Path) -> str | None:
    try:
        name = recognise(path)
        return name if name is not None and tool(name).facts(path) is not None else None
    except UserError:
        return None
