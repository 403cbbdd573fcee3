"""Integers read from a database are those that SQLite gives, whatever stands beside them."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from profiling.readers import sqlite as reader
from profiling.readers.sqlite import open_database

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
