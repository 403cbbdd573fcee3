"""A rank that trains nothing: it leaves what a rank leaves, and misbehaves as MISBEHAVE tells it to.

Started by test_sweep.py in place of ``python -m train``, so that the sweep's own doings are tested fast: it
imports nothing of the project's, and its batches it copies from $BATCHES_OF_RANKS.
"""

import faulthandler
import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path


def flag(name: str, default: str) -> str:
    """A flag's value, of its one word ``--name=value``; those at their default are not given."""
    values = [word.partition("=")[2] for word in sys.argv if word.startswith(f"{name}=")]
    return values[-1] if values else default


def main() -> None:
    rank, batches = int(os.environ["RANK"]), int(flag("--batches", "24"))
    misbehave = os.environ.get("MISBEHAVE", "") if flag("--loader", "dali-cpu") == "pytorch" else ""
    for batch in range(batches):
        if rank == 0:
            print(f"step {batch + 1}/{batches} loss 1.0")
    if misbehave == "error":
        print("scaleprof: error: no data folder nowhere; give --data", file=sys.stderr)
        sys.exit(2)
    if misbehave == "traceback":
        raise RuntimeError("the arithmetic is off")
    if misbehave == "die" and rank == 0:
        os.kill(os.getpid(), signal.SIGSEGV)
    if misbehave == "hang":
        directory = Path(flag("--out", "")) / f"rank_{rank:04d}"
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / "stacks.txt").open("w") as stacks:
            faulthandler.register(signal.SIGUSR1, file=stacks)
            time.sleep(60)
    done = 1 if misbehave == "few" else batches
    directory = Path(flag("--out", "")) / f"rank_{rank:04d}"
    directory.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(
        Path(os.environ["BATCHES_OF_RANKS"]) / f"{done}_of_{rank}.parquet", directory / "batches.parquet"
    )
    report = {
        "rank": rank, "world_size": int(os.environ["WORLD_SIZE"]), "hostname": "here", "device": "cpu",
        "backend": "single", "batches_done": done, "images_done": done * int(flag("--batch", "32")),
        "losses_finite": misbehave != "nan",
        "parameter_digest": f"{rank}" if misbehave == "diverge" else "same",
    }  # fmt: skip
    if not (misbehave == "silent" and rank == 1):
        (directory / "rank.json").write_text(json.dumps(report))


if __name__ == "__main__":
    try:
        main()
    except OSError as error:
        sys.exit(f"scaleprof: error: {error.strerror}: {error.filename or error.filename2}; free some space")
