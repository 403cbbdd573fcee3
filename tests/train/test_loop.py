"""The training loop, step by step: what happens in which order, what clock, markers and capture see of it."""

import pytest
import torch

from jobs.run import make_run
from profiling.markers import Markers
from train import loop
from train.precision import Precision

CPU = torch.device("cpu")
FORWARD, BACKWARD, UPDATE = (
    ["tick", "push Forward Pass", "zero_grad", "forward", "pop Forward Pass"],
    ["tick", "push Backward Pass", "backward", "pop Backward Pass"],
    ["tick", "push Model Update", "step", "pop Model Update"],
)
BATCH = ["tick", "load", *FORWARD, *BACKWARD, *UPDATE, "tick", "told", "mark End of Batch", "tick"]


class Story:
    """Everything the loop does, in order; each part of it tells the story its share."""

    def __init__(self, **fields):
        self.run = make_run({"device": "cpu", "batch": 2, "image_size": 32, "learning_rate": 0.001, **fields})
        self.told: list[str] = []
        self.losses: list[float] = []
        self.seen_images = None
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
        model.register_forward_pre_hook(self._forward)
        model.register_full_backward_hook(lambda *_: self.told.append("backward"))
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=self.run.learning_rate)
        self.optimizer.register_step_pre_hook(lambda *_: self.told.append("step"))
        zero_grad = self.optimizer.zero_grad
        self.optimizer.zero_grad = lambda **how: (self.told.append("zero_grad"), zero_grad(**how))

    def _forward(self, module, inputs):
        self.told.append("forward")
        self.seen_images = inputs[0]

    # the clock
    def start(self, model=None, first_batch=None):
        self.told.append("clock" if model is None else f"capture from {first_batch}")
        self.captured = model

    def tick(self):
        self.told.append("tick")

    def instants_ns(self):
        self.told.append("instants")
        return ["the instants"]

    # the capture
    def prepare(self, model=None):
        self.told.append("capture warms up")

    def stop(self):
        self.told.append("stop")

    # markers
    def push(self, name):
        self.told.append(f"push {name}")

    def pop(self, name):
        self.told.append(f"pop {name}")

    def mark(self, name):
        self.told.append(f"mark {name}")

    # batches
    def __next__(self):
        self.told.append("load")
        return torch.ones(2, 3, 32, 32, requires_grad=True), torch.tensor([3, 4])

    def on_batch(self, index, loss):
        self.told.append("told")
        assert index == len(self.losses)
        self.losses.append(loss.item())

    def happen(self):
        precision = Precision(self.run, CPU)
        return loop.train(
            self.run, self.model, self.optimizer, self, precision, Markers([self]), self, self, self.on_batch
        )


def test_a_batch_is_load_forward_backward_update_and_its_end():
    story = Story(batches=2, attribute_from=1)
    recorded = story.happen()
    assert story.told == ["clock", *BATCH, "capture from 1", *BATCH, "instants", "stop"]
    assert recorded.instants_ns == ["the instants"]
    assert recorded.losses == pytest.approx(story.losses) and len(recorded.losses) == 2
    assert recorded.losses[1] < recorded.losses[0]


def test_what_the_profiler_takes_to_start_is_in_no_batch():
    """The capture starts between the last tick of a batch and the first of the next."""
    told = Story(batches=4, attribute_from=2)
    told.happen()
    place = told.told.index("capture from 2")
    assert told.told[place - 1] == told.told[place + 1] == "tick"
    assert told.told[:place].count("tick") == 2 * 6


def test_the_second_half_is_recorded_unless_said_otherwise():
    story = Story(batches=5)
    story.happen()
    assert "capture from 2" in story.told


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


def test_the_profiler_is_given_the_model_within_its_wrapper():
    story = Story(batches=1)
    inner = story.model
    story.model = torch.nn.DataParallel(inner, device_ids=[])
    story.happen()
    assert story.captured is inner


def test_channels_last_reaches_the_model():
    for channels_last in (False, True):
        story = Story(batches=1, channels_last=channels_last)
        story.happen()
        assert story.seen_images.is_contiguous(memory_format=torch.channels_last) is channels_last


def test_bf16_is_the_forward_passs():
    story = Story(batches=1, compute="bf16")
    seen = []
    story.model.register_forward_hook(lambda module, inputs, out: seen.append(out.dtype))
    story.happen()
    assert seen == [torch.bfloat16]


def test_gradients_of_the_batch_before_are_let_go_not_added_to():
    one, two = Story(batches=1), Story(batches=2, learning_rate=1e-9)
    two.model.load_state_dict(one.model.state_dict())
    one.happen()
    two.happen()
    for first, second in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.allclose(first.grad, second.grad, rtol=0.1)


def test_a_cpu_is_never_synchronised(monkeypatch):
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: pytest.fail("synchronised"))
    for sync_stages in (False, True):
        Story(batches=1, sync_stages=sync_stages).happen()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("sync_stages", [False, True])
def test_a_gpu_is_synchronised_after_forward_and_update_if_asked(monkeypatch, sync_stages):
    story = Story(batches=1, sync_stages=sync_stages)
    story.model.cuda()
    load = story.__next__
    monkeypatch.setattr(Story, "__next__", lambda self: tuple(part.cuda() for part in load()))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: story.told.append("wait"))
    story.happen()
    waits = [place for place, what in enumerate(story.told) if what == "wait"]
    assert [story.told[place - 1] for place in waits] == (["forward", "step"] if sync_stages else [])
