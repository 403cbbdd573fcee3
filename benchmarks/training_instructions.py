"""python -m benchmarks.training_instructions: what a batch executes in our training loop and in a bare one.

On a shared machine the same batch takes 10 % more or less time from one second to the next, and a ratio of
1.01 drowns. What does not change with the neighbours is the number of instructions a loop executes: valgrind
counts them, in a process for each loop with few and with many batches, so that what starting takes cancels.
What instructions do not show (page faults, cache misses) the timings of benchmarks.training do.

    python -m benchmarks.training_instructions       (12 minutes of 2 cores; other work does no harm)
"""

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from benchmarks import training
from jobs.flags import make_parser
from jobs.run import make_run
from profiling.errors import EXIT_DONE, EXIT_FAILED, UserError, run_command
from train.device import choose_device
from train.loaders import build_loader
from train.models import build_model
from train.world import World

FEW, MANY = 1, 11  # batches
CELL = {"model": "resnet18", "loader": "synthetic", "batch": 2, "image_size": 64, "device": "cpu"}
LOOPS = ("ours", "bare")


def train(name: str, batches: int) -> None:
    """What is counted: so many batches by one loop."""
    torch.set_num_threads(1)
    run = make_run({**CELL, "workers": 1, "threads": 1, "learning_rate": 1e-3})
    device = choose_device(run, World())
    torch.manual_seed(0)
    model = build_model(run.model).to(device)
    if name == "ours":
        training.our_loop(run, device, model, build_loader(run, 0, 1, device))(batches)
    else:
        training.bare_loop(run, device, model, training.bare_batches(run, device))(batches)


def count(name: str, batches: int) -> int:
    """Instructions of a process that trains so."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", sys.executable, "-m"]
    # Python's hashes, and so its dictionaries, are the same in each process.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    try:
        done = subprocess.run(
            [*command, "benchmarks.training_instructions", "--loop", name, "--batches", str(batches)],
            env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise UserError("no valgrind here (apt-get install valgrind)") from None
    counted = re.search(r"Collected : (\d+)", done.stderr)
    if done.returncode or counted is None:
        raise UserError(f"valgrind did not count: {done.stderr[-300:]}")
    return int(counted[1])


def as_markdown(report: dict[str, Any]) -> str:
    """The report as a table for people."""
    facts = ", ".join(f"{name} {value}" for name, value in report["machine"].items())
    cell = ", ".join(f"{name} {value}" for name, value in report["cell"].items())
    lines = [
        "# Instructions a batch: our training loop against a bare PyTorch loop", "",
        f"{facts}; {cell}; from {MANY - FEW} batches. Bar: at most {training.BAR_RATIO:g}.", "",
        f"    {report['command']}", "", "| ours | bare | ratio |", "| ---: | ---: | ---: |",
        f"| {report['ours']:,.0f} | {report['bare']:,.0f} | {report['ratio']:.5f} |",
    ]  # fmt: skip
    return "\n".join(lines) + "\n"


def main() -> int:
    """The command; exit code 1 if the bar is missed."""
    parser = make_parser("python -m benchmarks.training_instructions", __doc__)
    parser.add_argument("--out", type=Path, default=training.RESULTS)
    parser.add_argument("--loop", choices=LOOPS, help="only train with it: what valgrind then counts")
    parser.add_argument("--batches", type=int, default=FEW)
    given = parser.parse_args()
    if given.loop:
        train(given.loop, given.batches)
        return EXIT_DONE
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = {
            (name, batches): pool.submit(count, name, batches) for batches in (MANY, FEW) for name in LOOPS
        }
    a_batch = {
        name: (counts[name, MANY].result() - counts[name, FEW].result()) / (MANY - FEW) for name in LOOPS
    }
    report: dict[str, Any] = {
        "command": "python -m benchmarks.training_instructions",
        "machine": training.machine(),
        "cell": CELL,
        **a_batch,
        "ratio": a_batch["ours"] / a_batch["bare"],
    }
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "training_instructions.json").write_text(json.dumps(report, indent=2) + "\n")
    (given.out / "training_instructions.md").write_text(as_markdown(report))
    print(as_markdown(report))
    return EXIT_FAILED if report["ratio"] > training.BAR_RATIO else EXIT_DONE


if __name__ == "__main__":
    run_command(main)
