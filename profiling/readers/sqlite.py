"""Read columns of profilers' SQLite databases, without writing to them.

Columns are returned as arrays of 64-bit integers, some thousand rows at a time. Tables and columns that a
release lacks are absent; a row with a value that is not an integer is dropped and counted. Arrow's SQLite
driver (ADBC) is several times as fast as :mod:`sqlite3` (``benchmarks.sqlite_readers``), which is used from
the first value that is not an integer.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import adbc_driver_sqlite
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from adbc_driver_manager import AdbcConnection, AdbcStatement
from adbc_driver_manager import Error as ArrowError

from profiling.errors import UserError

MAGIC = b"SQLite format 3\x00"
ROWS = 1 << 16  # fetched at a time
_LOCK_WAIT_S = 1.0
_WAL = 2  # of the header's byte 18: changes stand in a second file
# Larger than any sum of two that is formed of them.
_LIMIT = 1 << 62

_PRAGMAS = ("query_only = on", "trusted_schema = off", "cell_size_check = on")

Columns = dict[str, np.ndarray]


class Database:
    """A SQLite file opened read-only.

    Attributes:
        tables: the columns of each real table (views and virtual tables, whose rows are computed, are not
            looked at), by its name.
        malformed: rows that were left out because a value is no integer, or beyond all reason.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, open_files: ExitStack) -> None:
        self.path, self._connection, self._open_files = path, connection, open_files
        self.malformed = 0
        self.tables: dict[str, frozenset[str]] = {}
        sql = "select name from sqlite_master where type = 'table' and sql not like 'create virtual%'"
        for (name,) in self._rows(sql):
            columns = self._rows("select name from pragma_table_info(?)", (name,))
            self.tables[name] = frozenset(str(column) for (column,) in columns)

    def has(self, table: str, *columns: str) -> bool:
        return table in self.tables and self.tables[table].issuperset(columns)

    def need(self, table: str, *columns: str) -> None:
        """Raise UserError where a table is absent or lacks one of ``columns``."""
        if table not in self.tables:
            raise UserError(f"{self.path} has no table {table}: of another profiler or an unknown release")
        if lacking := sorted(set(columns) - self.tables[table]):
            raise UserError(
                f"{self.path}: table {table} has no {', '.join(lacking)}: of an unknown release, or damaged"
            )

    def texts(self, table: str, key: str, value: str) -> dict[int, str]:
        """A table of numbered texts."""
        self.need(table, key, value)
        rows = self._rows(f'select "{key}", "{value}" from "{table}"')
        return {number: str(text) for number, text in rows if isinstance(number, int)}

    def rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """The rows of a small table, as they are; columns that it lacks come as None."""
        return self._rows(f'select {", ".join(self._column(table, one) for one in columns)} from "{table}"')

    def integers(
        self, table: str, columns: Mapping[str, int | None], texts: Sequence[str] = ()
    ) -> Iterator[Columns]:
        """Columns of a table as int64, some thousand rows at a time, in the order of the file.

        Args:
            columns: name -> what stands for null and for an absent column; None: such rows are malformed.
            texts: columns that come as they are, as objects (None where absent).
        """
        self.need(table, *(name for name, missing in columns.items() if missing is None))
        done = 0
        if not texts:
            try:
                for batch in self._batches(table, columns):
                    yield self._sound(_filled(batch, columns))
                    done += batch.num_rows
                return
            except (ArrowError, pa.ArrowException, OSError):
                pass  # from the row after the last one on, sqlite3 reads (or says what is wrong)
        rest = f" limit -1 offset {done}" if done else ""
        rows = self._rows(self._select(table, [*columns, *texts]) + rest)
        while some := list(islice(rows, ROWS)):
            given = dict(zip([*columns, *texts], zip(*some, strict=True), strict=True))
            integers = {name: _as_integers(given[name], missing) for name, missing in columns.items()}
            yield self._sound(integers | {name: np.array(given[name], dtype=object) for name in texts})

    def _sound(self, rows: Columns) -> Columns:
        numbers = [column for column in rows.values() if column.dtype == np.int64]
        if all(column.min() > -_LIMIT and column.max() < _LIMIT for column in numbers):
            return rows
        sound = np.logical_and.reduce([(column > -_LIMIT) & (column < _LIMIT) for column in numbers])
        self.malformed += len(sound) - int(sound.sum())
        return {name: column[sound] for name, column in rows.items()}

    def _batches(self, table: str, columns: Mapping[str, int | None]) -> Iterator[pa.RecordBatch]:
        """The columns as Arrow reads them; one of several errors where they hold something else."""
        statement = AdbcStatement(self._arrow)
        with closing(statement):
            statement.set_options(**{adbc_driver_sqlite.StatementOptions.BATCH_ROWS.value: str(ROWS)})
            statement.set_sql_query(self._select(table, columns))
            stream, _ = statement.execute_query()
            with pa.RecordBatchReader.from_stream(stream) as reader:
                # A column's type is that of its first rows; what does not fit in a later row is an error.
                if any(kind != pa.int64() for kind in reader.schema.types):
                    raise pa.ArrowTypeError("a column that is not of integers")
                yield from (batch for batch in reader if batch.num_rows)

    @cached_property
    def _arrow(self) -> AdbcConnection:
        """The file, opened by Arrow's driver. While its transaction is open, no writer changes the file.

        Two libraries share the process's locks on it, and one that lets go lets go for both: so the
        connection of sqlite3 begins a transaction, too, which lasts as long.
        """
        if not self._connection.in_transaction:
            list(self._rows("begin"))
            list(self._rows("select 1 from sqlite_master limit 1"))
        database = self._open_files.enter_context(closing(adbc_driver_sqlite.connect(_address(self.path))))
        connection = self._open_files.enter_context(closing(AdbcConnection(database)))
        with closing(AdbcStatement(connection)) as statement:
            for pragma in _PRAGMAS:
                statement.set_sql_query(f"pragma {pragma}")
                statement.execute_update()
        connection.set_autocommit(False)
        return connection

    def _select(self, table: str, columns: Iterable[str]) -> str:
        # Not indexed: in the order of the file, whichever library reads.
        selected = ", ".join(f'{self._column(table, name)} as "{name}"' for name in columns)
        return f'select {selected} from "{table}" not indexed'

    def _column(self, table: str, name: str) -> str:
        return f'"{name}"' if name in self.tables[table] else "null"

    def _rows(self, sql: str, values: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        with _readable(self.path):
            yield from self._connection.execute(sql, values)


def _filled(batch: pa.RecordBatch, columns: Mapping[str, int | None]) -> Columns:
    """A batch's integers, with what stands for null."""
    arrays = {}
    for name, missing in columns.items():
        array = batch.column(name)
        if array.null_count:
            array = pc.fill_null(array, _LIMIT if missing is None else missing)
        # to_numpy would import pandas.
        arrays[name] = np.frombuffer(array.buffers()[1], np.int64, len(array), array.offset * 8)
    return arrays


def _as_integers(given: tuple[Any, ...], missing: int | None) -> np.ndarray:
    """Values as int64, with what stands for null; what is no integer as one that cannot be."""
    try:
        values = np.array(given)  # of 64-bit integers only where every value is one
    except (ValueError, OverflowError):
        values = np.array([])
    if values.dtype == np.int64:
        return values
    null = _LIMIT if missing is None else missing
    return np.array(
        [one if type(one) is int else null if one is None else _LIMIT for one in given], dtype=np.int64
    )


@contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """Open a SQLite file for reading; UserError: it is absent, damaged, locked, or not finished."""
    with _readable(path):
        connection = sqlite3.connect(_address(path), uri=True, timeout=_LOCK_WAIT_S)
    # Whoever closes a file gives up all locks that this process has on it: so the connection is closed first.
    with ExitStack() as open_files, closing(connection):
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        with _readable(path):
            for pragma in _PRAGMAS:
                connection.execute(f"pragma {pragma}")
        yield Database(path, connection, open_files)


def _address(path: Path) -> str:
    """The file as SQLite's address: read-only, and immutable where it would have to write to read.

    A database in write-ahead mode that was closed in order has no second file; to read it, SQLite would
    make one.
    """
    with path.open("rb") as file:
        header = file.read(20)
    ahead = len(header) == 20 and header[18] == _WAL
    finished = not path.with_name(path.name + "-wal").exists()
    immutable = "&immutable=1" if ahead and finished else ""
    return f"file:{quote(str(path.absolute()))}?mode=ro{immutable}"


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
    except (sqlite3.Error, ValueError, OverflowError, MemoryError) as error:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise UserError(f"{path} is locked: its profiler is still writing; wait until it ends") from None
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY):  # there is a journal to be played back
            raise UserError(
                f"{path} cannot be opened: its profiler is still writing, or died before it finished; copy "
                "it with its -wal or -journal file to a writable folder"
            ) from None
        raise UserError(
            f"{path} is a truncated or damaged SQLite database ({error}); fetch it again"
        ) from None
