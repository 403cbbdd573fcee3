"""A rank that leaves what a rank leaves, as slowly as it is told, and does what MISBEHAVE tells it.

MISBEHAVE is "DEED where NODES RANK [FILE]": that rank, in runs on so many nodes, does it in the middle of its
batches; with a file only as long as that is not there (and makes it).
"""

import faulthandler
import os
import signal
import socket
import sys
import time
from pathlib import Path

from jobs.run import Run, add_run_flags, make_parser, run_from_flags
from jobs.store import RANK_REPORT, RankReport, write_record
from profiling import tables
from profiling.errors import UserError, run_command

BATCH_S = float(os.environ.get("BATCH_S", "0.05"))


def rank_of(environment) -> int:
    return int(environment.get("OMPI_COMM_WORLD_RANK") or environment["SLURM_PROCID"])


def misbehave(run: Run, rank: int, directory: Path) -> None:
    deed, nodes, who, *once = (os.environ.get("MISBEHAVE") or "nothing 0 0").split()
    if (run.nodes, rank) != (int(nodes), int(who)):
        return
    if once:
        if Path(once[0]).exists():
            return
        Path(once[0]).touch()
    if deed == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if deed == "hang":
        time.sleep(3600)
    if deed == "refuse":
        raise UserError("no data folder nowhere; give --data")
    if deed == "fill":
        raise OSError(28, "No space left on device", str(directory))


def main() -> None:
    parser = make_parser("train", None)
    add_run_flags(parser)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--keep-raw", action="store_true")
    arguments = parser.parse_args()
    run, rank = run_from_flags(arguments), rank_of(os.environ)
    directory = tables.rank_directory(arguments.out, rank)
    directory.mkdir(parents=True, exist_ok=True)
    stacks = (directory / "stacks.txt").open("w")
    faulthandler.register(signal.SIGUSR1, file=stacks)
    begin_ns = time.time_ns()
    for batch in range(run.batches):
        if batch == run.batches // 2:
            misbehave(run, rank, directory)
        time.sleep(BATCH_S)
        if rank == 0:
            print(f"batch {batch + 1}/{run.batches} loss 1.0", flush=True)
    write(run, rank, directory, begin_ns)
    sys.exit(0)


def write(run: Run, rank: int, directory: Path, begin_ns: int) -> None:
    batch_ns, index = int(BATCH_S * 1e9) + 1000, range(run.batches)
    quarter = batch_ns // 4
    rows = {
        "rank": [rank] * run.batches,
        "batch_index": list(index),
        "start_ns": [begin_ns + i * batch_ns for i in index],
        "end_ns": [begin_ns + (i + 1) * batch_ns for i in index],
        **dict.fromkeys(("load_ns", "forward_ns", "backward_ns", "update_ns"), [quarter] * run.batches),
        "images": [run.batch] * run.batches,
        "loss": [1.0] * run.batches,
        "attributed": [False] * run.batches,
    }
    tables.write(tables.as_table("batches", rows), directory, "batches")
    report = RankReport(
        rank=rank, world_size=run.world_size, hostname=socket.gethostname(), device="cpu", backend="scripted",
        batches_done=run.batches, images_done=run.batches * run.batch, losses_finite=True,
        parameter_digest="same",
    )  # fmt: skip
    write_record(directory / RANK_REPORT, report)


if __name__ == "__main__":
    run_command(main)
