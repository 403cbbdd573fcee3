"""Memory of a forward and a backward pass, and how a lack of it is recognised.

On a GPU the caching allocator says it; on a CPU the allocations are those that the PyTorch profiler records.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

# How a want of memory shows where it is no MemoryError or torch.OutOfMemoryError: PyTorch's allocator of the
# CPU, C++, the kernel (of a thread), oneDNN, Python (of a thread), cuBLAS and cuDNN.
_SAID = (
    "can't allocate memory", "defaultcpuallocator", "bad_alloc", "out of memory", "cannot allocate memory",
    "could not create a memory", "resource temporarily unavailable", "can't start new thread", "alloc_failed",
)  # fmt: skip


@dataclass(frozen=True)
class Memory:
    """Bytes beyond those of the input and the weights.

    Attributes:
        peak: the most at any time of both passes, gradients included.
        retained: what the forward pass leaves for the backward one, its output included.
    """

    peak: int
    retained: int


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was wanting."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError | OSError) and says_out_of_memory(str(error))


def says_out_of_memory(text: str) -> bool:
    """Whether what a process printed says that memory was wanting."""
    return any(phrase in text.lower() for phrase in _SAID)


def measure(
    device: torch.device, forward: Callable[[], torch.Tensor], backward: Callable[[torch.Tensor], object]
) -> Memory:
    """The memory of one forward and one backward pass, which free what they made."""
    if device.type == "cpu":
        outputs: list[torch.Tensor] = []
        retained = recorded(lambda: outputs.append(forward()))
        outputs.clear()
        both = recorded(lambda: backward(forward()))
        return Memory(int(both.max(initial=0)), int(retained[-1]) if len(retained) else 0)
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    output = forward()
    retained_bytes = torch.cuda.memory_allocated(device) - before
    backward(output)
    torch.cuda.synchronize(device)
    return Memory(torch.cuda.max_memory_allocated(device) - before, retained_bytes)


def recorded(action: Callable[[], object]) -> np.ndarray:
    """What ``action`` had allocated on the CPU, in bytes, after each allocation and release."""
    # Else it writes two lines to the terminal each time.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        action()
    results: Any = profiler.profiler
    events = [event for event in results.kineto_results.events() if event.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    return np.cumsum([event.nbytes() for event in events], dtype=np.int64)


def saved_bytes(forward: Callable[[], object], known: set[int]) -> int:
    """What autograd keeps of a forward pass, in bytes, each memory once.

    Args:
        known: addresses of memory that is there anyway (parameters).
    """
    storages: dict[int, torch.UntypedStorage] = {}  # storages stay alive, so that no address is used again

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages.setdefault(storage.data_ptr(), storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    del result
    return sum(storage.nbytes() for address, storage in storages.items() if address not in known)
