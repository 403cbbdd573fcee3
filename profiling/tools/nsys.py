"""What did Nsight Systems write? Its reports, their SQLite exports, and the tables of ``nsys stats``."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from profiling.tools.base import UNKNOWN, Options, Origin, Step
from profiling.tools.capture_range import BY_RANGE, RANGE, VARIABLE, SwitchedOn

if TYPE_CHECKING:
    import pyarrow as pa


_REPORT, _STREAM, _EXPORT = "nsys.nsys-rep", "nsys.qdstrm", "nsys.sqlite"
_REPORT_HEAD = b"NVIDIA Tegra Profiler Report"


class Nsys(SwitchedOn):
    """Nsight Systems, around a rank."""

    program = "nsys"
    install = "the site's CUDA module, or NVIDIA Nsight Systems"
    wraps = True
    started = "`nsys profile -t cuda,nvtx,osrt,mpi`; imported and exported for you, whichever release it is"
    reads = "`.nsys-rep`, SQLite, `nsys stats` CSV"
    # Release 2022.4 waits for a semaphore that its second process may not have made yet on a busy machine.
    may_not_start = True
    modes: ClassVar = {"auto": "kernels, copies, ranges of NVTX, MPI and the calls of the operating system"}

    def wrap(self, command: list[str], directory: Path, options: Options) -> list[str]:
        """The command under nsys, which records from the batch on that the process marks."""
        words = ["nsys", "profile", "--trace=cuda,nvtx,osrt,mpi", "--sample=none", "--cpuctxsw=none"]
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

    def recognise(self, path: Path, head: bytes) -> bool:
        """Whether a file is of Nsight Systems, by what is in it."""
        from profiling.readers.nsys.database import is_nsys
        from profiling.readers.nsys.stats import is_stats
        from profiling.readers.sqlite import MAGIC, open_database

        if head.startswith(MAGIC):
            with open_database(path) as database:
                return is_nsys(database)
        return head.startswith(_REPORT_HEAD) or is_stats(head)

    def stream(
        self, path: Path, findings: list[str], origin: Origin = UNKNOWN
    ) -> "Iterator[tuple[str, pa.Table]]":
        """A file of Nsight Systems as pieces of tables: ``kernels`` and ``markers`` of a report; of the
        tables of ``nsys stats`` ``intervals``, ``atomics`` and, of a GPU trace, ``kernels``.

        A report may hold several processes; those with work on a GPU (else: with stages of batches, else:
        with any range) are taken for ranks.
        """
        from profiling.readers.chunks import read_head
        from profiling.readers.sqlite import MAGIC
        from profiling.tools.programs import run_step

        rank = origin.rank_of(path)
        head = read_head(path, len(_REPORT_HEAD))
        if head.startswith(MAGIC):
            yield from _database(path, findings, rank, origin)
        elif head == _REPORT_HEAD:
            with tempfile.TemporaryDirectory() as folder:
                export = Path(folder) / path.with_suffix(".sqlite").name
                run_step(_export(path, export), "nsys")
                yield from _database(export, findings, rank, origin)
        else:
            yield from _stats(path, findings, rank or 0)


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
        found = sorted(Path(nsys).parent.parent.glob("host-linux-*/QdstrmImporter"))
        if found:
            return str(found[0])
        link = Path(nsys)
        nsys = os.path.normpath(link.parent / link.readlink()) if link.is_symlink() else None
    return "QdstrmImporter"


def _export(report: Path, export: Path) -> Step:
    words = ["nsys", "export", "--type=sqlite", "--force-overwrite=true", f"--output={export}", str(report)]
    return Step(words, report, export)


def _database(
    path: Path, findings: list[str], rank: int | None, origin: Origin
) -> "Iterator[tuple[str, pa.Table]]":
    from profiling.readers.nsys.database import Reader
    from profiling.readers.nsys.ranks import stream_ranks
    from profiling.readers.sqlite import open_database

    with open_database(path) as database:
        reader = Reader(database)
        processes = reader.read()
    findings += [f"{path.name}: {finding}" for finding in reader.findings]
    for trace in processes.values():
        trace.world_size = origin.world_size
    yield from stream_ranks(path, processes, reader.names, findings, rank, origin.first_batch)


def _stats(path: Path, findings: list[str], rank: int) -> "Iterator[tuple[str, pa.Table]]":
    from profiling.readers.nsys.stats import Stats, read_stats
    from profiling.readers.printed_tables import atomics_table, intervals_table, kernels_table

    stats = Stats()
    launched = 0
    for launches in read_stats(path, stats):
        launched += len(launches)
        yield "kernels", kernels_table(launches, rank)
    if stats.activities:
        yield "intervals", intervals_table(stats.activities, rank)
    if stats.activities or stats.metrics:
        yield "atomics", atomics_table(stats.activities, stats.metrics, rank)
    if not launched and not stats.activities and not stats.metrics:
        findings.append(
            f"{path.name}: none of its tables is a summary, or a trace of a GPU; convert the report's SQLite "
            "export (nsys export --type sqlite) for all that it holds"
        )
    findings += [f"{path.name}: {finding}" for finding in stats.findings]
    if stats.damaged:
        findings.append(f"{path.name}: {stats.damaged} damaged lines of its tables are left out")
