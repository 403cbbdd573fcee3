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
_SPILLED = 35  # a row of more than a page's usable bytes less these goes on in another page
# Of a damaged row the columns (at most 127, of at most 57 bytes) are looked for behind the page.
_PAD = 1 << 13
# By serial type: bytes that a value takes (of texts and blobs, (type - 12) // 2), and how far to shift a word
# of eight bytes that begins with it.
_SIZES = bytes([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((kind - 12) // 2 for kind in range(12, 256))])
_SHIFTS = bytes([56, 56, 48, 40, 32, 16, 0, 0, *[56] * 248])
_WIDTHS = bytes([1, 1, 2, 4, 4, 8, 8, 8, *[1] * 248])  # of the narrowest word that holds it
NULL, LONGEST, _ZERO, _ONE = 0, 6, 8, 9  # LONGEST: of eight bytes


# Of each wanted column of a run: its serial types, its offset from where the run begins.
_Run = list[tuple[np.ndarray, int]]


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

    Serial types that are the same for all of these rows come once.

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
            yield _decode(buffer, *_records(buffer, cells, page_ends, pages.usable), columns)


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


def _records(
    buffer: np.ndarray, cells: np.ndarray, page_ends: np.ndarray, usable: int
) -> tuple[np.ndarray, np.ndarray]:
    """(where each row's header begins, how many bytes header and values take)."""
    first, second = buffer[cells], buffer[cells + 1]
    long = first >= 0x80
    if (long & (second >= 0x80)).any():
        raise NotPlain  # a row of more than 16 KB
    payload = np.where(long, (first & 0x7F).astype(np.int64) << 7 | second, first)
    at = _behind_varint(buffer, cells + 1 + long)  # behind the row's number
    if (payload > usable - _SPILLED).any():
        raise NotPlain  # it goes on in another page
    if (at + payload > page_ends).any() or payload.sum() > len(buffer):
        raise NotPlain  # they are cut off, or lie in one another
    return at, payload


def _decode(
    buffer: np.ndarray, at: np.ndarray, payload: np.ndarray, columns: Sequence[int]
) -> list[tuple[np.ndarray, np.ndarray]]:
    last = columns[-1]
    if (payload <= last + 1).any():
        raise NotPlain
    length = buffer[at]
    kinds, some, every = _types(buffer, at + 1, last + 1)
    # Of two bytes are the types of long texts; 10 and 11 are not used.
    if (length >= 0x80).any() or (length <= last + 1).any() or (some >= 0x80).any():
        raise NotPlain
    # A run: columns up to the first whose size differs from row to row, so that they move together.
    found: list[tuple[np.ndarray, np.ndarray]] = []
    run: _Run = []
    place, common, wanted, left = at + length, 0, set(columns), int(payload.min())
    for number in range(last + 1):
        alike = some[number] == every[number]
        kind = some[number : number + 1] if alike else kinds[:, number].copy()
        if number in wanted:
            run.append((kind, common))
        if alike:
            common += _SIZES[kind[0]]
            left -= _SIZES[kind[0]]
        if left < 0:
            raise NotPlain  # so that no more is copied than the rows hold
        if not alike or number == last:
            found += _values(buffer, place, run)
            place += common
            run, common = [], 0
        if not alike:
            place += _looked_up(_SIZES, kind)
    if (place > at + payload).any():
        raise NotPlain
    return found


def _types(buffer: np.ndarray, place: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(the first ``count`` bytes of each header, the bits that some row has, those that all have)."""
    width = -(-count // 8) * 8
    words = _words(buffer, f"V{width}")[place].view(np.uint64).reshape(-1, width // 8)
    some, every = (
        np.array([logic.reduce(words[:, number]) for number in range(width // 8)]).view(np.uint8)[:count]
        for logic in (np.bitwise_or, np.bitwise_and)
    )
    return words.view(np.uint8), some, every


def _values(buffer: np.ndarray, place: np.ndarray, run: _Run) -> list[tuple[np.ndarray, np.ndarray]]:
    """(values, serial types) of a run's columns: its rows are copied once, then a column is a stride."""
    if not run:
        return []
    first, behind = run[0][1], run[-1][1] + 8
    rows = _words(buffer[first:], f"V{behind - first}")[place]
    found = []
    for kind, offset in run:
        # Words of eight bytes hold any integer; of fewer they are read faster.
        width = int(_WIDTHS[kind[0]]) if len(kind) == 1 else 8
        words: np.ndarray = np.ndarray(len(rows), f">i{width}", rows, offset - first, rows.strides)
        found.append((_integers(words, kind, width), kind))
    return found


def _integers(words: np.ndarray, kind: np.ndarray, width: int) -> np.ndarray:
    values = words.astype(np.int64)
    if len(kind) == 1:
        if kind[0] in (NULL, _ZERO, _ONE):
            values[:] = kind[0] == _ONE
        elif shift := _SHIFTS[kind[0]] - (64 - 8 * width):
            values >>= shift
        return values
    values >>= _looked_up(_SHIFTS, kind)
    np.copyto(values, kind == _ONE, where=(kind == NULL) | (kind == _ZERO) | (kind == _ONE))
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
    """Whether each serial type is one of an integer (7: a float)."""
    return (kind > NULL) & (kind <= _ONE) & (kind != 7)
