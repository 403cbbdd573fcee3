"""One is in the singular, and none or several are in the plural: nouns, verbs and ranks."""

import pytest

from profiling.wording import command, how_many, left_out, noun, three_digits, verb, which_ranks


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [(0, "run", "0 runs"), (1, "run", "1 run"), (2, "run", "2 runs"), (1, "batch", "1 batch"),
     (3, "batch", "3 batches"), (2, "class", "2 classes"), (4, "damaged line", "4 damaged lines")],
)  # fmt: skip
def test_a_count_and_its_noun(count, noun, text):
    assert how_many(count, noun) == text


@pytest.mark.parametrize(
    ("of_several", "of_one"),
    [("are", "is"), ("have", "has"), ("were", "was"), ("reach", "reaches"), ("drift", "drifts"),
     ("mix", "mixes")],
)  # fmt: skip
def test_a_verb_follows_its_count(of_several, of_one):
    assert [verb(count, of_several) for count in (0, 1, 2)] == [of_several, of_one, of_several]


def test_what_is_left_out_is_counted():
    assert left_out(1, "line") == "1 line is left out" and left_out(2, "line") == "2 lines are left out"
    assert [noun(count, "job") for count in (1, 2)] == ["job", "jobs"]


def test_ranks_in_a_row_are_a_range():
    assert [which_ranks(ranks) for ranks in ([3], [0, 1, 2, 8])] == ["rank 3", "ranks 0-2, 8"]
    assert which_ranks([0, 2, 4, 6], most=2) == "ranks 0, 2, ..."


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.03449, "0.0345"), (1.2, "1.20"), (76.13, "76.1"), (99.97, "100"), (1214.3, "1214")],
)
def test_a_small_rate_is_not_rounded_to_nothing(value, text):
    assert three_digits(value) == text


def test_a_command_is_quoted_as_a_shell_needs_it():
    typed = command("profiling.convert", "my traces/old", "--out", "DIR")
    assert typed == "python -m profiling.convert 'my traces/old' --out DIR"
    assert command("analysis.scaled", "1=a/b.json") == "python -m analysis.scaled 1=a/b.json"
