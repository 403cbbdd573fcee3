"""python -m benchmarks.training_instructions: what does the host execute per step, in ours and a bare loop?

On a shared machine the same step takes 10 % more or less time from one second to the next, and a ratio of
1.01 drowns. What does not change with the neighbours is the number of instructions: valgrind counts them from
each instant of a step to the next, so that each stage has its own. What instructions do not show (page
faults, cache misses) the timings of benchmarks.training do.

    python -m benchmarks.training_instructions        (5 minutes of 2 cores; other work does no harm)

On a CPU nearly all of it is arithmetic. What Python and PyTorch's dispatch cost the host of a GPU is counted
on stand-ins for NVIDIA's libraries, whose kernels do nothing; a real driver's instructions come on top:

    tests/gpu/fake/fake_gpu.sh run .venv-gpu-fake -m benchmarks.training_instructions
"""

import os
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks import training
from benchmarks.child import RESULTS, facts, write
from benchmarks.counted import between_marks, mark
from jobs.run import make_run
from jobs.run_fields import make_parser
from profiling.clocks import open_clock
from profiling.errors import EXIT_DONE, EXIT_FAILED, run_command
from train import loop
from train.device import choose_device, set_kernels
from train.loaders import build_loader
from train.rank import bare_model
from train.world import World

STEPS, WARM_UP = 8, 3
ON_CPU = {"model": "resnet18", "loader": "synthetic", "batch": 2, "image_size": 64, "device": "cpu"}
ON_GPU = {"model": "resnet50", "loader": "synthetic", "batch": 8, "image_size": 224, "compute": "bf16",
          "channels_last": True, "device": "gpu"}  # fmt: skip
LOOPS = ("ours", "bare")
STAGES = ("load", "forward", "backward", "update", "end")


def train(name: str, cell: dict[str, Any]) -> None:
    """What is counted: our loop marks each instant of a step, the bare one the end of each step."""
    torch.set_num_threads(1)
    run = make_run({**cell, "workers": 1, "threads": 1, "learning_rate": 1e-3})
    device = choose_device(run, World())
    set_kernels(run, device)
    torch.manual_seed(0)
    model = bare_model(run, device)
    if name == "ours":
        batches = build_loader(run, 0, 1, device)
        ours = training.our_loop(
            run, device, model, batches, lambda kind: training.ObservedClock(open_clock(kind), mark)
        )
        ours(STEPS)
        return
    bare = training.bare_loop(run, device, model, training.bare_batches(run, device))
    mark()
    for _ in range(STEPS):
        bare(1)
        mark()


def count(name: str) -> list[int]:
    """Instructions from each mark to the next, of a process that trains so."""
    return between_marks([sys.executable, "-m", "benchmarks.training_instructions", "--loop", name])


def of_stages(counted: list[int]) -> dict[str, float]:
    """Median instructions of each stage, and of what lies between two steps, from those between instants.

    Args:
        counted: of all steps, from the first instant of the first to the last of the last.
    """
    rows = [counted[first : first + loop.INSTANTS] for first in range(0, len(counted), loop.INSTANTS)]
    columns = zip(*rows[WARM_UP:-1], strict=True)  # after the last step there is no next
    return {
        name: statistics.median(column)
        for name, column in zip((*STAGES, "between steps"), columns, strict=True)
    }


def as_markdown(report: dict[str, Any]) -> str:
    """The report as tables for people."""
    cell = ", ".join(f"{name} {value}" for name, value in report["cell"].items())
    lines = [
        "# Instructions per step on the host: our training loop and a bare PyTorch loop", "",
        f"{facts(report['machine'])}; {cell}; medians of {STEPS - WARM_UP - 1} steps. Bar: at most "
        f"{training.BAR_RATIO:g}.", "",
        f"    {report['command']}", "", "| ours | bare | ratio |", "| ---: | ---: | ---: |",
        f"| {report['ours']:,.0f} | {report['bare']:,.0f} | {report['ratio']:.5f} |", "",
        "| stage of ours | instructions | share |", "| --- | ---: | ---: |",
        *(
            f"| {name} | {value:,.0f} | {value / report['ours']:.2%} |"
            for name, value in report["stages"].items()
        ),
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command; exit code 1 if the bar is missed."""
    parser = make_parser("python -m benchmarks.training_instructions", __doc__)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--loop", choices=LOOPS, help="only train with it: what valgrind then counts")
    given = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    cell = ON_GPU if on_gpu else ON_CPU
    if given.loop:
        train(given.loop, cell)
        return EXIT_DONE
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        ours, bare = pool.map(count, LOOPS)
    stages = of_stages(ours)
    report: dict[str, Any] = {
        "command": "tests/gpu/fake/fake_gpu.sh run .venv-gpu-fake -m benchmarks.training_instructions"
        if on_gpu
        else "python -m benchmarks.training_instructions",
        "machine": training.machine(),
        "cell": cell,
        "ours": sum(stages.values()),
        "bare": statistics.median(bare[WARM_UP:]),
        "stages": stages,
    }
    report["ratio"] = report["ours"] / report["bare"]
    name = "training_instructions_gpu" if on_gpu else "training_instructions"
    write(name, report, as_markdown(report), given.out)
    return EXIT_FAILED if report["ratio"] > training.BAR_RATIO else EXIT_DONE


if __name__ == "__main__":
    run_command(main)
