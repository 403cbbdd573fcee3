"""Which tables are in a file of TAU's, or in a folder with a run's?"""

import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from profiling.errors import UserError
from profiling.readers.origin import UNKNOWN, Origin, rank_in
from profiling.readers.tau import METRIC_FOLDER, OF_A_THREAD
from profiling.readers.tau.checks import Tally
from profiling.readers.tau.read import Reading
from profiling.readers.tau.tables import clock_of
from profiling.readers.tau.text import metric_of
from profiling.traced_job import TraceFacts

_OF_A_TRACE = re.compile(r"^(tautrace\..*|tau)\.trc$|^events\.\d{1,9}\.edf$")
_A_TRACE = "a trace of TAU, which cannot be read; record a profile (TAU_TRACE=0 TAU_PROFILE=1)"
_END_OF_BATCH = re.compile(r"^End of Batch( \d+)?$")


def recognise(path: Path, head: bytes) -> bool:
    """Whether a file is a profile of TAU, by its first bytes; or a trace, by its name."""
    profile = b"<profile_xml>" in head[:4096] or metric_of(head) is not None
    return profile or _OF_A_TRACE.match(path.name) is not None


def facts(path: Path) -> TraceFacts | None:
    """That a profile may be of a job, of which it says no more than its ranks; None: it is a trace."""
    return None if _OF_A_TRACE.match(path.name) else TraceFacts(rank=rank_in(path), shapes=False)


def stream(path: Path, findings: list[str], origin: Origin = UNKNOWN) -> Iterator[tuple[str, pa.Table]]:
    """A file, or a folder of one run's, as pieces of tables ``intervals``, ``atomics`` and ``markers``.

    Ranks are as TAU says, where nothing else is known: without MPI each rank takes itself for node 0.
    """
    reading, tally = Reading(findings, origin.rank), Tally()
    files, left = _files(path)
    unread: list[str] = []
    for folder in left:
        reading.tell_metric(folder.name.removeprefix(METRIC_FOLDER), folder)
    for file in files:
        try:
            for name, piece in reading.pieces(file):
                if name == "atomics":
                    tally.add_events(piece)
                yield name, tally.add(piece) if name == "intervals" else piece
        except UserError as error:
            if len(files) == 1:
                raise
            unread.append(str(error))  # what the others hold is read
    if len(unread) == len(files):
        raise UserError(f"no file of {path} can be read ({len(files)} tried): {unread[0]}")
    findings += unread
    yield from reading.markers(_END_OF_BATCH)
    reading.tell_copies()
    ranks = reading.ranks if origin.rank is None else min(reading.threads, 1)
    whose = path.name if origin.rank is None else "TAU"
    findings += [f"{whose}: {one}" for one in tally.of_run(ranks, origin.world_size, origin.mode)]
    whose = path.name if origin.rank is None else f"rank {origin.rank}"
    of_ranks = tally.of_ranks(ranks)
    findings += [one if one.startswith(f"{whose}: ") else f"{whose}: {one}" for one in of_ranks]


def _files(path: Path) -> tuple[list[Path], list[Path]]:
    """(the files to read, the folders of metrics that are not wall time)."""
    if not path.is_dir():
        if _OF_A_TRACE.match(path.name):
            raise UserError(f"{path} is {_A_TRACE}")
        return [path], []
    profiles = [file for file in path.iterdir() if OF_A_THREAD.match(file.name) and file.is_file()]
    clock, *left = _wall_clock_first(path) or [path]
    if clock is not path:
        profiles += [file for file in clock.iterdir() if OF_A_THREAD.match(file.name)]
    profiles = profiles or sorted(file for file in path.iterdir() if file.suffix == ".xml" and file.is_file())
    if not profiles and any(_OF_A_TRACE.match(file.name) for file in path.iterdir()):
        raise UserError(f"{path} holds {_A_TRACE}")
    if not profiles:
        raise UserError(f"{path} holds no profile of TAU (profile.N.C.T, snapshot.N.C.T or merged XML)")
    return sorted(profiles, key=lambda file: (list(map(int, re.findall(r"\d+", file.name))), file.name)), left


def _wall_clock_first(path: Path) -> list[Path]:
    """The folders of a run's metrics, the one of wall time first."""
    folders = sorted(folder for folder in path.iterdir() if folder.name.startswith(METRIC_FOLDER))
    first = clock_of([folder.name.removeprefix(METRIC_FOLDER) for folder in folders]) or 0
    return folders[first : first + 1] + folders[:first] + folders[first + 1 :]
