"""The program of benchmarks.watch: a loop as PyTorch's users write it; by a flag, as TraceML wants it.

    python benchmarks/watch_loop.py CELL STEPS [--traceml]

It prints the processor time of each step, of its thread and of the whole process, after a warmup.
"""

import json
import sys
import time
from contextlib import nullcontext

import torch
from torch.utils.data import DataLoader, TensorDataset

WARM_UP = 10


class Block(torch.nn.Module):
    """Two convolutions with batch norm, and a way around them."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(channels, channels, 3, padding=1),
            torch.nn.BatchNorm2d(channels),
            torch.nn.ReLU(),
            torch.nn.Conv2d(channels, channels, 3, padding=1),
            torch.nn.BatchNorm2d(channels),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return torch.relu(images + self.body(images))


def resnet() -> torch.nn.Module:
    """A residual network of 16 blocks: as many modules as ResNet34 has."""
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), *[Block(16) for _ in range(16)], torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(), torch.nn.Linear(16, 10),
    )  # fmt: skip


# name -> the model, and the shape of a sample; "next to nothing" hides no cost.
CELLS = {
    "next-to-nothing": (lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(48, 10)), (3, 4, 4)),
    "residual": (resnet, (3, 32, 32)),
}


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    cell, steps = sys.argv[1], int(sys.argv[2])
    step_of = nullcontext
    if "--traceml" in sys.argv:
        import traceml_ai

        traceml_ai.init(mode="auto")
        step_of = traceml_ai.trace_step
    make, shape = CELLS[cell]
    count = (steps + WARM_UP) * 8
    loader = DataLoader(TensorDataset(torch.randn(count, *shape), torch.randint(0, 10, (count,))), 8)
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = torch.nn.CrossEntropyLoss()
    of_thread, of_process, times = [time.thread_time_ns()], [time.process_time_ns()], [time.perf_counter_ns()]
    for images, labels in loader:
        with step_of(model):
            optimizer.zero_grad()
            criterion(model(images), labels).backward()
            optimizer.step()
        of_thread.append(time.thread_time_ns())
        of_process.append(time.process_time_ns())
        times.append(time.perf_counter_ns())

    def steps_of(clock: list[int]) -> list[int]:
        return [b - a for a, b in zip(clock[WARM_UP:], clock[WARM_UP + 1 :], strict=False)]

    figures = {"thread": steps_of(of_thread), "process": steps_of(of_process), "wall": steps_of(times)}
    print("RESULT" + json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
