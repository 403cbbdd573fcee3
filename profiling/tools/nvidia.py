"""Start a rank under NVIDIA's profilers: nvprof, Nsight Systems and Nsight Compute."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa

from profiling.findings import Finding
from profiling.markers import nvtx_emitter
from profiling.readers.files import NSYS_REPORT, UNKNOWN, Origin, read_head
from profiling.tools import Capture, Options, Profiler, Step, run_step

if TYPE_CHECKING:
    from torch.nn import Module

# Set by the command that starts the process under a profiler: by which of these it is switched on.
VARIABLE = "SCALEPROF_CAPTURE"
BY_RANGE, BY_CUDA = "nvtx", "cuda"
RANGE = "scaleprof capture"  # the profiler records while this range of NVTX is open


class RangeCapture(Capture):
    """Opens and closes the recording; the tables are made when the process has ended."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        by = environment.get(VARIABLE, "")
        self._running = False
        self._start: Callable[[], Any] | None = None
        self._stop: Callable[[], Any] | None = None
        self._is_asked = by != ""
        if by == BY_RANGE and (nvtx := nvtx_emitter(environment)) is not None:
            self._start, self._stop = partial(nvtx.push, RANGE), partial(nvtx.pop, RANGE)
        elif by == BY_CUDA:
            import torch

            if torch.cuda.is_available():
                self._start, self._stop = torch.cuda.profiler.start, torch.cuda.profiler.stop

    def start(self, model: "Module | None" = None, first_batch: int = 0) -> None:
        if self._start is not None and not self._running:
            self._running = True
            self._start()

    def stop(self) -> None:
        if self._stop is not None and self._running:
            self._running = False
            self._stop()

    def write(self) -> list[Finding]:
        """No table is written yet; a set-up in which nothing is recorded is a finding."""
        self.stop()
        return [Finding("recording_empty")] if self._is_asked and self._start is None else []


class SwitchedOn(Profiler):
    """A profiler around a rank that the rank itself switches on and off."""

    by: ClassVar[str] = BY_CUDA

    def open_capture(
        self, directory: Path, rank: int, keep_raw: bool, mode: str, all_threads: bool
    ) -> RangeCapture:
        return RangeCapture()

    def environment(self, directory: Path, options: Options) -> dict[str, str]:
        return {VARIABLE: self.by} if options.first_batch else {}


METRICS = (
    "achieved_occupancy", "ipc", "sm_efficiency", "gld_efficiency", "gst_efficiency", "dram_utilization",
    "dram_read_throughput", "dram_write_throughput", "flop_count_sp", "flop_count_hp",
)  # fmt: skip
_NVPROF_DATABASE, _NVPROF_PRINTED = "nvprof.sql", "nvprof.csv"


class Nvprof(SwitchedOn):
    program = "nvprof"
    install = "in CUDA up to 11.8, for GPUs up to compute capability 7.5; newer ones: nsys or cupti"
    gpu_only = True
    newest_gpu = (7, 5)
    wraps = True
    reader = "profiling.readers.nvprof"
    modes: ClassVar = {
        "auto": "every kernel, copy and marker with its times, as a database",
        "timing": "only summaries of kernels and calls: the least overhead",
        "metrics": "occupancy, IPC, load and store efficiency, and memory use of each kernel (kernels are "
        "replayed)",
        "analysis-metrics": "all metrics that NVIDIA's Visual Profiler analyses (kernels run many times)",
    }
    one_rank_modes = frozenset({"metrics", "analysis-metrics"})
    writes = (_NVPROF_DATABASE, _NVPROF_PRINTED)

    def wrap(self, command: list[str], directory: Path, options: Options) -> list[str]:
        words = ["nvprof", *(["--profile-from-start", "off"] if options.first_batch else [])]
        # nvprof's help promises regular expressions in four parts: context, stream, name, invocation.
        name = options.kernels.replace("(?:", "(").replace(":", ".")
        counted = ["--kernels", f"::{name}:"] if name else []
        printed = ["--csv", "--log-file", _escaped(directory / _NVPROF_PRINTED)]
        recorded = ["-f", "-o", _escaped(directory / _NVPROF_DATABASE)]
        how = {
            "timing": printed,
            "metrics": [*counted, "--metrics", options.metrics or ",".join(METRICS), *printed],
            "analysis-metrics": [*counted, "--analysis-metrics", *recorded],
        }
        return [*words, *how.get(options.mode, recorded), *command]


_REPORT, _STREAM, _EXPORT = "nsys.nsys-rep", "nsys.qdstrm", "nsys.sqlite"


class Nsys(SwitchedOn):
    program = "nsys"
    install = "the site's CUDA module, or NVIDIA Nsight Systems"
    wraps = True
    reader = "profiling.readers.nsys"
    modes: ClassVar = {"auto": "kernels, copies, ranges of NVTX and MPI, and operating-system calls"}
    writes = (_EXPORT,)
    by = BY_RANGE

    def wrap(self, command: list[str], directory: Path, options: Options) -> list[str]:
        words = ["nsys", "profile", "--trace=cuda,nvtx,osrt,mpi", "--sample=none", "--cpuctxsw=none"]
        # By itself it records a CUDA graph as a whole, without the kernels and collectives in it.
        words += ["--cuda-graph-trace=node"]
        words += ["--force-overwrite=true", "--output", _escaped(directory / "nsys")]
        if options.first_batch:
            words += ["--capture-range=nvtx", f"--nvtx-capture={RANGE}"]
            words += ["--capture-range-end=stop", "--kill=none"]
        return [*words, *command]

    def environment(self, directory: Path, options: Options) -> dict[str, str]:
        by_range = super().environment(directory, options)  # whose text need not be registered
        return by_range and {**by_range, "NSYS_NVTX_PROFILER_REGISTER_ONLY": "0"}

    def finish(self, directory: Path, options: Options) -> list[Step]:
        """Import what nsys recorded, where it does not do that itself, and export it."""
        stream, report = directory / _STREAM, directory / _REPORT
        importing = Step([_importer(), "-i", str(stream), "-o", str(report)], stream, report)
        return [importing, _export(report, directory / _EXPORT)]

    def stream(
        self, path: Path, findings: list[Finding], origin: Origin = UNKNOWN
    ) -> Iterator[tuple[str, pa.Table]]:
        if read_head(path, len(NSYS_REPORT)) != NSYS_REPORT:
            yield from super().stream(path, findings, origin)
            return
        with tempfile.TemporaryDirectory() as folder:
            export = Path(folder) / path.with_suffix(".sqlite").name
            run_step(_export(path, export), "nsys")
            yield from super().stream(export, findings, origin)


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")  # nsys puts the host's name for %h, nvprof a number for %p


def _importer() -> str:
    """The program that makes a report of a stream, beside one of the folders that the links to nsys pass."""
    nsys = shutil.which("nsys")
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


_NCU_METRICS = (
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
_NCU_COUNTERS = (
    "sm__inst_executed.avg.per_cycle_active",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_ld.pct",
    "smsp__sass_average_data_bytes_per_sector_mem_global_op_st.pct",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
)
_NCU_LAUNCHES = 2000  # each is run again and again: all of a training would take days
_NCU_PRINTED = "ncu.csv"


class Ncu(SwitchedOn):
    program = "ncu"
    install = "the site's CUDA module, or NVIDIA Nsight Compute"
    gpu_only = True
    oldest_gpu = (7, 0)  # Volta
    wraps = True
    reader = "profiling.readers.ncu"
    modes: ClassVar = {
        "auto": "durations, memory traffic, FLOPs and tensor-core use of each kernel",
        "counters": "the same, plus instructions per cycle, load and store efficiency, and DRAM utilization",
        "basic": "the set of that name: speed of light, launch statistics, occupancy",
        "full": "all sections: each kernel runs dozens of times",
        "roofline": "the sections of the roofline charts",
    }
    one_rank_modes = frozenset(modes)
    writes = (_NCU_PRINTED,)

    def wrap(self, command: list[str], directory: Path, options: Options) -> list[str]:
        words = ["ncu", "--target-processes", "all", "--nvtx", "--csv", "--page", "raw"]
        # By itself it sets the GPU's clock to its base: durations are then not those of training, who may not
        # set it gets nothing, and an ncu that is killed leaves it so.
        words += ["--clock-control", "none"]
        words += ["--log-file", str(directory / _NCU_PRINTED), "--launch-count", str(_NCU_LAUNCHES)]
        words += ["--kernel-name", f"regex:{options.kernels}"] if options.kernels else []
        words += ["--profile-from-start", "off"] if options.first_batch else []
        metrics = {"auto": _NCU_METRICS, "counters": (*_NCU_METRICS, *_NCU_COUNTERS)}.get(options.mode, ())
        wanted = ",".join(filter(None, [*metrics, options.metrics]))
        words += [] if metrics else ["--set", options.mode]
        words += ["--metrics", wanted] if wanted else []
        return [*words, *command]
