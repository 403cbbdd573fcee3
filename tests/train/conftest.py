"""A small data set, made once, what tests of loaders do with it, and the command in this process."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from jobs.run import Run, make_run
from profiling.errors import run_command
from tests.forked import Parent
from train import __main__ as command
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


@pytest.fixture(scope="session")
def ready() -> Iterator[Parent]:
    """A process that has imported all that ranks import, from which they fork."""
    with Parent(["tests.train.imported"], os.environ) as parent:
        yield parent


@pytest.fixture
def train_here(monkeypatch, capsys) -> Callable[..., tuple[int, str, str]]:
    """``python -m train`` in this process, which has imported torch: its exit code, and what it said."""
    # This process's own crash is pytest's to report.
    monkeypatch.setattr(command, "write_stacks_at_signal", lambda path: None)
    threads = torch.get_num_threads()

    def train(*flags: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["train", *flags])
        with pytest.raises(SystemExit) as left:
            run_command(command.main)
        return left.value.code, *capsys.readouterr()

    yield train
    torch.set_num_threads(threads)
