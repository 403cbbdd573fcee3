"""A program of a user's whose loop hides everything from PyTorch's hooks, and marks its stages itself.

It runs without scaleprof, too.
"""

import threading

import torch

try:
    from profiling.markers import backward, forward, load, step, update
except ImportError:
    from contextlib import nullcontext

    step = load = forward = backward = update = nullcontext()

torch.set_num_threads(1)
weight = torch.randn(16, 16, requires_grad=True)


def compute() -> None:
    """Forward and backward in a thread of its own, the update by hand."""
    thread = threading.Thread(target=lambda: (torch.randn(8, 16) @ weight).square().mean().backward())
    thread.start()
    thread.join()


for _ in range(10):
    with step:
        with load:
            sum(range(10_000))
        with forward:
            sum(range(50_000))
        with backward:
            compute()
        with update, torch.no_grad():
            weight -= 0.01 * weight.grad
            weight.grad = None
print("trained")
