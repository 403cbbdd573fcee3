"""Which processes of a report are ranks, and which ranks are they?"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from profiling.attribute import attribute
from profiling.events import Events
from profiling.pyprof_markers import name_operators
from profiling.tables import BACKWARD, END_OF_BATCH, FORWARD, UPDATE, as_table
from profiling.tools import Converted

_STAGES = {FORWARD, BACKWARD, UPDATE, END_OF_BATCH}
_MPI_RANK = re.compile(r"^MPI Rank (\d{1,9})$")


def as_tables(
    path: Path,
    processes: Mapping[int, Events],
    names: Mapping[int, str],
    findings: Sequence[str],
    rank: int | None = None,
    first_batch: int | None = None,
) -> Converted:
    """The tables of a report's ranks, one after the other.

    Args:
        processes: events by process.
        names: what processes called themselves.
        findings: on the report as a whole.
        rank, first_batch: see :func:`profiling.tools.nsys.stream`.
    """
    found = [f"{path.name}: {finding}" for finding in findings]
    ranks = _ranks(processes, names, rank)
    if not ranks:
        found.append(f"{path.name}: the report is empty: no range and no work on a GPU was recorded")
        return Converted({name: as_table(name, {}) for name in ("kernels", "markers")}, found)
    if len(ranks) > 1:
        named = ", ".join(f"{number} as rank {rank}" for rank, number in ranks.items())
        found.append(f"{path.name}: {len(ranks)} processes are taken for ranks: process {named}")
        for number in ranks.values():
            processes[number].world_size = max(len(ranks), processes[number].world_size)
    converted = [
        attribute(processes[number], rank, first_batch, _subject(path, rank, ranks), name_operators)
        for rank, number in ranks.items()
    ]
    tables = {
        name: pa.concat_tables([one.tables[name] for one in converted]).unify_dictionaries()
        for name in converted[0].tables
    }
    return Converted(tables, found + [finding for one in converted for finding in one.findings])


def _subject(path: Path, rank: int, ranks: Mapping[int, int]) -> str:
    return path.name if len(ranks) == 1 else f"{path.name}, rank {rank}"


def _ranks(processes: Mapping[int, Events], names: Mapping[int, str], rank: int | None) -> dict[int, int]:
    """rank -> process."""
    ours = [number for number, events in processes.items() if len(events.device["name"])]
    ours = ours or [number for number, events in processes.items() if not _STAGES.isdisjoint(events.names)]
    ours = ours or [number for number, events in processes.items() if len(events.host["name"])]
    said = [_MPI_RANK.match(names.get(number, "")) for number in ours]
    if rank is None and all(said) and len({match[0] for match in said if match}) == len(ours):
        return dict(
            sorted((int(match[1]), number) for match, number in zip(said, ours, strict=True) if match)
        )
    if len(ours) == 1:
        return {rank or 0: ours[0]}

    def order(number: int) -> tuple[int, int]:
        devices = processes[number].device["device"]
        return int(np.min(devices, initial=1 << 30)), number

    return dict(enumerate(sorted(ours, key=order)))
