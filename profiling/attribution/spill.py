"""A recording's rows while it is read: in memory while they are few, else in a file.

It has no name: it lies in the folder of temporary files (``TMPDIR``) and is gone when nobody has it open,
however the process ends. A table of DuckDB's would spill by itself; it takes five times as long and 170 MB
more (benchmarks.joins).
"""

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

import numpy as np

from profiling.attribution.coding import distinct
from profiling.errors import UserError

KEPT_ROWS = 1 << 18  # in memory; beyond, all rows go to the file

Columns = dict[str, np.ndarray]
_Piece = list[
    tuple[int, int, bool]
]  # of each column: where it begins, its rows, whether one value stands for all


class Store:
    """Pieces of columns in a file.

    Args:
        types: the columns' NumPy types by name.
    """

    def __init__(self, types: Mapping[str, Any]) -> None:
        self.types = {name: np.dtype(kind) for name, kind in types.items()}
        self._file: IO[bytes] = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  (it outlives this call)
        self._size = 0

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self._file.close()

    def put(self, columns: Columns) -> _Piece:
        """Write a piece; what is returned finds it again.

        Raises:
            UserError: the file system is full.
        """
        return [self._put(columns[name]) for name in self.types]

    def _put(self, column: np.ndarray) -> tuple[int, int, bool]:
        constant = len(column) > 1 and column.strides == (0,)
        values = np.ascontiguousarray(column[:1] if constant else column)
        place = (self._size, len(column), constant)
        left = values.view(np.uint8).data
        self._file.seek(self._size)
        try:
            while left:
                written = self._file.write(left)
                self._size, left = self._size + written, left[written:]
        except OSError as error:
            raise UserError(
                f"cannot write temporary rows to {tempfile.gettempdir()}: {error.strerror or error}; free "
                "some space there, or set TMPDIR to another folder"
            ) from None
        return place

    def get(self, pieces: Sequence[_Piece]) -> Columns:
        """Pieces as they were put, one after the other."""
        rows = sum(piece[0][1] for piece in pieces)
        return {
            name: self._get(kind, rows, [piece[place] for piece in pieces])
            for place, (name, kind) in enumerate(self.types.items())
        }

    def column(self, piece: _Piece, name: str) -> np.ndarray:
        """One column of a piece."""
        place = list(self.types).index(name)
        return self._get(self.types[name], piece[place][1], [piece[place]])

    def _get(self, kind: np.dtype, rows: int, places: Sequence[tuple[int, int, bool]]) -> np.ndarray:
        if places and all(constant for _, _, constant in places):
            values = np.array([self._read(start, np.empty(1, kind))[0] for start, _, _ in places], kind)
            if (values == values[0]).all() or (values != values).all():  # or all are NaN
                return np.broadcast_to(values[0], rows)
        joined_rows, at = np.empty(rows, kind), 0
        for start, length, constant in places:
            part = joined_rows[at : at + length]
            if constant:
                part[:] = self._read(start, np.empty(1, kind))
            else:
                self._read(start, part)
            at += length
        return joined_rows

    def _read(self, start: int, values: np.ndarray) -> np.ndarray:
        self._file.seek(start)
        left = values.view(np.uint8).data
        while left:
            read = self._file.readinto(left)  # type: ignore[attr-defined]
            if not read:
                raise UserError("the file of temporary rows ends too early; another program changed it")
            left = left[read:]
        return values


class Table:
    """Columns that grow a piece at a time, each piece an array, so that no event outlives its piece.

    Attributes:
        rows: how many there are.
        spilled: whether they are in a file.
    """

    def __init__(self, types: Mapping[str, Any]) -> None:
        self.types = dict(types)
        self.rows = 0
        self._kept: list[Columns] = []
        self._store: Store | None = None
        self._written: list[_Piece] = []

    @property
    def spilled(self) -> bool:
        return self._store is not None

    def add(self, columns: Mapping[str, Any]) -> None:
        """Append one piece; the columns are of equal length, or one number that stands in every row."""
        rows = max((len(column) for column in columns.values() if hasattr(column, "__len__")), default=0)
        if rows == 0:
            return
        arrays = {name: np.asarray(columns[name], dtype=kind) for name, kind in self.types.items()}
        piece = {
            name: array if array.ndim else np.broadcast_to(array, rows) for name, array in arrays.items()
        }
        self.rows += rows
        if self._store is None and self.rows <= KEPT_ROWS:
            self._kept.append(piece)
            return
        if self._store is None:
            self._spill()
        assert self._store is not None
        self._written.append(self._store.put(piece))

    def pieces(self) -> Iterator[Columns]:
        """The pieces in the order in which they came."""
        yield from self._kept
        if self._store is not None:
            yield from (self._store.get([piece]) for piece in self._written)

    def columns(self) -> Columns:
        """All pieces as one array a column."""
        return joined(self.types, list(self.pieces()))

    def split(self, key: str, number_of: Callable[[np.ndarray], np.ndarray], windows: int) -> "Split":
        """The same rows by window.

        Args:
            key: the column that tells the window; ``number_of`` its values.
        """
        if self._store is None:
            self._spill()
        assert self._store is not None
        split = Split(self._store, windows)
        for piece in self._written:
            number = number_of(self._store.column(piece, key))
            if number.min() == number.max():  # most pieces are of one window: they need not be moved
                split.refer(piece, int(number[0]))
            else:
                split.add(self._store.get([piece]), number)
        return split

    def _spill(self) -> None:
        self._store = Store(self.types)
        self._written = [self._store.put(one) for one in self._kept]
        self._kept = []


class Split:
    """The rows of a table by window, each window's in the order in which they came.

    Args:
        store: where the table's rows are; those of pieces that two windows share are put there again.
    """

    def __init__(self, store: Store, windows: int) -> None:
        self._store = store
        self._written: list[list[_Piece]] = [[] for _ in range(windows)]

    def refer(self, piece: _Piece, window: int) -> None:
        """Append a piece of the store."""
        self._written[window].append(piece)

    def add(self, piece: Columns, number: np.ndarray) -> None:
        """Append rows to the windows whose numbers they have; below 0: to none."""
        for window in distinct(number[number >= 0]).tolist():
            mine = number == window
            rows = {
                name: np.broadcast_to(column[0], int(mine.sum())) if column.strides == (0,) else column[mine]
                for name, column in piece.items()
            }
            self._written[window].append(self._store.put(rows))

    def column(self, number: int, name: str) -> np.ndarray:
        """A column of a window."""
        pieces = [self._store.column(piece, name) for piece in self._written[number]]
        return np.concatenate(pieces) if pieces else np.empty(0, self._store.types[name])

    def window(self, number: int) -> Columns:
        """All rows of a window."""
        return self._store.get(self._written[number])


def joined(types: Mapping[str, Any], pieces: list[Columns]) -> Columns:
    """Pieces as one array a column."""
    return {
        name: np.concatenate([piece[name] for piece in pieces]) if pieces else np.empty(0, kind)
        for name, kind in types.items()
    }
