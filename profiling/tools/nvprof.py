"""What did nvprof write? Its SQLite databases, and what it prints: summaries, traces, metrics.

nvprof is part of CUDA up to 11.8 and serves GPUs up to compute capability 7.5.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from profiling.tools import Converted, collect

if TYPE_CHECKING:
    import pyarrow as pa

_EMPTY = "the capture is empty"
_NO_KERNEL = "no kernel was recorded"
_WHY = (
    "nothing ran on a GPU while nvprof recorded, or it was never switched on (--profile-from-start off needs "
    "cudaProfilerStart)"
)


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is nvprof's: a database with its tables, or text that it printed."""
    from profiling.nvprof_database import is_nvprof
    from profiling.nvprof_text import HEAD
    from profiling.sqlite import MAGIC, open_database

    if head.startswith(MAGIC):
        with open_database(path) as database:
            return is_nvprof(database)
    return HEAD.search(head) is not None


def read(path: Path, rank: int | None = None) -> Converted:
    """An nvprof file as tables; see :func:`stream`."""
    findings: list[str] = []
    return collect(stream(path, findings, rank), findings)


def stream(path: Path, findings: list[str], rank: int | None = None) -> "Iterator[tuple[str, pa.Table]]":
    """An nvprof file as pieces of tables: ``kernels`` and ``markers`` of a database; of a text ``intervals``,
    ``atomics`` and, of a trace, ``kernels``.

    Args:
        rank: for the rows; by default what the file's name says (``rank3``), else 0.

    Raises:
        UserError: unreadable, truncated or foreign; the message names file and place.
    """
    from profiling.chunks import read_head
    from profiling.sqlite import MAGIC
    from profiling.tools import rank_of

    rank = rank_of(path) if rank is None else rank
    if read_head(path, len(MAGIC)) == MAGIC:
        yield from _database(path, findings, rank)
    else:
        yield from _text(path, findings, rank or 0)


def _database(path: Path, findings: list[str], rank: int | None) -> "Iterator[tuple[str, pa.Table]]":
    from profiling.attribute import attribute
    from profiling.nvprof_database import read_database
    from profiling.pyprof_markers import name_operators
    from profiling.sqlite import open_database

    with open_database(path) as database:
        events = read_database(database)
    if not len(events.device["name"]) and not len(events.host["name"]):
        events.findings.append(f"{_EMPTY}: {_WHY}")
    converted = attribute(events, rank, subject=path.name, name_operators=name_operators)
    findings += converted.findings
    yield from converted.tables.items()


def _text(path: Path, findings: list[str], rank: int) -> "Iterator[tuple[str, pa.Table]]":
    from profiling.nvprof_text import Printed, read_printed
    from profiling.printed_tables import atomics_table, intervals_table, kernels_table

    printed = Printed()
    launched = 0
    for launches in read_printed(path, printed):
        launched += len(launches)
        yield "kernels", kernels_table(launches, rank)
    if printed.activities:
        yield "intervals", intervals_table(printed.activities, rank)
    if printed.activities or printed.metrics:
        yield "atomics", atomics_table(printed.activities, printed.metrics, rank)
    found = list(printed.findings)
    if printed.nothing or not (launched or printed.activities or printed.metrics):
        found.append(f"{_NO_KERNEL}: {_WHY}")
    if len(printed.processes) > 1:
        found.append(f"{len(printed.processes)} processes wrote to it; their rows are not told apart")
    findings += [f"{path.name}: {finding}" for finding in found]
