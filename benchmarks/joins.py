"""python -m benchmarks.joins: what do as-of joins and spilled rows cost by NumPy and by DuckDB?

Attribution joins events by the time before (ASOF JOIN in SQL), by number, and keeps what outgrows memory in a
file. Each such place is measured as it is (``profiling.attribution``) and as DuckDB's query over the same
arrays, handed over by Arrow without a copy and taken back in the order of the rows; both give the same
values. One process for each, by turns, one thread each (``profiling.convert`` starts a process a core); the
median counts. DuckDB's place is where it takes less than twice NumPy's time.

    python -m benchmarks.joins                   # needs 2 GB of memory
"""

import argparse
import hashlib
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.child import facts, machine, measure, write
from profiling.errors import run_command

REPEATS = 3
BAR = 2.0  # times NumPy's time
_PER_BATCH, _THREADS = 4000, 2
_SPILLED_MB = 256  # DuckDB's memory when rows are to be spilled

Columns = dict[str, np.ndarray]


def events(rows: int, seed: int = 1) -> tuple[Columns, np.ndarray]:
    """(host events, each of autograd's numbers in a forward operator and then in a node; which are nodes)."""
    random = np.random.default_rng(seed)
    half = rows // 2
    batch = np.arange(half) // _PER_BATCH
    forward = batch * 2 * _PER_BATCH + np.arange(half) % _PER_BATCH
    backward = batch * 2 * _PER_BATCH + 2 * _PER_BATCH - 1 - np.arange(half) % _PER_BATCH
    start = np.concatenate([forward, backward]) * 10_000 + random.integers(0, 4_000, 2 * half)
    node = np.arange(2 * half) >= half
    order = np.lexsort((start, node))
    host = {
        "start_ns": start,
        "end_ns": start + random.integers(1, 9_000, 2 * half),
        "thread": node.astype(np.int32),
        "sequence": np.concatenate([np.arange(half), np.arange(half)]),
        "forward_thread": np.where(node, 1, 0),
    }
    return {name: column[order] for name, column in host.items()}, node[order]


def _connection() -> Any:
    import duckdb

    connection = duckdb.connect()
    connection.execute("set threads = 1")
    return connection


def _asked(connection: Any, sql: str, rows: int, **tables: Columns) -> np.ndarray:
    """The one column ``found`` of a query by its column ``row``; -1 where it says nothing."""
    import pyarrow as pa

    for name, columns in tables.items():
        connection.register(name, pa.table({key: pa.array(one) for key, one in columns.items()}))
    answer = connection.execute(sql).fetchnumpy()
    found = np.full(rows, -1, dtype=np.int64)
    found[np.asarray(answer["row"])] = np.ma.filled(answer["found"], -1)
    return found


def _numbered(columns: Columns) -> Columns:
    return columns | {"row": np.arange(len(next(iter(columns.values()))))}


def forward_numpy(host: Columns, node: np.ndarray) -> np.ndarray:
    """The forward operator of each node of the backward graph, as attribution finds it."""
    from profiling.attribution.context import forward_of

    return forward_of(host, node, np.ones(len(node), dtype=bool))


def forward_duckdb(host: Columns, node: np.ndarray) -> np.ndarray:
    """The same, by ASOF JOIN."""
    columns = _numbered({"start_ns": host["start_ns"], "sequence": host["sequence"]}) | {"node": node}
    return _asked(
        _connection(),
        "with n as (select * from host where node), f as (select * from host where not node) "
        "select n.row, f.row as found from n asof join f "
        "on n.sequence = f.sequence and n.start_ns >= f.start_ns",
        len(node), host=columns,
    )  # fmt: skip


def calls(rows: int) -> tuple[Columns, Columns]:
    """Host events, and calls on their threads at any time of theirs."""
    host, _ = events(rows)
    random = np.random.default_rng(2)
    return host, {
        "thread": random.integers(0, _THREADS, rows).astype(np.int32),
        "time_ns": random.integers(0, int(host["start_ns"].max()), rows),
    }


def innermost_numpy(host: Columns, launches: Columns) -> np.ndarray:
    """The innermost event around each call, without the climb to what encloses it: one level of events."""
    from profiling.attribution.context import Nest

    nest = Nest(host, np.full(len(host["thread"]), -1), [])
    return nest.innermost(launches["thread"], launches["time_ns"])


def innermost_duckdb(host: Columns, launches: Columns) -> np.ndarray:
    """The same, by ASOF JOIN."""
    known = _numbered({name: host[name] for name in ("thread", "start_ns", "end_ns")})
    return _asked(
        _connection(),
        "select c.row, case when h.end_ns >= c.time_ns then h.row end as found "
        "from calls c asof join known h on c.thread = h.thread and c.time_ns >= h.start_ns",
        len(launches["thread"]), known=known, calls=_numbered(launches),
    )  # fmt: skip


def numbers(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of calls, and of the kernels that they launched."""
    random = np.random.default_rng(3)
    known = np.cumsum(random.integers(1, 4, rows))
    return known, known[random.permutation(rows)]


def launch_numpy(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The call that launched each kernel, by its number."""
    from profiling.attribution.kernel_rows import matching

    return matching(known, wanted)


def launch_duckdb(known: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """The same, by JOIN."""
    return _asked(
        _connection(),
        "select w.row, k.row as found from wanted w join known k on k.number = w.number",
        len(wanted), known=_numbered({"number": known}), wanted=_numbered({"number": wanted}),
    )  # fmt: skip


def ends(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The ends of batches, and times."""
    random = np.random.default_rng(4)
    ends = np.arange(1, max(2, rows // _PER_BATCH)) * 40_000_000
    return ends, np.sort(random.integers(0, int(ends[-1]), rows))


def batch_numpy(ends: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The batch in which each time lies, by the batches' ends."""
    from profiling.attribution.batch_times import ended_by

    return ended_by(ends, 0, "").of(times)


def batch_duckdb(ends: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The same, by ASOF JOIN."""
    return _asked(
        _connection(),
        "select t.row, e.row as found from times t asof join ends e on t.time_ns <= e.end_ns",
        len(times), ends=_numbered({"end_ns": ends}), times=_numbered({"time_ns": times}),
    )  # fmt: skip


def _pieces(rows: int) -> Any:
    random = np.random.default_rng(5)
    for first in range(0, rows, 1 << 16):
        size = min(1 << 16, rows - first)
        start = (first + np.arange(size)) * 10_000 + random.integers(0, 20_000, size)
        yield {
            "name": random.integers(0, 40, size).astype(np.int32),
            "start_ns": start,
            "duration_ns": random.integers(1, 9_000, size),
            "device": np.zeros(size, np.int32),
            "stream": np.full(size, 7),
            "correlation": first + np.arange(size),
            "bytes": random.random(size),
        }


def _cuts(rows: int) -> np.ndarray:
    return np.arange(1, max(2, rows >> 18)) * (10_000 << 18)


def spill_numpy(rows: int) -> np.ndarray:
    """Rows that go to a file piece by piece, and come back window by window."""
    from profiling.attribution.events import Table

    pieces = _pieces(rows)
    first = next(pieces)
    table = Table({name: column.dtype for name, column in first.items()})
    table.add(first)
    for piece in pieces:
        table.add(piece)
    cuts = _cuts(rows)
    split = table.split("start_ns", lambda times: np.searchsorted(cuts, times, side="left"), len(cuts) + 1)
    return np.array([_digest(split.window(number)) for number in range(len(cuts) + 1)])


def spill_duckdb(rows: int) -> np.ndarray:
    """The same, in a table of DuckDB's that spills by itself."""
    import duckdb
    import pyarrow as pa

    cuts = _cuts(rows)
    edges = [np.iinfo(np.int64).min, *cuts.tolist(), np.iinfo(np.int64).max]
    with tempfile.TemporaryDirectory() as folder:
        connection = duckdb.connect(str(Path(folder) / "rows.duckdb"))
        connection.execute(f"set threads = 1; set memory_limit = '{_SPILLED_MB}MB'")
        for number, piece in enumerate(_pieces(rows)):
            connection.register("piece", pa.table({name: pa.array(one) for name, one in piece.items()}))
            connection.execute("insert into rows from piece" if number else "create table rows as from piece")
        query = "from rows where start_ns > ? and start_ns <= ?"
        return np.array([_digest(connection.execute(query, pair).fetchnumpy()) for pair in pairwise(edges)])


def _digest(columns: Mapping[str, Any]) -> int:
    return int(columns["start_ns"].sum() + columns["correlation"].sum() + columns["name"].sum())


@dataclass(frozen=True)
class Place:
    """A place of attribution: what it is given for so many rows, and its two ways."""

    title: str
    given: Callable[[int], tuple[Any, ...]]
    numpy: Callable[..., np.ndarray]
    duckdb: Callable[..., np.ndarray]


PLACES = {
    "forward": Place("a node's forward operator (`context.py`)", events, forward_numpy, forward_duckdb),
    "innermost": Place("the event around a call (`nesting.py`)", calls, innermost_numpy, innermost_duckdb),
    "launch": Place("a kernel's launch (`attribute.py`)", numbers, launch_numpy, launch_duckdb),
    "batch": Place("the batch of a time (`batch_times.py`)", ends, batch_numpy, batch_duckdb),
    "spill": Place(
        "rows by window (`spill.py`, `windows.py`)", lambda rows: (rows,), spill_numpy, spill_duckdb
    ),
}


def digest(found: np.ndarray) -> str:
    """What a way gives, as one text; for the child process."""
    return hashlib.sha256(np.ascontiguousarray(found.astype(np.int64)).tobytes()).hexdigest()


def measured(place: str, rows: int) -> dict[str, Any]:
    """CPU seconds and peaks of both ways."""
    imports = (
        "import duckdb, numpy, pyarrow\nimport profiling.attribution.attribute\n"
        f"from benchmarks.joins import PLACES, digest\nplace = PLACES[{place!r}]\ngiven = place.given({rows})"
    )
    taken: dict[str, list[dict[str, Any]]] = {"numpy": [], "duckdb": []}
    for _ in range(REPEATS):
        for way, measurements in taken.items():
            measurements.append(measure(imports, f"digest(place.{way}(*given))"))
    if len({one["result"] for way in taken.values() for one in way}) > 1:
        raise AssertionError(f"{place}: DuckDB and NumPy differ")
    numpy, duckdb = (sorted(way, key=lambda one: one["cpu_s"])[REPEATS // 2] for way in taken.values())
    return {
        "rows": rows,
        "numpy_s": round(numpy["cpu_s"], 3), "duckdb_s": round(duckdb["cpu_s"], 3),
        "ratio": round(duckdb["cpu_s"] / numpy["cpu_s"], 2),
        "numpy_mb": round(numpy["peak_mb"]), "duckdb_mb": round(duckdb["peak_mb"]),
    }  # fmt: skip


def as_markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    lines = [
        "# As-of joins and spilled rows: NumPy and DuckDB", "",
        f"{facts(report['machine'])}. CPU seconds of the join alone (of spilled rows, their making too) and "
        f"peak memory of the process, one thread; medians of {REPEATS}. Both give the same values. DuckDB's "
        f"place is where it takes less than {BAR:g} times NumPy's time.", "", f"    {report['command']}", "",
        f"`import duckdb` alone takes {report['import_s']} CPU s and {report['import_mb']} MB.", "",
        "| place | rows | NumPy, s | DuckDB, s | times as long | NumPy, MB | DuckDB, MB |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]  # fmt: skip
    for place, sizes in report["places"].items():
        lines += [
            f"| {PLACES[place].title} | {one['rows']:,} | {one['numpy_s']} | {one['duckdb_s']} | "
            f"{one['ratio']} | {one['numpy_mb']} | {one['duckdb_mb']} |"
            for one in sizes
        ]
    lines += [
        "",
        "Attribution joins windows of 262,144 rows of its largest table: there NumPy stays. Calls at random "
        "times in millions of events, where a search misses the cache each time, are the one row that is "
        "even; real calls come in the order of time.",
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.joins", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[1 << 18, 1 << 22])
    given = parser.parse_args()
    where = machine(("duckdb", "numpy", "pyarrow"))
    bare = measure("import numpy, pyarrow", "None")
    loaded = measure("import numpy, pyarrow", "__import__('duckdb') and None")
    report = {
        "command": f"python -m benchmarks.joins --rows {' '.join(map(str, given.rows))}",
        "machine": where,
        "import_s": round(loaded["cpu_s"], 2),
        "import_mb": round(loaded["peak_mb"] - bare["peak_mb"]),
        "places": {place: [measured(place, rows) for rows in given.rows] for place in PLACES},
    }
    write("joins", report, as_markdown(report))
    return 0


if __name__ == "__main__":
    run_command(main)
