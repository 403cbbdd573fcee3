"""The training loop, step by step: what happens in which order, what clock, markers and capture see of it."""

from collections import OrderedDict

import pytest
import torch

from jobs.run import make_run
from profiling.markers import Markers
from train import loop
from train.step import Precision, make_step

CPU = torch.device("cpu")
FORWARD, BACKWARD, UPDATE = (
    ["tick", "push Forward Pass", "zero_grad", "forward", "pop Forward Pass"],
    ["tick", "push Backward Pass", "backward", "pop Backward Pass"],
    ["tick", "push Model Update", "step", "pop Model Update"],
)
BATCH = ["tick", "load", *FORWARD, *BACKWARD, *UPDATE, "tick", "told", "mark End of Batch", "tick"]


class Told:
    """A clock, a capture and a marker in one, which note what is asked of them."""

    def __init__(self, log: list[str]):
        self.log, self.model = log, None

    def instants_ns(self):
        self.log.append("instants")
        return ["the instants"]

    def prepare(self, model):
        self.log.append("capture warms up")

    def start(self, model=None, first_batch=None):
        self.log.append("clock" if model is None else f"capture from {first_batch}")
        self.model = model or self.model

    def stop(self):
        self.log.append("stop")

    def tick(self):
        self.log.append("tick")

    def push(self, name):
        self.log.append(f"push {name}")

    def pop(self, name):
        self.log.append(f"pop {name}")

    def mark(self, name):
        self.log.append(f"mark {name}")


class Story:
    """A training and everything that it does, in order: each of those who take part tells its share."""

    def __init__(self, **fields):
        self.run = make_run({"device": "cpu", "batch": 2, "image_size": 32, "learning_rate": 0.001, **fields})
        self.told: list[str] = []
        self.losses: list[float] = []
        self.recorder = Told(self.told)
        self.model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
        self.model.register_forward_pre_hook(lambda *_: self.told.append("forward"))
        self.model.register_full_backward_hook(lambda *_: self.told.append("backward"))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.run.learning_rate)
        self.optimizer.register_step_pre_hook(lambda *_: self.told.append("step"))
        zero_grad = self.optimizer.zero_grad
        self.optimizer.zero_grad = lambda **how: (self.told.append("zero_grad"), zero_grad(**how))

    def batches(self):
        while True:
            self.told.append("load")
            yield torch.ones(2, 3, 32, 32, requires_grad=True), torch.tensor([3, 4])

    def on_batch(self, index, loss):
        self.told.append("told")
        assert index == len(self.losses)
        self.losses.append(loss.item())

    def happen(self):
        # As DistributedDataParallel and DataParallel do, the wrapper holds the model as ``module``.
        wrapper = torch.nn.Sequential(OrderedDict(module=self.model))
        step = make_step(self.run, wrapper, self.optimizer, Precision(self.run, CPU))
        recorder, markers = self.recorder, Markers([self.recorder])
        return loop.train(self.run, step, self.batches(), markers, recorder, recorder, self.on_batch)


def test_a_batch_is_load_forward_backward_update_and_its_end():
    story = Story(batches=2, attribute_from=1)
    recorded = story.happen()
    assert story.told == ["clock", *BATCH, "capture from 1", *BATCH, "instants", "stop"]
    assert recorded.instants_ns == ["the instants"]
    assert recorded.losses == pytest.approx(story.losses) and len(recorded.losses) == 2
    assert recorded.losses[1] < recorded.losses[0]
    assert story.recorder.model is story.model  # within its wrapper


def test_a_schedule_switches_the_capture_on_and_off_between_batches():
    story = Story(batches=10, profile="torch", profile_schedule="1,1,2,2")
    story.happen()
    batches = iter(range(10))
    told = [next(batches) if one == "load" else one for one in story.told]
    switched = [one for one in told if isinstance(one, int) or "capture" in one or one == "stop"]
    assert switched == [
        0, "capture warms up", 1, "capture from 2", 2, 3, "stop",
        4, "capture warms up", 5, "capture from 6", 6, 7, "stop", 8, 9, "stop",
    ]  # fmt: skip


def test_gradients_of_the_batch_before_are_let_go_not_added_to():
    one, two = Story(batches=1), Story(batches=2, learning_rate=1e-9)
    two.model.load_state_dict(one.model.state_dict())
    one.happen()
    two.happen()
    for first, second in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.allclose(first.grad, second.grad, rtol=0.1)
