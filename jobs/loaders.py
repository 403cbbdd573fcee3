"""The loaders that there are, and what each needs: a line each in :data:`LOADERS`.

A rank opens a loader by its module, which imports torch; flags, checks, the doctor and the docs need these.
"""

from dataclasses import dataclass

from jobs.data_sets import MAKE_DATA
from profiling.errors import UserError


@dataclass(frozen=True)
class Library:
    """A package that loaders need and an installation may lack."""

    name: str
    module: str  # what is imported of it
    package: str  # what its version is asked of
    install: str  # how one gets it


@dataclass(frozen=True)
class LoaderKind:
    """A loader, to all but the rank that opens it."""

    module: str  # holds ``build_loader`` (:mod:`train.loaders`)
    meaning: str  # what it does, for the docs
    on_cpu: str = ""  # the loader to take where there is no GPU; "" where this one needs none
    reads_data: bool = True  # whether it reads the run's ``data``
    library: Library | None = None  # that it needs

    def check(self, name: str, gpu: bool, libraries: frozenset[str], data: str | None, node: str) -> None:
        """Refuse a run of this loader, called ``name``, on a machine."""
        if self.on_cpu and not gpu:
            raise UserError(f"loader {name} needs a GPU, and {node} has none; on a CPU use {self.on_cpu}")
        if self.library and self.library.module not in libraries:
            raise UserError(f"loader {name} needs {self.library.name}, not installed: {self.library.install}")
        if self.reads_data and data is None:
            raise UserError(f"loader {name} needs data: a folder of images or TFRecord files; {MAKE_DATA}")


DALI = Library("NVIDIA DALI", "nvidia.dali", "nvidia-dali-cuda130", "pip install nvidia-dali-cuda130")
_BYDALI = "train.loaders.dali"

LOADERS: dict[str, LoaderKind] = {
    "dali-gpu": LoaderKind(_BYDALI, "DALI; decodes and augments on the GPU", "dali-cpu", library=DALI),
    "dali-cpu-to-gpu": LoaderKind(
        _BYDALI, "DALI; decodes and augments on the CPU, copies whole batches", "dali-cpu", library=DALI
    ),
    "dali-cpu": LoaderKind(_BYDALI, "DALI; all on the CPU, PyTorch copies batches", library=DALI),
    "pytorch": LoaderKind("train.loaders.pytorch", "PyTorch's DataLoader with torchvision's transforms"),
    "synthetic": LoaderKind(
        "train.loaders.synthetic", "one random batch, repeated: the upper limit for all others",
        reads_data=False,
    ),
}  # fmt: skip
