"""python -m tests.profiling.recorded_rank DIR RANK: one of two ranks that train together, recorded.

Rank 1 comes late to the backward pass of its last batch.
"""

import sys
import time
from pathlib import Path

import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from profiling.schemas import BACKWARD, END_OF_BATCH, FORWARD, UPDATE
from profiling.tables import rank_directory
from profiling.tools import open_capture

BATCHES, LATE_S = 2, 0.5
PARAMETERS = 3 * 8 * 9 + 8 + 8 + 8 + 8 * 16 * 16 * 10 + 10  # convolution, batch norm, linear layer


def come_late(there: Path, rank: int) -> None:
    """Rank 1 goes on ``LATE_S`` after rank 0, however busy the machine is."""
    if rank == 0:
        there.touch()
        return
    while not there.exists():
        time.sleep(0.01)
    time.sleep(LATE_S)


def main(directory: Path, rank: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    distributed.init_process_group("gloo", f"file://{directory / 'store'}", rank=rank, world_size=2)
    model = DistributedDataParallel(
        torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
            torch.nn.Flatten(), torch.nn.Linear(8 * 16 * 16, 10),
        )
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    capture = open_capture("torch", rank_directory(directory, rank), rank, keep_raw=True)
    for batch in range(1 + BATCHES):  # the first one, in which DDP sets itself up, is not recorded
        if batch == 1:
            capture.start(model.module, first_batch=batch)
        images, labels = torch.randn(2, 3, 16, 16), torch.zeros(2, dtype=torch.long)
        with record_function(FORWARD):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        if batch == BATCHES:
            come_late(directory / "rank_0_is_there", rank)
        with record_function(BACKWARD):
            loss.backward()
        with record_function(UPDATE):
            optimizer.step()
            optimizer.zero_grad()
        with record_function(END_OF_BATCH):
            pass
    capture.stop()
    findings = capture.write()
    distributed.barrier()
    distributed.destroy_process_group()
    assert findings == [], findings


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
