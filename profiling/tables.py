"""Store tables and records as files, written whole or not at all; a rank has a folder for its tables."""

import errno
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from profiling.errors import UserError
from profiling.findings import Finding
from profiling.schemas import LATER, SCHEMAS, TEXT

if TYPE_CHECKING:
    from pydantic import BaseModel

ROWS_OF_A_GROUP = 1 << 17  # of a table that is written in pieces
# Bounds that only damage passes: times from 1970 to 2116, a step of a day, samples of a rank's step.
LATEST_NS, LONGEST_STEP_NS, MOST_SAMPLES = 1 << 62, 86_400 * 10**9, 1 << 26
_AGAIN = "remove its run's folder and start the sweep (of traces: the conversion) again"


def rank_directory(result: Path, rank: int) -> Path:
    """Where one rank of a run keeps its tables: ``rank_0003``."""
    return result / f"rank_{rank:04d}"


def rank_of(directory: Path) -> int:
    """The rank whose tables are in a directory of :func:`rank_directory`."""
    return int(directory.name.removeprefix("rank_"))


def table_path(directory: Path, name: str) -> Path:
    """Where table ``name`` of a rank's directory is; the name must be one of ``SCHEMAS``."""
    if name not in SCHEMAS:
        raise KeyError(f"no table {name!r}; one of {', '.join(SCHEMAS)}")
    return directory / f"{name}.parquet"


def as_table(name: str, columns: dict) -> pa.Table:
    """``columns`` (sequences or arrow arrays by name) as table ``name``; absent columns are null."""
    schema = SCHEMAS[name]
    unknown = set(columns) - set(schema.names)
    if unknown:
        raise KeyError(f"table {name} has no column {', '.join(sorted(unknown))}")
    length = len(next(iter(columns.values()))) if columns else 0
    arrays = [_as_array(columns.get(field.name), field, length) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)


def _as_array(values: Any, field: pa.Field, length: int) -> pa.Array | pa.ChunkedArray:
    if values is None:
        return pa.nulls(length, field.type)
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values if values.type == field.type else values.cast(field.type)
    if field.type == TEXT:
        return pa.array(values, pa.string(), from_pandas=True).dictionary_encode()
    if isinstance(values, np.ndarray) and values.dtype.kind in "biuf":
        known = None if values.dtype.kind != "f" or not (nan := np.isnan(values)).any() else ~nan
        return array_of(values.view(np.uint8) if values.dtype == bool else values, known).cast(field.type)
    return pa.array(values, field.type, from_pandas=True)


def array_of(values: np.ndarray, valid: np.ndarray | None = None) -> pa.Array:
    """Numbers as Arrow's, null where not ``valid``, without pandas, which ``pa.array`` imports (0.5 s)."""
    values = np.ascontiguousarray(values)
    bits = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [bits, pa.py_buffer(values)])


def write(table: pa.Table, directory: Path, name: str) -> Path:
    """Write ``table`` as table ``name`` of a rank's directory, whole or not at all."""
    with Writer(directory) as writer:
        writer.add(name, table)
    return table_path(directory, name)


class Writer:
    """Writes tables in pieces; as its context is left files appear, after an error nothing is left."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._pieces: dict[str, list[pa.Table]] = {}
        self._writers: dict[str, pq.ParquetWriter] = {}

    def __enter__(self) -> "Writer":
        return self

    @property
    def names(self) -> set[str]:
        return set(self._writers)

    def add(self, name: str, piece: pa.Table) -> None:
        pieces = self._pieces.setdefault(name, [])
        pieces.append(piece)
        if sum(len(one) for one in pieces) >= ROWS_OF_A_GROUP:
            self._flush(name)

    def _flush(self, name: str) -> None:
        rows = pa.concat_tables(self._pieces[name]).cast(SCHEMAS[name]).unify_dictionaries()
        self._pieces[name] = []
        if name not in self._writers:
            path = table_path(self.directory, name).with_suffix(".partial")
            self.directory.mkdir(parents=True, exist_ok=True)
            self._writers[name] = pq.ParquetWriter(
                path, SCHEMAS[name], compression="zstd", write_page_checksum=True
            )
        self._writers[name].write_table(rows)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                for name, pieces in self._pieces.items():
                    if pieces or name not in self._writers:
                        self._flush(name)
        finally:
            for name, writer in self._writers.items():
                writer.close()
                path = table_path(self.directory, name)
                if kind is None:
                    path.with_suffix(".partial").replace(path)
                else:
                    path.with_suffix(".partial").unlink(missing_ok=True)


@dataclass
class Converted:
    """What a tool's output became: tables by name, and findings."""

    tables: dict[str, pa.Table]
    findings: list[Finding] = field(default_factory=list)


def collect(pieces: Iterable[tuple[str, pa.Table]], findings: list[Finding]) -> Converted:
    """Pieces of tables as whole tables; tables may be absent."""
    by_name: dict[str, list[pa.Table]] = {}
    for name, piece in pieces:
        by_name.setdefault(name, []).append(piece)
    tables = {name: pa.concat_tables(some).unify_dictionaries() for name, some in by_name.items()}
    return Converted(tables, findings)


def read(directory: Path, name: str, columns: list[str] | None = None) -> pa.Table:
    """Table ``name`` of a rank's directory, or ``columns`` of it; UserError: absent, damaged, misnumbered."""
    path = table_path(directory, name)
    names = columns or SCHEMAS[name].names
    with _readable(path, name):
        refuse_pipe(path)
        table = pq.ParquetFile(path, page_checksum_verification=True).read(columns=names)
        for column in set(names).intersection(LATER.get(name, ())).difference(table.column_names):
            table = table.append_column(column, pa.nulls(len(table), SCHEMAS[name].field(column).type))
        table = table.select(names).cast(pa.schema([SCHEMAS[name].field(column) for column in names]))
    for wrong in _impossible(table, name):
        raise UserError(f"{path} is damaged: {wrong}; {_AGAIN}")
    return table


@contextmanager
def _readable(path: Path, name: str) -> Iterator[None]:
    """What goes wrong with a file, as UserError."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"no {name} table: {path} does not exist") from None
    except (pa.ArrowException, OSError, UnicodeDecodeError, KeyError) as error:
        raise UserError(f"{path} is not a readable {name} table ({error}); {_AGAIN}") from None


def verify(paths: Iterable[Path], name: str, sql: str) -> None:
    """Check the columns that ``sql`` names, once in a process, as DuckDB does not; UserError: damaged."""
    columns = {column for column in SCHEMAS[name].names if re.search(rf"\b{column}\b", sql)}
    for path in paths:
        with _readable(path, name):
            refuse_pipe(path)
            verified = _verified.setdefault((path, path.stat().st_mtime_ns), set())
            if missing := sorted(columns - verified):
                for _ in pq.ParquetFile(path, page_checksum_verification=True).iter_batches(columns=missing):
                    pass
            verified |= columns


_verified: dict[tuple[Path, int], set[str]] = {}  # columns, by file and when it was written


def _impossible(table: pa.Table, name: str) -> Iterator[str]:
    """Values that no run leaves."""
    for column in table.column_names:
        if column.endswith("_ns") and pa.types.is_integer(table[column].type):
            ends = pc.min_max(table[column])
            before = column in ("start_ns", "end_ns") and (ends["min"].as_py() or 0) < 0
            unknown = name == "markers" and table[column].null_count
            if before or unknown or (ends["max"].as_py() or 0) >= LATEST_NS:
                yield f"{column} from {ends['min']} to {ends['max']}"
    if name != "batches":
        return
    if "batch_index" in table.column_names:
        # Analyses find a rank's steps by their number.
        numbers = np.sort(table["batch_index"].drop_null().to_numpy())
        if not np.array_equal(numbers, np.arange(len(table))):
            yield f"its {len(table)} batches are not numbered 0 to {len(table) - 1}"
    if {"start_ns", "end_ns"} <= set(table.column_names):
        longest_ns = pc.max(pc.subtract(table["end_ns"], table["start_ns"])).as_py() or 0
        if longest_ns > LONGEST_STEP_NS:
            yield f"a step of {longest_ns / 1e9:.3g} s"
    if "images" in table.column_names and (most := pc.max(table["images"]).as_py() or 0) > MOST_SAMPLES:
        yield f"a step of {most} samples"


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
