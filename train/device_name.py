"""What is a device called in results?"""

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def device_name(device: "torch.device") -> str:
    """What results call a device: "cpu", or the GPU's name, with its memory where several boards share it.

    "NVIDIA H100" is what SXM5 boards of 64, 94 and 96 GB are called; that of 80 GB names its memory itself.
    """
    import torch

    if device.type != "cuda":
        return "cpu"
    name = torch.cuda.get_device_name(device)
    if name != "NVIDIA H100":
        return name
    # What ECC and the driver keep for themselves is not told: some hundred MB.
    return f"{name} {math.ceil(torch.cuda.get_device_properties(device).total_memory / 2**30)}GB"
