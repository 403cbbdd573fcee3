"""Which processes of a report are ranks, and which ranks are they?"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa

from profiling.attribution.attribute import attribute_in_windows
from profiling.attribution.events import Trace
from profiling.attribution.pyprof_markers import name_operators
from profiling.readers.origin import UNKNOWN, Origin
from profiling.schemas import BACKWARD, END_OF_BATCH, FORWARD, UPDATE
from profiling.tables import as_table

_STAGES = {FORWARD, BACKWARD, UPDATE, END_OF_BATCH}
_MPI_RANK = re.compile(r"^MPI Rank (\d{1,9})$")


def stream_ranks(
    path: Path,
    processes: Mapping[int, Trace],
    names: Mapping[int, str],
    findings: list[str],
    rank: int | None = None,
    origin: Origin = UNKNOWN,
) -> Iterator[tuple[str, pa.Table]]:
    """Pieces of the tables of a report's ranks, one rank after the other.

    Args:
        processes: what each process recorded.
        names: what processes called themselves.
        findings: takes what was found on the way.
        rank: of the one process that is a rank; None: as its name says, or its place among them.
        origin: what else is known of the report.
    """
    ranks = _ranks(processes, names, rank)
    if not ranks:
        findings.append(f"{path.name}: the report is empty: it has no ranges and no GPU activity")
        yield from ((name, as_table(name, {})) for name in ("kernels", "markers"))
    if len(ranks) > 1:
        named = ", ".join(f"{number} as rank {rank}" for rank, number in ranks.items())
        findings.append(f"{path.name}: {len(ranks)} processes are used as ranks: process {named}")
        for number in ranks.values():
            processes[number].world_size = max(len(ranks), processes[number].world_size)
    for rank, number in ranks.items():
        subject = _subject(path, rank, ranks)
        yield from attribute_in_windows(
            processes[number], findings, rank, origin.first_batch, subject, name_operators, origin.batches,
            origin.batch_marker,
        )  # fmt: skip


def _subject(path: Path, rank: int, ranks: Mapping[int, int]) -> str:
    return path.name if len(ranks) == 1 else f"{path.name}, rank {rank}"


def _ranks(processes: Mapping[int, Trace], names: Mapping[int, str], rank: int | None) -> dict[int, int]:
    """rank -> process."""
    ours = [number for number, trace in processes.items() if trace.on_device]
    ours = ours or [number for number, trace in processes.items() if not _STAGES.isdisjoint(trace.names)]
    ours = ours or [number for number, trace in processes.items() if not trace.is_empty]
    matches = [_MPI_RANK.match(names.get(number, "")) for number in ours]
    if rank is None and all(matches) and len({match[0] for match in matches if match}) == len(ours):
        return dict(
            sorted((int(match[1]), number) for match, number in zip(matches, ours, strict=True) if match)
        )
    if len(ours) == 1:
        return {rank or 0: ours[0]}

    def order(number: int) -> tuple[int, int]:
        devices = [int(piece["device"].min()) for piece in processes[number].tables["device"].pieces()]
        return min(devices, default=1 << 30), number

    return dict(enumerate(sorted(ours, key=order)))
