"""The backends that exchange gradients, a line each in :data:`BACKENDS`; and what takes Horovod's place."""

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class BackendKind:
    """A backend, to all but the rank that opens it."""

    module: str  # holds ``open_backend`` (:mod:`train.backends`)
    meaning: str  # what it does, for the docs


BACKENDS: dict[str, BackendKind] = {
    "single": BackendKind("train.backends.single", "nothing is exchanged: one rank"),
    "ddp": BackendKind(
        "train.backends.ddp", "torch's DistributedDataParallel, over NCCL on GPUs and Gloo on CPUs"
    ),
    "horovod": BackendKind(
        "train.backends.horovod", "Horovod, over NCCL, MPI or Gloo (`make horovod` builds it)"
    ),
    "dp": BackendKind("train.backends.single", "torch.nn.DataParallel: one process for all GPUs of a node"),
}

NO_HOROVOD = "Horovod is not installed (make horovod builds it): using DDP instead"


def has_horovod() -> bool:
    """Whether Horovod is installed beside this Python."""
    return importlib.util.find_spec("horovod") is not None


def in_place_of_horovod(backends: Sequence[Any]) -> list[Any]:
    """``backends`` with DDP for Horovod, each once."""
    return list(dict.fromkeys("ddp" if backend == "horovod" else backend for backend in backends))
