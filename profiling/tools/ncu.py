"""What did Nsight Compute print? Its metrics of each launch, as ``ncu --csv`` does: raw or details page."""

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from profiling.errors import UserError
from profiling.tools.base import UNKNOWN, Options, Origin
from profiling.tools.capture_range import BY_CUDA, VARIABLE, SwitchedOn

if TYPE_CHECKING:
    import pyarrow as pa


_METRICS = (
    "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum", "launch__grid_dim_x",
    "launch__grid_dim_y", "launch__grid_dim_z", "launch__block_dim_x", "launch__block_dim_y",
    "launch__block_dim_z", "launch__device_id", "sm__inst_executed_pipe_tensor.sum",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    *(f"smsp__sass_thread_inst_executed_op_{kind}{name}_pred_on.sum"
      for kind in "hfd" for name in ("add", "mul", "fma")),
)  # fmt: skip
# ipc, and by NVIDIA's table of nvprof's metrics and ncu's gld_efficiency, gst_efficiency, dram_utilization.
# Beside ipc it has smsp__inst_executed.avg.per_cycle_active, of one partition of a multiprocessor; nvprof's
# ipc is of the whole one, and so is sm__.
_COUNTERS = (
    "sm__inst_executed.avg.per_cycle_active",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
)
_LAUNCHES = 2000  # each is run again and again: all of a training would take days
_PRINTED = "ncu.csv"
_NEEDED = (b'"Process ID"', b'"Kernel Name"')
_PAGES = (b'"ID"', b'"Invocations"')  # raw and details; summaries


class Ncu(SwitchedOn):
    """Nsight Compute, around a rank."""

    program = "ncu"
    install = "the site's CUDA module, or NVIDIA Nsight Compute"
    gpu_only = True
    wraps = True
    started = "Nsight Compute"
    reads = "`--csv`: raw and details pages, summaries"
    modes: ClassVar = {
        "auto": "durations, memory traffic, FLOPs and tensor-core use of each kernel",
        "counters": "the same, and instructions a cycle, efficiency of loads and stores, use of DRAM",
        "basic": "the set of that name: speed of light, launch statistics, occupancy",
        "full": "all sections: kernels run dozens of times",
        "roofline": "the sections of the roofline charts",
    }

    def wrap(self, command: list[str], directory: Path, options: Options) -> list[str]:
        """The command under ncu; to record later batches the process switches it on."""
        words = ["ncu", "--target-processes", "all", "--nvtx", "--csv", "--page", "raw"]
        words += ["--log-file", str(directory / _PRINTED), "--launch-count", str(_LAUNCHES)]
        words += ["--kernel-name", f"regex:{options.kernels}"] if options.kernels else []
        words += ["--profile-from-start", "off"] if options.first_batch else []
        metrics = {"auto": _METRICS, "counters": (*_METRICS, *_COUNTERS)}.get(options.mode)
        chosen = ["--metrics", ",".join(metrics)] if metrics else ["--set", options.mode]
        return [*words, *chosen, *command]

    def environment(self, directory: Path, options: Options) -> dict[str, str]:
        """How the process switches ncu on."""
        return {VARIABLE: BY_CUDA} if options.first_batch else {}

    def outputs(self, directory: Path) -> list[Path]:
        """What :func:`wrap` makes ncu write."""
        return [directory / _PRINTED]

    def recognise(self, path: Path, head: bytes) -> bool:
        """Whether a text is Nsight Compute's CSV: its columns' names are in it."""
        return any(
            all(name in line for name in _NEEDED) and any(name in line for name in _PAGES)
            for line in head.removeprefix(codecs.BOM_UTF8).splitlines()
            if line.startswith((b'"ID"', b'"Process ID"'))
        )

    def stream(
        self, path: Path, findings: list[str], origin: Origin = UNKNOWN
    ) -> "Iterator[tuple[str, pa.Table]]":
        """Nsight Compute's CSV as pieces of tables: ``kernels``, and in ``atomics`` each kernel's metrics; of
        a summary ``intervals`` in place of ``kernels``.

        FLOPs are those of the counted scalar instructions, where they were counted and the kernel does not
        compute on tensor cores; bytes are those that reached the device's memory.
        """
        from profiling.readers.ncu_csv import Metrics, read_launches
        from profiling.readers.printed_tables import atomics_table, intervals_table, kernels_table

        rank = origin.rank_of(path) or 0
        metrics = Metrics()
        launched = 0
        for launches in read_launches(path, metrics):
            launched += len(launches)
            yield "kernels", kernels_table(launches, rank)
        spreads = metrics.all()
        if not launched and not metrics.activities and not spreads:
            raise UserError(f"{path} holds no launch: Nsight Compute profiled none, or the file is truncated")
        if metrics.activities:
            yield "intervals", intervals_table(metrics.activities, rank)
        if metrics.activities or spreads:
            yield "atomics", atomics_table(metrics.activities, spreads, rank)
        findings += [f"{path.name}: {finding}" for finding in metrics.findings()]
