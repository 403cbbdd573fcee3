"""How many samples has a step? Programs with loaders of all kinds, watched within this process."""

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from profiling.watching.watched import Request, Watch, findings_of
from tests.profiling.watched_here import descent, passes


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
