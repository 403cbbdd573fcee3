"""A program of a user's that is compiled, in each of PyTorch's three ways; it says how often it was."""

import sys

import torch
from torch._dynamo.utils import counters
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
how = sys.argv[1]
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
criterion = torch.nn.CrossEntropyLoss()


def loss_of(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return criterion(model(inputs), labels)


if how == "module":
    model = torch.compile(model, backend="eager")
elif how == "in-place":
    model.compile(backend="eager")
else:
    loss_of = torch.compile(loss_of, backend="eager")
for inputs, labels in DataLoader(
    TensorDataset(torch.randn(80, 16), torch.randint(0, 4, (80,))), batch_size=8
):
    optimizer.zero_grad()
    loss_of(inputs, labels).backward()
    optimizer.step()
print("graphs", counters["stats"]["unique_graphs"], "breaks", sum(counters["graph_break"].values()))
