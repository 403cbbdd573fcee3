"""The study of the order of activation and pooling, on this CPU."""

import pytest
import torch

from profiling.errors import UserError
from train.studies import memory, order


class Mixed(torch.nn.Module):
    """Pairs in both orders, by layers and by functions, and a ReLU that something else reads, too."""

    def __init__(self):
        super().__init__()
        self.conv, self.relu, self.pool = (
            torch.nn.Conv2d(3, 3, 3, padding=1), torch.nn.ReLU(inplace=True), torch.nn.MaxPool2d(2),
        )  # fmt: skip

    def forward(self, images):
        one = self.pool(self.relu(self.conv(images)))
        two = self.relu(torch.nn.functional.max_pool2d(self.conv(one), 3, stride=1, padding=1))
        read_twice = torch.relu(self.conv(two))
        return (self.pool(read_twice).mean((2, 3)) + read_twice.mean((2, 3))).relu()


def kinds_of(model):
    return [kind for node in model.graph.nodes if (kind := order._kind(model, node))]


def test_every_pair_is_put_into_one_order():
    torch.manual_seed(0)
    model, images = Mixed(), torch.randn(2, 3, 16, 16)
    relu_first, pool_first = order.in_both_orders(model, "mixed").values()
    lonely = ["ReLU", "MaxPool2d", "ReLU"]
    assert kinds_of(relu_first) == ["ReLU", "MaxPool2d"] * 2 + lonely
    assert kinds_of(pool_first) == ["MaxPool2d", "ReLU"] * 2 + lonely
    expected = model(images)
    assert torch.equal(relu_first(images), expected) and torch.equal(pool_first(images), expected)


def test_a_model_without_a_pair_is_one_line():
    with pytest.raises(UserError, match="plain has no ReLU beside a MaxPool2d"):
        order.in_both_orders(torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3), torch.nn.ReLU()), "plain")


def test_saved_tensors_are_counted_once():
    data = torch.randn(1000, requires_grad=True)
    weight = torch.nn.Parameter(torch.randn(1000))
    known = {weight.untyped_storage().data_ptr()}
    # The product keeps both factors, the square its base: 1,000 of data, 1,000 of the product.
    assert memory.saved_bytes(lambda: (data * weight).square().sum(), known) == 2 * 4000


def test_order_from_the_command_line(answer_of):
    told = answer_of(
        order.main, "--device", "cpu", "--model", "squeezenet1_1", "--batch", "1", "--image-size", "64",
        "--warmup", "1", "--repetitions", "4",
    )  # fmt: skip
    assert told.code == 0, told.err
    usual, other = told.csv
    assert [usual["order"], other["order"]] == ["ReLU, MaxPool2d", "MaxPool2d, ReLU"]
    assert {row["same_output"] for row in told.csv} == {"True"} and {row["pairs"] for row in told.csv} == {
        "1.0"
    }
    assert float(usual["time_ratio"]) == 1 and float(other["step_ms"]) > 0


def test_a_batch_that_a_model_does_not_take_is_one_line(answer_of, tmp_path):
    with pytest.raises(UserError, match="resnet18 does not take batch 1 of 32 x 32 images: Expected more"):
        answer_of(order.main, "--device", "cpu", "--model", "resnet18", "--batch", "1", "--image-size", "32")
    assert not (tmp_path / "result").exists()


def test_a_want_of_memory_after_timing_leaves_no_half_a_row(answer_of, monkeypatch):
    def wants(*_):
        raise MemoryError

    monkeypatch.setattr(memory, "saved_bytes", wants)
    told = answer_of(
        order.main, "--device", "cpu", "--model", "squeezenet1_1", "--batch", "1", "--image-size", "32",
        "--warmup", "0", "--repetitions", "1",
    )  # fmt: skip
    assert told.code == 0 and told.csv == [] and "not enough memory" in told.err
