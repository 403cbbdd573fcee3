"""What did Intel VTune report? Its tables of functions and of metrics, as ``vtune -report`` writes CSV."""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from profiling.tools.base import Options, Profiler, Step

if TYPE_CHECKING:
    pass

_ANALYSES = {"auto": "hotspots", "hw-hotspots": "hotspots", "uarch": "uarch-exploration"}
_RESULT, _REPORT = "vtune", "vtune.csv"


class Vtune(Profiler):
    """Intel VTune, around a rank."""

    program = "vtune"
    install = "the site's VTune module, or Intel's oneAPI toolkit"
    wraps = True
    started = "`vtune` or `aps`"
    reader = "profiling.readers.vtune"
    reads = "report CSV"
    modes: ClassVar = {
        "auto": "where CPU time is spent, by sampling (hotspots)",
        "hw-hotspots": "the same with hardware counters, which need permission",
        "memory-access": "memory traffic and memory stalls",
        "uarch": "stalls of the processor's pipeline (uarch-exploration)",
        "aps": "Application Performance Snapshot: one page per run, kept as written (--keep-raw)",
    }

    def wrap(self, command: list[str], directory: Path, options: Options) -> list[str]:
        """The command under vtune or aps; Symbols are looked up later (:func:`finish`)."""
        result = str(directory / _RESULT)
        if options.mode == "aps":
            return ["aps", f"--result-dir={result}", *command]
        words = [
            "vtune",
            "-collect",
            _ANALYSES.get(options.mode, options.mode),
            "-result-dir",
            result,
            "-quiet",
        ]
        words += ["-knob", "sampling-mode=hw"] if options.mode == "hw-hotspots" else []
        # The ranks of a node would else all look up symbols at once, while others still compute.
        return [*words, "-finalization-mode=none", "--", *command]

    def finish(self, directory: Path, options: Options) -> list[Step]:
        """Look up symbols and write the report."""
        result, report = directory / _RESULT, directory / _REPORT
        if options.mode == "aps":
            return [Step(["aps", f"--report={result}"], result, directory / "aps.txt", directory / "aps.txt")]
        kind = "hw-events" if options.mode in ("memory-access", "uarch") else "hotspots"
        done = directory / "finalized.txt"
        words = [
            "vtune",
            "-report",
            kind,
            "-result-dir",
            str(result),
            "-format",
            "csv",
            "-csv-delimiter",
            "comma",
        ]
        return [
            Step(["vtune", "-finalize", "-result-dir", str(result)], result, done, done),
            Step([*words, "-report-output", str(report)], result, report),
        ]

    def outputs(self, directory: Path) -> list[Path]:
        """What :func:`finish` leaves."""
        return [directory / _REPORT]
