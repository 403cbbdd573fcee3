"""Which tables are in a file of nvprof's: a database, or what it prints?"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from profiling.attribution.attribute import attribute_in_windows
from profiling.attribution.pyprof_markers import name_operators
from profiling.readers.chunks import read_head
from profiling.readers.nvprof.database import is_nvprof, read_database
from profiling.readers.nvprof.text import HEAD, Printed, read_printed
from profiling.readers.origin import UNKNOWN, Origin, rank_in
from profiling.readers.printed_tables import stream_printed
from profiling.readers.sqlite import MAGIC, open_database
from profiling.traced_job import TraceFacts

_EMPTY = "the capture is empty"
_NO_KERNEL = "no kernel was recorded"
_WHY = (
    "nothing ran on a GPU while nvprof recorded, or recording never started (--profile-from-start off "
    "needs cudaProfilerStart)"
)


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is nvprof's: a database with its tables, or text that it printed."""
    if head.startswith(MAGIC):
        with open_database(path) as database:
            return is_nvprof(database)
    return HEAD.search(head) is not None


def facts(path: Path) -> TraceFacts | None:
    """What a database says of its job; None: the file is text."""
    if read_head(path, len(MAGIC)) != MAGIC:
        return None
    return TraceFacts(rank=rank_in(path), shapes=False)


def stream(path: Path, findings: list[str], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """An nvprof file as pieces of tables: ``kernels`` and ``markers`` of a database; of a text
    ``intervals``, ``atomics`` and, of a trace, ``kernels``.
    """
    rank = origin.rank_of(path)
    if read_head(path, len(MAGIC)) == MAGIC:
        yield from _database(path, findings, rank, origin)
    else:
        yield from _text(path, findings, rank or 0)


def _database(
    path: Path, findings: list[str], rank: int | None, origin: Origin
) -> Iterator[tuple[str, pa.Table]]:
    with open_database(path) as database:
        trace = read_database(database)
    trace.world_size = origin.world_size
    if trace.is_empty:
        trace.findings.append(f"{_EMPTY}: {_WHY}")
    yield from attribute_in_windows(
        trace, findings, rank, origin.first_batch, path.name, name_operators, origin.batches,
        origin.batch_marker,
    )  # fmt: skip


def _text(path: Path, findings: list[str], rank: int) -> Iterator[tuple[str, pa.Table]]:
    printed = Printed()
    launches = read_printed(path, printed)
    any_printed = yield from stream_printed(launches, printed.activities, lambda: printed.metrics, rank)
    texts = list(printed.findings)
    if printed.nothing or not any_printed:
        texts.append(f"{_NO_KERNEL}: {_WHY}")
    if len(printed.processes) > 1:
        texts.append(f"{len(printed.processes)} processes wrote to it; their rows cannot be separated")
    findings += [f"{path.name}: {finding}" for finding in texts]
