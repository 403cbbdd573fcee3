"""Integers read from a database are those that SQLite gives, whatever stands beside them."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling.errors import UserError
from profiling.readers import sqlite as reader
from profiling.readers.sqlite import open_database

EDGES = [
    edge + step for bits in (7, 15, 23, 31, 47, 61) for edge in (1 << bits, -(1 << bits)) for step in (-1, 0)
]
INTEGERS = st.sampled_from([0, 1, 2, -1, *EDGES]) | st.integers(-(1 << 62) + 1, (1 << 62) - 1)
ANYTHING = INTEGERS | st.none() | st.floats(allow_nan=False) | st.text(max_size=70) | st.binary(max_size=130)
ROWS = st.lists(st.tuples(INTEGERS | st.none(), ANYTHING, INTEGERS), min_size=1, max_size=60)
WANTED = {"a": -7, "b": None, "absent": 5}


def database(path: Path, rows, page_size: int = 512, extra: str = "") -> Path:
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path)
    connection.execute(f"pragma page_size = {page_size}")
    connection.execute(f"create table t (a integer, filler, b int not null{extra})")
    connection.executemany("insert into t (a, filler, b) values (?, ?, ?)", rows)
    connection.commit()
    connection.close()
    return path


def read(path: Path, wanted=WANTED) -> tuple[dict[str, list[int]], int]:
    with open_database(path) as opened:
        chunks = list(opened.integers("t", wanted))
        joined = {
            name: np.concatenate([chunk[name] for chunk in chunks]).tolist() for name in wanted if chunks
        }
        return joined, opened.malformed


@pytest.fixture
def without_sqlite(monkeypatch):
    """Fails the test where sqlite3 is asked for rows."""

    def refuse(self, sql):
        raise AssertionError(f"sqlite3 was asked: {sql}")

    monkeypatch.setattr(reader, "_as_integers", refuse)


@settings(max_examples=25)
@given(rows=ROWS, page_size=st.sampled_from([512, 4096, 65536]))
def test_integers_of_every_length_beside_anything(rows, page_size, tmp_path_factory):
    path = database(tmp_path_factory.mktemp("pages") / "x.sqlite", rows, page_size)
    found, malformed = read(path)
    assert malformed == 0
    assert found["a"] == [-7 if a is None else a for a, _, _ in rows]
    assert found["b"] == [b for _, _, b in rows]
    assert found["absent"] == [5] * len(rows)


@st.composite
def wide_rows(draw):
    """Rows of many columns, of some of which the values take as many bytes in all rows."""
    count = draw(st.integers(1, 20))
    columns = [
        draw(st.lists(one, min_size=count, max_size=count) | one.map(lambda value: [value] * count))
        for one in draw(st.lists(st.sampled_from([INTEGERS, INTEGERS | st.none(), ANYTHING]), min_size=1))
    ]
    return list(zip(*columns, strict=True))


@settings(max_examples=50)
@given(rows=wide_rows(), data=st.data())
def test_columns_wherever_they_stand_in_the_row(rows, data, tmp_path_factory):
    names = [f"c{place}" for place in range(len(rows[0]))]
    path = tmp_path_factory.mktemp("wide") / "x.sqlite"
    connection = sqlite3.connect(path)
    connection.execute(f"create table t ({', '.join(f'{name} integer' for name in names)})")
    connection.executemany(f"insert into t values ({', '.join('?' * len(names))})", rows)
    connection.commit()
    stored = connection.execute("select * from t").fetchall()  # "1" becomes 1, 2.0 becomes 2
    connection.close()
    wanted = data.draw(st.sets(st.sampled_from(range(len(names))), min_size=1))
    found, malformed = read(path, {names[place]: -7 for place in sorted(wanted)})
    right = [[-7 if row[place] is None else row[place] for place in sorted(wanted)] for row in stored]
    kept = [row for row in right if all(type(one) is int and abs(one) < 1 << 62 for one in row)]
    assert [list(row) for row in zip(*found.values(), strict=True)] == kept
    assert malformed == len(rows) - len(kept)


@pytest.mark.usefixtures("without_sqlite")
def test_many_rows_after_deletions_are_read_by_arrow_alone(tmp_path):
    rows = [(number, None, -number) for number in range(5_000)]
    path = database(tmp_path / "x.sqlite", rows)
    connection = sqlite3.connect(path)
    connection.execute("delete from t where a % 3 = 1")
    connection.commit()
    connection.close()
    found, _ = read(path)
    assert found["a"] == [number for number in range(5_000) if number % 3 != 1]
    assert found["b"] == [-one for one in found["a"]]


def test_what_is_no_integer_costs_its_row(tmp_path):
    path = database(
        tmp_path / "x.sqlite",
        [(1, None, 1), ("one", None, 2), (1.5, None, 3), (b"", None, 4), (9, 0, 1 << 62)],
    )
    assert read(path) == ({"a": [1], "b": [1], "absent": [5]}, 4)


@pytest.mark.parametrize("odd", [1.5, "soon", "12x", b"77", None, 9e300, 1 << 62])
def test_what_is_no_integer_after_many_that_are_costs_its_row_alone(odd, tmp_path):
    rows = [(number, None, number) for number in range(reader.ROWS + 10)]
    found, malformed = read(database(tmp_path / "x.sqlite", [*rows, (7, None, odd or 0), (8, None, 8)]))
    kept = [one for one, _, _ in rows] + ([7] if odd is None else []) + [8]
    assert (found["a"], malformed) == (kept, 0 if odd is None else 1)
    (tmp_path / "x.sqlite").unlink()
    path = database(tmp_path / "x.sqlite", [*rows, (odd, None, 7), (8, None, 8)])
    found, malformed = read(path, {"a": None})
    assert (found["a"], malformed) == ([one for one, _, _ in rows] + [8], 1)


def test_a_row_that_goes_on_in_another_page_and_all_after_it(tmp_path):
    rows = [(number, "x" * 3000 if number == 3_000 else None, number) for number in range(3_500)]
    path = database(tmp_path / "x.sqlite", rows)
    assert read(path)[0]["a"] == list(range(3_500))


@pytest.mark.parametrize("room", range(29, 41))
def test_a_row_that_begins_at_a_pages_end_and_goes_on_in_another(room, tmp_path):
    for more in range(9):
        path = tmp_path / f"{more}.sqlite"
        connection = sqlite3.connect(path)
        connection.execute("pragma page_size = 512")
        texts = ", ".join(f"t{number} text" for number in range(8))
        connection.execute(f"create table t ({texts}, b integer, z text)")
        # Nine rows that leave the last one hardly more room than what of it stays on the page.
        rows = [("s" * (34 if number else room), *[""] * 7, 100, "") for number in range(9)]
        rows += [("q" * 57,) * 8 + (1 << 50, "z" * more)]
        connection.executemany(f"insert into t values ({', '.join('?' * 10)})", rows)
        connection.commit()
        connection.close()
        assert read(path, {"b": None})[0]["b"] == [100] * 9 + [1 << 50]


def test_no_writer_changes_a_table_while_others_are_read(tmp_path):
    path = database(tmp_path / "x.sqlite", [(1, None, 1)])
    connection = sqlite3.connect(path)
    connection.execute("create table u (a integer)")
    connection.commit()
    connection.close()
    connect = f"sqlite3.connect({str(path)!r}, timeout=0)"
    write = f"import sqlite3; c = {connect}; c.execute('delete from t'); c.commit()"
    with open_database(path) as opened:
        for table in ("t", "u"):
            list(opened.integers(table, {"a": None}))
        writer = subprocess.run([sys.executable, "-c", write], capture_output=True, text=True, check=False)
        assert "database is locked" in writer.stderr
        assert [chunk["a"].tolist() for chunk in opened.integers("t", {"a": None})] == [[1]]


def test_a_column_added_later_and_a_key_that_is_the_rows_number(tmp_path):
    path = database(tmp_path / "x.sqlite", [(number, None, number) for number in range(300)])
    connection = sqlite3.connect(path)
    connection.execute("alter table t add column late integer default 42")
    connection.execute("create table k (id integer primary key, v integer)")
    connection.executemany("insert into k values (?, ?)", [(7, 1), (9, 2)])
    connection.commit()
    connection.close()
    assert read(path, {"a": 0, "late": 0})[0]["late"] == [42] * 300
    with open_database(path) as opened:
        assert [chunk["id"].tolist() for chunk in opened.integers("k", {"id": None, "v": None})] == [[7, 9]]


def test_generated_columns_and_tables_without_rows_numbers(tmp_path):
    path = database(tmp_path / "x.sqlite", [(3, None, 4)], extra=", twice integer as (2 * a)")
    assert read(path, {"b": 0})[0]["b"] == [4]
    connection = sqlite3.connect(path)
    connection.execute("create table w (a integer, b integer, primary key (b)) without rowid")
    connection.execute("insert into w values (5, 6)")
    connection.commit()
    connection.close()
    with open_database(path) as opened:
        assert [chunk["a"].tolist() for chunk in opened.integers("w", {"a": None})] == [[5]]


@settings(max_examples=25)
@given(at=st.floats(0, 1, exclude_max=True), put=st.binary(min_size=1, max_size=8))
def test_damage_is_a_line_or_a_table_never_a_traceback(at, put, tmp_path_factory):
    path = database(
        tmp_path_factory.mktemp("damage") / "x.sqlite", [(i, "y" * (i % 60), i) for i in range(2_000)]
    )
    content = bytearray(path.read_bytes())
    place = 100 + int(at * (len(content) - 108))
    content[place : place + len(put)] = put
    path.write_bytes(content)
    try:
        read(path)
    except UserError as error:
        assert "\n" not in str(error)


def test_a_file_that_was_cut_is_said_to_be_damaged(tmp_path):
    path = database(tmp_path / "x.sqlite", [(number, None, number) for number in range(3_000)])
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 1024 * 512])
    with pytest.raises(UserError, match="damaged"):
        read(path)
