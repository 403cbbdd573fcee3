"""How are millions of numbers read from a text, faster than one at a time?

Most numbers in a profile are whole and of one to four digits: these are added up for every place of the text
at once, and taken where a number ends. The others are left to Arrow, which reads any number, ten times as
fast as ``np.fromstring`` (benchmarks/tau_xml.py).
"""

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa

_WHITE = b" \n\t\r\v\f"
_DIGITS = 4
_BLOCK_BYTES = 1 << 16  # what is made of so much text at each step stays in the processor's cache
_STEPS = 32  # back to the beginning of a number; longer ones are looked for otherwise


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
    found, places = [np.empty(0)], [np.empty(0, dtype=np.int64)]
    for first, last in _blocks(padded):
        numbers, ends = _parse_block(padded, characters, first, last)
        found.append(numbers)
        places.append(ends)
    borders = np.cumsum([0, *(len(text) + 1 for text in texts)])
    return np.concatenate(found), np.diff(np.searchsorted(np.concatenate(places), borders))


def _blocks(padded: bytes) -> Iterator[tuple[int, int]]:
    """(first, last) of parts of a text that end in white space, as small as the processor's cache likes."""
    first, end = _DIGITS, len(padded)
    while first < end:
        within = first + _BLOCK_BYTES
        last = max(padded.rfind(b" ", first, within), padded.rfind(b"\n", first, within)) + 1
        if last <= 0 or within >= end:
            last = end
        yield first, last
        first = last


def _parse_block(
    padded: bytes, characters: np.ndarray, first: int, last: int
) -> tuple[np.ndarray, np.ndarray]:
    """(the numbers, the place of each one's last character) of a part that white space surrounds.

    For every place the digits there, one before, ... are looked at, and whether they are of its number.
    """
    begin = first - _DIGITS  # the character before the first is white
    part = characters[begin:last]
    within = part > ord(" ")
    _refuse_controls(part, int(np.count_nonzero(within)))
    digits = (part - ord("0")) * within  # 0 between numbers; above 9: no digit
    here, one, two, three = (digits[_DIGITS - back : -1 - back] for back in range(_DIGITS))
    in_one, in_two, in_three, in_four = (within[_DIGITS - back : -1 - back] for back in range(1, _DIGITS + 1))
    sums = ((two + 10 * (three * in_two)) * in_one).astype(np.int16)
    sums *= 100
    sums += here + 10 * one
    places = np.flatnonzero(within[_DIGITS:-1] > within[_DIGITS + 1 :])
    found = sums[places].astype(np.float64)
    others = in_one & in_two
    others &= in_three
    others &= in_four
    if digits.max(initial=0) > 9:
        strange = digits > 9
        for back in range(_DIGITS):
            others |= strange[_DIGITS - back : -1 - back]
    others = others[places]
    if others.any():
        found[others] = _parse_any(padded, begin, within, places[others] + _DIGITS + 1)
    return found, places + begin


def _refuse_controls(characters: np.ndarray, others: int) -> None:
    left = len(characters) - others
    for one in _WHITE:
        if not left:
            return
        left -= int(np.count_nonzero(characters == one))
    if left:
        raise ValueError("a control character among numbers")


def _parse_any(padded: bytes, begin: int, within: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The numbers that end before ``ends``, places of the part at ``begin``, whatever they are like."""
    starts = ends - 1
    for _ in range(_STEPS):
        more = within[starts - 1]
        if not more.any():
            break
        starts -= more
    else:
        begins = np.flatnonzero(within[1:] > within[:-1]) + 1
        starts = begins[np.searchsorted(begins, ends) - 1]
    # Every second of these texts is a number, the others are what lies between.
    borders = (begin + np.stack([starts, ends], axis=1)).astype(np.int32).ravel()
    buffers = [None, pa.py_buffer(borders), pa.py_buffer(padded)]
    texts = pa.Array.from_buffers(pa.string(), len(borders) - 1, buffers)
    every_second = np.arange(0, len(borders), 2, dtype=np.int32)
    places = pa.Array.from_buffers(pa.int32(), len(starts), [None, pa.py_buffer(every_second)])
    numbers = texts.take(places).cast(pa.float64())
    # to_numpy would import pandas.
    return np.frombuffer(numbers.buffers()[1] or b"", dtype=np.float64, count=len(numbers))
