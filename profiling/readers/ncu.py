"""Which tables are in what Nsight Compute prints?"""

import codecs
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from profiling.errors import UserError
from profiling.readers.chunks import read_head
from profiling.readers.ncu_csv import Metrics, read_launches
from profiling.readers.origin import UNKNOWN, Origin, rank_in
from profiling.readers.printed_tables import in_one_batch, stream_printed
from profiling.traced_job import TraceFacts

_NEEDED = (b'"Process ID"', b'"Kernel Name"')
_PAGES = (b'"ID"', b'"Invocations"')  # raw and details; summaries


def recognise(path: Path, head: bytes) -> bool:
    """Whether a text is Nsight Compute's CSV: its columns' names are in it."""
    return any(
        all(name in line for name in _NEEDED) and any(name in line for name in _PAGES)
        for line in head.removeprefix(codecs.BOM_UTF8).splitlines()
        if line.startswith((b'"ID"', b'"Process ID"'))
    )


def facts(path: Path) -> TraceFacts | None:
    """What launches say of their job; None: the file is a summary, without launches."""
    if b'"ID"' not in read_head(path):
        return None
    return TraceFacts(rank=rank_in(path), shapes=False)


def stream(path: Path, findings: list[str], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """Nsight Compute's CSV as pieces of tables: ``kernels``, and in ``atomics`` each kernel's metrics; of
    a summary ``intervals`` in place of ``kernels``.

    FLOPs are those of the counted scalar instructions, where they were counted and the kernel does not
    compute on tensor cores; bytes are those that reached the device's memory.
    """
    rank = origin.rank_of(path) or 0
    metrics = Metrics()
    pieces = stream_printed(read_launches(path, metrics), metrics.activities, metrics.all, rank)
    if not (yield from in_one_batch(pieces, rank) if origin.batches else pieces):
        raise UserError(f"{path} holds no launch: Nsight Compute profiled none, or the file is truncated")
    findings += [f"{path.name}: {finding}" for finding in metrics.findings()]
