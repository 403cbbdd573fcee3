"""A training program that knows nothing of scaleprof: plain PyTorch, a process per GPU (or core).

    torchrun --nproc-per-node 2 configs/program.py --batch-size 64 --lr 0.1

It learns to sort random points by the sign of their sum. configs/program.yaml sweeps it.
"""

import argparse
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES = 256


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64, help="per process")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--hidden", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=10)
    arguments = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    dist.init_process_group("nccl" if on_gpu else "gloo")

    points = torch.randn(8192, FEATURES)
    data = TensorDataset(points, (points.sum(1) > 0).long())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, arguments.batch_size, sampler=sampler)

    hidden = arguments.hidden
    layers = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, hidden), torch.nn.ReLU(),
        torch.nn.Linear(hidden, hidden), torch.nn.ReLU(),
        torch.nn.Linear(hidden, 2),
    ).to(device)  # fmt: skip
    model = DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.lr)
    loss_of = torch.nn.CrossEntropyLoss()
    for epoch in range(arguments.epochs):
        sampler.set_epoch(epoch)
        for inputs, classes in loader:
            optimizer.zero_grad()
            loss = loss_of(model(inputs.to(device)), classes.to(device))
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {loss.item():.4f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
