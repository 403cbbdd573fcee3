"""What does a run without a profiler record? Nothing, at no cost."""

from pathlib import Path
from typing import Any

from profiling.tools import Options


class NoCapture:
    """A capture that records nothing; it has the methods of :class:`profiling.tools.Capture`."""

    def prepare(self, model: Any = None) -> None:
        """Nothing is warmed up."""

    def start(self, model: Any = None, first_batch: int = 0) -> None:
        """Nothing begins."""

    def stop(self) -> None:
        """Nothing ends."""

    def write(self) -> list[str]:
        """No table is written, nothing is found."""
        return []


def open_capture(
    directory: Path, rank: int, keep_raw: bool = False, mode: str = "auto", all_threads: bool = False
) -> NoCapture:
    """See :func:`profiling.tools.open_capture`."""
    return NoCapture()


def wrap(command: list[str], directory: Path, options: Options) -> list[str]:
    """The command as it is."""
    return list(command)
