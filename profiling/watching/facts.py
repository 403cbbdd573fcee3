"""Facts about a watched rank's model and device."""

import gc
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from profiling.process_facts import has_group

if TYPE_CHECKING:
    import torch
    from torch.nn import Module

# How gradients are exchanged, by the class of the outermost module.
_WRAPPERS = {
    "DistributedDataParallel": "ddp",
    "DataParallel": "dp",
    "FullyShardedDataParallel": "fsdp",
    "FSDPModule": "fsdp2",
    "DeepSpeedEngine": "deepspeed",
}
# Classes that do not say which model it is: containers, and wrappers whose model is not found in them.
GENERIC = frozenset({"Module", "Sequential", "ModuleList", "ModuleDict", *_WRAPPERS})


@dataclass(frozen=True)
class ModelFacts:
    """What the outermost module says of itself."""

    name: str = ""  # its class; "": none was seen
    backend: str = ""  # how the ranks exchange gradients, and by which library: ``ddp/gloo``
    parameters: int = 0
    elements: dict[str, int] = field(default_factory=dict)  # of each trained parameter how many
    grad: str = ""  # the precision in which DDP exchanges gradients; "": not known
    device: "torch.device | None" = None  # of its parameters
    group_size: int = 1  # ranks in the program's process group

    @property
    def is_unwrapped(self) -> bool:
        """Whether there are other ranks, and nothing was seen by which they exchange gradients."""
        return self.group_size > 1 and "/" not in self.backend and self.backend != "horovod"

    @property
    def on_gpu(self) -> bool:
        return self.device is not None and self.device.type == "cuda"


def facts_of(model: "Module | None") -> ModelFacts:
    import torch

    if model is None:
        return ModelFacts(backend=_backend(None))
    parameters = list(model.named_parameters())
    return ModelFacts(
        name=_class_of(model),
        backend=_backend(model),
        parameters=sum(elements_of(one) for _, one in parameters),
        elements={name: elements_of(one) for name, one in parameters if one.requires_grad},
        grad=_precision_of_gradients(model),
        device=parameters[0][1].device if parameters else None,
        group_size=torch.distributed.get_world_size() if has_group() else 1,
    )


def elements_of(parameter: "torch.nn.Parameter") -> int:
    """How many elements a parameter has; 0 of a lazy module's, which has no shape before the first call."""
    import torch

    return 0 if torch.nn.parameter.is_lazy(parameter) else parameter.numel()


def _class_of(model: "Module") -> str:
    for wrapper in ("module", "_orig_mod"):
        inner = model._modules.get(wrapper)
        if inner is not None and len(model._modules) == 1:
            return _class_of(inner)
    of = type(model)
    names = [base.__name__ for base in of.__bases__]
    return names[-1] if "FSDPModule" in names else of.__name__


def _backend(model: "Module | None") -> str:
    import torch

    classes = [one.__name__ for one in type(model).__mro__]
    wrapper = next((backend for name, backend in _WRAPPERS.items() if name in classes), "")
    if not wrapper and "horovod.torch" in sys.modules:
        return "horovod"
    library = str(torch.distributed.get_backend()) if has_group() else ""
    return "/".join(filter(None, [wrapper, library])) or "single"


def _precision_of_gradients(model: "Module") -> str:
    """That of the parameters, if they have one and no hook of DDP changes it."""
    import torch

    if getattr(model, "_comm_hooks", None):
        return ""
    types = {one.dtype for one in model.parameters() if one.requires_grad}
    names = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
    return names.get(types.pop(), "") if len(types) == 1 else ""


def leave_group() -> None:
    """Leave the program's process group, unless a CUDA graph holds work of it: NCCL 2.26 waits for those."""
    import torch

    if has_group() and not any(issubclass(type(one), torch.cuda.CUDAGraph) for one in gc.get_objects()):
        torch.distributed.destroy_process_group()
