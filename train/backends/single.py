"""Backends of one process: a single rank, and DataParallel over the GPUs of a node."""

import torch

from jobs.run import Run
from profiling.errors import UserError
from profiling.findings import Finding
from train.backends import Backend
from train.step import AUTOCAST
from train.world import World


class DataParallel(Backend):
    """torch.nn.DataParallel: one process copies the model to all GPUs of its node for each batch.

    The scheme that DDP replaced, kept to show what its broadcasts cost: before each batch the first GPU's
    parameters go to all, the batch is cut into a piece for each, and the gradients are added up on the first.
    On a CPU there are no devices to copy to: the model runs as it is, on the whole batch.
    """

    def __init__(self, run: Run, device: torch.device) -> None:
        self._autocast = AUTOCAST.get(run.compute)
        self._gpus = run.gpus_per_node if device.type == "cuda" else 0
        gpus = f"{self._gpus} GPU{'s' * (self._gpus > 1)}"
        self.description = f"dp/{gpus}" if self._gpus else "dp/no device"
        if self._gpus > (seen := torch.cuda.device_count()):
            raise UserError(
                f"backend dp is to drive {gpus}, and this process sees {seen}; "
                "the one rank of a node needs them all (CUDA_VISIBLE_DEVICES, --gpu-bind=none)"
            )
        if not self._gpus:
            data = {"option": "backend dp", "limit": "without devices"}
            self.findings = [Finding("option_limited", data=data)]

    def wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        if self._gpus and self._autocast:
            autocast_in_threads(model, "cuda", self._autocast)
        # It takes every GPU it sees for its own, also where the run is on the CPU.
        return torch.nn.DataParallel(model, device_ids=list(range(self._gpus))) if self._gpus else model


def autocast_in_threads(model: torch.nn.Module, device_type: str, kind: torch.dtype) -> None:
    """Have ``model`` compute in ``kind`` wherever autocast is on, also in threads other than the main one.

    Autocast's type is each thread's own. In those of its replicas DataParallel switches autocast on without
    naming one, which is fp16 on GPUs: "bf16" would be computed in fp16, and no loss be scaled.
    """
    model.register_forward_pre_hook(lambda *_: torch.set_autocast_dtype(device_type, kind))


def open_backend(run: Run, world: World, device: torch.device) -> Backend:
    """The backend of one process, or UserError."""
    return DataParallel(run, device) if run.backend == "dp" else Backend()
