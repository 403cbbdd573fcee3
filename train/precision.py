"""In which precision is the arithmetic done?"""

from contextlib import AbstractContextManager, nullcontext

import torch

from jobs.run import Run
from profiling.errors import UserError

_AMPERE = (8, 0)
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """What the training loop needs for one compute precision.

    fp32: true fp32 on every device. tf32: fp32 tensors, multiplied in TensorFloat-32. bf16, fp16: autocast;
    fp16 scales the loss, since its gradients would underflow.

    Attributes:
        findings: what a reader of the results should know of it.
    """

    def __init__(self, run: Run, device: torch.device) -> None:
        self._type = AUTOCAST.get(run.compute)
        self._device = device.type
        if device.type == "cpu" and run.compute in ("tf32", "fp16"):
            raise UserError(f"compute {run.compute} needs a GPU; on a CPU use fp32 or bf16")
        allow_tf32 = run.compute == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = allow_tf32
        torch.backends.cudnn.allow_tf32 = allow_tf32
        self.findings = _slow_here(run.compute, device)
        self._scaler = torch.amp.GradScaler(device.type) if run.compute == "fp16" else None

    def forward(self) -> AbstractContextManager:
        """The context of the forward pass and the loss."""
        return torch.autocast(self._device, self._type) if self._type else nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        (self._scaler.scale(loss) if self._scaler else loss).backward()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._scaler is None:
            optimizer.step()
        else:
            self._scaler.step(optimizer)
            self._scaler.update()


def _slow_here(compute: str, device: torch.device) -> list[str]:
    """What a reader of the results should know: a GPU before Ampere has no units for TF32 and bf16."""
    if device.type != "cuda" or compute not in ("tf32", "bf16"):
        return []
    capability = torch.cuda.get_device_capability(device)
    if capability >= _AMPERE:
        return []
    how = "was done in fp32" if compute == "tf32" else "was emulated, without tensor cores"
    return [f"compute {compute} {how}: compute capability {capability[0]}.{capability[1]} has no unit for it"]
