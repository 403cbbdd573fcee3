"""Tables as they are written and read, and whole files."""

import os
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as stn

from profiling import schemas, tables
from profiling.errors import UserError
from profiling.tables import whole_file

KINDS = {np.int8: "images", np.int64: "start_ns", np.uint16: "rank", np.float64: "loss", bool: "attributed"}


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_numbers_become_what_arrow_makes_of_them(kind, data):
    values = data.draw(stn.arrays(kind, st.integers(0, 9)))
    name = KINDS[kind]
    column = tables.as_table("batches", {name: values[::2]})[name]
    expected = pa.array(values[::2], schemas.SCHEMAS["batches"].field(name).type, from_pandas=True)
    assert column.combine_chunks().equals(expected)


def test_a_file_from_before_a_column_was_added_is_read_with_nulls(tmp_path):
    table = tables.as_table("kernels", {"start_ns": [5, 6], "launch_ns": [1, 2]})
    tables.write(table, tmp_path, "kernels")
    path = tables.table_path(tmp_path, "kernels")
    pq.write_table(table.drop_columns("launch_ns"), path)
    assert tables.read(tmp_path, "kernels").schema == schemas.SCHEMAS["kernels"]
    found = tables.read(tmp_path, "kernels", ["launch_ns", "start_ns"])
    assert found.to_pydict() == {"launch_ns": [None, None], "start_ns": [5, 6]}
    pq.write_table(table.drop_columns("start_ns"), path)
    with pytest.raises(UserError, match="not a readable kernels table"):
        tables.read(tmp_path, "kernels")


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
