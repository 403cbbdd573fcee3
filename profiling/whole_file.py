"""Write a file whole or not at all; read and write records, which are JSON files."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar

from profiling.errors import UserError

if TYPE_CHECKING:
    from pydantic import BaseModel

_Model = TypeVar("_Model", bound="BaseModel")

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


def write_record(path: Path, record: "BaseModel") -> None:
    """Write a record, synced to disk."""
    with whole_file(path, kept=True) as file:
        file.write(f"{record.model_dump_json(indent=2)}\n".encode())


def refuse_pipe(path: Path) -> None:
    """Raise OSError where reading may never end."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "it is no file but a pipe or a device; save what it gives to a file")


def read_record(path: Path, model: "type[_Model]") -> "_Model":
    """A record from its file; UserError names one that is not there, or no such record."""
    from pydantic_core import ValidationError

    try:
        refuse_pipe(path)
        return model.model_validate_json(path.read_bytes(), strict=False)
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(str(part) for part in problem["loc"])
        raise UserError(f"{path} is damaged or from another release: {place} {problem['msg']}") from None
