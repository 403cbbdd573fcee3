"""A run that a user starts gets a directory of its own; one that holds results is not written over."""

import pytest

from jobs.by_hand import check_unused, clear, is_by_hand, new_directory
from jobs.run import make_run
from jobs.run_fields import format_id, parse_id
from jobs.store import claim, this_owner
from profiling.errors import UserError

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


def test_an_out_that_holds_results_is_refused(tmp_path):
    check_unused(tmp_path / "new", overwrite=False)
    (tmp_path / "rank_0000" / "raw").mkdir(parents=True)  # a profiler that wraps the rank has made this
    check_unused(tmp_path, overwrite=False)
    (tmp_path / "rank_0000" / "batches.parquet").touch()
    with pytest.raises(UserError, match=r"already holds a run \(rank_0000\).* --overwrite"):
        check_unused(tmp_path, overwrite=False)
    check_unused(tmp_path, overwrite=True)
    (tmp_path / "run_0_config_x").mkdir()
    with pytest.raises(UserError, match="holds a sweep"):
        check_unused(tmp_path, overwrite=True)


def test_what_is_replaced_is_the_run_and_nothing_else(tmp_path):
    (tmp_path / "rank_0003" / "raw").mkdir(parents=True)
    for name in ("rank_0003/rank.json", "rank_0003/kernels.parquet", "manifest.json", "notes.txt"):
        (tmp_path / name).touch()
    clear(tmp_path)
    left = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*"))
    assert left == ["notes.txt", "rank_0003", "rank_0003/raw"]


def test_a_directory_that_a_sweep_has_claimed_is_the_sweeps(tmp_path):
    assert is_by_hand(None) and is_by_hand(tmp_path)
    assert claim(tmp_path / format_id(RUN, 0), this_owner({})).ours
    assert not is_by_hand(tmp_path / format_id(RUN, 0))
