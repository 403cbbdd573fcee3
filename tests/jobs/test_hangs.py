"""Where ranks hung: each place once, and the few ranks that were elsewhere by name."""

from pathlib import Path

import pytest

from jobs.failures import gather_stacks

BARRIER = 'Current thread 0x00007f{:010x} (most recent call first):\n  File "a.py", line 3 in barrier\n'
LOADER = 'Current thread 0x00007f0000000001 (most recent call first):\n  File "a.py", line 9 in load\n'


def leave(run: Path, rank: int, stacks: str | None, report: bool = False) -> None:
    folder = run / f"rank_{rank:04d}"
    folder.mkdir()
    if stacks is not None:
        (folder / "stacks.txt").write_text(stacks)
    if report:
        (folder / "rank.json").touch()


def test_ranks_in_one_place_share_a_line_of_the_log_and_the_odd_ones_are_named(tmp_path):
    for rank in set(range(1000)) - {7, 700}:
        leave(tmp_path, rank, BARRIER.format(rank))
    leave(tmp_path, 700, LOADER)
    said = gather_stacks(tmp_path, 1000)
    assert said == "; not started: ranks 7; elsewhere: ranks 700"
    log = (tmp_path / "log.txt").read_text()
    assert log.count("in barrier") == 1 and "ranks 0-6, 8-699, 701-999:\nCurrent thread" in log
    assert "ranks 7:\n(not started)" in log and "in load" in log.partition("ranks 700:")[2]


@pytest.mark.parametrize(
    ("stacks", "says"),
    [
        ([BARRIER.format(0), LOADER], ""),  # of two ranks neither is the odd one
        ([LOADER.replace("9", str(line)) for line in range(4)], ""),
        ([LOADER.replace("9", str(line)) for line in (1, 1, 1, 2, 2, 3)], ""),  # nor where most of them are
        ([BARRIER.format(1)] * 3 + [""], "; elsewhere: ranks 3"),
        ([None, None, BARRIER.format(0)] + [BARRIER.format(1)] * 4, "; not started: ranks 0-1"),
        ([BARRIER.format(0)] * 20 + [LOADER] * 9, ""),  # too many to be the cause
    ],
)
def test_only_few_of_many_are_named(tmp_path, stacks, says):
    for rank, text in enumerate(stacks):
        leave(tmp_path, rank, text)
    assert gather_stacks(tmp_path, len(stacks)) == says


def test_a_rank_that_has_ended_is_not_one_that_never_started(tmp_path):
    for rank in range(3):
        leave(tmp_path, rank, BARRIER.format(rank))
    leave(tmp_path, 3, None, report=True)
    assert gather_stacks(tmp_path, 4) == "; elsewhere: ranks 3"
    assert "ranks 3:\n(ended)" in (tmp_path / "log.txt").read_text()
