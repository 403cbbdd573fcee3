"""DuckDB connections: one in-memory database per process, shared by all callers."""

from functools import cache

import duckdb


@cache
def _database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def connect() -> duckdb.DuckDBPyConnection:
    """A connection whose temporary tables and views are its own; create no others."""
    # A database of its own for each would take 17 ms each time, longer than many a question.
    connection = _database().cursor()
    try:
        connection.execute("select 1").fetchall()
    except duckdb.FatalException:  # an error within DuckDB has closed the database for all
        _database.cache_clear()
        connection = _database().cursor()
    return connection
