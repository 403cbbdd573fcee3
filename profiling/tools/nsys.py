"""What did Nsight Systems write? Its reports, their SQLite exports, and the tables of ``nsys stats``."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from profiling.tools import Converted, collect, rank_of

if TYPE_CHECKING:
    import pyarrow as pa


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is of Nsight Systems, by what is in it."""
    from profiling.nsys_database import is_nsys
    from profiling.nsys_stats import is_stats
    from profiling.sqlite import MAGIC, open_database

    if head.startswith(MAGIC):
        with open_database(path) as database:
            return is_nsys(database)
    return is_stats(head)


def read(path: Path, rank: int | None = None) -> Converted:
    """A file of Nsight Systems as tables; see :func:`stream`."""
    findings: list[str] = []
    return collect(stream(path, findings, rank), findings)


def stream(path: Path, findings: list[str], rank: int | None = None) -> "Iterator[tuple[str, pa.Table]]":
    """A file of Nsight Systems as pieces of tables: ``kernels`` and ``markers`` of a report; of the tables of
    ``nsys stats`` ``intervals``, ``atomics`` and, of a GPU trace, ``kernels``.

    A report may hold several processes; those with work on a GPU (else: with stages of batches, else: with
    any range) are taken for ranks.

    Args:
        rank: for the rows, if there is one such process; by default what the file's name says (``rank3``),
            else 0.

    Raises:
        UserError: unreadable, truncated or foreign; the message names file and place.
    """
    from profiling.chunks import read_head
    from profiling.sqlite import MAGIC

    rank = rank_of(path) if rank is None else rank
    if read_head(path, len(MAGIC)) == MAGIC:
        yield from _database(path, findings, rank)
    else:
        yield from _stats(path, findings, rank or 0)


def _database(path: Path, findings: list[str], rank: int | None) -> "Iterator[tuple[str, pa.Table]]":
    from profiling.nsys_database import Reader
    from profiling.nsys_ranks import as_tables
    from profiling.sqlite import open_database

    with open_database(path) as database:
        reader = Reader(database)
        processes = reader.read()
    converted = as_tables(path, processes, reader.names, reader.findings, rank)
    findings += converted.findings
    yield from converted.tables.items()


def _stats(path: Path, findings: list[str], rank: int) -> "Iterator[tuple[str, pa.Table]]":
    from profiling.nsys_stats import Stats, read_stats
    from profiling.printed_tables import atomics_table, intervals_table, kernels_table

    stats = Stats()
    for launches in read_stats(path, stats):
        yield "kernels", kernels_table(launches, rank)
    if stats.activities:
        yield "intervals", intervals_table(stats.activities, rank)
    if stats.activities or stats.metrics:
        yield "atomics", atomics_table(stats.activities, stats.metrics, rank)
    if stats.damaged:
        findings.append(f"{path.name}: {stats.damaged} damaged lines of its tables are left out")
