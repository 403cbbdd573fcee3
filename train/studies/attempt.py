"""Does a network, or one stage of it, train within a device's memory? One try in a process of its own.

    python -m train.studies.attempt TASK.json          (started by train.studies.capacity)

The answer is written to the file that the task names. On a CPU the kernel enforces the limit (RLIMIT_DATA:
all private writable memory), on a GPU its size does, or PyTorch's allocator. Exit code 0: it fits; 1: it does
not.
"""

import json
import math
import re
import resource
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel
from torch import distributed, nn

from jobs.store import write_record
from profiling.errors import EXIT_DONE, EXIT_FAILED
from train.studies import common, memory

CHANNELS = 64
LEARNING_RATE = 1e-3
SAMPLE_S = 0.002  # between two looks at a process's memory
PEER_S = 600  # to wait for the other stage
# Of a step; the first stage waits in its exchange, the second when it receives.
STAGES = ("receive", "forward", "exchange", "backward", "send")
OWN = ("forward", "backward")


class Task(BaseModel):
    """What a try is to do: train layers ``first`` to ``last`` (not included) of a network.

    Attributes:
        stages: over how many devices the network is laid, of which this process is number ``rank``.
        limit_bytes: of the device; 0: what it has.
    """

    convolutions: int
    linears: int
    first: int
    last: int
    batch: int
    image_size: int
    device: str
    limit_bytes: int
    warmup: int
    repetitions: int
    threads: int
    seed: int
    answer: Path
    rank: int = 0
    stages: int = 1
    meeting: str = ""  # the file by which two stages find each other


class Attempt(BaseModel):
    """How a try went; sizes in bytes, durations in ns.

    Attributes:
        base: taken before the network is built (interpreter and libraries, or the GPU's context).
        peak: the most in use at any time, with ``base``.
        held: beyond ``peak``, by a GPU's caching allocator.
        too_small: the limit does not even hold ``base``.
    """

    fits: bool
    reason: str = ""
    limit: int = 0
    base: int = 0
    peak: int = 0
    held: int = 0
    too_small: bool = False
    durations_ns: dict[str, list[int]] = {}


def main() -> int:
    task = Task.model_validate(json.loads(Path(sys.argv[1]).read_bytes()))
    torch.manual_seed(task.seed)
    if task.threads:
        torch.set_num_threads(task.threads)
    device = torch.device(task.device)
    _warm(device)
    if task.stages > 1:
        backend = "nccl" if device.type == "cuda" else "gloo"
        distributed.init_process_group(
            backend, init_method=f"file://{task.meeting}", rank=task.rank, world_size=task.stages,
            timeout=timedelta(seconds=PEER_S),
        )  # fmt: skip
    attempt = Attempt(fits=False)
    attempt.base, attempt.limit = _limited(device, task.limit_bytes)
    if attempt.base >= attempt.limit:
        attempt.too_small = True
    else:
        try:
            _try(task, device, attempt)
            attempt.fits = True
        except (RuntimeError, MemoryError, OSError) as error:
            if not memory.is_out_of_memory(error):
                raise
            attempt.reason = reason_of(error)
    # What is left is not enough to write an answer with: the limit has done its work.
    if device.type == "cpu":
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    write_record(task.answer, attempt)
    return EXIT_DONE if attempt.fits else EXIT_FAILED


def reason_of(error: BaseException) -> str:
    """What an error says, in a line, without where in PyTorch's source it was raised."""
    said = " ".join(str(error).split()) or type(error).__name__
    return re.sub(r"^\[enforce fail at [^]]*\] .*?\. (?=\w)", "", said)[:160]


def _warm(device: torch.device) -> None:
    """Have threads started and libraries loaded, which are not the network's."""
    layer = nn.Conv2d(2, 2, 3).to(device)
    layer(torch.ones(1, 2, 8, 8, device=device)).sum().backward()


def _limited(device: torch.device, limit: int) -> tuple[int, int]:
    """(bytes taken already, the limit, now in force)."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
        free, total = torch.cuda.mem_get_info(device)
        if limit:
            torch.cuda.set_per_process_memory_fraction(min(1.0, limit / total), device)
            return torch.cuda.memory_allocated(device), limit
        return total - free, total
    base = data_bytes()
    if base < limit:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    return base, limit


def data_bytes(status: Path = Path("/proc/self/status")) -> int:
    """Private writable memory of this process, as RLIMIT_DATA counts it."""
    (line,) = (line for line in status.read_text().splitlines() if line.startswith("VmData:"))
    return int(line.split()[1]) * 1024


# --- the network --------------------------------------------------------------------------------------


def build(task: Task) -> nn.Sequential:
    """Layers ``first`` to ``last`` of so many convolutions, then so many linear layers.

    Each keeps the shape of its input: convolutions of 3 x 3 over 64 channels, linear layers over the width.
    Weights keep the variance, so that no depth ends in denormal numbers, which CPUs are slow with.
    """
    layers: list[nn.Module] = []
    for number in range(task.first, task.last):
        if number < task.convolutions:
            layer: Any = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        else:
            layer = nn.Linear(task.image_size, task.image_size)
        nn.init.normal_(layer.weight, std=1 / math.sqrt(layer.weight[0].numel()))
        layers.append(layer)
    return nn.Sequential(*layers)


def _try(task: Task, device: torch.device, attempt: Attempt) -> None:
    with torch.device(device):
        network = build(task)
        data = torch.randn(task.batch, CHANNELS, task.image_size, task.image_size)
    step = _step(task, network, data)
    attempt.peak, attempt.held = _peak(device, attempt.base, lambda: step(lambda: None))
    clock = common.clock_of(device)
    timed = common.time_cases({"": step}, STAGES, task.warmup, task.repetitions, clock)[""]
    attempt.durations_ns = {stage: [int(ns) for ns in durations] for stage, durations in timed.items()}


def _step(task: Task, network: nn.Sequential, data: torch.Tensor) -> common.Action:
    """One training step of a stage; its input is the batch, or what the stage before it sends."""
    first, last = task.rank == 0, task.rank == task.stages - 1

    def step(tick: common.Tick) -> None:
        network.zero_grad(set_to_none=True)
        given = data.requires_grad_(not first)
        if not first:
            distributed.recv(data.detach(), task.rank - 1)
            data.grad = None
        tick()
        output = network(given)
        loss = output.square().mean() if last else output
        tick()
        gradient = None
        if not last:
            distributed.send(output.detach(), task.rank + 1)
            gradient = torch.empty_like(output)
            distributed.recv(gradient, task.rank + 1)
        tick()
        loss.backward(gradient)
        _update(network)
        tick()
        if not first:
            assert data.grad is not None
            distributed.send(data.grad, task.rank - 1)
        tick()

    return step


def _update(network: nn.Sequential) -> None:
    """Plain SGD; torch.optim would first import torch's compiler, 70 MB that are not the network's."""
    with torch.no_grad():
        for parameter in network.parameters():
            assert parameter.grad is not None
            parameter.add_(parameter.grad, alpha=-LEARNING_RATE)


def _peak(device: torch.device, base: int, action: Callable[[], object]) -> tuple[int, int]:
    """(peak, held beyond it) of ``action``: of a CPU sampled, of a GPU as its allocator counted it."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        action()
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_allocated(device)
        return base + peak, torch.cuda.max_memory_reserved(device) - peak
    seen, done = [data_bytes()], threading.Event()

    def look() -> None:
        while not done.wait(SAMPLE_S):
            seen.append(data_bytes())

    looker = threading.Thread(target=look, daemon=True)
    looker.start()
    try:
        action()
    finally:
        done.set()
        looker.join()
    return max(seen), 0


if __name__ == "__main__":
    sys.exit(main())
