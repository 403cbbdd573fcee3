"""What did nvprof write? Its SQLite databases, and what it prints: summaries, traces, metrics.

nvprof is part of CUDA up to 11.8. It traces GPUs up to compute capability 7.5, and reads metrics up to 7.2.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from profiling.tools.base import UNKNOWN, Options, Origin
from profiling.tools.capture_range import BY_CUDA, VARIABLE, SwitchedOn

if TYPE_CHECKING:
    import pyarrow as pa


METRICS = (
    "achieved_occupancy", "ipc", "sm_efficiency", "gld_efficiency", "gst_efficiency", "dram_utilization",
    "dram_read_throughput", "dram_write_throughput", "flop_count_sp", "flop_count_hp",
)  # fmt: skip
_DATABASE, _PRINTED = "nvprof.sql", "nvprof.csv"
_EMPTY = "the capture is empty"
_NO_KERNEL = "no kernel was recorded"
_WHY = (
    "nothing ran on a GPU while nvprof recorded, or it was never switched on (--profile-from-start off needs "
    "cudaProfilerStart)"
)


class Nvprof(SwitchedOn):
    """nvprof, around a rank."""

    program = "nvprof"
    install = "in CUDA up to 11.8, for GPUs up to compute capability 7.5; newer ones: nsys or cupti"
    gpu_only = True
    wraps = True
    started = "`nvprof -o`, for GPUs up to compute capability 7.5 (metrics: 7.2)"
    reads = "SQLite databases, CSV and plain summaries, traces, metrics"
    modes: ClassVar = {
        "auto": "every kernel, copy and marker with its times, as a database",
        "trace": "the same",
        "timing": "summaries of kernels and calls only: the least perturbation",
        "metrics": "occupancy, IPC, efficiency of loads and stores, memory use of each kernel (run again)",
        "analysis-metrics": "all metrics that NVIDIA's Visual Profiler analyses (kernels run many times)",
    }

    def wrap(self, command: list[str], directory: Path, options: Options) -> list[str]:
        """The command under nvprof; to record later batches the process switches it on."""
        words = ["nvprof", *(["--profile-from-start", "off"] if options.first_batch else [])]
        # nvprof's help promises regular expressions in four parts: context, stream, name, invocation.
        name = options.kernels.replace("(?:", "(").replace(":", ".")
        counted = ["--kernels", f"::{name}:"] if name else []
        printed = ["--csv", "--log-file", _escaped(directory / _PRINTED)]
        recorded = ["-f", "-o", _escaped(directory / _DATABASE)]
        how = {
            "timing": printed,
            "metrics": [*counted, "--metrics", ",".join(METRICS), *printed],
            "analysis-metrics": [*counted, "--analysis-metrics", *recorded],
        }
        return [*words, *how.get(options.mode, recorded), *command]

    def environment(self, directory: Path, options: Options) -> dict[str, str]:
        """How the process switches nvprof on."""
        return {VARIABLE: BY_CUDA} if options.first_batch else {}

    def outputs(self, directory: Path) -> list[Path]:
        """What :func:`wrap` makes nvprof write."""
        return [directory / _DATABASE, directory / _PRINTED]

    def recognise(self, path: Path, head: bytes) -> bool:
        """Whether a file is nvprof's: a database with its tables, or text that it printed."""
        from profiling.readers.nvprof.database import is_nvprof
        from profiling.readers.nvprof.text import HEAD
        from profiling.readers.sqlite import MAGIC, open_database

        if head.startswith(MAGIC):
            with open_database(path) as database:
                return is_nvprof(database)
        return HEAD.search(head) is not None

    def stream(
        self, path: Path, findings: list[str], origin: Origin = UNKNOWN
    ) -> "Iterator[tuple[str, pa.Table]]":
        """An nvprof file as pieces of tables: ``kernels`` and ``markers`` of a database; of a text
        ``intervals``, ``atomics`` and, of a trace, ``kernels``.
        """
        from profiling.readers.chunks import read_head
        from profiling.readers.sqlite import MAGIC

        rank = origin.rank_of(path)
        if read_head(path, len(MAGIC)) == MAGIC:
            yield from _database(path, findings, rank, origin)
        else:
            yield from _text(path, findings, rank or 0)


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")  # nvprof puts the process's number for %p, and so on


def _database(
    path: Path, findings: list[str], rank: int | None, origin: Origin
) -> "Iterator[tuple[str, pa.Table]]":
    from profiling.attribution.attribute import attribute_in_windows
    from profiling.attribution.pyprof_markers import name_operators
    from profiling.readers.nvprof.database import read_database
    from profiling.readers.sqlite import open_database

    with open_database(path) as database:
        trace = read_database(database)
    trace.world_size = origin.world_size
    if trace.is_empty:
        trace.findings.append(f"{_EMPTY}: {_WHY}")
    yield from attribute_in_windows(trace, findings, rank, origin.first_batch, path.name, name_operators)


def _text(path: Path, findings: list[str], rank: int) -> "Iterator[tuple[str, pa.Table]]":
    from profiling.readers.nvprof.text import Printed, read_printed
    from profiling.readers.printed_tables import atomics_table, intervals_table, kernels_table

    printed = Printed()
    launched = 0
    for launches in read_printed(path, printed):
        launched += len(launches)
        yield "kernels", kernels_table(launches, rank)
    if printed.activities:
        yield "intervals", intervals_table(printed.activities, rank)
    if printed.activities or printed.metrics:
        yield "atomics", atomics_table(printed.activities, printed.metrics, rank)
    found = list(printed.findings)
    if printed.nothing or not (launched or printed.activities or printed.metrics):
        found.append(f"{_NO_KERNEL}: {_WHY}")
    if len(printed.processes) > 1:
        found.append(f"{len(printed.processes)} processes wrote to it; their rows are not told apart")
    findings += [f"{path.name}: {finding}" for finding in found]
