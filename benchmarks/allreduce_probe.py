"""How long does an allreduce of so many bytes take between these ranks? Rank 0 prints bytes -> seconds.

srun --nodes=2 python -m benchmarks.allreduce_probe
"""

import json
import os
import time

import torch

from jobs.run import make_run
from train.backends import open_backend
from train.world import read_world

SIZES = [4 << 10, 256 << 10, 1 << 20, 4 << 20]  # bytes
TRIES = 5


def main() -> None:
    torch.set_num_threads(1)
    world = read_world(os.environ)
    run = make_run(
        {"nodes": world.nodes, "gpus_per_node": world.local_size, "backend": "ddp", "device": "cpu"}
    )
    backend = open_backend(run, world, torch.device("cpu"))
    found = {}
    for size in SIZES:
        tensor = torch.zeros(size // 4)
        seconds = []
        for _ in range(TRIES + 1):
            backend.barrier()
            start = time.perf_counter()
            torch.distributed.all_reduce(tensor)
            seconds.append(time.perf_counter() - start)
        found[size] = sorted(seconds[1:])[TRIES // 2]
    backend.barrier()
    if world.rank == 0:
        print(json.dumps(found))
    backend.close()


if __name__ == "__main__":
    main()
