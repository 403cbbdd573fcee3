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


def test_a_database_that_an_error_has_closed_is_made_anew(monkeypatch):
    class Closed:
        def cursor(self):
            return self

        def execute(self, _sql):
            raise duckdb.FatalException("the database has been invalidated")

    databases = iter([Closed(), duckdb.connect()])
    monkeypatch.setattr(database.duckdb, "connect", lambda: next(databases))
    database._database.cache_clear()
    try:
        assert database.connect().execute("select 2").fetchall() == [(2,)]
    finally:
        database._database.cache_clear()
