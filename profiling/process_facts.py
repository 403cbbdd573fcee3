"""What does a process know of itself: since when it runs, the memory it took, the libraries it uses?"""

import os
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    import torch


def peak_memory_bytes() -> int:
    """The most memory this process has held (resident set)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB


def device_used_bytes(device: "torch.device") -> int:
    """What of a GPU's memory is in use, by the device's own count.

    PyTorch's allocator counts its own alone: neither DALI's and NCCL's memory nor the context, 2 to 5 GB.
    """
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return total - free


def torch_versions(on_gpu: bool) -> dict[str, str]:
    """The releases of PyTorch and of the libraries that it uses on a GPU."""
    import torch

    versions: dict[str, str] = {"torch": str(torch.__version__)}
    if on_gpu:
        versions |= {"cuda": torch.version.cuda or "?", "cudnn": str(torch.backends.cudnn.version())}
        if torch.distributed.is_nccl_available():
            versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return versions


def process_age_ns() -> int:
    """How long this process has lived, to a hundredth of a second."""
    try:
        # Field 22, in ticks since the machine started; psutil adds that start's date, in whole seconds.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * (10**9 // os.sysconf("SC_CLK_TCK"))
    except (OSError, AttributeError):  # not Linux
        return int((time.time() - psutil.Process().create_time()) * 1e9)
