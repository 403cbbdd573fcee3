"""Read columns of profilers' SQLite databases, without writing to them.

Columns are returned as arrays of 64-bit integers, some thousand rows at a time. Tables and columns that a
release lacks are absent; a row with a value that is not an integer is dropped and counted. Arrow's SQLite
driver (ADBC) is several times as fast as :mod:`sqlite3` (``benchmarks.sqlite_readers``). It takes a column's
type from its first rows, and refuses values of another type: from there on, SQLite casts the column.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import adbc_driver_sqlite
import numpy as np
import pyarrow as pa
from adbc_driver_manager import AdbcConnection, AdbcStatement
from adbc_driver_manager import Error as ArrowError

from profiling.errors import UserError

MAGIC = b"SQLite format 3\x00"
ROWS = 1 << 16  # fetched at a time
_WAL = 2  # of the header's byte 18: changes stand in a second file
# Larger than any sum of two that is formed of them.
_LIMIT = 1 << 62

_PRAGMAS = ("query_only = on", "trusted_schema = off", "cell_size_check = on", "busy_timeout = 1000")

Columns = dict[str, np.ndarray]


class Database:
    """A SQLite file opened read-only.

    Attributes:
        tables: the columns of each real table (no views or virtual tables), by its name.
        malformed: rows that were left out because a value is no integer, or beyond all reason.
    """

    def __init__(self, path: Path, connection: AdbcConnection) -> None:
        self.path, self._connection = path, connection
        self.malformed = 0
        columns: dict[str, set[str]] = {}
        real = "t.type = 'table' and t.sql not like 'create virtual%'"
        source = f"sqlite_master as t, pragma_table_info(t.name) as c where {real}"
        for table, column in self._texts("t.name", "c.name", source):
            columns.setdefault(table, set()).add(column)
        self.tables = {name: frozenset(names) for name, names in columns.items()}

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
        rows = self._texts(f'"{key}"', f'"{value}"', f"""\"{table}" where typeof("{key}") = 'integer'""")
        return {int(number): text for number, text in rows}

    def rows(self, table: str, *columns: str) -> Iterator[tuple[str, ...]]:
        """The rows of a small table as texts, empty where there is nothing."""
        return self._texts(*(f'"{name}"' for name in columns), f'"{table}"')

    def integers(
        self, table: str, columns: Mapping[str, int | None], texts: Sequence[str] = ()
    ) -> Iterator[Columns]:
        """Columns of a table as int64, some thousand rows at a time, in the order of the file.

        Args:
            columns: name -> what stands for null and for an absent column; None: such rows are malformed.
            texts: columns that come as bytes, empty where there is nothing.
        """
        self.need(table, *(name for name, missing in columns.items() if missing is None))

        def selected(name: str, missing: int | None, checked: bool) -> str:
            null = _LIMIT if missing is None else missing
            if not self.has(table, name):
                return str(null)
            given = f"""when 'integer' then "{name}" when 'null' then {null} else {_LIMIT}"""
            return f'case typeof("{name}") {given} end' if checked else f'ifnull("{name}", {null})'

        def query(checked: bool) -> str:
            values = [selected(*column, checked) for column in columns.items()]
            values += [_as_bytes(f'"{name}"' if self.has(table, name) else "null") for name in texts]
            return f'select {", ".join(values)} from "{table}" not indexed'  # in the order of the file

        done = 0
        with suppress(ArrowError, pa.ArrowException, OSError):
            for batch in self._batches(query(checked=False)):
                if any(kind != pa.int64() for kind in batch.schema.types[: len(columns)]):
                    break
                yield self._sound(batch, columns, texts)
                done += batch.num_rows
            else:
                return
        # A value is no integer (or the file is damaged): from there on each is looked at.
        with _readable(self.path):
            for batch in self._batches(f"{query(checked=True)} limit -1 offset {done}"):
                yield self._sound(batch, columns, texts)

    def _sound(self, batch: pa.RecordBatch, columns: Iterable[str], texts: Sequence[str]) -> Columns:
        rows: Columns = {}
        sound = np.ones(batch.num_rows, dtype=bool)
        for name, array in zip(columns, batch.columns, strict=False):
            # to_numpy would import pandas.
            rows[name] = np.frombuffer(array.buffers()[1], np.int64, len(array), array.offset * 8)
            if rows[name].min() <= -_LIMIT or rows[name].max() >= _LIMIT:
                sound &= (rows[name] > -_LIMIT) & (rows[name] < _LIMIT)
        self.malformed += len(sound) - int(sound.sum())
        for name, array in zip(texts, batch.columns[len(rows) :], strict=True):
            rows[name] = np.array(array.to_pylist(), dtype=object)
        return rows if sound.all() else {name: column[sound] for name, column in rows.items()}

    def _texts(self, *columns_and_source: str) -> Iterator[tuple[str, ...]]:
        *columns, source = columns_and_source
        with _readable(self.path):
            for batch in self._batches(f"select {', '.join(map(_as_bytes, columns))} from {source}"):
                given = (column.to_pylist() for column in batch.columns)
                decoded = ([text.decode("utf-8", "replace") for text in column] for column in given)
                yield from zip(*decoded, strict=True)

    def _batches(self, sql: str) -> Iterator[pa.RecordBatch]:
        with closing(AdbcStatement(self._connection)) as statement:
            statement.set_options(**{adbc_driver_sqlite.StatementOptions.BATCH_ROWS.value: str(ROWS)})
            statement.set_sql_query(sql)
            stream, _ = statement.execute_query()
            with pa.RecordBatchReader.from_stream(stream) as reader:
                yield from (batch for batch in reader if batch.num_rows)


def _as_bytes(column: str) -> str:
    return f"cast(coalesce({column}, '') as blob)"


@contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """Open a SQLite file for reading; UserError: it is absent, damaged, locked, or not finished."""
    with ExitStack() as opened:
        with _readable(path):
            database = opened.enter_context(closing(adbc_driver_sqlite.connect(_address(path))))
            connection = opened.enter_context(closing(AdbcConnection(database)))
            with closing(AdbcStatement(connection)) as statement:
                for pragma in _PRAGMAS:
                    statement.set_sql_query(f"pragma {pragma}")
                    statement.execute_update()
            connection.set_autocommit(False)  # while its transaction is open, no writer changes the file
        yield Database(path, connection)


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
    except (ArrowError, pa.ArrowException, ValueError, MemoryError) as error:
        why = str(error).splitlines()[0].rpartition(": ")[2]
        if "locked" in why:
            raise UserError(f"{path} is locked: its profiler is still writing; wait until it ends") from None
        if "readonly" in why or "unable to open" in why:  # there is a journal to be played back
            raise UserError(
                f"{path} cannot be opened: its profiler is still writing, or died before it finished; copy "
                "it with its -wal or -journal file to a writable folder"
            ) from None
        raise UserError(f"{path} is a truncated or damaged SQLite database ({why}); fetch it again") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from None
