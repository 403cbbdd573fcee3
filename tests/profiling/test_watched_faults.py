"""Programs that do what is not usual, watched within this process: what is made of their steps?"""

import gc
import itertools
import os
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader, dataloader

from jobs import watched
from profiling import markers
from profiling.errors import UserError
from profiling.identity import Identity
from profiling.watch import main
from profiling.watching.facts import ModelFacts
from profiling.watching.segments import UPDATE
from profiling.watching.watched import Enough, Wanted, Watch, findings_of

ENDLESS = 2000  # steps of a program that should be ended before


@pytest.fixture
def watch(monkeypatch):
    """Starts to watch this process; PyTorch is as it was when the test has ended."""
    monkeypatch.setattr(markers, "_LISTENER", [])
    iterator, scaler = dataloader._BaseDataLoaderIter, torch.amp.GradScaler
    hooked = [(iterator, "__init__"), (iterator, "__next__"), (scaler, "step"), (torch.autograd, "backward")]
    for place, name in hooked:
        monkeypatch.setattr(place, name, getattr(place, name))
    monkeypatch.setattr(Optimizer, "profile_hook_step", staticmethod(Optimizer.profile_hook_step))
    watches = []
    gc.collect()  # optimizers of other tests would be waited for

    def start(wanted: Wanted) -> Watch:
        watches.append(Watch(wanted, Mock()))
        watches[-1].hooks.attach()
        return watches[-1]

    yield start
    for one in watches:
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


def test_an_update_that_fails_and_is_caught_ends_and_is_no_step(watch):
    watched_process = watch(Wanted())
    model = torch.nn.Linear(3, 2)
    optimizer = descent(model, fails=2)
    for _ in range(4):
        passes(model)
        try:
            optimizer.step()
        except RuntimeError:
            assert not watched_process.hooks.recorder().open[UPDATE]
    steps = watched_process.stop()
    assert steps.passes.tolist() == [1, 2, 1] and (steps.stages_ns[UPDATE] > 0).all()


@pytest.mark.parametrize("critics", [1, 5])
@pytest.mark.parametrize("batches", [1, 2])
def test_a_step_of_few_is_not_ended_before_the_second_optimizer_has_come(watch, critics, batches):
    watched_process = watch(Wanted(batches=batches))
    models = [torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)]
    critic, generator = map(descent, models)
    with pytest.raises(Enough):
        for _ in DataLoader(torch.ones(ENDLESS, 3), 1):
            for _ in range(critics):
                passes(models[0])
                critic.step()
            passes(models[1])
            generator.step()
    assert watched_process.stop().passes.tolist() == [critics + 1] * batches


def test_an_optimizer_that_does_not_come_is_waited_for_and_the_steps_are_as_many_as_asked_for(watch):
    watched_process = watch(Wanted(batches=3))
    model, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    optimizer, _never = descent(model), descent(other)
    with pytest.raises(Enough):
        for _ in range(ENDLESS):
            passes(model)
            optimizer.step()
    assert optimizer.steps <= 10 and len(watched_process.stop()) == 3


def test_updates_that_are_not_seen_end_steps_with_the_backward_pass(watch):
    watched_process = watch(Wanted(batches=3))
    model = torch.nn.Linear(3, 2)
    _optimizer = descent(model)
    count = itertools.count()
    with pytest.raises(Enough):
        for _ in range(ENDLESS):
            passes(model)
            descend(model)  # as a compiled step of the optimizer does
            next(count)
    steps = watched_process.stop()
    assert len(steps) == 3 and next(count) < 6
    said = findings_of(watched_process, steps)
    assert "no optimizer's step was seen: a step ends with the backward pass" in said


def test_steps_of_which_only_loads_are_seen_end_with_these(watch):
    watched_process = watch(Wanted(batches=3))
    model = torch.nn.Linear(3, 2)
    _optimizer = descent(model)
    count = itertools.count()
    with pytest.raises(Enough):
        for _ in DataLoader(torch.ones(ENDLESS, 3), 2):
            descend(model)
            next(count)
    assert len(watched_process.stop()) == 3 and next(count) < 6


def test_data_that_are_loaded_before_training_end_no_step(watch):
    watched_process = watch(Wanted(batches=3))
    model = torch.nn.Linear(3, 2)
    optimizer = descent(model)
    loader = DataLoader(torch.ones(12, 3), 2)
    for _ in loader:
        pass
    with pytest.raises(Enough):
        for data in itertools.chain.from_iterable(itertools.repeat(loader)):
            model(data).sum().backward()
            optimizer.step()
    assert optimizer.steps == 3 and len(watched_process.stop()) == 3


@pytest.mark.parametrize(
    ("steps_after", "passes_of_steps"),
    [pytest.param(16, [16, 16], id="accumulated for long"), pytest.param(None, [1, 1, 1], id="never called")],
)
def test_an_optimizer_is_waited_for_but_not_without_end(watch, steps_after, passes_of_steps):
    watched_process = watch(Wanted(batches=len(passes_of_steps)))
    model = torch.nn.Linear(3, 2)
    optimizer = descent(model)
    with pytest.raises(Enough):
        for number in range(1, ENDLESS + 1):
            passes(model)
            if steps_after and number % steps_after == 0:
                optimizer.step()
    assert watched_process.stop().passes.tolist() == passes_of_steps


@pytest.mark.parametrize(("backend", "said"), [("gloo", True), ("ddp/gloo", False), ("horovod", False)])
def test_ranks_that_exchange_no_gradients_as_far_as_is_seen_are_told_so(watch, backend, said):
    watched_process = watch(Wanted())
    model = torch.nn.Linear(3, 2)
    optimizer = descent(model)
    passes(model)
    optimizer.step()
    watched_process.model_facts = ModelFacts("Net", backend, group_size=2)
    steps = watched_process.stop()
    assert steps is not None
    assert any("do they exchange" in one for one in findings_of(watched_process, steps)) == said


@pytest.mark.parametrize("words", [["--batchse", "5", "train.py"], ["missing.py"]])
def test_wrong_use_is_said_by_rank_0_alone(words, monkeypatch):
    monkeypatch.setattr("profiling.errors.RANK_0_FIRST_S", 0.0)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(UserError):
        main(words)
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2


def test_ranks_that_a_shell_starts_find_the_same_name(monkeypatch):
    """mpirun starts a shell for each rank, and this the rank."""

    def ancestors(rank: str) -> SimpleNamespace:
        mpirun = SimpleNamespace(pid=10, environ=lambda: {}, create_time=lambda: 1e9, parent=lambda: None)
        shell = SimpleNamespace(pid=20 + int(rank), create_time=lambda: 2e9, parent=lambda: mpirun)
        shell.environ = lambda: {"OMPI_COMM_WORLD_LOCAL_RANK": rank}
        return SimpleNamespace(parent=lambda: shell)

    names = set()
    for rank in "01":
        monkeypatch.setattr(watched.psutil, "Process", lambda rank=rank: ancestors(rank))
        me = Identity(int(rank), 2, int(rank), 2, "Open MPI")
        names.add(watched.new_name("train", me, {**os.environ, "OMPI_COMM_WORLD_LOCAL_RANK": rank}))
    assert len(names) == 1 and names.pop().endswith("-10")
