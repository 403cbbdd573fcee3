"""The training loop, step by step: what happens in which order, what clock, markers and capture see of it."""

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

    def __init__(self, device=CPU, **fields):
        self.run = make_run({"device": "cpu", "batch": 2, "image_size": 32, "learning_rate": 0.001, **fields})
        self.told: list[str] = []
        self.losses: list[float] = []
        self.seen_images = None
        self.recorder = Told(self.told)
        self.model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10)).to(device)
        self.model.register_forward_pre_hook(self._forward)
        self.model.register_full_backward_hook(lambda *_: self.told.append("backward"))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.run.learning_rate)
        self.optimizer.register_step_pre_hook(lambda *_: self.told.append("step"))
        zero_grad = self.optimizer.zero_grad
        self.optimizer.zero_grad = lambda **how: (self.told.append("zero_grad"), zero_grad(**how))
        self.device = device

    def _forward(self, module, inputs):
        self.told.append("forward")
        self.seen_images = inputs[0]

    def batches(self):
        while True:
            self.told.append("load")
            yield (
                torch.ones(2, 3, 32, 32, requires_grad=True, device=self.device),
                torch.tensor([3, 4], device=self.device),
            )

    def on_batch(self, index, loss):
        self.told.append("told")
        assert index == len(self.losses)
        self.losses.append(loss.item())

    def step(self, model):
        return make_step(self.run, model, self.optimizer, Precision(self.run, self.device))

    def happen(self, wrapper=None):
        return loop.train(
            self.run, self.step(wrapper or self.model), self.batches(), Markers([self.recorder]),
            self.recorder, self.recorder, self.on_batch,
        )  # fmt: skip


def test_a_batch_is_load_forward_backward_update_and_its_end():
    story = Story(batches=2, attribute_from=1)
    recorded = story.happen()
    assert story.told == ["clock", *BATCH, "capture from 1", *BATCH, "instants", "stop"]
    assert recorded.instants_ns == ["the instants"]
    assert recorded.losses == pytest.approx(story.losses) and len(recorded.losses) == 2
    assert recorded.losses[1] < recorded.losses[0]


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


class Wrapper(torch.nn.Module):
    """As DistributedDataParallel and DataParallel do, it holds the model as ``module``."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, images):
        return self.module(images)


def test_the_profiler_is_given_the_model_within_its_wrapper():
    story = Story(batches=1)
    story.happen(Wrapper(story.model))
    assert story.recorder.model is story.model


def test_gradients_of_the_batch_before_are_let_go_not_added_to():
    one, two = Story(batches=1), Story(batches=2, learning_rate=1e-9)
    two.model.load_state_dict(one.model.state_dict())
    one.happen()
    two.happen()
    for first, second in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.allclose(first.grad, second.grad, rtol=0.1)
