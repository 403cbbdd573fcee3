"""Texts of numbers are read as Python reads them, or refused."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from profiling.readers import number_text
from profiling.readers.number_text import parse_numbers, parse_texts

NUMBERS = st.one_of(st.integers(-(1 << 70), 1 << 70), st.floats(allow_nan=False))
GAPS = st.text(" \t\r\n", min_size=1, max_size=3)


@settings(deadline=None)
@given(st.lists(st.tuples(GAPS, NUMBERS)), GAPS | st.just(""))
def test_each_number_is_what_python_makes_of_it(parts, end):
    text = "".join(f"{gap}{number!r}" for gap, number in parts) + end
    assert parse_numbers(text.encode()).tolist() == [float(number) for _, number in parts]


@settings(deadline=None)
@given(st.lists(st.lists(NUMBERS)), GAPS, st.integers(1, 40))
@example([[7] * 5, [1.5]], " ", 8)  # the last part holds white space only
def test_texts_are_read_in_parts_and_counted(lists, gap, size):
    texts = [gap.join(map(repr, numbers)).encode() for numbers in lists]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(number_text, "_BLOCK_BYTES", size)
        numbers, counts = parse_texts(texts)
    assert counts.tolist() == [len(numbers) for numbers in lists]
    assert numbers.tolist() == [float(number) for numbers in lists for number in numbers]


def test_a_part_of_white_space_behind_a_fraction_is_none():
    assert parse_numbers(b"1 " * 32766 + b"1.5\n").tolist() == [1] * 32766 + [1.5]


@settings(deadline=None)
@given(st.binary(max_size=40))
@example(b"1\x002")
@example(b"1\x1f2 3")
@example("1 \N{ARABIC-INDIC DIGIT FIVE}".encode())
def test_of_anything_else_none_is_made_up(text):
    try:
        found = parse_numbers(text).tolist()
    except ValueError:
        return
    assert [str(one) for one in found] == [str(float(one)) for one in text.split()]


@pytest.mark.parametrize("text", [b"x", b"1 2 three", b"1-2", b"--3", b"1 - 2", b"1,2", b"0x10", b"1\x002"])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(ValueError):
        parse_numbers(text)


def test_nothing_is_no_number():
    assert parse_numbers(b"").tolist() == parse_numbers(b" \n").tolist() == []
