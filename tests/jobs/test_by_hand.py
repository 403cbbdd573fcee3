"""A run that a user starts gets a directory of its own; one that holds results is not written over."""

from jobs.by_hand import is_by_hand, new_directory
from jobs.run import make_run
from jobs.run_fields import format_id, parse_id
from jobs.store import claim, this_owner

RUN = make_run({"model": "resnet18", "image_size": 64})


def test_every_run_gets_a_directory_that_says_how_it_differs(tmp_path):
    names = [
        new_directory(make_run({**RUN.model_dump(), **fields}), tmp_path / "by-hand").name
        for fields in ({}, {}, {"batches": 3}, {"data": "/data/a"}, {"data": "/data/b"}, {"seed": 1})
    ]
    assert len(set(names)) == len(names)
    ids = [parse_id(name) for name in names]
    assert [each.repetition for each in ids] == [0, 1, 0, 0, 0, 0]
    assert [each.run.data for each in ids[3:5]] == ["/data/a", "/data/b"] and ids[2].run.batches == 3


def test_a_name_that_no_file_system_takes_is_shortened_and_still_unique(tmp_path):
    runs = [make_run({**RUN.model_dump(), "data": f"/data/{letter * 300}"}) for letter in "ab"]
    names = [new_directory(run, tmp_path).name for run in runs]
    assert len(set(names)) == 2 and all(len(name) < 255 and "image_size" in name for name in names)


def test_a_directory_that_a_sweep_has_claimed_is_the_sweeps(tmp_path):
    assert is_by_hand(None) and is_by_hand(tmp_path)
    assert claim(tmp_path / format_id(RUN, 0), this_owner({})).ours
    assert not is_by_hand(tmp_path / format_id(RUN, 0))
