"""Start a rank under TAU or VTune, or with records of Horovod or NCCL; PyProf and oneDNN are only read."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from profiling.findings import Finding
from profiling.readers.files import TAU_METRIC_FOLDER, TAU_THREAD_FILE, UNKNOWN, Origin
from profiling.tables import Converted, as_table
from profiling.tools import Options, Profiler, Step, Unrecognised, run_step

# What TAU must have been built with. tau_exec adds MPI of itself where there is a TAU with it, and takes a
# serial one else; TAU built with OpenMP has no "pthread" among its tags.
_TAUS = "python"


class Tau(Profiler):
    program = "tau_exec"
    install = "the site's TAU module, or: spack install tau +python +mpi"
    wraps = True
    reader = "profiling.readers.tau"
    modes: ClassVar = {
        "auto": "timers of MPI, of our stages and of threads, and GPU activity (tau_exec)",
        "io": "the same, plus timers of reading and writing",
        "python": "also timers of every Python function (tau_python): the most overhead",
        "ebs": "also samples of where time is spent",
    }
    writes = ("",)  # the folder with the threads' files

    def wrap(self, command: list[str], directory: Path, options: Options) -> list[str]:
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


_ANALYSES = {"auto": "hotspots", "hw-hotspots": "hotspots", "uarch": "uarch-exploration"}
_REPORTS = {"memory-access": "hw-events", "uarch": "hw-events", "memory-consumption": "top-down"}
_RESULTS, _REPORT = {"memory-consumption": "vtune-mc"}, "vtune.csv"  # mc: as VTune names such results
_FINALIZATION = re.compile(r"-finalization-mode[= ]+(\w+)")


class Vtune(Profiler):
    program = "vtune"
    install = "the site's VTune module, or Intel's oneAPI toolkit"
    wraps = True
    reader = "profiling.readers.vtune"
    modes: ClassVar = {
        "auto": "where CPU time is spent, by sampling (hotspots)",
        "hw-hotspots": "the same with hardware counters, which need permission",
        "memory-access": "memory traffic and memory stalls",
        "memory-consumption": "memory that each function allocates and frees",
        "uarch": "stalls of the processor's pipeline (uarch-exploration)",
    }
    writes = (_REPORT,)

    def wrap(self, command: list[str], directory: Path, options: Options) -> list[str]:
        """The command under vtune; symbols are looked up later (:meth:`finish`)."""
        analysis = _ANALYSES.get(options.mode, options.mode)
        result = directory / _RESULTS.get(options.mode, "vtune")
        words = ["vtune", "-collect", analysis, "-result-dir", str(result), "-quiet"]
        words += ["-knob", "sampling-mode=hw"] if options.mode == "hw-hotspots" else []
        words += options.metrics.split()
        # The ranks of a node would else all look up symbols at once, while others still compute.
        words += [] if _FINALIZATION.search(options.metrics) else ["-finalization-mode=none"]
        return [*words, "--", *command]

    def is_read_later(self, options: Options) -> bool:
        given = _FINALIZATION.search(options.metrics)
        return given is not None and given[1] in ("deferred", "none")

    def finish(self, directory: Path, options: Options) -> list[Step]:
        result = directory / _RESULTS.get(options.mode, "vtune")
        steps = _reporting(result, _REPORTS.get(options.mode, "hotspots"), directory)
        return steps[1:] if _FINALIZATION.search(options.metrics) else steps  # as the user had it finalized

    def bundle(self, path: Path) -> Path:
        """The folder of a result that is to be finalized, if no report lies beside it; else the file."""
        is_result = path.suffix in (".vtune", ".amplxe") and not (path.parent.parent / _REPORT).exists()
        return path.parent if is_result else path

    def stream(
        self, path: Path, findings: list[Finding], origin: Origin = UNKNOWN
    ) -> Iterator[tuple[str, pa.Table]]:
        if not path.is_dir():
            yield from super().stream(path, findings, origin)
            return
        if shutil.which("vtune") is None:
            raise Unrecognised(f"{path} needs vtune on the PATH (see python -m jobs.doctor)")
        kind = "top-down" if path.name.endswith("mc") else "hotspots"
        with tempfile.TemporaryDirectory() as folder:
            for step in _reporting(path, kind, Path(folder)):
                run_step(step, "vtune")
            yield from super().stream(Path(folder) / _REPORT, findings, Origin(origin.rank_of(path)))


def _reporting(result: Path, kind: str, directory: Path) -> list[Step]:
    """What finalizes a result and reports it to ``directory``."""
    done, report = directory / "finalized.txt", directory / _REPORT
    words = ["vtune", "-report", kind, "-result-dir", str(result)]
    words += ["-format", "csv", "-csv-delimiter", "comma"]
    return [
        Step(["vtune", "-finalize", "-result-dir", str(result)], result, done, done),
        Step([*words, "-report-output", str(report)], result, report),
    ]


_TIMELINE = "timeline.json"


class Horovod(Profiler):
    wraps = True
    reader = "profiling.readers.horovod"
    only_rank_0_writes = True
    writes = (_TIMELINE,)
    modes: ClassVar = {
        "auto": "when each tensor was negotiated and reduced",
        "cycles": "also Horovod's own cycles",
    }

    def environment(self, directory: Path, options: Options) -> dict[str, str]:
        cycles = {"HOROVOD_TIMELINE_MARK_CYCLES": "1"} if options.mode == "cycles" else {}
        return {"HOROVOD_TIMELINE": str(directory / _TIMELINE), **cycles}


_PLUGIN = "NCCL_PROFILER_PLUGIN"  # a path, or NAME of a libnccl-profiler-NAME.so that the loader finds


class Inspector(Profiler):
    """NCCL's plugin of NCCL 2.28 and later, built from NCCL's sources."""

    wraps = True
    gpu_only = True
    reader = "profiling.readers.inspector"
    modes: ClassVar = {"auto": "duration, bytes and communicator of each collective"}

    def environment(self, directory: Path, options: Options) -> dict[str, str]:
        return {
            _PLUGIN: os.environ.get(_PLUGIN, "inspector"),
            "NCCL_INSPECTOR_ENABLE": "1",
            "NCCL_INSPECTOR_DUMP_DIR": str(directory),
            # With times. Of a communicator NCCL 2.28 keeps the last collective only until it is written.
            "NCCL_INSPECTOR_DUMP_VERBOSE": "1",
            "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "500",
        }

    def outputs(self, directory: Path) -> list[Path]:
        return sorted(directory.glob("*-pid*.log"))


class PyProf(Profiler):
    reader = "profiling.readers.pyprof"
    analysed_as_it_is = True


class OneDnn(Profiler):
    reader = "profiling.readers.onednn"
