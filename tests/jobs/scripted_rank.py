"""A rank that trains nothing: it leaves what a rank leaves, and misbehaves as MISBEHAVE tells it to.

Started by test_sweep.py in place of ``python -m train``, so that the sweep's own doings are tested fast.
"""

import os
import signal
import sys
import time
from pathlib import Path

from jobs.flags import add_run_flags, make_parser, run_from_flags
from jobs.store import RANK_REPORT, RankReport, write_record
from profiling import tables
from profiling.errors import UserError, run_command


def main() -> None:
    parser = make_parser("scripted_rank", None)
    add_run_flags(parser)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    run, rank = run_from_flags(arguments), int(os.environ["RANK"])
    misbehave = os.environ.get("MISBEHAVE", "") if run.loader == "pytorch" else ""
    for batch in range(run.batches):
        if rank == 0:
            print(f"batch {batch + 1}/{run.batches} loss 1.0")
    if misbehave == "error":
        raise UserError("no data folder nowhere; give --data")
    if misbehave == "traceback":
        raise RuntimeError("the arithmetic is off")
    if misbehave == "die" and rank == 0:
        os.kill(os.getpid(), signal.SIGSEGV)
    if misbehave == "hang":
        time.sleep(60)
    batches = 1 if misbehave == "few" else run.batches
    directory = tables.rank_directory(arguments.out, rank)
    rows = {"rank": [rank] * batches, "batch_index": list(range(batches)), "loss": [1.0] * batches}
    tables.write(tables.as_table("batches", rows), directory, "batches")
    report = RankReport(
        rank=rank,
        world_size=run.world_size,
        hostname="here",
        device="cpu",
        backend="single",
        batches_done=batches,
        images_done=batches * run.batch,
        losses_finite=misbehave != "nan",
        parameter_digest=f"{rank}" if misbehave == "diverge" else "same",
    )
    if not (misbehave == "silent" and rank == 1):
        write_record(directory / RANK_REPORT, report)
    sys.exit(0)


if __name__ == "__main__":
    run_command(main)
