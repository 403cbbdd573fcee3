"""A rank's device: its name, its threads, and the CPU cores and network cards near it.

/sys lists the cores near a PCI device (local_cpulist) and its place in the tree of bridges. Where it does not
(virtual machines, macOS), or all are equally near, nothing is bound. NCCL finds the nearest card itself; for
UCX it is set here.
"""

import math
import os
from collections.abc import Iterable, MutableMapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from jobs.machine import NO_AMD, check_built_for
from jobs.run import LOADERS, Run
from profiling.errors import UserError
from profiling.findings import ranges
from profiling.process import cores
from train.world import World

SYS = Path("/sys")
UCX_CARDS = "UCX_NET_DEVICES"
# A lack of memory in the words of PyTorch's CPU allocator, C++, the kernel, oneDNN, Python, cuBLAS and cuDNN.
_OUT_OF_MEMORY = (
    "can't allocate memory", "defaultcpuallocator", "bad_alloc", "out of memory", "cannot allocate memory",
    "could not create a memory", "resource temporarily unavailable", "can't start new thread", "alloc_failed",
)  # fmt: skip


def choose_device(run: Run, world: World) -> torch.device:
    """The device of a rank: the GPU of its local rank, or the CPU; UserError if there is none of its kind."""
    gpus = torch.cuda.device_count() if run.device != "cpu" and torch.cuda.is_available() else 0
    if gpus and torch.version.hip:
        raise UserError(NO_AMD)
    if gpus == 0:
        instead = LOADERS[run.loader].on_cpu
        if instead:
            raise UserError(f"loader {run.loader} needs a GPU, and torch sees none here; use {instead}")
        if run.device == "gpu":
            raise UserError("device gpu needs a GPU, and torch sees none here; use --device cpu")
        if run.graph:
            raise UserError("graph true needs a GPU, and torch sees none here; use --graph=false")
        return torch.device("cpu")
    # Under Slurm or MPI with one GPU bound to each rank, every rank sees its own as number 0.
    index = world.local_rank if gpus > 1 or world.local_size == 1 else 0
    # The launcher may have given this rank a GPU of its own.
    bound = "," not in os.environ.get("CUDA_VISIBLE_DEVICES", ",")
    if gpus == 1 and world.local_size > 1 and not bound:
        raise UserError(f"local rank {world.local_rank} has no GPU: this node has {gpus}; use --device cpu")
    if index >= gpus:
        raise UserError(
            f"local rank {world.local_rank} of {world.local_size} sees {gpus} GPUs: start fewer "
            "ranks, or have the launcher show each its own (srun --gpus-per-task=1) or all of them "
            "(--gpu-bind=none)"
        )
    name = torch.cuda.get_device_name(index)
    check_built_for(torch.cuda.get_device_capability(index), torch.cuda.get_arch_list(), name)
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def set_kernels(run: Run, device: torch.device) -> None:
    """Have cuDNN choose its kernels as the run says."""
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = run.cudnn_benchmark


def driven(run: Run, device: torch.device) -> list[torch.device]:
    """The devices that a rank drives, itself on ``device``: with backend dp all GPUs of the node."""
    if device.type == "cuda" and run.gpus_per_rank > 1:
        return [torch.device("cuda", number) for number in range(run.gpus_per_rank)]
    return [device]


def set_threads(run: Run, device: torch.device, world: World) -> None:
    """Give the arithmetic as many threads as the run says, else the rank's share of the node's cores."""
    if run.threads:
        torch.set_num_threads(run.threads)
    elif device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, cores() // world.local_size))


def device_name(device: torch.device) -> str:
    """A device's name in results: "cpu", or the GPU's; of "NVIDIA H100" (64, 94 or 96 GB) with its memory."""
    if device.type != "cuda":
        return "cpu"
    name = torch.cuda.get_device_name(device)
    if name != "NVIDIA H100":
        return name
    # Rounded up: ECC and the driver keep some hundred MB.
    return f"{name} {math.ceil(torch.cuda.get_device_properties(device).total_memory / 2**30)}GB"


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error reports a lack of memory."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and says_out_of_memory(str(error))


def says_out_of_memory(text: str) -> bool:
    """Whether what a process printed reports a lack of memory."""
    return any(phrase in text.lower() for phrase in _OUT_OF_MEMORY)


# --- what is near --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """What a rank is bound to; empty: nothing, since nothing is nearer than the rest."""

    cpus: str = ""  # as the kernel lists them, e.g. "0-15,32-47"
    cards: tuple[str, ...] = ()  # InfiniBand devices, e.g. ("mlx5_0",)


def bind_near(device: torch.device, environment: MutableMapping[str, str], sys: Path = SYS) -> Place:
    """Bind this process, and ``UCX_NET_DEVICES`` in ``environment``, to what is nearest to its GPU.

    Must come before threads and connections are made.
    """
    address = pci_address(device)
    if not address:
        return Place()
    allowed = os.sched_getaffinity(0)
    cpus = near_cpus(address, allowed, sys)
    if cpus:
        os.sched_setaffinity(0, cpus)
    ports = environment.get(UCX_CARDS, "").split(",")
    near = near_cards(address, [port.partition(":")[0] for port in ports], sys)
    if near:
        environment[UCX_CARDS] = ",".join(port for port in ports if port.partition(":")[0] in near)
    return Place(",".join(ranges(cpus)), near)


def near_cpus(address: str, allowed: Iterable[int], sys: Path = SYS) -> set[int]:
    """Of the processors that a process may use, those near a PCI device; empty if that binds to nothing."""
    allowed = set(allowed)
    try:
        text = (sys / "bus/pci/devices" / address / "local_cpulist").read_text()
        near = allowed & from_list(text)
    except (OSError, ValueError):
        return set()
    return near if near < allowed else set()


def near_cards(address: str, cards: Sequence[str], sys: Path = SYS) -> tuple[str, ...]:
    """Of InfiniBand devices, those with most bridges in common with a PCI device; empty if all are."""
    gpu = _bridges(sys / "bus/pci/devices" / address)
    shared = {}
    for card in cards:
        bridges = _bridges(sys / "class/infiniband" / card / "device")
        if not gpu or not bridges:
            return ()
        shared[card] = len(Path(os.path.commonpath([gpu, bridges])).parts)
    most = max(shared.values(), default=0)
    near = tuple(card for card in cards if shared[card] == most)
    return near if len(near) < len(cards) else ()


def _bridges(device: Path) -> Path | None:
    """The way to a PCI device, from the root complex down: its real path's parent below /sys/devices."""
    return device.resolve().parent if device.exists() else None


def pci_address(device: torch.device) -> str:
    """A GPU's address as the kernel writes it, "0000:65:00.0"; "" if PyTorch does not say."""
    if device.type != "cuda" or not hasattr(os, "sched_getaffinity"):
        return ""
    properties = torch.cuda.get_device_properties(device)
    names = ("pci_domain_id", "pci_bus_id", "pci_device_id")
    if not all(hasattr(properties, name) for name in names):  # before PyTorch 2.8
        return ""
    return "{:04x}:{:02x}:{:02x}.0".format(*(int(getattr(properties, name)) for name in names))


def from_list(text: str) -> set[int]:
    """The numbers of a kernel's list, or ValueError: "0-2,8" -> {0, 1, 2, 8}."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        low, _, high = part.partition("-")
        numbers |= set(range(int(low), int(high or low) + 1))
    return numbers
