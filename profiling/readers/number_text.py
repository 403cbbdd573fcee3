"""How are millions of numbers read from a text, faster than one at a time?

Most numbers in a profile are whole and short. Their digits are added up for every place of the text at once,
four to a sum, and a number is taken from the place where it ends (and, if it is longer, from those four,
eight and twelve before). All others (fractions, exponents, signs) are left to Arrow, which reads any number,
ten times as fast as ``np.fromstring`` (benchmarks/tau_xml.py).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

_WHITE = b" \n\t\r\v\f"
_DIGITS = 4  # of a sum, and as much room before the text
_MOST_DIGITS = 15  # of a whole number that float64 holds exactly
_BLOCK_BYTES = 1 << 16  # what is made of so much text at each step stays in the processor's cache


def parse_numbers(text: bytes) -> np.ndarray:
    """The numbers of a text, between white space, as float64.

    Raises:
        ValueError: something else is among them.
    """
    return parse_texts([text])[0]


def parse_texts(texts: Sequence[bytes]) -> tuple[np.ndarray, np.ndarray]:
    """(the numbers of all texts, how many each holds); see :func:`parse_numbers`.

    Short texts are read faster together than each alone.
    """
    padded = b" ".join((b" " * (_DIGITS - 1), *texts, b""))
    characters = np.frombuffer(padded, dtype=np.uint8)
    borders = _DIGITS - 1 + np.cumsum([0, *(len(text) + 1 for text in texts)])  # a space each
    numbers = np.empty(len(padded) // 2)
    before = np.empty(len(borders), dtype=np.int64)  # each border, how many numbers end
    done, passed = 0, 0
    strange = []
    for first, last in _blocks(padded):
        ends, others, starts = _parse_block(characters, first, last, numbers[done:])
        if len(others):
            strange.append((done + others, starts, ends[others]))
        until = int(np.searchsorted(borders, last))
        before[passed:until] = done + np.searchsorted(ends, borders[passed:until])
        done, passed = done + len(ends), until
    before[passed:] = done
    if strange:
        which, starts, last_ones = map(np.concatenate, zip(*strange, strict=True))
        numbers[which] = _parse_any(characters, starts, last_ones + 1)
    return numbers[:done], np.diff(before)


def _blocks(padded: bytes) -> Iterator[tuple[int, int]]:
    """(first, last) of parts of a text that end in white space, as small as the cache likes."""
    first, end = _DIGITS, len(padded)
    while first < end:
        within = first + _BLOCK_BYTES
        last = max(padded.rfind(b" ", first, within), padded.rfind(b"\n", first, within)) + 1
        if last <= 0 or within >= end:
            last = end
        yield first, last
        first = last


def _parse_block(
    characters: np.ndarray, first: int, last: int, out: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Write the whole numbers of a part between white space to ``out``.

    Returns:
        The place of each number's last character; which are others, and where these begin.
    """
    begin = first - _DIGITS
    part = characters[begin:last]
    within = part > ord(" ")
    written = int(np.count_nonzero(within))
    _refuse_controls(part, written)
    edges = np.flatnonzero(within[_DIGITS - 1 : -1] != within[_DIGITS:])
    edges += _DIGITS - 1
    before, ends = edges[::2], edges[1::2]
    if not len(ends):  # white space only
        return ends, ends, ends
    digits = part - ord("0")  # above 9: no digit
    not_digits = digits > 9
    sums = _sums(digits, within.view(np.uint8))
    found = out[: len(ends)]
    found[:] = sums[ends]
    lengths = ends - before
    _add_longer(found, sums, ends, lengths)
    strange = lengths > _MOST_DIGITS
    if np.count_nonzero(not_digits) + written > len(part):  # some inside numbers
        strange[np.searchsorted(ends, np.flatnonzero(not_digits & within))] = True
    which = np.flatnonzero(strange)
    return begin + ends, which, begin + 1 + before[which]


def _sums(digits: np.ndarray, within: np.ndarray) -> np.ndarray:
    """For every place in a number the up to four digits of it that end there."""
    digits = digits * within
    pairs = digits.copy()
    pairs[1:] += 10 * digits[:-1]
    pairs *= within
    sums = pairs.astype(np.uint16)
    sums[2:] += np.multiply(pairs[:-2] * within[1:-1], 100, dtype=np.uint16)
    return sums


def _add_longer(found: np.ndarray, sums: np.ndarray, ends: np.ndarray, lengths: np.ndarray) -> None:
    """Add what stands before the last four digits of numbers."""
    which = np.flatnonzero(lengths > _DIGITS)
    for place in range(_DIGITS, _MOST_DIGITS, _DIGITS):
        if not len(which):
            return
        found[which] += 10.0**place * sums[ends[which] - place]
        which = which[lengths[which] > place + _DIGITS]


def _refuse_controls(characters: np.ndarray, others: int) -> None:
    left = len(characters) - others
    for one in _WHITE:
        if not left:
            return
        left -= int(np.count_nonzero(characters == one))
    if left:
        raise ValueError("a control character among numbers")


def _parse_any(characters: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The numbers between ``starts`` and ``ends``, whatever they are like."""
    lengths = ends - starts
    borders = np.concatenate([[0], np.cumsum(lengths)])
    texts = characters[np.arange(borders[-1]) + np.repeat(starts - borders[:-1], lengths)]
    buffers = [None, pa.py_buffer(borders.astype(np.int32)), pa.py_buffer(texts)]
    numbers = pa.Array.from_buffers(pa.string(), len(starts), buffers).cast(pa.float64())
    # to_numpy would import pandas.
    return np.frombuffer(numbers.buffers()[1], dtype=np.float64, count=len(numbers))
