"""Recognise the tool that wrote a file, and read it."""

from pathlib import Path

from profiling.errors import UserError
from profiling.readers.chunks import read_head, why_unreadable
from profiling.tools import TOOLS, Converted, Profiler, tool


def recognise(path: Path) -> str | None:
    """The name of the tool that wrote a file, by what is in it; None if none is known.

    A folder is recognised where its files are one result (TAU's text profiles).

    Raises:
        UserError: the file cannot be read, or is damaged beyond recognition.
    """
    if path.is_dir():
        return next((name for file in path.rglob("*") if (name := bundle_of(file)[1]) is not None), None)
    head = read_head(path)
    return next((name for name in TOOLS if tool(name).recognise(path, head)), None)


def read(path: Path, name: str | None = None) -> Converted:
    """A profiler's file as tables.

    Args:
        name: of the tool; None: recognised.

    Raises:
        UserError: not recognised, or broken.
    """
    return reader_of(path, name or recognise(path)).read(path)


def reader_of(path: Path, name: str | None) -> Profiler:
    """The profiler that wrote a file, by its name where that is known."""
    if name is None and path.is_dir():
        raise UserError(f"{path} is a folder of files; convert them one by one, or with profiling.convert")
    if name is None and (why := why_unreadable(path)):
        raise (UserError if path.stat().st_size else Unrecognised)(f"{path} {why}")
    readers = ", ".join(one for one in TOOLS if tool(one).reads)
    if name is None:
        raise Unrecognised(f"{path}: unrecognised format; supported: {readers} (--tool NAME)")
    if not tool(name).reads:
        raise UserError(f"--tool {name} writes no files to read; one of: {readers}")
    return tool(name)


class Unrecognised(UserError):
    """A file that no tool known here has written, or an empty one."""


def bundle_of(path: Path) -> tuple[Path, str | None]:
    """(the folder that a file is a part of, the tool whose file it is); the file itself and None if none."""
    for name in TOOLS:
        if (whole := tool(name).bundle(path)) != path:
            return whole, name
    return path, None
