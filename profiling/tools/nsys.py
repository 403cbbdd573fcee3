"""What did Nsight Systems write? Its reports, their SQLite exports, and the tables of ``nsys stats``."""

from pathlib import Path

from profiling.tools import Converted


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is of Nsight Systems, by what is in it."""
    from profiling.nsys_database import is_nsys
    from profiling.sqlite import MAGIC, open_database

    if head.startswith(MAGIC):
        with open_database(path) as database:
            return is_nsys(database)
    return False


def read(path: Path, rank: int | None = None) -> Converted:
    """A file of Nsight Systems as tables.

    A report may hold several processes; those with work on a GPU (else: with stages of batches, else: with
    any range) are taken for ranks.

    Args:
        rank: for the rows, if there is one such process; by default what the file's name says (``rank3``),
            else 0.

    Raises:
        UserError: unreadable, truncated or foreign; the message names file and place.
    """
    from profiling.nsys_database import Reader
    from profiling.nsys_ranks import as_tables
    from profiling.sqlite import open_database

    with open_database(path) as database:
        reader = Reader(database)
        processes = reader.read()
    return as_tables(path, processes, reader.names, reader.findings, rank)
