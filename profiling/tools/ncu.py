"""What did Nsight Compute print? Its metrics of each launch, as ``ncu --csv`` does: raw or details page."""

from pathlib import Path
from typing import ClassVar

from profiling.tools.base import Options
from profiling.tools.capture_range import BY_CUDA, VARIABLE, SwitchedOn

_METRICS = (
    "gpu__time_duration.sum", "dram__bytes_read.sum", "dram__bytes_write.sum", "launch__grid_dim_x",
    "launch__grid_dim_y", "launch__grid_dim_z", "launch__block_dim_x", "launch__block_dim_y",
    # The cycles too: Blackwell names instructions otherwise, and of what a GPU lacks ncu prints n/a.
    "launch__block_dim_z", "launch__device_id", "sm__inst_executed_pipe_tensor.sum",
    "sm__pipe_tensor_cycles_active.sum", "sm__warps_active.avg.pct_of_peak_sustained_active",
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


class Ncu(SwitchedOn):
    """Nsight Compute, around a rank."""

    program = "ncu"
    install = "the site's CUDA module, or NVIDIA Nsight Compute"
    gpu_only = True
    oldest_gpu = (7, 0)  # Volta
    wraps = True
    started = "Nsight Compute"
    reader = "profiling.readers.ncu"
    reads = "`--csv`: raw and details pages, summaries"
    modes: ClassVar = {
        "auto": "durations, memory traffic, FLOPs and tensor-core use of each kernel",
        "counters": "the same, plus instructions per cycle, load and store efficiency, and DRAM utilization",
        "basic": "the set of that name: speed of light, launch statistics, occupancy",
        "full": "all sections: each kernel runs dozens of times",
        "roofline": "the sections of the roofline charts",
    }
    one_rank_modes = frozenset(modes)

    def wrap(self, command: list[str], directory: Path, options: Options) -> list[str]:
        """The command under ncu; to record later batches the process switches it on."""
        words = ["ncu", "--target-processes", "all", "--nvtx", "--csv", "--page", "raw"]
        # By itself it sets the GPU's clock to its base: durations are then not those of training, who may not
        # set it gets nothing, and an ncu that is killed leaves it so.
        words += ["--clock-control", "none"]
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
