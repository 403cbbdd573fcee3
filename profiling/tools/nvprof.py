"""What did nvprof write? Its SQLite databases, and what it prints: summaries, traces, metrics.

nvprof is part of CUDA up to 11.8. It traces GPUs up to compute capability 7.5, and reads metrics up to 7.2.
"""

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from profiling.tools.base import Options
from profiling.tools.capture_range import BY_CUDA, VARIABLE, SwitchedOn

if TYPE_CHECKING:
    pass


METRICS = (
    "achieved_occupancy", "ipc", "sm_efficiency", "gld_efficiency", "gst_efficiency", "dram_utilization",
    "dram_read_throughput", "dram_write_throughput", "flop_count_sp", "flop_count_hp",
)  # fmt: skip
_DATABASE, _PRINTED = "nvprof.sql", "nvprof.csv"


class Nvprof(SwitchedOn):
    """nvprof, around a rank."""

    program = "nvprof"
    install = "in CUDA up to 11.8, for GPUs up to compute capability 7.5; newer ones: nsys or cupti"
    gpu_only = True
    newest_gpu = (7, 5)
    wraps = True
    started = "`nvprof -o`, for GPUs up to compute capability 7.5 (metrics: 7.2)"
    reader = "profiling.readers.nvprof"
    reads = "SQLite databases, CSV and plain summaries, traces, metrics"
    forms = "databases, output as printed"
    modes: ClassVar = {
        "auto": "every kernel, copy and marker with its times, as a database",
        "trace": "the same",
        "timing": "only summaries of kernels and calls: the least overhead",
        "metrics": "occupancy, IPC, load and store efficiency, and memory use of each kernel (kernels are "
        "replayed)",
        "analysis-metrics": "all metrics that NVIDIA's Visual Profiler analyses (kernels run many times)",
    }
    one_rank_modes = frozenset({"metrics", "analysis-metrics"})

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


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")  # nvprof puts the process's number for %p, and so on
