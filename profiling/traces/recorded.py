"""What is known of the recording of one rank, once its file has been converted?"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from profiling.traced_job import TraceFacts

_RANK = re.compile(r"[_.-]?(?:rank|worker)[_.-]?\d+|^\d+$", re.IGNORECASE)
_ENDINGS = re.compile(r"(\.(json|gz|gzip|csv|sqlite|sql|db|nsys-rep|xml|pt|trace|txt))+$", re.IGNORECASE)
_EPOCH_NS = 10**18  # times before it count from another moment, and say nothing of other hosts'


def without_ending(name: str) -> str:
    """The name of a file without what says its format."""
    return _ENDINGS.sub("", name) or name


@dataclass(frozen=True)
class Recorded:
    """The recording of one rank, as it was converted.

    Attributes:
        source: its file, below ``root``.
        tool: that wrote it.
        facts: what the file says of its job.
        rank: as its rows say it.
        rank_known: whether the file says its rank, or its name.
        alone: whether its file holds no other rank.
        directory: where its tables are.
        started_ns, ended_ns: of its first and last activity.
        written_ns: when its file was changed last.
        batches: how many; ``batches_from``, ``confidence``: see :class:`profiling.traced_job.TracedJob`.
    """

    source: Path
    root: Path
    tool: str
    facts: TraceFacts
    rank: int
    rank_known: bool
    alone: bool
    directory: Path
    started_ns: int
    ended_ns: int
    written_ns: int
    batches: int
    batches_from: str = ""
    confidence: float = 1.0

    @property
    def dated_ns(self) -> int:
        """When it began, since the epoch; 0: not known."""
        return self.started_ns if self.started_ns > _EPOCH_NS else 0

    @property
    def folder(self) -> Path:
        """Its folder below the root, without the parts that name a rank."""
        parts = [part for part in self.source.parent.parts if not _RANK.fullmatch(part)]
        return Path(*parts)

    @cached_property
    def stem(self) -> str:
        """Its file's name without the rank and the ending."""
        return _RANK.sub("", without_ending(self.source.name)).strip("_.-")
