"""What did Nsight Systems write? Its reports, their SQLite exports, and the tables of ``nsys stats``."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from profiling.findings import Finding
from profiling.readers.chunks import read_head
from profiling.readers.origin import NSYS_REPORT, UNKNOWN, Origin
from profiling.tools.base import Options, Step
from profiling.tools.capture_range import BY_RANGE, RANGE, VARIABLE, SwitchedOn
from profiling.tools.processes import run_step

if TYPE_CHECKING:
    import pyarrow as pa


_REPORT, _STREAM, _EXPORT = "nsys.nsys-rep", "nsys.qdstrm", "nsys.sqlite"


class Nsys(SwitchedOn):
    """Nsight Systems, around a rank."""

    program = "nsys"
    install = "the site's CUDA module, or NVIDIA Nsight Systems"
    wraps = True
    started = "`nsys profile -t cuda,nvtx,osrt,mpi`; import and export are automatic, for any release"
    reader = "profiling.readers.nsys"
    reads = "`.nsys-rep`, SQLite, `nsys stats` CSV"
    modes: ClassVar = {"auto": "kernels, copies, ranges of NVTX and MPI, and operating-system calls"}

    def wrap(self, command: list[str], directory: Path, options: Options) -> list[str]:
        """The command under nsys, which records from the batch on that the process marks."""
        words = ["nsys", "profile", "--trace=cuda,nvtx,osrt,mpi", "--sample=none", "--cpuctxsw=none"]
        # By itself it records a CUDA graph as a whole, without the kernels and collectives in it.
        words += ["--cuda-graph-trace=node"]
        words += ["--force-overwrite=true", "--output", _escaped(directory / "nsys")]
        if options.first_batch:
            words += [
                "--capture-range=nvtx",
                f"--nvtx-capture={RANGE}",
                "--capture-range-end=stop",
                "--kill=none",
            ]
        return [*words, *command]

    def environment(self, directory: Path, options: Options) -> dict[str, str]:
        """How the process switches nsys on: by a range, whose text need not be registered."""
        return {VARIABLE: BY_RANGE, "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"} if options.first_batch else {}

    def finish(self, directory: Path, options: Options) -> list[Step]:
        """Import what nsys recorded, where it does not do that itself, and export it."""
        return [*_import(directory / _STREAM), _export(directory / _REPORT, directory / _EXPORT)]

    def outputs(self, directory: Path) -> list[Path]:
        """What :func:`finish` leaves."""
        return [directory / _EXPORT]

    def stream(
        self, path: Path, findings: list[Finding], origin: Origin = UNKNOWN
    ) -> "Iterator[tuple[str, pa.Table]]":
        """See :mod:`profiling.readers.nsys`; a report that is not exported yet is exported first."""
        if read_head(path, len(NSYS_REPORT)) != NSYS_REPORT:
            yield from super().stream(path, findings, origin)
            return
        with tempfile.TemporaryDirectory() as folder:
            export = Path(folder) / path.with_suffix(".sqlite").name
            run_step(_export(path, export), "nsys")
            yield from super().stream(export, findings, origin)


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")  # nsys puts the host's name for %h, and so on


def _import(stream: Path) -> list[Step]:
    report = stream.with_name(_REPORT)
    words = [_importer(shutil.which("nsys")), "-i", str(stream), "-o", str(report)]
    return [Step(words, stream, report)]


def _importer(nsys: str | None) -> str:
    """The program that makes a report of a stream; newer releases of nsys run it themselves.

    It lies beside one of the folders through which the links to nsys lead.
    """
    while nsys:
        importers = sorted(Path(nsys).parent.parent.glob("host-linux-*/QdstrmImporter"))
        if importers:
            return str(importers[0])
        link = Path(nsys)
        nsys = os.path.normpath(link.parent / link.readlink()) if link.is_symlink() else None
    return "QdstrmImporter"


def _export(report: Path, export: Path) -> Step:
    words = ["nsys", "export", "--type=sqlite", "--force-overwrite=true", f"--output={export}", str(report)]
    return Step(words, report, export)
