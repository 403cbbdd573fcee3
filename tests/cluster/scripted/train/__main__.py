"""A rank that leaves what a rank leaves, as slowly as it is told, and does what MISBEHAVE tells it.

It imports nothing of the project's, so that many of them start fast; its batches it copies from $TEMPLATES
(tests/cluster/virtual.py).

With WAIT_FOR it begins once that file is there. With MEET it meets the other ranks first, and at the end all
tell each other their parameters (meeting.py).

MISBEHAVE is "DEED NODES RANK [FILE]": that rank, in runs on so many nodes, does it in the middle of its
batches, "stay-away" at its start; with a file only as long as that is not there (and makes it).
"""

import faulthandler
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

BATCH_S = float(os.environ.get("BATCH_S", "0.05"))


def flag(name: str, default: str) -> str:
    """A flag's value, of its one word ``--name=value``; those at their default are not given."""
    values = [word.partition("=")[2] for word in sys.argv if word.startswith(f"{name}=")]
    return values[-1] if values else default


def misbehave(nodes: int, rank: int, starting: bool = False) -> None:
    deed, on_nodes, who, *once = (os.environ.get("MISBEHAVE") or "nothing 0 0").split()
    if (nodes, rank) != (int(on_nodes), int(who)) or starting is not (deed == "stay-away"):
        return
    if once:
        if Path(once[0]).exists():
            return
        Path(once[0]).touch()
    if deed == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if deed in ("hang", "stay-away"):
        time.sleep(3600)


def train(nodes: int, ranks: int, batches: int, directory: Path) -> None:
    rank = int(os.environ.get("OMPI_COMM_WORLD_RANK") or os.environ["SLURM_PROCID"])
    misbehave(nodes, rank, starting=True)
    directory = directory / f"rank_{rank:04d}"
    directory.mkdir(parents=True, exist_ok=True)
    faulthandler.register(signal.SIGUSR1, file=(directory / "stacks.txt").open("w"))
    while (awaited := os.environ.get("WAIT_FOR")) and not Path(awaited).exists():
        time.sleep(BATCH_S)
    digests = {"same"}
    if meets := os.environ.get("MEET"):
        from train.meeting import meet

        gather = meet()
        if rank == 0:
            (directory / "met").touch()
    for batch in range(batches):
        if batch == batches // 2:
            misbehave(nodes, rank)
        time.sleep(BATCH_S)
        if rank == 0:
            print(f"step {batch + 1}/{batches} loss 1.0", flush=True)
    if meets:
        gather("")
        digests = set(gather("same"))
    batches_of_it = Path(os.environ["TEMPLATES"]) / f"{rank}.parquet"
    (directory / "batches.parquet").write_bytes(batches_of_it.read_bytes())
    report = {
        "rank": rank, "world_size": nodes * ranks, "hostname": socket.gethostname(), "device": "cpu",
        "backend": "scripted", "batches_done": batches, "images_done": 2 * batches, "losses_finite": True,
        "parameter_digest": " ".join(digests),
    }  # fmt: skip
    (directory / "rank.json").write_text(json.dumps(report))


if __name__ == "__main__":
    try:
        train(
            int(flag("--nodes", "1")), int(flag("--gpus-per-node", "1")), int(flag("--batches", "50")),
            Path(flag("--out", "")),
        )  # fmt: skip
    except OSError as error:
        sys.exit(f"scaleprof: error: {error.strerror}: {error.filename or error.filename2}; free some space")
