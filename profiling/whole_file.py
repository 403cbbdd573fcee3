"""How is a file written whole or not at all?"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

# What lies here is already open: /dev/stdout may be a file that a shell writes to. /dev/shm is a folder.
_OPEN_FILES = ("/dev", "/dev/fd", "/proc/self/fd")


def nearest_above(path: Path) -> Path:
    """What is there of the folders above a file: the others are made when it is written."""
    return next(folder for folder in path.absolute().parents if folder.exists())


@contextmanager
def folder_of(path: Path) -> Iterator[None]:
    """The folder of a file that is written here is made if need be, and goes again if something failed."""
    new = [folder for folder in path.absolute().parents if not folder.exists()]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        with suppress(OSError):  # others may have put something there
            for folder in new:
                folder.rmdir()
        raise


@contextmanager
def whole_file(path: Path, kept: bool = False) -> Iterator[BinaryIO]:
    """A file to write to, which takes the place of ``path`` at the end, unless something failed.

    A link stays, and the file that it names is replaced. Devices and pipes are written to as they are.

    Args:
        kept: it outlives a machine that loses power at the next moment.
    """
    if str(path.parent) in _OPEN_FILES or (path.exists() and not path.is_file()):
        with path.open("wb") as file:
            yield file
        return
    target = path.resolve()
    partial = target.with_name(target.name + ".partial")
    try:
        with partial.open("wb") as file:
            yield file
            if kept:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
