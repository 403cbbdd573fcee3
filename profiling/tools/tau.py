"""What did TAU write? Text profiles, merged XML and snapshots, all as the same tables.

A text profile or a snapshot is one thread's; those of a folder (``profile.N.C.T``, with several metrics in
``MULTI__*`` folders) are one result. A merged profile holds all ranks.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from profiling.converted import Converted
from profiling.errors import UserError
from profiling.tools.base import UNKNOWN, Options, Origin, Profiler

if TYPE_CHECKING:
    import pyarrow as pa

# What TAU must have been built with. tau_exec adds MPI of itself where there is a TAU with it, and takes a
# serial one else; TAU built with OpenMP has no "pthread" among its tags.
_TAUS = "python"
_OF_A_THREAD = re.compile(r"^(profile|snapshot)\.\d{1,9}\.\d{1,9}\.\d{1,9}$")
_OF_A_TRACE = re.compile(r"^(tautrace\..*|tau)\.trc$|^events\.\d{1,9}\.edf$")
_METRIC_FOLDER = "MULTI__"
_A_TRACE = "a trace of TAU, which is not read here; record a profile (TAU_TRACE=0 TAU_PROFILE=1)"
_END_OF_BATCH = re.compile(r"^End of Batch( \d+)?$")


class Tau(Profiler):
    """TAU, around a rank."""

    program = "tau_exec"
    install = "the site's TAU module, or: spack install tau +python +mpi"
    wraps = True
    started = "`tau_exec` or `tau_python`"
    reads = "`profile.N.C.T`, merged XML, snapshots"
    modes: ClassVar = {
        "auto": "timers of MPI, of our stages and of threads, and what a GPU did (tau_exec)",
        "io": "the same, and timers of reading and writing",
        "python": "timers of every Python function, too (tau_python): the most perturbation",
        "ebs": "samples of where time is spent, too",
    }

    def wrap(self, command: list[str], directory: Path, options: Options) -> list[str]:
        """The command under TAU, which sums up the whole run: it records no single batches."""
        taus = _TAUS + (",cupti" if options.gpu else "")
        if options.mode == "python":
            return ["tau_python", "-T", taus, f"-tau-python-interpreter={command[0]}", *command[1:]]
        more = [*(["-cupti"] if options.gpu else []), *(["-io"] if options.mode == "io" else [])]
        return ["tau_exec", "-T", taus, *more, *(["-ebs"] if options.mode == "ebs" else []), *command]

    def environment(self, directory: Path, options: Options) -> dict[str, str]:
        """Where and what TAU writes: a text file a thread, for a merged one is not written without MPI."""
        variables = {
            "PROFILEDIR": str(directory),
            "TAU_PROFILE_FORMAT": "profile",
            # A trace of the user's asking would take the profile's place, and lie in the working folder.
            "TAU_PROFILE": "1",
            "TAU_TRACE": "0",
            # TAU up to 2.35.0 with MPI crashes in a process that neither calls MPI nor was started by mpirun.
            "TAU_SET_NODE": str(options.rank),
        }
        # TAU stops timing what is called often and takes no time, and then its pytau.stop ends another timer.
        # In mode python that keeps the run from crawling, and the stages are events.
        return variables if options.mode == "python" else {**variables, "TAU_THROTTLE": "0"}

    def outputs(self, directory: Path) -> list[Path]:
        """The folder with the threads' files."""
        return [directory]

    def recognise(self, path: Path, head: bytes) -> bool:
        """Whether a file is a profile of TAU, by its first bytes; or a trace, by its name."""
        from profiling.readers.tau.text import metric_of

        profile = b"<profile_xml>" in head[:4096] or metric_of(head) is not None
        return profile or _OF_A_TRACE.match(path.name) is not None

    def bundle(self, path: Path) -> Path:
        """The folder of a run whose threads lie in files of their own; else the file itself."""
        if not _OF_A_THREAD.match(path.name):
            return path
        return path.parent.parent if path.parent.name.startswith(_METRIC_FOLDER) else path.parent

    def stream(
        self, path: Path, findings: list[str], origin: Origin = UNKNOWN
    ) -> "Iterator[tuple[str, pa.Table]]":
        """A file, or a folder of one run's, as pieces of tables ``intervals``, ``atomics`` and ``markers``.

        Ranks are as TAU says, where nothing else is known: without MPI each rank takes itself for node 0.
        """
        from profiling.readers.tau.checks import Tally
        from profiling.readers.tau.read import Reading

        reading, tally = Reading(findings, origin.rank), Tally()
        files, left = _files(path)
        unread: list[str] = []
        for folder in left:
            reading.tell_metric(folder.name.removeprefix(_METRIC_FOLDER), folder)
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
            raise UserError(f"none of the {len(files)} files of {path} can be read: {unread[0]}")
        findings += unread
        yield from reading.markers(_END_OF_BATCH)
        reading.tell_copies()
        ranks = reading.ranks if origin.rank is None else min(reading.threads, 1)
        whose = path.name if origin.rank is None else "TAU"
        findings += [f"{whose}: {one}" for one in tally.of_run(ranks, origin.world_size, origin.mode)]
        whose = path.name if origin.rank is None else f"rank {origin.rank}"
        of_ranks = tally.of_ranks(ranks)
        findings += [one if one.startswith(f"{whose} ") else f"{whose}: {one}" for one in of_ranks]

    def read(self, path: Path, origin: Origin = UNKNOWN) -> Converted:
        """See :meth:`stream`; tables ``intervals`` and ``atomics`` are always there."""
        from profiling.tables import as_table

        converted = super().read(path, origin)
        for name in ("intervals", "atomics"):
            converted.tables.setdefault(name, as_table(name, {}))
        return converted


def _files(path: Path) -> tuple[list[Path], list[Path]]:
    """(the files to read, the folders of metrics that are not wall time)."""
    if not path.is_dir():
        if _OF_A_TRACE.match(path.name):
            raise UserError(f"{path} is {_A_TRACE}")
        return [path], []
    found = [file for file in path.iterdir() if _OF_A_THREAD.match(file.name) and file.is_file()]
    clock, *left = _wall_clock_first(path) or [path]
    if clock is not path:
        found += [file for file in clock.iterdir() if _OF_A_THREAD.match(file.name)]
    found = found or sorted(file for file in path.iterdir() if file.suffix == ".xml" and file.is_file())
    if not found and any(_OF_A_TRACE.match(file.name) for file in path.iterdir()):
        raise UserError(f"{path} holds {_A_TRACE}")
    if not found:
        raise UserError(f"{path} holds no profile of TAU (profile.N.C.T, snapshot.N.C.T or merged XML)")
    return sorted(found, key=lambda file: (list(map(int, re.findall(r"\d+", file.name))), file.name)), left


def _wall_clock_first(path: Path) -> list[Path]:
    """The folders of a run's metrics, the one of wall time first."""
    from profiling.readers.tau.tables import clock_of

    folders = sorted(folder for folder in path.iterdir() if folder.name.startswith(_METRIC_FOLDER))
    first = clock_of([folder.name.removeprefix(_METRIC_FOLDER) for folder in folders]) or 0
    return folders[first : first + 1] + folders[:first] + folders[first + 1 :]
