"""Write a file whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from profiling.errors import UserError

# What lies here is already open: /dev/stdout may be a file that a shell writes to. /dev/shm is a folder.
_OPEN_FILES = ("/dev", "/dev/fd", "/proc/self/fd")


def file_to_write(text: str) -> Path:
    """The file that a flag names; UserError: it is a folder, or in none, which is likely mistyped."""
    path = Path(text)
    if path.is_dir() or text.endswith("/"):
        raise UserError(f"cannot write {text}: it is a folder; name a file in it")
    if not path.parent.is_dir():
        why = f"{path.parent} is no folder" if path.parent.exists() else f"there is no folder {path.parent}"
        raise UserError(f"cannot write {path}: {why}")
    return path


@contextmanager
def whole_file(path: Path, kept: bool = False) -> Iterator[BinaryIO]:
    """A file that takes the place of ``path`` (or its target) once it is whole; ``kept``: synced to disk."""
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
    except OSError as error:  # of a full disk it names no file
        error.filename = error.filename or str(target)
        raise
    finally:
        partial.unlink(missing_ok=True)
