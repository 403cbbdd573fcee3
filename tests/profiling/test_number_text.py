"""Texts of numbers are read as Python reads them, or refused."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from profiling.readers.tau import parse_numbers

NUMBERS = st.one_of(st.integers(-(1 << 70), 1 << 70), st.floats(allow_nan=False))
GAPS = st.text(" \t\r\n", min_size=1, max_size=3)


def numbers_of(text: bytes) -> list[float]:
    return parse_numbers([text])[0].tolist()


@settings(deadline=None)
@given(st.lists(st.tuples(GAPS, NUMBERS)), GAPS | st.just(""))
def test_each_number_is_what_python_makes_of_it(parts, end):
    text = "".join(f"{gap}{number!r}" for gap, number in parts) + end
    assert numbers_of(text.encode()) == [float(number) for _, number in parts]


@settings(deadline=None)
@given(st.lists(st.lists(NUMBERS)), GAPS)
def test_the_numbers_of_each_text_are_counted(lists, gap):
    texts = [gap.join(map(repr, numbers)).encode() for numbers in lists]
    numbers, counts = parse_numbers(texts)
    assert counts.tolist() == [len(numbers) for numbers in lists]
    assert numbers.tolist() == [float(number) for numbers in lists for number in numbers]


@settings(deadline=None)
@given(st.binary(max_size=40))
@example(b"1\x002")
@example(b"1\x1f2 3")
@example("1 \N{ARABIC-INDIC DIGIT FIVE}".encode())
def test_of_anything_else_none_is_made_up(text):
    try:
        found = numbers_of(text)
    except ValueError:
        return
    assert [str(one) for one in found] == [str(float(one)) for one in text.split()]


@pytest.mark.parametrize("text", [b"x", b"1 2 three", b"1-2", b"--3", b"1 - 2", b"1,2", b"0x10", b"1\x002"])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(ValueError):
        numbers_of(text)


def test_nothing_is_no_number():
    assert numbers_of(b"") == numbers_of(b" \n") == []
