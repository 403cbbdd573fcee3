"""How are the integers of a SQLite table read a million rows a second: from its pages, not row by row?

A table is a tree of pages; its leaves hold the rows one after the other, each with a header that says how
many bytes every column takes (https://www.sqlite.org/fileformat2.html, 1.6 and 2.1). Thousands of rows are
taken apart at once, a column at a time. Whatever is not plain (rows that go on in another page, a page that
makes no sense) is left to SQLite itself, which also knows what to say of it.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

_CHUNK_BYTES = 4 << 20
_LEAF, _INTERIOR = 0x0D, 0x05
_LONGEST_VARINT = 9
# Of a damaged row the columns (at most 127, of at most 57 bytes) are looked for behind the page.
_PAD = 1 << 13
# By serial type: bytes that a value takes (of texts and blobs, (type - 12) // 2), and how far to shift a word
# of eight bytes that begins with it.
_SIZES = bytes([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((kind - 12) // 2 for kind in range(12, 256))])
_SHIFTS = bytes([56, 56, 48, 40, 32, 16, 0, 0, *[56] * 248])
_WIDTHS = bytes([1, 1, 2, 4, 4, 8, 8, 8, *[1] * 248])  # of the narrowest word that holds it
NULL, _ZERO, _ONE = 0, 8, 9
_INTEGERS = bytes(kind in (1, 2, 3, 4, 5, 6, _ZERO, _ONE) for kind in range(256))  # 7: a float


class NotPlain(Exception):
    """What only SQLite itself can read (or can say what is wrong with)."""


@contextmanager
def open_pages(path: Path) -> Iterator["Pages"]:
    """The pages of a database.

    Raises:
        NotPlain: it is none, or cannot be opened.
    """
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        raise NotPlain from None
    try:
        yield Pages(file)
    finally:
        os.close(file)


class Pages:
    """A database's pages.

    Args:
        file: descriptor of the open file.
    """

    def __init__(self, file: int) -> None:
        self._file = file
        self._buffer = np.empty(0, dtype=np.uint8)  # used again: fresh memory costs more than reading into it
        head = os.pread(file, 100, 0)
        if len(head) < 100:
            raise NotPlain
        size = int.from_bytes(head[16:18], "big")
        self.size = 1 << 16 if size == 1 else size
        self.usable = self.size - head[20]
        if self.size < 512 or self.size & (self.size - 1) or self.usable < 480:
            raise NotPlain

    def read(self, numbers: np.ndarray) -> np.ndarray:
        """Pages by their numbers as one array of bytes, with some room behind; it holds until the next call.

        Raises:
            NotPlain: one is not there.
        """
        size = len(numbers) * self.size
        if len(self._buffer) < size + _PAD:
            self._buffer = np.empty(size + _PAD, dtype=np.uint8)
        buffer = self._buffer[: size + _PAD]
        buffer[size:] = 0
        view, at = buffer.data, 0
        for run in np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1):
            length = len(run) * self.size
            try:
                got = os.preadv(self._file, [view[at : at + length]], (int(run[0]) - 1) * self.size)
            except (OSError, OverflowError, ValueError):
                raise NotPlain from None
            if got != length:
                raise NotPlain
            at += length
        return buffer

    def leaves(self, root: int) -> np.ndarray:
        """The numbers of a table's leaves, in the order of its rows."""
        numbers = np.array([root])
        for _ in range(20):  # a tree is no deeper
            kinds = self.read(numbers[:1])[0] if root > 1 else 0
            if kinds == _LEAF:
                return numbers
            numbers = self._children(numbers)
        raise NotPlain

    def _children(self, numbers: np.ndarray) -> np.ndarray:
        found = []
        for number in numbers.tolist():
            page = self.read(np.array([number]))
            count = int.from_bytes(page[3:5].tobytes(), "big")
            if page[0] != _INTERIOR or 12 + 2 * count > self.size:
                raise NotPlain
            places = page[12 : 12 + 2 * count].view(">u2").astype(np.int64)
            if places.max(initial=0) > self.size - 4:
                raise NotPlain
            found.append(_words(page, ">u4")[np.append(places, 8)].astype(np.int64))
        children = np.concatenate(found)
        if len(children) > os.fstat(self._file).st_size // self.size or children.min() < 2:
            raise NotPlain
        return children


def read_columns(
    pages: Pages, root: int, columns: Sequence[int]
) -> Iterator[list[tuple[np.ndarray, np.ndarray]]]:
    """(values as int64, serial types) of each of a table's columns, some thousand rows at a time.

    Args:
        columns: places of the columns in the table's definition, rising.

    Raises:
        NotPlain: from here on SQLite must be asked.
    """
    leaves = pages.leaves(root)
    some = max(1, _CHUNK_BYTES // pages.size)
    for start in range(0, len(leaves), some):
        numbers = leaves[start : start + some]
        buffer = pages.read(numbers)
        cells, page_ends = _cells(buffer, len(numbers), pages)
        if len(cells):
            yield _decode(buffer, cells, page_ends, columns)


def _words(buffer: np.ndarray, kind: str) -> np.ndarray:
    """An item that begins at every byte; those that overlap are one view, not a copy."""
    size = np.dtype(kind).itemsize
    return np.ndarray(len(buffer) - size + 1, dtype=kind, buffer=buffer, strides=(1,))


def _cells(buffer: np.ndarray, count: int, pages: Pages) -> tuple[np.ndarray, np.ndarray]:
    """Where each row begins, and where its page ends."""
    table = buffer[: count * pages.size].reshape(count, pages.size)
    rows = table[:, 3].astype(np.int64) << 8 | table[:, 4]
    most = int(rows.max(initial=0))
    if (table[:, 0] != _LEAF).any() or 8 + 2 * most > pages.size:
        raise NotPlain
    places = table[:, 8 : 8 + 2 * most].copy().view(">u2").astype(np.int64)
    there = np.arange(most) < rows[:, None]
    if ((places < 8) | (places > pages.size - 4))[there].any():
        raise NotPlain
    first = np.arange(count)[:, None] * pages.size
    cells = (places + first)[there]
    return cells, np.repeat(first[:, 0] + pages.usable, rows)


def _decode(
    buffer: np.ndarray, cells: np.ndarray, page_ends: np.ndarray, columns: Sequence[int]
) -> list[tuple[np.ndarray, np.ndarray]]:
    first, second = buffer[cells].astype(np.int64), buffer[cells + 1].astype(np.int64)
    long = first >= 0x80
    if (long & (second >= 0x80)).any():
        raise NotPlain  # a row of more than 16 KB
    payload = np.where(long, (first & 0x7F) << 7 | second, first)
    at = _behind_varint(buffer, cells + 1 + long)  # behind the row's number
    last = columns[-1]
    if (at + payload > page_ends).any() or (payload <= last + 1).any():
        raise NotPlain
    length = buffer[at].astype(np.int64)
    kinds = np.ascontiguousarray(
        _words(buffer, f"V{last + 1}")[at + 1].view(np.uint8).reshape(-1, last + 1).T
    )
    # Of two bytes are the types of long texts; 10 and 11 are not used.
    if (length >= 0x80).any() or (length <= last + 1).any() or kinds.max() >= 0x80:
        raise NotPlain
    # What all rows have in common moves the buffer, not the rows.
    found, place, common, wanted = [], at + length, 0, set(columns)
    for number, kind in enumerate(kinds):
        uniform = bool((kind == kind[0]).all())
        if number in wanted:
            found.append((_values(buffer[common:], place, kind, uniform), kind))
        if uniform:
            common += _SIZES[kind[0]]
        else:
            place += _looked_up(_SIZES, kind)
    if (place + common > at + payload).any():
        raise NotPlain
    return found


def _values(buffer: np.ndarray, place: np.ndarray, kind: np.ndarray, uniform: bool) -> np.ndarray:
    if uniform and kind[0] in (NULL, _ZERO, _ONE):
        return np.full(len(kind), int(kind[0] == _ONE), dtype=np.int64)
    # Words of eight bytes hold any integer; of fewer they are read faster.
    width = int(_WIDTHS[kind[0]]) if uniform else 8
    values = _words(buffer, f">i{width}")[place].astype(np.int64)
    if uniform:
        if shift := _SHIFTS[kind[0]] - (64 - 8 * width):
            values >>= shift
        return values
    values >>= _looked_up(_SHIFTS, kind)
    without = _looked_up(_SIZES, kind) == 0
    if without.any():
        values[without] = kind[without] == _ONE
    return values


def _looked_up(table: bytes, kind: np.ndarray) -> np.ndarray:
    """A table's entry for each serial type; faster than by an array as index."""
    return np.frombuffer(kind.tobytes().translate(table), dtype=np.uint8)


def _behind_varint(buffer: np.ndarray, places: np.ndarray) -> np.ndarray:
    places = places.copy()
    more = buffer[places] >= 0x80
    for _ in range(_LONGEST_VARINT - 1):
        if not more.any():
            break
        places += more
        more &= buffer[places] >= 0x80
    return places + 1


def is_integer(kind: np.ndarray) -> np.ndarray:
    """Whether each serial type is one of an integer."""
    return _looked_up(_INTEGERS, kind).view(bool)
