"""Which tables are in a file of Nsight Systems: a SQLite export, or what ``nsys stats`` prints?"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from profiling.readers.chunks import read_head
from profiling.readers.nsys import REPORT_HEAD
from profiling.readers.nsys.database import Reader, is_nsys, release
from profiling.readers.nsys.ranks import stream_ranks
from profiling.readers.nsys.stats import Stats, is_stats, read_stats
from profiling.readers.origin import UNKNOWN, Origin, rank_in
from profiling.readers.printed_tables import stream_printed
from profiling.readers.sqlite import MAGIC, Database, open_database
from profiling.traced_job import TraceFacts
from profiling.wording import in_a_row, left_out


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is of Nsight Systems, by what is in it."""
    if head.startswith(MAGIC):
        with open_database(path) as database:
            return is_nsys(database)
    return head.startswith(REPORT_HEAD) or is_stats(head)


def facts(path: Path) -> TraceFacts | None:
    """What the export of a report says of its job; None: the file is a table of ``nsys stats``."""
    if read_head(path, len(MAGIC)) != MAGIC:
        return None
    with open_database(path) as database:
        devices = _texts(database, "TARGET_INFO_GPU", "name")
        # The table holds the environment of the machine: of it only the host's name is taken.
        hosts = [
            str(value)
            for name, value in _rows(database, "TARGET_INFO_SYSTEM_ENV", "name", "value")
            if name == "Hostname"
        ]
        made_by = release(database)
    return TraceFacts(
        rank=rank_in(path),
        host=hosts[0] if hosts else "",
        device=in_a_row(list(dict.fromkeys(devices))) if devices else "",
        versions={"Nsight Systems": made_by} if made_by else {},
        shapes=False,
    )


def _texts(database: Database, table: str, column: str) -> list[str]:
    return [str(value) for (value,) in _rows(database, table, column) if value]


def _rows(database: Database, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return list(database.rows(table, *columns)) if database.has(table, *columns) else []


def stream(path: Path, findings: list[str], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """A file of Nsight Systems as pieces of tables: ``kernels`` and ``markers`` of a report's export; of the
    tables of ``nsys stats`` ``intervals``, ``atomics`` and, of a GPU trace, ``kernels``.

    A report may hold several processes; those with work on a GPU (else: with stages of batches, else: with
    any range) are taken for ranks.
    """
    rank = origin.rank_of(path)
    if read_head(path, len(MAGIC)) == MAGIC:
        yield from _database(path, findings, rank, origin)
    else:
        yield from _stats(path, findings, rank or 0)


def _database(
    path: Path, findings: list[str], rank: int | None, origin: Origin
) -> Iterator[tuple[str, pa.Table]]:
    with open_database(path) as database:
        reader = Reader(database)
        processes = reader.read()
    findings += [f"{path.name}: {finding}" for finding in reader.findings]
    for trace in processes.values():
        trace.world_size = origin.world_size
    yield from stream_ranks(path, processes, reader.names, findings, rank, origin)


def _stats(path: Path, findings: list[str], rank: int) -> Iterator[tuple[str, pa.Table]]:
    stats = Stats()
    if not (
        yield from stream_printed(read_stats(path, stats), stats.activities, lambda: stats.metrics, rank)
    ):
        findings.append(
            f"{path.name}: none of its tables is a summary or a GPU trace; for all data, convert the "
            "report's SQLite export (nsys export --type sqlite)"
        )
    findings += [f"{path.name}: {finding}" for finding in stats.findings]
    if stats.damaged:
        findings.append(f"{path.name}: {left_out(stats.damaged, 'damaged line')}")
