"""A file is written whole or not at all; what is no file stays what it is."""

import os
import threading

import pytest

from profiling.whole_file import whole_file


def write(path, content: bytes) -> None:
    with whole_file(path) as file:
        file.write(content)


def test_a_link_stays_and_its_file_is_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    link = tmp_path / "link.csv"
    link.symlink_to(tmp_path / "there" / "table.csv")
    write(link, b"new")
    assert link.is_symlink() and (tmp_path / "there" / "table.csv").read_bytes() == b"new"


def test_a_pipe_is_written_to(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()), daemon=True)
    reader.start()
    write(pipe, b"rows")
    if not pipe.is_fifo():  # the reader would wait for ever
        pytest.fail("the pipe was replaced by a file")
    reader.join()
    assert read == [b"rows"]
