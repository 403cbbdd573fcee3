"""What did nvprof write? Its SQLite databases, and what it prints: summaries, traces, metrics.

nvprof is part of CUDA up to 11.8 and serves GPUs up to compute capability 7.5.
"""

from pathlib import Path

from profiling.tools import Converted


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is nvprof's: a database with its tables, or text that it printed."""
    from profiling.nvprof_database import is_nvprof
    from profiling.sqlite import MAGIC, open_database

    if head.startswith(MAGIC):
        with open_database(path) as database:
            return is_nvprof(database)
    return False


def read(path: Path, rank: int | None = None) -> Converted:
    """An nvprof file as tables.

    Args:
        rank: for the rows; by default what the file's name says (``rank3``), else 0.

    Raises:
        UserError: unreadable, truncated or foreign; the message names file and place.
    """
    from profiling.attribute import attribute
    from profiling.nvprof_database import read_database
    from profiling.pyprof_markers import name_operators
    from profiling.sqlite import open_database

    with open_database(path) as database:
        events = read_database(database)
    if not len(events.device["name"]) and not len(events.host["name"]):
        events.findings.append(
            "the capture is empty: nothing ran on a GPU while nvprof recorded, or it was never switched on "
            "(--profile-from-start off needs cudaProfilerStart)"
        )
    return attribute(events, rank, subject=path.name, name_operators=name_operators)
