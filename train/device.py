"""Where does a rank compute, and in how many threads?"""

import os

import torch

from jobs.gpus import NO_AMD, why_not_built_for
from jobs.loaders import LOADERS
from jobs.run import Run
from profiling.errors import UserError
from profiling.wording import how_many
from profiling.workers import cores
from train.world import World


def choose_device(run: Run, world: World) -> torch.device:
    """The device of a rank: the GPU of its local rank, or the CPU.

    Raises:
        UserError: the run wants a GPU and there is none for this rank.
    """
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
    if gpus == 1 and world.local_size > 1 and not _bound_to_one_gpu():
        raise UserError(f"local rank {world.local_rank} has no GPU: this node has {gpus}; use --device cpu")
    if index >= gpus:
        raise UserError(
            f"local rank {world.local_rank} of {world.local_size} sees {how_many(gpus, 'GPU')}: start fewer "
            "ranks, or have the launcher show each its own (srun --gpus-per-task=1) or all of them "
            "(--gpu-bind=none)"
        )
    name = torch.cuda.get_device_name(index)
    if why := why_not_built_for(torch.cuda.get_device_capability(index), torch.cuda.get_arch_list(), name):
        raise UserError(why)
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def set_kernels(run: Run, device: torch.device) -> None:
    """Have cuDNN choose its kernels as the run says; sizes are constant, so that it chooses once."""
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = run.cudnn_benchmark


def driven(run: Run, device: torch.device) -> list[torch.device]:
    """The devices that a rank drives, itself on ``device``: with backend dp all GPUs of the node."""
    if device.type == "cuda" and run.gpus_per_rank > 1:
        return [torch.device("cuda", number) for number in range(run.gpus_per_rank)]
    return [device]


def _bound_to_one_gpu() -> bool:
    """Whether the launcher gave this rank a GPU of its own."""
    return "," not in os.environ.get("CUDA_VISIBLE_DEVICES", ",")


def set_threads(run: Run, device: torch.device, world: World) -> None:
    """Give the arithmetic as many threads as the run says, else the rank's share of the node's cores."""
    if run.threads:
        torch.set_num_threads(run.threads)
    elif device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, cores() // world.local_size))
