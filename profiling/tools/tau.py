"""What did TAU write? Text profiles, merged XML and snapshots, all as the same tables.

A text profile or a snapshot is one thread's; those of a folder (``profile.N.C.T``, with several metrics in
``MULTI__*`` folders) are one result. A merged profile holds all ranks.
"""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from profiling.converted import Converted
from profiling.readers.origin import TAU_METRIC_FOLDER, TAU_THREAD_FILE, UNKNOWN, Origin
from profiling.tables import as_table
from profiling.tools.base import Options, Profiler

if TYPE_CHECKING:
    pass

# What TAU must have been built with. tau_exec adds MPI of itself where there is a TAU with it, and takes a
# serial one else; TAU built with OpenMP has no "pthread" among its tags.
_TAUS = "python"


class Tau(Profiler):
    """TAU, around a rank."""

    program = "tau_exec"
    install = "the site's TAU module, or: spack install tau +python +mpi"
    wraps = True
    started = "`tau_exec` or `tau_python`"
    reader = "profiling.readers.tau"
    reads = "`profile.N.C.T`, merged XML, snapshots"
    modes: ClassVar = {
        "auto": "timers of MPI, of our stages and of threads, and GPU activity (tau_exec)",
        "io": "the same, plus timers of reading and writing",
        "python": "also timers of every Python function (tau_python): the most overhead",
        "ebs": "also samples of where time is spent",
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

    def bundle(self, path: Path) -> Path:
        """The folder of a run whose threads lie in files of their own; else the file itself."""
        if not TAU_THREAD_FILE.match(path.name):
            return path
        return path.parent.parent if path.parent.name.startswith(TAU_METRIC_FOLDER) else path.parent

    def read(self, path: Path, origin: Origin = UNKNOWN) -> Converted:
        """See :meth:`stream`; tables ``intervals`` and ``atomics`` are always there."""
        converted = super().read(path, origin)
        for name in ("intervals", "atomics"):
            converted.tables.setdefault(name, as_table(name, {}))
        return converted
