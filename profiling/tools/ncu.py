"""What did Nsight Compute print? Its metrics of each launch, as ``ncu --csv`` does: raw or details page."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from profiling.errors import UserError
from profiling.tools import Converted, collect, rank_of

if TYPE_CHECKING:
    import pyarrow as pa

_NEEDED = (b'"ID"', b'"Process ID"', b'"Kernel Name"')


def recognise(path: Path, head: bytes) -> bool:
    """Whether a text is Nsight Compute's CSV: its columns' names are in it."""
    return any(
        all(name in line for name in _NEEDED) for line in head.splitlines() if line.startswith(b'"ID"')
    )


def read(path: Path, rank: int | None = None) -> Converted:
    """Nsight Compute's CSV as tables; see :func:`stream`."""
    findings: list[str] = []
    return collect(stream(path, findings, rank), findings)


def stream(path: Path, findings: list[str], rank: int | None = None) -> "Iterator[tuple[str, pa.Table]]":
    """Nsight Compute's CSV as pieces of tables: ``kernels``, and in ``atomics`` each kernel's metrics.

    FLOPs are those of the counted scalar instructions, where they were counted and the kernel does not
    compute on tensor cores; bytes are those that reached the device's memory.

    Args:
        rank: for the rows; by default what the file's name says (``rank3``), else 0.

    Raises:
        UserError: unreadable, truncated or foreign; the message names file and place.
    """
    from profiling.ncu_csv import Metrics, read_launches
    from profiling.printed_tables import atomics_table, kernels_table

    rank = (rank_of(path) if rank is None else rank) or 0
    metrics = Metrics()
    launched = 0
    for launches in read_launches(path, metrics):
        launched += len(launches)
        yield "kernels", kernels_table(launches, rank)
    if not launched:
        raise UserError(f"{path} holds no launch: Nsight Compute profiled none, or the file is truncated")
    if spreads := metrics.all():
        yield "atomics", atomics_table([], spreads, rank)
    findings += [f"{path.name}: {finding}" for finding in metrics.findings()]
