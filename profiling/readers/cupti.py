"""Which tables are in our own file of CUPTI's records?"""

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from profiling.attribution.attribute import attribute
from profiling.converted import Converted
from profiling.readers.cupti_records import is_records, read_records
from profiling.readers.origin import UNKNOWN, Origin


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is our own of CUPTI's records, by its first bytes."""
    return is_records(head)


def stream(path: Path, findings: list[str], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """A file of records as tables ``kernels`` and ``markers``, each in one piece.

    The file says its rank, its first batch and how many ranks there are.
    """
    recording = converted(path, origin.rank, path.name)
    findings += recording.findings
    yield from recording.tables.items()


def converted(path: Path, rank: int | None, subject: str) -> Converted:
    """A file of records as whole tables; ``subject`` names it in findings."""
    recording = read_records(path)
    recording.trace.findings += recording.findings
    return attribute(recording.trace, rank, recording.first_batch, subject)
