"""What is known about a profiler's file from elsewhere: its rank and steps, and the tool's file names."""

import re
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Origin:
    """What is known of a file from outside it."""

    # that it is of, for the tables' rows; None: what the file says, or its name (``rank3``), else 0
    rank: int | None = None
    # index of the batch with which the recording began; None: not known, taken for 0
    first_batch: int | None = None
    world_size: int = 1  # of how many ranks it is one, so that missing collectives are found
    mode: str = "auto"  # in which of the tool's ``modes`` it was recorded
    batches: bool = False  # whether the table ``batches`` is to be made of it, because nobody else kept one
    # a regular expression; ranges whose names it is found in are the batches. "": none are
    batch_marker: str = ""

    def rank_of(self, path: Path) -> int | None:
        """The rank that is known, else what the name of ``path`` or of a folder it lies in says."""
        return rank_in(path) if self.rank is None else self.rank


UNKNOWN = Origin()  # of a file about which nothing else is known
NSYS_REPORT = b"NVIDIA Tegra Profiler Report"  # the first bytes of a report of Nsight Systems
# TAU's files of a thread, and the folders of a run with several metrics.
TAU_THREAD_FILE = re.compile(r"^(profile|snapshot)\.\d{1,9}\.\d{1,9}\.\d{1,9}$")
TAU_METRIC_FOLDER = "MULTI__"

# A word of its own: frank2 is no rank.
_RANK = re.compile(r"(?<![a-z])(?:rank|worker)[_.-]?(\d{1,9})", re.IGNORECASE)


def rank_in(path: Path) -> int | None:
    """The rank that a file's name, or that of a folder it lies in, says (``rank3``, ``rank_0003``)."""
    matches = [match for name in (path.name, *reversed(path.parent.parts)) if (match := _RANK.search(name))]
    return int(matches[0][1]) if matches else None
