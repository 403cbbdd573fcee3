"""Which tables are in a timeline of Horovod's?"""

import codecs
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from profiling.readers.horovod_timeline import Timeline
from profiling.readers.origin import UNKNOWN, Origin, rank_in
from profiling.traced_job import TraceFacts

_OURS = re.compile(rb'"name"\s*:\s*"(NEGOTIATE_[A-Z]+|CYCLE_START|WAIT_FOR_(DATA|OTHER_TENSOR_DATA))"')


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is a timeline of Horovod, by its events' names."""
    return head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"[" and _OURS.search(head) is not None


def facts(path: Path) -> TraceFacts:
    """What a timeline says of its job: rank 0 writes it."""
    return TraceFacts(rank=rank_in(path) or 0, backend="horovod", shapes=False)


def stream(path: Path, findings: list[str], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """A timeline as pieces of tables.

    Each collective is a row of ``kernels`` (``bytes`` is its tensor's size, ``layer`` its tensor's name);
    its negotiation and what it was made of are ranges of ``markers``. Times of releases before 0.21 count
    from a moment of Horovod's own.
    """
    timeline = Timeline(path, origin.rank_of(path) or 0)
    yield from timeline.pieces()
    findings += [f"{path.name}: {finding}" for finding in timeline.findings()]
