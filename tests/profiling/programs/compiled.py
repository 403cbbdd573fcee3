"""A program of a user's that is compiled, the module or the function of its loss; it says how often."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.scores = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.scores(torch.relu(self.hidden(inputs)))


torch.set_num_threads(1)
how = sys.argv[1]
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
graphs = []
criterion = torch.nn.CrossEntropyLoss()


def backend(graph: torch.fx.GraphModule, inputs: list) -> object:
    """Compiles nothing, and counts."""
    graphs.append(graph)
    return graph.forward


def loss_of(inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return criterion(model(inputs), labels)


if how == "module":
    model = torch.compile(model, backend=backend)
else:
    loss_of = torch.compile(loss_of, backend=backend)
for inputs, labels in DataLoader(TensorDataset(torch.randn(80, 16), torch.randint(0, 4, (80,))), 8):
    optimizer.zero_grad()
    loss_of(inputs, labels).backward()
    optimizer.step()
print(f"{len(graphs)} graphs compiled")
