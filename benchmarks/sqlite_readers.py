"""python -m benchmarks.sqlite_readers: how many kernels a second become tables, of nsys's and nvprof's files?

Databases of one and four million kernels (and of one and two thirds as many calls) are made by
``benchmarks.gpu_databases``. Measured are the reading of the kernels' columns, the same by ``sqlite3`` as the
peer, and the whole way to the tables ``kernels`` and ``markers``, each in three processes: the median counts.
A second is one of CPU time, so that it is a core's whatever else the machine does; memory is the process's
peak (Linux).

    python -m benchmarks.sqlite_readers          # needs 1.3 GB in the folder of temporary files
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.child import facts, machine, measure, write
from benchmarks.gpu_databases import make_batches, write_nsys, write_nvprof
from profiling.errors import run_command

KERNELS, BATCH_NS = 4000, 350_000_000
REPEATS = 3  # the median counts
BAR_ROWS, BAR_GROWTH = 0.5e6, 1.1  # rows a second of a core; memory of four times the rows over that of one
TABLES = {
    "nsys": "CUPTI_ACTIVITY_KIND_KERNEL",
    "nvprof": "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL",
}
_COLUMNS = "start end deviceId streamId correlationId gridX gridY gridZ blockX blockY blockZ"
COLUMNS = {
    "nsys": f"{_COLUMNS} globalPid demangledName shortName mangledName".split(),
    "nvprof": f"{_COLUMNS} name".split(),
}
READ = (
    """
from pathlib import Path
from profiling.readers.sqlite import open_database
def read(path, table, *columns):
    with open_database(Path(path)) as database:
        return sum(len(rows["start"]) for rows in database.integers(table, dict.fromkeys(columns)))
""",
    "read(*sys.argv[1:])",
)
PEER = (
    """
import sqlite3
import numpy as np
def read(path, table, *columns):
    rows = 0
    cursor = sqlite3.connect(path).execute(f"select {', '.join(map(repr, columns))} from {table}")
    while some := cursor.fetchmany(1 << 16):
        rows += [np.array(column) for column in zip(*some)][0].shape[0]
    return rows
""".replace("map(repr, columns)", "(chr(34) + one + chr(34) for one in columns)"),
    "read(*sys.argv[1:])",
)
WHOLE = (
    """
from pathlib import Path
import profiling.attribution.attribute, profiling.readers.sqlite
from profiling.tools import tool
def read(path, name):
    return sum(len(piece) for table, piece in tool(name).stream(Path(path), []) if table == "kernels")
""",
    "read(*sys.argv[1:])",
)


def measured(tool: str, path: Path) -> dict[str, Any]:
    """Rows a CPU second and peaks of the three ways."""
    found: dict[str, Any] = {"file_mb": round(path.stat().st_size / 1e6)}
    for name, (code, arguments) in {
        "columns": (READ, (TABLES[tool], *COLUMNS[tool])),
        "sqlite3": (PEER, (TABLES[tool], *COLUMNS[tool])),
        "tables": (WHOLE, (tool,)),
    }.items():
        taken = [measure(*code, path, *arguments) for _ in range(REPEATS)]
        one = sorted(taken, key=lambda each: each["cpu_s"])[REPEATS // 2]
        found[name] = {
            "rows": one["result"],
            "cpu_s": round(one["cpu_s"], 2),
            "million_rows_per_s": round(one["result"] / one["cpu_s"] / 1e6, 2),
            "peak_mb": round(one["peak_mb"]),
        }
    return found


def as_markdown(report: dict[str, Any]) -> str:
    """The report as a page."""
    lines = [
        "# Databases of nsys and nvprof to tables", "",
        f"{facts(report['machine'])}.", "",
        f"Bars: at least {BAR_ROWS / 1e6:g} million kernels a second of a core, and memory that does not "
        f"grow with the file (at most {BAR_GROWTH:g} times for four times the rows).", "",
        f"    {report['command']}", "",
        "| tool | kernels | file, MB | way | million kernels a CPU second | peak, MB |",
        "| --- | ---: | ---: | --- | ---: | ---: |",
    ]  # fmt: skip
    ways = {"columns": "the kernels' columns", "sqlite3": "the same by `sqlite3`", "tables": "all to tables"}
    for tool, sizes in report["tools"].items():
        lines += [
            f"| {tool} | {size[way]['rows']:,} | {size['file_mb']} | {title} "
            f"| {size[way]['million_rows_per_s']:.2f} | {size[way]['peak_mb']} |"
            for size in sizes
            for way, title in ways.items()
        ]
    lines += ["", *(f"Missed: {one}." for one in report["missed"])]
    return "\n".join(lines) + "\n"


def missed(tools: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Which bars are missed."""
    found = []
    for tool, (small, large) in tools.items():
        for way, title in (("columns", "reading the kernels' columns"), ("tables", "all to tables")):
            rows = small[way]["million_rows_per_s"]
            if rows * 1e6 < BAR_ROWS:
                found.append(f"{tool}, {title}: {rows} million kernels a second")
            growth = large[way]["peak_mb"] / small[way]["peak_mb"]
            if growth > BAR_GROWTH:
                found.append(f"{tool}, {title}: {growth:.1f} times the memory for four times the rows")
    return found


def main() -> int:
    """The command; exit code 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sqlite_readers", description=__doc__)
    parser.add_argument("--millions", type=int, default=1, help="of kernels in the smaller database")
    given = parser.parse_args()
    where = machine(("adbc-driver-sqlite", "numpy", "pyarrow"))
    tools: dict[str, list[dict[str, Any]]] = {"nsys": [], "nvprof": []}
    for size in (given.millions, 4 * given.millions):
        work = make_batches(size * 1_000_000 // KERNELS, KERNELS, BATCH_NS, seed=size)
        for tool, make in (("nsys", write_nsys), ("nvprof", write_nvprof)):
            with tempfile.TemporaryDirectory() as folder:
                tools[tool].append(measured(tool, make(Path(folder) / "report.sqlite", work)))
    command = f"python -m benchmarks.sqlite_readers --millions {given.millions}"
    report = {"command": command, "machine": where, "tools": tools, "missed": missed(tools)}
    write("sqlite_readers", report, as_markdown(report))
    return 1 if report["missed"] else 0


if __name__ == "__main__":
    run_command(main)
