"""The program of benchmarks.watch: a loop as PyTorch's users write it; by a flag, as TraceML wants it.

    python benchmarks/watch_loop.py CELL STEPS OUT [--traceml]

It writes the processor time of each step, of its thread and of the whole process, after a warmup; and that of
a fixed piece of work after each step, by which the speed of a shared machine is known. Under valgrind both
are counted apart (benchmarks/counted.py).
"""

import json
import os
import sys
import time
from contextlib import nullcontext
from pathlib import Path

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


def mark() -> None:
    """As in benchmarks/counted.py, which a program like this one does not import."""
    os.getsid(0)


def fixed_work(values: torch.Tensor) -> None:
    """What takes as long in every loop: nobody hooks it."""
    with torch.no_grad():
        for _ in range(30):
            values = torch.add(values, values)


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
    values = torch.zeros(64)
    clocks = {"thread": time.thread_time_ns, "process": time.process_time_ns, "wall": time.perf_counter_ns}
    figures: dict[str, list[int]] = {name: [] for name in (*clocks, "work")}
    began = {name: clock() for name, clock in clocks.items()}
    for images, labels in loader:
        with step_of(model):
            optimizer.zero_grad()
            criterion(model(images), labels).backward()
            optimizer.step()
        for name, clock in clocks.items():
            figures[name].append(clock() - began[name])
        mark()
        work = time.thread_time_ns()
        fixed_work(values)
        figures["work"].append(time.thread_time_ns() - work)
        mark()
        began = {name: clock() for name, clock in clocks.items()}
    Path(sys.argv[3]).write_text(json.dumps({name: spent[WARM_UP:] for name, spent in figures.items()}))


if __name__ == "__main__":
    main()
