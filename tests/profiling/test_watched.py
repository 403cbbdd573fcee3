"""Programs watched within this process: which steps, which model, how many samples."""

from functools import partial

import pytest
import torch
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from profiling.watching.steps import FORWARD, UPDATE
from profiling.watching.watched import Enough, Request, Watch, findings_of
from tests.profiling.watched_here import descent, follow_each_other, passes, train

ENDLESS = 2000  # steps of a program that should be ended before


@pytest.mark.parametrize("scaled", [False, True])
def test_an_update_that_fails_and_is_caught_ends_and_is_no_step(watch, scaled):
    watched_process = watch(Request(batches=3))
    model = torch.nn.Linear(3, 2)
    optimizer = descent(model, fails=2)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    step = partial(scaler.step, optimizer) if scaled else optimizer.step
    with pytest.raises(Enough):
        for _ in range(ENDLESS):
            passes(model)
            try:
                step()
            except RuntimeError:
                assert not watched_process.hooks.recorder().open[UPDATE]
    steps = watched_process.stop()
    assert steps.passes.tolist() == [1, 2, 1] and (steps.stages_ns[UPDATE] > 0).all()


@pytest.mark.parametrize("critics", [1, 5])
@pytest.mark.parametrize("batches", [1, 2])
def test_a_step_of_few_is_not_ended_before_the_second_optimizer_has_come(watch, critics, batches):
    watched_process = watch(Request(batches=batches))
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


def test_without_a_data_loader_the_first_step_is_whole(watch):
    watched_process = watch(Request())
    model = torch.nn.Linear(3, 2)
    train(model, descent(model), 4)
    passes(model)
    assert torch.nn.Module._compiled_call_impl is None  # layers' calls cost nothing any more
    steps = watched_process.stop()
    assert steps.passes.tolist() == [1] * 4 and (steps.stages_ns[FORWARD] > 0).all()
    assert follow_each_other(steps)


def test_a_pass_that_fails_and_is_caught_is_over(watch):
    class Full(torch.nn.Linear):
        def forward(self, data: torch.Tensor) -> torch.Tensor:
            if len(data) > 2:
                raise RuntimeError("out of memory")
            return super().forward(data)

    watched_process = watch(Request())
    model = Full(3, 2)
    with pytest.raises(RuntimeError):
        model(torch.ones(8, 3))
    assert not any(watched_process.hooks.recorder().open)
    train(model, descent(model), 2)
    assert len(watched_process.stop()) == 2


def test_a_backward_pass_within_another_is_a_part_of_it(watch):
    """Activation checkpoints that are reentrant."""
    watched_process = watch(Request())
    model, inner = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)
    optimizer = descent(model)
    for _ in range(3):
        checkpoint(inner, model(torch.ones(2, 3)), use_reentrant=True).sum().backward()
        optimizer.step()
    assert watched_process.stop().passes.tolist() == [1, 1, 1]


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


def images_of(
    loader: DataLoader, watched_process: Watch, *others: DataLoader
) -> tuple[list[int], list[dict]]:
    """The samples of each step of a program that has this loader, and others, and what is said of them."""
    model = torch.nn.Linear(3, 2)
    optimizer = descent(model)
    for _ in loader:
        passes(model)
        optimizer.step()
    for other in others:
        next(iter(other))
    steps = watched_process.stop()
    return steps.samples.tolist(), [
        dict(one.data) for one in findings_of(watched_process, steps) if one.code == "uncertain"
    ]


class Streamed(IterableDataset):
    def __iter__(self):
        return iter(torch.ones(5, 3))


class Loaded(IterableDataset):
    """Batches of another loader."""

    def __iter__(self):
        return iter(DataLoader(torch.ones(5, 3), 2))


def pictures(pairs: list) -> tuple:
    """Of each batch a tuple of pictures and one of what they show, as detection has them."""
    return tuple(zip(*pairs, strict=True))


PICTURES = TensorDataset(torch.ones(5, 3, 8, 8), torch.ones(5))


@pytest.mark.parametrize(
    ("loader", "samples"),
    [
        (DataLoader(PICTURES, 2), [2, 2, 1]),
        (DataLoader(PICTURES, 2, drop_last=True), [2, 2]),
        (DataLoader(Streamed(), 2), [2, 2, 1]),
        (DataLoader(Loaded(), None), [2, 2, 1]),
        (DataLoader(PICTURES, batch_sampler=[[0, 1, 2], [3]]), [3, 1]),
        (DataLoader(["no", "tensors", "here"], 2), [2, 1]),
    ],
)
def test_samples_are_those_of_the_loaders_batch(watch, loader, samples):
    assert images_of(loader, watch(Request())) == (samples, [])


def test_samples_are_those_that_the_loader_draws_whatever_it_makes_of_them(watch):
    loader, test_loader = DataLoader(PICTURES, 2, collate_fn=pictures), DataLoader(PICTURES, 2)
    images, (said,) = images_of(loader, watch(Request()), test_loader)
    assert images == [2, 2, 1]
    assert (said["batch"], said["first"]) == (2, 3)
