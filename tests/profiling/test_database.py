"""Everybody has a connection of his own to the process's one database."""

import duckdb
import pytest

from profiling import database


def test_temporary_tables_are_a_connections_own():
    one, other = database.connect(), database.connect()
    for number, connection in enumerate((one, other)):
        connection.execute(f"create temp table mine as select {number} as number")
    assert one.execute("select number from mine").fetchall() == [(0,)]
    with pytest.raises(duckdb.CatalogException):
        database.connect().execute("select * from mine")
