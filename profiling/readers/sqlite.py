"""How is a profiler's SQLite database read: never written to, by columns, whatever release wrote it?

Columns come as arrays of 64-bit integers, some thousand rows at a time. A table or a column that a release
does not have is told by its absence; a value that is no integer costs its row, which is counted. Integers are
taken from the file's pages (:mod:`profiling.readers.sqlite_pages`), many times as fast as SQLite hands them
to Python (``benchmarks.sqlite_readers``).
"""

import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from profiling.errors import UserError
from profiling.readers.sqlite_pages import (
    LONGEST,
    NULL,
    NotPlain,
    Pages,
    is_integer,
    open_pages,
    read_columns,
)

MAGIC = b"SQLite format 3\x00"
ROWS = 1 << 16  # fetched at a time
_LOCK_WAIT_S = 1.0
_WAL = 2  # of the header's byte 18: changes stand in a second file
# Larger than any sum of two that is formed of them.
_LIMIT = 1 << 62

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
        self._pages: Pages | None = None
        self.malformed = 0
        self.tables: dict[str, frozenset[str]] = {}
        sql = "select name from sqlite_master where type = 'table' and sql not like 'create virtual%'"
        for (name,) in self._rows(sql):
            found = self._rows("select name from pragma_table_info(?)", (name,))
            self.tables[name] = frozenset(str(column) for (column,) in found)

    def has(self, table: str, *columns: str) -> bool:
        """Whether there is such a table with (at least) these columns."""
        return self.tables.get(table, frozenset()).issuperset(columns) and table in self.tables

    def need(self, table: str, *columns: str) -> None:
        """Raise UserError where a table is absent or lacks one of ``columns``."""
        if table not in self.tables:
            raise UserError(f"{self.path} has no table {table}: of another tool, or an unknown release")
        lacking = sorted(set(columns) - self.tables[table])
        if lacking:
            raise UserError(
                f"{self.path}: its table {table} has no {', '.join(lacking)}: it was written by a release "
                "that is not known here, or is damaged"
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
            columns: name -> what stands for null and for a column that is not there; None: such rows are
                malformed.
            texts: columns that come as they are, as objects (None where absent).
        """
        self.need(table, *(name for name, missing in columns.items() if missing is None))
        done = 0
        if not texts and (plain := self._plain(table, columns)) is not None:
            try:
                for found in self._from_pages(*plain, columns):
                    done += len(found[0][0])
                    yield self._sound(dict(zip(columns, (one for one, _ in found), strict=True)), found)
                return
            except NotPlain:
                pass  # from the row after the last one on, SQLite reads (or says what is wrong)
        wanted = [
            f'"{name}"' if missing is None else f"ifnull({self._column(table, name)}, {missing})"
            for name, missing in columns.items()
        ] + [self._column(table, name) for name in texts]
        rest = f" order by rowid limit -1 offset {done}" if done else ""
        for rows in self._chunks(f'select {", ".join(wanted)} from "{table}"{rest}'):
            given = dict(zip([*columns, *texts], zip(*rows, strict=True), strict=True))
            found = [_as_integers(given[name]) for name in columns]
            named = dict(zip(columns, (one for one, _ in found), strict=True))
            yield self._sound(named | {name: np.array(given[name], dtype=object) for name in texts}, found)

    def _sound(self, rows: Columns, found: Sequence[tuple[np.ndarray, np.ndarray]]) -> Columns:
        """The rows whose values are integers that can be; the others are counted."""
        sound = np.ones(len(found[0][0]), dtype=bool)
        for _, whole in found:
            if not whole.all():
                sound &= whole
        if sound.all():
            return rows
        self.malformed += len(sound) - int(sound.sum())
        return {name: column[sound] for name, column in rows.items()}

    def _plain(self, table: str, columns: Mapping[str, int | None]) -> tuple[int, dict[str, int]] | None:
        """(where a table begins, the places of its columns), if its rows can be read from the file's pages.

        So are tables of rows in the main file, and columns that were made to hold integers and are stored.
        """
        if self.path.with_name(self.path.name + "-wal").exists():
            return None
        made = list(
            self._rows("select rootpage, sql from sqlite_master where type = 'table' and name = ?", (table,))
        )
        told = list(self._rows("select name, type, pk, hidden from pragma_table_xinfo(?)", (table,)))
        if len(made) != 1 or re.search(r"without\s+rowid", str(made[0][1]), re.IGNORECASE):
            return None
        places = {str(name): place for place, (name, *_) in enumerate(told) if name in columns}
        stored = all(not hidden for *_, hidden in told)
        integers = all("INT" in str(kind).upper() and not pk for name, kind, pk, _ in told if name in columns)
        return (int(made[0][0]), places) if stored and integers and places else None

    def _from_pages(
        self, root: int, places: Mapping[str, int], columns: Mapping[str, int | None]
    ) -> Iterator[list[tuple[np.ndarray, np.ndarray]]]:
        """(values, which of them are integers that can be) of each column, some thousand rows at a time."""
        order = sorted(places, key=places.__getitem__)
        # While this transaction is open, no writer changes a page.
        if not self._connection.in_transaction:
            list(self._rows("begin"))
            list(self._rows("select 1 from sqlite_master limit 1"))
        if self._pages is None:
            self._pages = self._open_files.enter_context(open_pages(self.path))
        for read in read_columns(self._pages, root, [places[name] for name in order]):
            known = dict(zip(order, read, strict=True))
            rows = len(read[0][0])
            yield [
                _whole(*known[name], missing) if name in known else (np.full(rows, missing), np.ones(1, bool))
                for name, missing in columns.items()
            ]

    def _column(self, table: str, name: str) -> str:
        return f'"{name}"' if name in self.tables[table] else "null"

    def _rows(self, sql: str, values: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
        with _readable(self.path):
            yield from self._connection.execute(sql, values)

    def _chunks(self, sql: str) -> Iterator[list[tuple[Any, ...]]]:
        with _readable(self.path):
            cursor = self._connection.execute(sql)
            while rows := cursor.fetchmany(ROWS):
                yield rows


def _whole(values: np.ndarray, kinds: np.ndarray, missing: int | None) -> tuple[np.ndarray, np.ndarray]:
    """(values with what stands for null, which of them are integers that can be), by their serial types.

    What is so of all of them comes once, as their types do.
    """
    whole = is_integer(kinds)
    if missing is not None and not whole.all():
        null = kinds == NULL
        values, whole = np.where(null, missing, values), whole | null
    if (kinds == LONGEST).any() and (values.min() <= -_LIMIT or values.max() >= _LIMIT):
        whole = whole & (values > -_LIMIT) & (values < _LIMIT)
    return values, whole


def _as_integers(given: tuple[Any, ...]) -> tuple[np.ndarray, np.ndarray]:
    """(values as int64, which of them are integers that can be)."""
    try:
        values = np.array(given)  # of 64-bit integers only where every value is one
    except (ValueError, OverflowError):
        values = np.array([])
    if values.dtype != np.int64:
        integers = [type(one) is int for one in given]
        values = np.array([one if right else _LIMIT for one, right in zip(given, integers, strict=True)])
    return values, (values > -_LIMIT) & (values < _LIMIT)


@contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """Open a SQLite file for reading.

    Raises:
        UserError: it is absent, damaged, locked, or its writer has not finished.
    """
    with _readable(path):
        connection = sqlite3.connect(_address(path), uri=True, timeout=_LOCK_WAIT_S)
    # Whoever closes a file gives up all locks that this process has on it: so the connection is closed first.
    with ExitStack() as open_files, closing(connection):
        connection.text_factory = lambda text: text.decode("utf-8", "replace")
        with _readable(path):
            for pragma in ("query_only = on", "trusted_schema = off", "cell_size_check = on"):
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
    """What SQLite says of a file, as one line."""
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
                f"{path} cannot be opened: its profiler is still writing, or died before it had finished; "
                "copy it with its -wal or -journal file to a folder that can be written to"
            ) from None
        raise UserError(
            f"{path} is a truncated or damaged SQLite database ({error}); fetch it again"
        ) from None
