"""The training loop, step by step: what happens in which order, what clock, markers and capture see of it."""

from collections import OrderedDict
from unittest.mock import Mock

import pytest
import torch

from jobs.run import make_run
from profiling.errors import UserError
from profiling.markers import Markers
from train import loop
from train.loop import Precision, make_step

CPU = torch.device("cpu")
FORWARD, BACKWARD, UPDATE = (
    ["clock.tick", f"marker.push {name}", *inside, f"marker.pop {name}"]
    for name, inside in (
        ("Forward Pass", ["zero_grad", "forward"]),
        ("Backward Pass", ["backward"]),
        ("Model Update", ["step"]),
    )
)
ENDED = ["clock.tick", "on_batch", "marker.mark End of Batch", "clock.tick"]
BATCH = ["clock.tick", "load", *FORWARD, *BACKWARD, *UPDATE, *ENDED]


class Story:
    """A training, and in ``calls`` everything that it does, in order: each who takes part notes its share."""

    def __init__(self, **fields):
        self.run = make_run({"device": "cpu", "batch": 2, "image_size": 32, "learning_rate": 0.001, **fields})
        self.calls = calls = Mock()
        calls.marker = Mock(spec=["push", "pop", "mark"])
        calls.clock.instants_ns.return_value = ["the instants"]
        self.model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 32 * 32, 10))
        self.model.register_forward_pre_hook(lambda *_: calls.forward() and None)
        self.model.register_full_backward_hook(lambda *_: calls.backward() and None)
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.run.learning_rate)
        optimizer.register_step_pre_hook(lambda *_: calls.step() and None)
        zero_grad = optimizer.zero_grad
        optimizer.zero_grad = lambda **how: (calls.zero_grad(), zero_grad(**how))
        # As DistributedDataParallel and DataParallel do, the wrapper holds the model as ``module``.
        wrapper = torch.nn.Sequential(OrderedDict(module=self.model))
        step = make_step(self.run, wrapper, optimizer, Precision(self.run, CPU))
        markers = Markers([calls.marker])
        self.recorded = loop.train(
            self.run, step, self._batches(), markers, calls.clock, calls.capture, calls.on_batch
        )

    def _batches(self):
        while True:
            self.calls.load()
            yield torch.ones(2, 3, 32, 32, requires_grad=True), torch.tensor([3, 4])

    @property
    def told(self) -> list[str]:
        """The calls' names, with the words and the numbers that were given."""
        return [
            " ".join([name, *(word for word in words if isinstance(word, str)), *map(str, named.values())])
            for name, words, named in self.calls.mock_calls
        ]


def test_a_batch_is_load_forward_backward_update_and_its_end():
    story = Story(batches=2, attribute_from=1)
    ended = ["clock.instants_ns", "capture.stop"]
    assert story.told == ["clock.start", *BATCH, "capture.start 1", *BATCH, *ended]
    assert story.recorded.instants_ns == ["the instants"]
    assert [index for index, _ in (call.args for call in story.calls.on_batch.call_args_list)] == [0, 1]
    losses = [call.args[1].item() for call in story.calls.on_batch.call_args_list]
    assert story.recorded.losses == pytest.approx(losses) and losses[1] < losses[0]
    assert story.calls.capture.start.call_args.args[0] is story.model  # within its wrapper


def test_a_schedule_switches_the_capture_on_and_off_between_batches():
    story = Story(batches=10, profile="torch", profile_schedule="1,1,2,2")
    batches = iter(range(10))
    told = [next(batches) if one == "load" else one for one in story.told]
    switched = [one for one in told if isinstance(one, int) or one.startswith("capture")]
    assert switched == [
        0, "capture.prepare", 1, "capture.start 2", 2, 3, "capture.stop",
        4, "capture.prepare", 5, "capture.start 6", 6, 7, "capture.stop", 8, 9, "capture.stop",
    ]  # fmt: skip


# --- in which precision ---------------------------------------------------------------------------------


@pytest.fixture
def flags_as_before():
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    yield
    torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize("compute", ["tf32", "fp16"])
def test_what_a_cpu_cannot_do_is_one_line(compute):
    with pytest.raises(UserError, match=f"^compute {compute} needs a GPU; on a CPU use fp32 or bf16$"):
        Precision(make_run({"compute": compute, "device": "cpu"}), CPU)


@pytest.mark.parametrize(
    ("compute", "capability", "emulated"),
    [("tf32", (7, 5), True), ("bf16", (7, 0), True), ("bf16", (8, 0), False), ("fp32", (7, 0), False)],
)
def test_fp32_products_use_tf32_only_where_it_is_asked_and_emulation_is_said(
    flags_as_before, compute, capability, emulated, monkeypatch
):
    """A library's default would give TF32 under the name of fp32."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    torch.backends.cudnn.allow_tf32 = True
    findings = Precision(make_run({"compute": compute}), torch.device("cuda")).findings
    assert torch.backends.cuda.matmul.allow_tf32 is torch.backends.cudnn.allow_tf32 is (compute == "tf32")
    assert [finding.code for finding in findings] == ["option_limited"] * emulated
