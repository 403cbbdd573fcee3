"""The data set of one's own, whole or not at all, and the command that indexes TFRecord files."""

import errno
import io

import numpy as np
import pytest
from PIL import Image

from profiling.errors import UserError
from tests.analysis.commands import run
from train import data
from train.loaders import records
from train.loaders.dataset import find_images, find_records

from .conftest import CLASSES, IMAGES


def files_below(folder):
    return {path.relative_to(folder): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_pictures_are_like_photos(data_set):
    pictures = [sample.read()[0] for sample in find_images(data_set / "images")]
    sizes = [len(picture) for picture in pictures]
    assert 95_000 <= np.mean(sizes) <= 105_000
    assert max(sizes) < 1.2 * min(sizes)
    assert len(set(pictures)) == IMAGES
    for picture in pictures:
        with Image.open(io.BytesIO(picture)) as image:
            assert (image.format, image.size, image.mode) == ("JPEG", (500, 375), "RGB")


def test_a_set_of_another_kind_is_left_alone(own_data_set):
    before = files_below(own_data_set)
    assert data.make(own_data_set, IMAGES, CLASSES, seed=1) == f"{own_data_set} already exists"
    (own_data_set.parent / "file").write_text("mine")
    for place in (own_data_set, own_data_set.parent / "file"):
        with pytest.raises(UserError, match="contains something else; choose another folder, or remove it"):
            data.make(place, IMAGES, CLASSES, seed=2)
    assert files_below(own_data_set) == before and (own_data_set.parent / "file").read_text() == "mine"


def test_an_interrupted_set_is_none_and_is_made_anew(tmp_path, monkeypatch):
    folder = tmp_path / "deep" / "set"

    def full_disk(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(records, "write_records", full_disk)
        with pytest.raises(OSError, match="No space"):
            data.make(folder, 4, 2, 0)
    assert not folder.exists()
    data.make(folder, 6, 2, 0)
    assert len(find_images(folder / "images")) == len(find_records(folder / "tfrecord")) == 6
    assert [path.name for path in folder.parent.iterdir()] == ["set"]


# --- the commands -------------------------------------------------------------------------------------


def test_make_by_command(tmp_path):
    folder = tmp_path / "a set"
    done = run("train.data", "make", folder, "--images", "4", "--classes", "2")
    assert done.code == 0
    assert done.out == f"made {folder}: images: 4, classes: 2\n"
    done = run("train.data", "make", folder, "--images", "2", "--classes", "4")
    assert done.code == 2 and done.out == ""
    assert "2 images of 4 classes" in done.err


def test_index_by_command_goes_on_after_a_bad_file_and_leaves_no_half_index(own_data_set, tmp_path):
    good, cut = sorted((own_data_set / "tfrecord").glob("*.tfrecord"))
    before = records.index_path(good).read_text()
    for path in (good, cut):
        records.index_path(path).unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    foreign = tmp_path / "foreign"
    foreign.write_text("Dear diary, today I had no TFRecord file.")
    done = run("train.data", "index", foreign, cut, tmp_path / "none", good)
    assert done.code == 1
    assert done.out == f"{good}: {IMAGES // 2} records\n"
    lines = done.err.splitlines()
    assert len(lines) == 3 and all(line.startswith("scaleprof: error: ") for line in lines)
    assert f"{foreign} is not" in lines[0]
    assert f"{cut} ends in" in lines[1]
    assert str(tmp_path / "none") in lines[2]
    assert records.index_path(good).read_text() == before
    assert not records.index_path(cut).exists() and not records.index_path(foreign).exists()
