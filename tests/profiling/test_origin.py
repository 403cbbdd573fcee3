"""What the name of a profiler's file says of it."""

from pathlib import Path

import pytest

from profiling.readers.origin import rank_in


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json", 3), ("rank_0003/trace.json.gz", 3), ("job-Rank12.qdrep", 12), ("worker0.1700.pt", 0),
        ("my_rank-7.csv", 7), ("rank_1/rank_2.json", 2), ("trace.json", None),
        # Part of another word.
        ("frank2.json", None), ("coworker4.json", None), ("frank2/rank_1.json", 1),
    ],
)  # fmt: skip
def test_the_rank_is_a_word_of_its_own(name, rank):
    assert rank_in(Path(name)) == rank
