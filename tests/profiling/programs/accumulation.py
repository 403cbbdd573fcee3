"""A program of a user's: gradient accumulation, a gradient scaler, and updates that it skips by itself."""

import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

ACCUMULATE, STEPS = 4, 12

torch.set_num_threads(1)
scaled = "--scaler" in sys.argv
# The scaler skips the updates of these steps, for their gradients are not finite.
bad = {2, 5}
data = TensorDataset(torch.randn(STEPS * ACCUMULATE * 2, 32), torch.randint(0, 4, (STEPS * ACCUMULATE * 2,)))
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", enabled=scaled)
for index, (inputs, labels) in enumerate(DataLoader(data, batch_size=2)):
    step, last = index // ACCUMULATE, index % ACCUMULATE == ACCUMULATE - 1
    loss = torch.nn.functional.cross_entropy(model(inputs), labels) / ACCUMULATE
    if step in bad and last:
        loss = loss * float("inf")
    scaler.scale(loss).backward()
    if not last:
        continue
    if scaled:
        scaler.step(optimizer)
        scaler.update()
    elif torch.isfinite(loss):
        optimizer.step()
    optimizer.zero_grad()
