"""What did Horovod's timeline record? When each tensor was negotiated and reduced, and when ranks were ready.

The file is a JSON list that Horovod never closes, one event a line: a tensor is a process of its own, ``B``
and ``E`` events nest, and while a tensor is negotiated an event named after each rank says when it was ready.
"""

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from profiling.tools import Converted, Options, collect, rank_of

if TYPE_CHECKING:
    import pyarrow as pa

MODES = {"auto": "when each tensor was negotiated and reduced", "cycles": "also Horovod's own cycles"}
ONLY_RANK_0_WRITES = True  # it coordinates the others, and records when each was ready
_TIMELINE = "timeline.json"
_OURS = re.compile(rb'"name"\s*:\s*"(NEGOTIATE_[A-Z]+|CYCLE_START|WAIT_FOR_(DATA|OTHER_TENSOR_DATA))"')


def wrap(command: list[str], directory: Path, options: Options) -> list[str]:
    """The command as it is: Horovod itself records."""
    return list(command)


def environment(directory: Path, options: Options) -> dict[str, str]:
    """Where each rank's timeline goes."""
    cycles = {"HOROVOD_TIMELINE_MARK_CYCLES": "1"} if options.mode == "cycles" else {}
    return {"HOROVOD_TIMELINE": str(directory / _TIMELINE), **cycles}


def outputs(directory: Path) -> list[Path]:
    """What Horovod writes."""
    return [directory / _TIMELINE]


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is a timeline of Horovod, by its events' names."""
    return head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"[" and _OURS.search(head) is not None


def read(path: Path, rank: int | None = None) -> Converted:
    """A timeline as tables; see :func:`stream`."""
    findings: list[str] = []
    return collect(stream(path, findings, rank), findings)


def stream(path: Path, findings: list[str], rank: int | None = None) -> "Iterator[tuple[str, pa.Table]]":
    """A timeline as pieces of tables.

    Each collective is a row of ``kernels`` (``bytes`` is its tensor's size, ``layer`` its tensor's name); its
    negotiation and what it was made of are ranges of ``markers``. Times of releases before 0.21 count from a
    moment of Horovod's own.

    Args:
        rank: for the rows; by default what the file's name says (``rank3``), else 0.

    Raises:
        UserError: unreadable, truncated or foreign; the message names file and place.
    """
    from profiling.horovod_timeline import Timeline

    timeline = Timeline(path, (rank_of(path) if rank is None else rank) or 0)
    yield from timeline.pieces()
    findings += [f"{path.name}: {finding}" for finding in timeline.findings()]
