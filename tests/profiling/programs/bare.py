"""A program of a user's without an optimizer: it changes its parameters itself."""

import torch

torch.set_num_threads(1)
model = torch.nn.Linear(16, 4)
for _ in range(20):
    model(torch.randn(8, 16)).square().mean().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01 * parameter.grad
            parameter.grad = None
