"""Modules of all kinds, watched within this process: which is the model, and is each pass seen?"""

import pytest
import torch
from torch.utils.data import DataLoader

from profiling.watching.steps import FORWARD
from profiling.watching.watched import Request
from tests.profiling.watched_here import descent, train


class Training(torch.nn.Module):
    """A module that is not called itself, as Lightning's."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.unused = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)


def test_a_part_of_a_module_that_is_not_called_itself_is_seen(watch):
    watched_process = watch(Request())
    training = Training()
    optimizer = descent(training.net)
    for data in DataLoader(torch.ones(6, 3), 2):
        training.net(data).sum().backward()
        optimizer.step()
    assert (watched_process.stop().stages_ns[FORWARD] > 0).all()


def test_a_module_that_is_compiled_in_place_later_is_compiled_and_seen(watch, monkeypatch):
    compiled = []

    def counted(call):
        return lambda *arguments: compiled.append(1) or call(*arguments)

    monkeypatch.setattr(torch, "compile", counted)
    watched_process = watch(Request())
    model = torch.nn.Linear(3, 2)
    optimizer = descent(model)
    train(model, optimizer, 2)
    model.compile()
    sees = vars(model)["_compiled_call_impl"]
    watched_process.hooks.modules.search()
    assert vars(model)["_compiled_call_impl"] is sees  # not what sees that
    train(model, optimizer, 2)
    assert len(compiled) == 2 and (watched_process.stop().stages_ns[FORWARD] > 0).all()


def copied(model: torch.nn.Module) -> torch.nn.Module:
    """As libraries for meta-learning do."""
    clone = model.__new__(type(model))
    clone.__dict__ = {**model.__dict__, "_parameters": {}}
    return clone


@pytest.mark.parametrize("copy", [torch.nn.Module._replicate_for_data_parallel, copied])
def test_a_copy_of_a_module_is_called_itself(watch, copy):
    watch(Request())
    model = torch.nn.Linear(3, 2)
    train(model, descent(model), 1)
    copy_of_it = copy(model)
    copy_of_it.__dict__.update(weight=torch.zeros(2, 3), bias=None)
    assert copy_of_it(torch.ones(1, 3)).tolist() == [[0, 0]]
