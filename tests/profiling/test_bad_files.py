"""Files of every format, broken, cut, overwritten or absurd: a table or one clear line, nothing else."""

import copy
import gzip
import json
import os
import re
import sqlite3
import time
from codecs import BOM_UTF8

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from profiling.errors import UserError
from profiling.readers import files, tau_formats
from profiling.readers.kineto import read_trace
from profiling.schemas import SCHEMAS
from profiling.tools import read, recognise, tool
from tests.profiling.gpu_databases import change, tables_of
from tests.profiling.samples import SAMPLES
from tests.profiling.traces import Trace, training_step

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
@pytest.mark.parametrize(
    "written", [gzip.compress, BOM_UTF8.__add__, lambda text: text.replace(b"\n", b"\r\n")]
)
def test_each_text_is_read_alike_in_gzip_behind_a_byte_order_mark_and_from_windows(name, written, tmp_path):
    tool, path = make(name, tmp_path)
    packed = tmp_path / "packed" / path.name
    packed.parent.mkdir()
    packed.write_bytes(written(path.read_bytes()))
    assert recognise(packed) == tool
    whole, again = (read(one, tool).tables for one in (path, packed))
    assert again.keys() == whole.keys() and all(again[one].equals(whole[one]) for one in whole)


@pytest.mark.parametrize("name", SAMPLES)
def test_cut_at_every_eighth(name, tmp_path):
    tool, path = make(name, tmp_path)
    content = path.read_bytes()
    rows = sum(table.num_rows for table in read(path, tool).tables.values())
    for eighth in range(8):
        path.write_bytes(content[: len(content) * eighth // 8])
        converted = table_or_line(path, tool)
        # What was cut off is not made up.
        if converted is not None:
            assert sum(table.num_rows for table in converted.tables.values()) <= rows
        packed = path.with_name(path.name + ".gz")
        packed.write_bytes(gzip.compress(content)[: len(content) * eighth // 8])
        table_or_line(packed, tool)


@pytest.mark.parametrize("name", SAMPLES)
@settings(max_examples=8)
@given(at=st.floats(0, 1), put=st.binary(min_size=1, max_size=64))
@example(at=0.0, put=files.NSYS_REPORT)
@example(at=0.29391023498476826, put=b"\x03")  # PyProf's names are null, not as the file says
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
@settings(max_examples=8)
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
    kind = float if all(isinstance(one, int | float) for one in made) else str
    array = pa.array([kind(one) for one in made])
    pq.write_table(table.set_column(at, table.column_names[at], array), path)


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


read_kineto = tool("torch").read

FUZZ = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def sample() -> Trace:
    trace = Trace(distributedInfo={"rank": 0, "world_size": 1}, baseTimeNanoseconds=10**18)
    training_step(trace, training_step(trace, 0))
    return trace


GOOD = sample().text()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not a JSON"),
        (b"hello", "not a JSON"),
        (b"\x00" * 100, "not a JSON"),
        (b"{}", "traceEvents"),
        (b'{"a": 1}', "traceEvents"),
        (b'{"traceEvents": []}', "no events"),
        (b'{"traceEvents": [}', "truncated or damaged"),
        (b'{"traceEvents": [1, 2, "x", null, [], {}]}', "no events"),
        (b'{"traceEvents": 5}', "traceEvents"),
        (b"[]", "no events"),
        (b'[{"ph": "X", "name": "NEGOTIATE", "ts": 1, "dur": 2}]', "no events"),
        (b'{"traceEvents": ' + b"[" * 100_000, "nested too deeply"),
        (b"\x1f\x8b" + b"junk" * 20, "damaged"),
        (gzip.compress(GOOD)[:-30], "truncated"),
        (gzip.compress(b"", mtime=0), "not a JSON"),
    ],
)
def test_a_broken_file_is_one_clear_error(tmp_path, content, said):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=said) as error:
        read_kineto(path)
    assert "trace.json" in str(error.value)


OPEN = b'{"traceEvents": [{"ph": "X", "cat": "cpu_op", "name": "'
LONG = b"a" * (1 << 20)


@pytest.mark.parametrize(
    "text",
    [OPEN + LONG, OPEN + b'"}], "x": "' + LONG + b'"}', b"==1== NVPROF\n" + LONG,
     b"<profile_xml><definitions thread='*'>" + LONG],
)  # fmt: skip
def test_what_decompresses_without_an_end_is_refused(tmp_path, monkeypatch, text):
    for module, name in ((files, "MOST_BYTES"), (files, "CHUNK_BYTES"), (tau_formats, "_LONGEST_SECTION")):
        monkeypatch.setattr(module, name, 1 << 16)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(text))
    with pytest.raises(UserError, match=path.name):
        read(path, "tau" if text[:1] == b"<" else "nvprof" if text[:1] == b"=" else "torch")


def test_a_pipe_is_refused(tmp_path):
    os.mkfifo(tmp_path / "trace.json")
    with pytest.raises(UserError, match=r"trace\.json.* pipe"):
        read(tmp_path / "trace.json")


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_in_utf16_is_called_so(name, tmp_path):
    path = make(name, tmp_path)[1]
    path.write_bytes(path.read_bytes().decode().encode("utf-16"))
    with pytest.raises(UserError, match="UTF-16"):
        read(path)


@pytest.mark.parametrize("tool", ["torch", "horovod"])
def test_a_file_of_one_line_is_read_a_piece_at_a_time(tmp_path, monkeypatch, tool):
    for name in ("MOST_BYTES", "CHUNK_BYTES"):
        monkeypatch.setattr(files, name, 4096)
    made = Trace()
    for step in range(50):
        training_step(made, 100 * step)
    reduced = [{"ph": "B", "name": "ALLREDUCE", "ts": 9, "pid": 1}, {"ph": "E", "ts": 9, "pid": 1}]
    path = tmp_path / "trace.json"
    path.write_bytes(made.text(None) if tool == "torch" else json.dumps(400 * reduced).encode())
    assert read(path, tool).tables["kernels"].num_rows == 400 and path.stat().st_size > 5 * 4096


@pytest.mark.parametrize("unit", ["_GLOBAL__N_", "_GLOBAL__N__1_tmpxft", "a<", "Cijk_", "const "])
def test_a_name_of_any_length_takes_its_length(tmp_path, unit):
    trace = sample()
    trace.kernel(unit * 40_000, 50, 150, 151)
    begun = time.process_time()
    assert read_kineto(trace.write(tmp_path / "trace.json")).tables["kernels"].num_rows == 17
    assert time.process_time() - begun < 5


@FUZZ
@given(st.randoms(use_true_random=False), st.integers(1, 30))
def test_a_trace_with_absurd_parts_anywhere_is_read_or_refused(tmp_path, random, changes):
    trace = sample()
    whole = {**trace.facts, "traceEvents": trace.events}
    for _ in range(changes):
        spoil(whole, random)
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(whole))
    try:
        converted = read_kineto(path)
    except UserError as error:
        assert "\n" not in str(error)
    else:
        for table in converted.tables.values():
            table.validate(full=True)


ABSURD_PARTS = [
    None, True, -1, 1 << 31, 1 << 64, 10**30, 1e308, float("nan"), float("-inf"), "", "x", "5", [], [[[1]]],
    {}, {"a": 1}, "[1, 1]", "\x00",
]  # fmt: skip


def spoil(part, random):
    """Put something absurd somewhere inside a list or dict, or take something away."""
    keys = list(part) if isinstance(part, dict) else list(range(len(part)))
    if not keys:
        return
    key = random.choice(keys)
    if isinstance(part[key], dict | list) and random.random() < 0.8:
        spoil(part[key], random)
    elif random.random() < 0.2:
        del part[key]
    else:
        part[key] = copy.deepcopy(random.choice(ABSURD_PARTS))


@pytest.mark.parametrize("size", [64, 700, 5000])
@pytest.mark.parametrize("indent", [None, 2])
def test_where_the_text_is_cut_makes_no_difference(tmp_path, monkeypatch, size, indent):
    trace = sample()
    # Texts and lists that look like the border between two events.
    trace.host('a name with "},{" in it }, { and more', 1, 2)
    trace.events[-1]["args"]["list"] = [{"a": 1}, {"b": 2}]
    whole = {**trace.facts, "traceEvents": trace.events, "after": [{"x": 1}, {"y": '"traceEvents": ['}]}
    path = tmp_path / "trace.json"
    path.write_bytes(json.dumps({"before": 'no "traceEvents": [ here', **whole}, indent=indent).encode())
    expected = read_trace(path).whole()
    monkeypatch.setattr(files, "CHUNK_BYTES", size)
    again = read_trace(path).whole()
    assert sorted(expected.names) == sorted(again.names)
    assert (expected.host["start_ns"] == again.host["start_ns"]).all()
    assert (expected.device["correlation"] == again.device["correlation"]).all()
