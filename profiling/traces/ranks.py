"""How does a trace become the tables of its ranks, as a rank of ours leaves them?"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from profiling.attribution.batch_rows import CONFIDENCE, SOURCE
from profiling.readers.origin import Origin, rank_in
from profiling.tables import Writer, rank_directory
from profiling.tools import tool
from profiling.traced_job import TraceFacts
from profiling.traces.recorded import Recorded

_LATEST = (1 << 63) - 1


@dataclass
class _Rank:
    """What is known of a rank while its tables are written; times in ns."""

    writer: Writer
    started_ns: int = _LATEST
    ended_ns: int = 0
    batches: int = 0
    batches_from: str = ""
    confidence: float = 1.0

    def add(self, table: str, piece: pa.Table) -> None:
        if not len(piece):
            return
        self.writer.add(table, piece)
        if table == "kernels":
            begun = pc.min(piece["start_ns"]).as_py()
            ended = pc.max(pc.add(piece["start_ns"], piece["duration_ns"])).as_py()
            self.started_ns = min(self.started_ns, begun if begun is not None else _LATEST)
            self.ended_ns = max(self.ended_ns, ended or 0)
        elif table == "batches":
            metadata = piece.schema.metadata or {}
            self.batches = len(piece)
            self.batches_from = metadata.get(SOURCE, b"").decode()
            self.confidence = float(metadata.get(CONFIDENCE, b"1"))


def record_ranks(
    path: Path,
    root: Path,
    name: str,
    facts: TraceFacts,
    directory: Path,
    batch_marker: str,
    findings: list[str],
) -> tuple[Recorded, ...]:
    """Write the tables of a trace's ranks, each into a folder of its own below ``directory``.

    Args:
        path: the file (or folder of one result) in the folder ``root``.
        name: of the tool that wrote it.
        facts: what the file says of its job.
        findings: takes what was found on the way.

    Raises:
        UserError: the file cannot be read.
    """
    root = root.parent if path == root else root
    known = facts.rank if facts.rank is not None else rank_in(path.relative_to(root))
    origin = Origin(known, world_size=facts.world_size or 1, batches=True, batch_marker=batch_marker)
    ranks: dict[int, _Rank] = {}
    with ExitStack() as writers:
        for table, piece in tool(name).stream(path, findings, origin):
            for number, rows in _by_rank(piece):
                if number not in ranks:
                    writer = Writer(rank_directory(directory, number))
                    ranks[number] = _Rank(writers.enter_context(writer))
                ranks[number].add(table, rows)
    return tuple(
        Recorded(
            source=path.relative_to(root), root=root, tool=name, facts=facts, rank=number,
            rank_known=known is not None, alone=len(ranks) == 1, directory=one.writer.directory,
            started_ns=one.started_ns if one.ended_ns else 0, ended_ns=one.ended_ns,
            written_ns=path.stat().st_mtime_ns, batches=one.batches,
            batches_from=one.batches_from, confidence=one.confidence,
        )
        for number, one in sorted(ranks.items())
    )  # fmt: skip


def _by_rank(piece: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each rank."""
    numbers = pc.unique(piece["rank"]).to_pylist()
    if len(numbers) == 1:
        yield numbers[0] or 0, piece
        return
    for number in numbers:
        yield number or 0, piece.filter(pc.equal(piece["rank"], number))
