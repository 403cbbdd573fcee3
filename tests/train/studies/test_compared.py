"""The studies that compare two ways, on this CPU: merged products, and the order of ReLU and pooling."""

import pytest
import torch

from profiling.errors import UserError
from train.studies import common, gemm, order

TINY = ("--device", "cpu", "--repetitions", "4")


@pytest.mark.parametrize(
    ("flags", "inputs", "hidden", "batch", "steps"),
    [
        (("--batch", "4", "--hidden", "32", "--steps", "3"), 32, 32, 4, 3),
        (("--batch", "2", "--hidden", "16", "--image-size", "8"), 24, 16, 2, 8),  # reads an image by its rows
    ],
)
def test_products_that_are_merged_are_the_same(answer_of, flags, inputs, hidden, batch, steps):
    separate, merged = answer_of(gemm.main, *flags, *TINY).csv
    assert (separate["way"], merged["way"]) == ("separate", "merged")
    assert (float(separate["products"]), float(merged["products"])) == (4 * steps, steps)
    assert separate["same_output"] == merged["same_output"] == "True" and float(merged["inputs"]) == inputs
    flops = 2 * batch * inputs * hidden * 4 * steps
    assert float(merged["flops_per_s"]) == pytest.approx(flops / float(merged["time_ms"]) * 1e3)
    assert float(merged["speedup"]) > 0 and separate["speedup"] == ""
    at_peak = float(merged["time_at_peak_ms"]) / float(merged["time_ms"])
    assert float(merged["peak_pct"]) == pytest.approx(100 * at_peak)


class Mixed(torch.nn.Module):
    """Pairs in both orders, by layers and by functions, and a ReLU that something else reads, too."""

    def __init__(self):
        super().__init__()
        self.conv, self.relu, self.pool = (
            torch.nn.Conv2d(3, 3, 3, padding=1), torch.nn.ReLU(inplace=True), torch.nn.MaxPool2d(2),
        )  # fmt: skip

    def forward(self, images):
        first = self.pool(self.relu(self.conv(images)))
        second = self.relu(torch.nn.functional.max_pool2d(self.conv(first), 3, stride=1, padding=1))
        read_twice = torch.relu(self.conv(second))
        return (self.pool(read_twice).mean((2, 3)) + read_twice.mean((2, 3))).relu()


def test_every_pair_is_put_into_one_order():
    torch.manual_seed(0)
    model, images = Mixed(), torch.randn(2, 3, 16, 16)
    rewritten = order.in_both_orders(model, "mixed")
    kinds = [
        [kind for node in model.graph.nodes if (kind := order._kind(model, node))]
        for model in rewritten.values()
    ]
    unpaired = ["ReLU", "MaxPool2d", "ReLU"]
    assert kinds == [["ReLU", "MaxPool2d"] * 2 + unpaired, ["MaxPool2d", "ReLU"] * 2 + unpaired]
    assert all(torch.equal(each(images), model(images)) for each in rewritten.values())


def test_orders_are_measured_with_their_memory(answer_of):
    flags = ("--model", "squeezenet1_1", "--batch", "1", "--image-size", "64", "--warmup", "1")
    answer = answer_of(order.main, *flags, *TINY)
    assert answer.code == 0, answer.err
    usual, other = answer.csv
    assert [usual["order"], other["order"]] == ["ReLU, MaxPool2d", "MaxPool2d, ReLU"]
    assert {row["same_output"] for row in answer.csv} == {"True"}
    assert {row["pairs"] for row in answer.csv} == {"1.0"}
    assert float(usual["time_ratio"]) == 1 and float(other["step_ms"]) > 0
    assert float(usual["peak_memory_bytes"]) > float(usual["activation_memory_bytes"]) > 1e6


def test_a_model_that_cannot_be_compared_is_one_line(answer_of, tmp_path):
    with pytest.raises(UserError, match="plain has no ReLU beside a MaxPool2d"):
        order.in_both_orders(torch.nn.Sequential(torch.nn.Conv2d(3, 3, 3), torch.nn.ReLU()), "plain")
    with pytest.raises(UserError, match="resnet18 does not take batch 1 of 32 x 32 images: Expected more"):
        answer_of(order.main, *TINY, "--model", "resnet18", "--batch", "1", "--image-size", "32")
    assert not (tmp_path / "result").exists()


def test_a_lack_of_memory_after_timing_leaves_no_half_a_row(answer_of, monkeypatch):
    def full(*_):
        raise MemoryError

    monkeypatch.setattr(common, "saved_bytes", full)
    flags = ("--model", "squeezenet1_1", "--batch", "1", "--image-size", "32", "--warmup", "0")
    answer = answer_of(order.main, *flags, *TINY)
    assert answer.code == 0 and answer.csv == [] and "not enough memory" in answer.err
