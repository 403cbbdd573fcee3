"""A small data set, made once, and what tests of loaders do with it."""

from pathlib import Path

import pytest

from jobs.run import Run, make_run
from train import data

IMAGES, CLASSES = 18, 3


@pytest.fixture(scope="session")
def data_set(tmp_path_factory) -> Path:
    """18 pictures of 3 classes, as image folders and as TFRecord files; not to be changed."""
    folder = tmp_path_factory.mktemp("data") / "set"
    data.make(folder, IMAGES, CLASSES, seed=1)
    return folder


@pytest.fixture
def own_data_set(data_set, tmp_path) -> Path:
    """The same, the test's own to damage."""
    import shutil

    return Path(shutil.copytree(data_set, tmp_path / "set"))


def run_of(folder: Path, loader: str = "pytorch", data_format: str = "images", **other: object) -> Run:
    """A tiny run over a data set."""
    tiny = {"workers": 0, "batch": 4, "image_size": 32, "batches": 6, "device": "cpu"}
    return make_run({**tiny, "loader": loader, "data": str(folder), "data_format": data_format, **other})
