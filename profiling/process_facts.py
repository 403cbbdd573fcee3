"""Facts about this process: its start time, memory, loaded libraries, and the stacks of its threads."""

import atexit
import faulthandler
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    import torch


def facts_of_process(devices: Iterable["torch.device"]) -> dict[str, Any]:
    """Facts of a rank's process at its end (:class:`jobs.store.RankReport`); of GPUs the largest."""
    import torch

    gpus = [device for device in devices if device.type == "cuda"]
    memory = [torch.cuda.get_device_properties(device).total_memory for device in gpus]
    versions: dict[str, str] = {"torch": str(torch.__version__)}
    if gpus:
        versions |= {"cuda": torch.version.cuda or "?", "cudnn": str(torch.backends.cudnn.version())}
        if torch.distributed.is_nccl_available():
            versions["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return {
        "hostname": socket.gethostname(),
        "threads": torch.get_num_threads(),
        "peak_memory_bytes": peak_memory_bytes(),
        "peak_device_memory_bytes": max(map(torch.cuda.max_memory_allocated, gpus), default=None),
        "peak_device_reserved_bytes": max(map(torch.cuda.max_memory_reserved, gpus), default=None),
        "device_memory_bytes": max(memory, default=None),
        "compute_capability": "{}.{}".format(*torch.cuda.get_device_capability(gpus[0])) if gpus else "",
        "device_used_bytes": max(map(device_used_bytes, gpus), default=None),
        "versions": versions,
    }


def peak_memory_bytes() -> int:
    """The most memory this process has held (resident set)."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB


def device_used_bytes(device: "torch.device") -> int:
    """The memory in use on a GPU, also that of DALI, NCCL and the context, which PyTorch does not count."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return total - free


def has_group() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return bool(distributed and distributed.is_available() and distributed.is_initialized())


def process_age_ns() -> int:
    """How long this process has lived, to a hundredth of a second."""
    try:
        # Field 22, in ticks since the machine started; psutil adds that start's date, in whole seconds.
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - ticks * (10**9 // os.sysconf("SC_CLK_TCK"))
    except (OSError, AttributeError):  # not Linux
        return int((time.time() - psutil.Process().create_time()) * 1e9)


def _dump_flight_recorder(stacks: Path) -> None:
    """Once the stacks are written, write PyTorch's last collectives (profiling/flight_recorder.py), too."""
    with suppress(FileNotFoundError):  # the rank has ended
        while not stacks.stat().st_size:
            time.sleep(0.5)
        c10d = sys.modules.get("torch._C._distributed_c10d")
        for name in ("fr", "nccl"):  # of Gloo, and of NCCL
            if dump := getattr(c10d, f"_dump_{name}_trace", None):
                (stacks.parent / f"{name}_trace.pickle").write_bytes(dump())


def write_stacks_at_signal(path: Path | None) -> None:
    """From now on SIGUSR1 (of jobs.processes, at a hang) writes all threads' stacks to ``path``."""
    faulthandler.enable()
    if sys.platform == "win32" or path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    # Open for as long as the process lives: in a process that hangs nothing can be opened any more.
    file = path.open("w")
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)
    if int(os.environ.get("TORCH_FR_BUFFER_SIZE") or 0):
        threading.Thread(target=_dump_flight_recorder, args=[path], daemon=True).start()

    def leave() -> None:
        faulthandler.unregister(signal.SIGUSR1)
        file.close()
        if path.exists() and not path.stat().st_size:
            path.unlink()

    atexit.register(leave)
