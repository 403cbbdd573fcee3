"""What did Horovod's timeline record? When each tensor was negotiated and reduced, and when ranks were ready.

The file is a JSON list that Horovod never closes, one event a line: a tensor is a process of its own, ``B``
and ``E`` events nest, and while a tensor is negotiated an event named after each rank says when it was ready.
"""

import codecs
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from profiling.tools.base import UNKNOWN, Options, Origin, Profiler

if TYPE_CHECKING:
    import pyarrow as pa

_TIMELINE = "timeline.json"
_OURS = re.compile(rb'"name"\s*:\s*"(NEGOTIATE_[A-Z]+|CYCLE_START|WAIT_FOR_(DATA|OTHER_TENSOR_DATA))"')


class Horovod(Profiler):
    """Horovod's timeline, which Horovod itself writes."""

    wraps = True
    started = "`HOROVOD_TIMELINE`; Horovod's rank 0 writes it, and when each rank was ready"
    reads = "the timeline"
    only_rank_0_writes = True
    modes: ClassVar = {
        "auto": "when each tensor was negotiated and reduced",
        "cycles": "also Horovod's own cycles",
    }

    def wrap(self, command: list[str], directory: Path, options: Options) -> list[str]:
        """The command as it is: Horovod itself records."""
        return list(command)

    def environment(self, directory: Path, options: Options) -> dict[str, str]:
        """Where each rank's timeline goes."""
        cycles = {"HOROVOD_TIMELINE_MARK_CYCLES": "1"} if options.mode == "cycles" else {}
        return {"HOROVOD_TIMELINE": str(directory / _TIMELINE), **cycles}

    def outputs(self, directory: Path) -> list[Path]:
        """What Horovod writes."""
        return [directory / _TIMELINE]

    def recognise(self, path: Path, head: bytes) -> bool:
        """Whether a file is a timeline of Horovod, by its events' names."""
        return head.removeprefix(codecs.BOM_UTF8).lstrip()[:1] == b"[" and _OURS.search(head) is not None

    def stream(
        self, path: Path, findings: list[str], origin: Origin = UNKNOWN
    ) -> "Iterator[tuple[str, pa.Table]]":
        """A timeline as pieces of tables.

        Each collective is a row of ``kernels`` (``bytes`` is its tensor's size, ``layer`` its tensor's name);
        its negotiation and what it was made of are ranges of ``markers``. Times of releases before 0.21 count
        from a moment of Horovod's own.
        """
        from profiling.readers.horovod_timeline import Timeline

        timeline = Timeline(path, origin.rank_of(path) or 0)
        yield from timeline.pieces()
        findings += [f"{path.name}: {finding}" for finding in timeline.findings()]
