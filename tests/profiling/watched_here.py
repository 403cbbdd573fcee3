"""What tests share that watch this process: hooks that are taken back, and a program to watch."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import Mock

import pytest
import torch
from torch.optim.optimizer import Optimizer
from torch.utils.data import dataloader

from profiling import markers
from profiling.watching.watched import Request, Watch


@contextmanager
def watches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Request], Watch]]:
    """Starts to watch this process; PyTorch is as it was when the test has ended."""
    monkeypatch.setattr(markers, "_LISTENER", [])
    iterator, scaler = dataloader._BaseDataLoaderIter, torch.amp.GradScaler
    module = torch.nn.Module
    hooked = [
        (iterator, "__init__"), (iterator, "__next__"), (scaler, "step"), (torch.autograd, "backward"),
        (Optimizer, "__init__"), (module, "compile"), (module, "_compiled_call_impl"),
    ]  # fmt: skip
    for place, name in hooked:
        monkeypatch.setattr(place, name, getattr(place, name))
    monkeypatch.setattr(Optimizer, "profile_hook_step", staticmethod(Optimizer.profile_hook_step))
    started: list[Watch] = []

    def start(wanted: Request) -> Watch:
        started.append(Watch(wanted, Mock()))
        started[-1].hooks.attach()
        return started[-1]

    yield start
    for one in started:
        one.hooks.stop()


def descent(model: torch.nn.Module, fails: int = 0) -> Optimizer:
    """Gradient descent, whose class is new, so that PyTorch hooks it; its step no. ``fails`` does."""

    class Descent(Optimizer):
        def __init__(self) -> None:
            super().__init__(model.parameters(), {})
            self.steps = 0

        def step(self, closure: object = None) -> None:
            self.steps += 1
            if self.steps == fails:
                raise RuntimeError("no step")
            descend(model)

    return Descent()


def descend(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.01


def passes(model: torch.nn.Module) -> None:
    """A forward and a backward pass."""
    model(torch.ones(2, 3)).sum().backward()


def train(model: torch.nn.Module, optimizer: Optimizer, steps: int) -> None:
    for _ in range(steps):
        passes(model)
        optimizer.step()


def follow_each_other(steps) -> bool:
    """Whether nothing is left out between steps."""
    return steps.start_ns[1:].tolist() == steps.end_ns[:-1].tolist()
