"""What did Horovod's timeline record? When each tensor was negotiated and reduced, and when ranks were ready.

The file is a JSON list that Horovod never closes, one event a line: a tensor is a process of its own, ``B``
and ``E`` events nest, and while a tensor is negotiated an event named after each rank says when it was ready.
"""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from profiling.tools.base import Options, Profiler

if TYPE_CHECKING:
    pass

_TIMELINE = "timeline.json"


class Horovod(Profiler):
    """Horovod's timeline, which Horovod itself writes."""

    wraps = True
    started = "`HOROVOD_TIMELINE`; written by Horovod's rank 0, with the time at which each rank was ready"
    reader = "profiling.readers.horovod"
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
