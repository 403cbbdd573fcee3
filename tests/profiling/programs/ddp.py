"""A program of a user's, which knows nothing of scaleprof: PyTorch with DistributedDataParallel."""

import argparse
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--fail", action="store_true")
    parser.add_argument("--done")
    arguments = parser.parse_args()
    assert sys.excepthook is sys.__excepthook__  # as it is without scaleprof
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    data = TensorDataset(torch.randn(64, 3, 16, 16), torch.randint(0, 4, (64,)))
    loader = DataLoader(data, arguments.batch_size, sampler=DistributedSampler(data))
    body = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten())
    model = DistributedDataParallel(torch.nn.Sequential(body, torch.nn.Linear(8 * 14 * 14, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    criterion = torch.nn.CrossEntropyLoss()
    try:
        for _ in range(arguments.epochs):
            model.train()
            for images, labels in loader:
                optimizer.zero_grad()
                criterion(model(images), labels).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                for images, _labels in DataLoader(data, 32):
                    model(images)
            if arguments.fail:
                raise ValueError("no more data")
    finally:
        # Every rank comes here: one that did not would leave the others waiting.
        dist.barrier()
        # The last owner of a group ends it. DDP would with the GIL held, for which Gloo's thread may wait.
        del model
        dist.destroy_process_group()
        print("cleaned up", flush=True)
    if arguments.done:
        Path(arguments.done).write_text(os.environ["RANK"])


if __name__ == "__main__":
    main()
