"""Files of every format, cut, overwritten, emptied or exchanged: a table or one clear line, nothing else."""

import gzip
import re
import sqlite3

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.errors import UserError
from profiling.schemas import SCHEMAS
from profiling.tools import read, recognise
from tests.profiling.gpu_databases import change, tables_of
from tests.profiling.samples import SAMPLES

ABSURD = ["-1", "1e308", "nan", "99999999999999999999", "''", '"', "-9223372036854775808", "0", ""]
DATABASES = [name for name in SAMPLES if name in ("nvprof database", "nsys export")]
TEXTS = [name for name in SAMPLES if name not in (*DATABASES, "pyprof")]


def make(name, folder):
    tool, write, file = SAMPLES[name]
    return tool, write(folder / file)


def table_or_line(path, tool):
    """The tables of a file, all as they should be; None if it was refused in one line that names it."""
    try:
        converted = read(path, tool)
    except UserError as error:
        assert path.name in str(error) and "\n" not in str(error) and len(str(error)) < 400
        return None
    for name, table in converted.tables.items():
        assert table.schema == SCHEMAS[name]
        table.validate(full=True)
        if name == "kernels":
            assert all(took is None or took >= 0 for took in table["duration_ns"].to_pylist())
    assert all("\n" not in str(finding) for finding in converted.findings)
    return converted


@pytest.mark.parametrize("name", SAMPLES)
def test_each_is_recognised_and_read(name, tmp_path):
    tool, path = make(name, tmp_path)
    assert recognise(path) == tool
    converted = table_or_line(path, tool)
    assert converted is not None and sum(table.num_rows for table in converted.tables.values()) > 1


@pytest.mark.parametrize("name", TEXTS)
def test_each_text_is_read_from_gzip(name, tmp_path):
    tool, path = make(name, tmp_path)
    whole = read(path, tool)
    packed = tmp_path / "packed" / path.name
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert recognise(packed) == tool
    again = read(packed, tool)
    assert {name: table.to_pylist() for name, table in again.tables.items()} == {
        name: table.to_pylist() for name, table in whole.tables.items()
    }


@pytest.mark.parametrize("name", SAMPLES)
def test_cut_at_every_sixteenth(name, tmp_path):
    tool, path = make(name, tmp_path)
    content = path.read_bytes()
    rows = sum(table.num_rows for table in read(path, tool).tables.values())
    for sixteenth in range(16):
        path.write_bytes(content[: len(content) * sixteenth // 16])
        converted = table_or_line(path, tool)
        # What was cut off is not made up.
        if converted is not None:
            assert sum(table.num_rows for table in converted.tables.values()) <= rows
        packed = path.with_name(path.name + ".gz")
        packed.write_bytes(gzip.compress(content)[: len(content) * sixteenth // 16])
        table_or_line(packed, tool)


@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=20, deadline=None)
@given(at=st.floats(0, 1), put=st.binary(min_size=1, max_size=64))
def test_random_bytes_anywhere(name, at, put, tmp_path_factory):
    tool, path = make(name, tmp_path_factory.mktemp("file"))
    content = bytearray(path.read_bytes())
    place = int(at * (len(content) - 1))
    content[place : place + len(put)] = put
    path.write_bytes(content)
    table_or_line(path, tool)
    try:
        recognise(path)
    except UserError as error:
        assert path.name in str(error)


@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=20, deadline=None)
@given(value=st.sampled_from(ABSURD), which=st.integers(0, 200))
def test_absurd_numbers(name, value, which, tmp_path_factory):
    tool, path = make(name, tmp_path_factory.mktemp("file"))
    if name in DATABASES:
        tables = [table for table in tables_of(path) if table.startswith(("CUPTI", "NVTX"))]
        table = tables[which % len(tables)]
        with sqlite3.connect(path) as connection:
            columns = [row[1] for row in connection.execute(f"pragma table_info({table})")]
        column = columns[which % len(columns)]
        literal = value if re.fullmatch(r"-?\d+|1e308", value) else f"'{value.replace(chr(39), '')}'"
        try:
            change(path, [f"update {table} set {column} = {literal} where rowid % 2 = 0"])
        except sqlite3.Error:
            return  # SQLite itself refuses it
    elif name == "pyprof":
        spoil_column(path, which, value)
    else:
        content = path.read_text()
        numbers = list(re.finditer(r"\d+(\.\d+)?", content))
        found = numbers[which % len(numbers)]
        path.write_text(content[: found.start()] + value + content[found.end() :])
    table_or_line(path, tool)


def spoil_column(path, which, value):
    """Every second value of a column of a Parquet file exchanged, the column's type too where need be."""
    table = pq.read_table(path)
    at = which % table.num_columns
    given = table.column(at).to_pylist()
    number = float(value) if re.fullmatch(r"-?\d+|1e308|nan", value) else value
    made = [number if place % 2 else one for place, one in enumerate(given)]
    array = pa.array(
        [float(one) for one in made] if all(map(_is_number, made)) else [str(one) for one in made]
    )
    pq.write_table(table.set_column(at, table.column_names[at], array), path)


def _is_number(value):
    return isinstance(value, int | float)


# --- databases -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DATABASES)
def test_a_database_in_write_ahead_mode_is_read_without_writing(name, tmp_path):
    tool, path = make(name, tmp_path)
    connection = sqlite3.connect(path)
    connection.execute("pragma journal_mode = wal")
    connection.close()
    before = path.read_bytes()
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    try:
        assert table_or_line(path, tool) is not None
    finally:
        tmp_path.chmod(0o755)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]
