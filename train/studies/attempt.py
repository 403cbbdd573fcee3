"""Try whether a network fits in a device's memory: one attempt of train.studies.capacity, in its own process.

    python -m train.studies.attempt TASK.json

The limit is enforced by the kernel on a CPU (RLIMIT_DATA: private writable memory), by PyTorch's allocator on
a GPU. Exit code 0: it fits; 1: it does not.
"""

import math
import re
import resource
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from statistics import median

import torch
from pydantic import BaseModel
from torch import distributed, nn

from jobs.store import write_record
from profiling.errors import EXIT_DONE, EXIT_FAILED
from profiling.schemas import SPLIT_STEP
from profiling.step_clock import open_clock
from train.device import is_out_of_memory
from train.studies import common

CHANNELS = 64
LEARNING_RATE = 1e-3
SAMPLE_S = 0.002  # between two looks at a process's memory
PEER_S = 600  # to wait for the other stage


class Task(BaseModel):
    """Train layers ``first`` to ``last`` (not included) of a network, as stage ``rank`` of ``stages``."""

    convolutions: int  # of the whole network, which come first
    first: int
    last: int
    batch: int
    image_size: int
    device: str
    limit_bytes: int  # 0: what the device has
    warmup: int
    repetitions: int
    threads: int
    seed: int
    answer: Path
    rank: int = 0
    stages: int = 1
    meeting: str = ""  # the file by which two stages find each other


class Attempt(BaseModel):
    """Result of a try; sizes in bytes, durations in ns."""

    fits: bool
    reason: str = ""
    limit: int = 0
    base: int = 0  # before the network is built: interpreter and libraries, or the GPU's context
    peak: int = 0  # with base
    held: int = 0  # beyond peak, by a GPU's caching allocator
    durations_ns: dict[str, list[int]] = {}

    @property
    def own_ns(self) -> float:
        """Computation of a stage, without waiting for the other."""
        passes = zip(self.durations_ns["forward"], self.durations_ns["backward"], strict=True)
        return median(map(sum, passes))


def main() -> int:
    task = Task.model_validate_json(Path(sys.argv[1]).read_bytes())
    common.prepare(task.threads, task.seed)
    device = torch.device(task.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    _warm(device)
    if task.stages > 1:
        _meet(task, device)
    attempt = Attempt(fits=False)
    attempt.base, attempt.limit = _limited(device, task.limit_bytes)
    if attempt.base < attempt.limit:
        try:
            with torch.device(device):
                network = build(task)
                data = torch.randn(task.batch, CHANNELS, task.image_size, task.image_size)
            step = _step(task, network, data)
            attempt.peak, attempt.held = _peak(device, attempt.base, lambda: common.repeat_once(step))
            clock = open_clock(device.type)
            timed = common.time_cases({"": step}, SPLIT_STEP, task.warmup, task.repetitions, clock)[""]
            attempt.durations_ns = {stage: durations.tolist() for stage, durations in timed.items()}
            attempt.fits = True
        except (RuntimeError, MemoryError, OSError) as error:
            if not is_out_of_memory(error):
                raise
            # In a line, without PyTorch's source file.
            reason = " ".join(str(error).split()) or type(error).__name__
            attempt.reason = re.sub(r"^\[enforce fail at [^]]*\] .*?\. (?=\w)", "", reason)[:160]
    if device.type == "cpu":  # memory for writing the answer
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    write_record(task.answer, attempt)
    return EXIT_DONE if attempt.fits else EXIT_FAILED


def _warm(device: torch.device) -> None:
    """Start threads, load libraries and make cuBLAS's handle, which do not count as the network's."""
    layers = nn.Sequential(nn.Conv2d(2, 2, 3), nn.Linear(6, 6), nn.Linear(6, 6)).to(device)
    layers(torch.ones(1, 2, 8, 8, device=device)).sum().backward()


def _meet(task: Task, device: torch.device) -> None:
    """Join the other stage; a message each way makes the connection and its buffers."""
    backend = "nccl" if device.type == "cuda" else "gloo"
    distributed.init_process_group(
        backend, init_method=f"file://{task.meeting}", rank=task.rank, world_size=task.stages,
        timeout=timedelta(seconds=PEER_S),
    )  # fmt: skip
    message = torch.zeros(1, device=device)
    for sender in range(task.stages):
        if task.rank == sender:
            distributed.send(message, 1 - sender)
        else:
            distributed.recv(message, sender)


def _limited(device: torch.device, limit: int) -> tuple[int, int]:
    """(bytes in use, of a GPU outside PyTorch's allocator; the limit, which is set)."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        free, total = torch.cuda.mem_get_info(device)
        base = total - free - torch.cuda.memory_reserved(device)
        limit = min(limit or total, total)
        if base < limit < total:
            torch.cuda.set_per_process_memory_fraction((limit - base) / total, device)
        return base, limit
    base = data_bytes()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
    if base < limit:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return base, limit


def data_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Private writable memory of this process, as RLIMIT_DATA counts it."""
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) * 1024


# --- the network --------------------------------------------------------------------------------------


def build(task: Task) -> nn.Sequential:
    """Layers ``first`` to ``last``: 3 x 3 convolutions, then linear layers over the width.

    Each keeps the shape of its input, and the variance: denormal numbers would slow down CPUs.
    """
    layers: list[nn.Module] = []
    for number in range(task.first, task.last):
        layer: nn.Conv2d | nn.Linear = (
            nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
            if number < task.convolutions
            else nn.Linear(task.image_size, task.image_size)
        )
        nn.init.normal_(layer.weight, std=1 / math.sqrt(layer.weight[0].numel()))
        layers.append(layer)
    return nn.Sequential(*layers)


def _step(task: Task, network: nn.Sequential, data: torch.Tensor) -> common.Stages:
    """The stages of a training step; the input is the batch, or what the other device sends."""
    first, last = task.rank == 0, task.rank == task.stages - 1

    def receive() -> torch.Tensor:
        network.zero_grad(set_to_none=True)
        data.requires_grad_(not first)
        if not first:
            distributed.recv(data.detach(), task.rank - 1)
            data.grad = None
        return data

    def forward(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        output = network(images)
        return output, output.square().mean() if last else output

    def exchange(outputs: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor | None, ...]:
        gradient = None
        if not last:
            distributed.send(outputs[0].detach(), task.rank + 1)
            gradient = torch.empty_like(outputs[0])
            distributed.recv(gradient, task.rank + 1)
        return *outputs, gradient

    def backward(exchanged: tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]) -> None:
        _, loss, gradient = exchanged
        loss.backward(gradient)
        # Plain SGD: torch.optim imports torch's compiler, 70 MB.
        with torch.no_grad():
            for parameter in network.parameters():
                assert parameter.grad is not None
                parameter.add_(parameter.grad, alpha=-LEARNING_RATE)

    def send(_: None) -> None:
        if not first:
            assert data.grad is not None
            distributed.send(data.grad, task.rank - 1)

    return receive, forward, exchange, backward, send


def _peak(device: torch.device, base: int, action: Callable[[], object]) -> tuple[int, int]:
    """(peak, held beyond it) of ``action``: sampled on a CPU, by the allocator on a GPU."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        action()
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_allocated(device)
        return base + peak, torch.cuda.max_memory_reserved(device) - peak
    peak, done = data_bytes(), threading.Event()

    def look() -> None:
        nonlocal peak
        while not done.wait(SAMPLE_S):
            with suppress(MemoryError, OSError):  # there may be no memory for it
                peak = max(peak, data_bytes())

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    try:
        action()
    finally:
        done.set()
        looker.join()
    return peak, 0


if __name__ == "__main__":
    sys.exit(main())
