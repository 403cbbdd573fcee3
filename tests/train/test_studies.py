"""The single-node studies on this CPU, for real, at a small size."""

import argparse
import re
import sys
import threading
from functools import partial

import numpy as np
import pytest
import torch

from jobs import studies
from jobs.processes import Ended
from profiling import tables
from profiling.errors import UserError
from tests.analysis.commands import run
from train import energy
from train.studies import (
    attempt,
    capacity,
    common,
    gemm,
    layer_spec,
    layers,
    memory,
    operators,
    order,
    power,
    search,
)
from train.studies.layers import LAYERS, Passes, specs_of


@pytest.fixture
def answer_of(monkeypatch, tmp_path):
    """Runs a study's command and the one that it becomes, in this process, and gives the latter's end."""

    def run_study(main, *arguments):
        became = []
        monkeypatch.setattr(studies, "become", became.append)
        flags = [*arguments, "--out", str(tmp_path / "result"), "--format", "csv", "--threads", "1"]
        monkeypatch.setattr(sys, "argv", ["study", *flags])
        threads = torch.get_num_threads()
        try:
            main()
        finally:
            torch.set_num_threads(threads)
        ((python, _, module, *rest),) = became
        assert python == sys.executable and module == "analysis.studies"
        return run("analysis.studies.__main__", *rest)

    return run_study


# --- what they share ----------------------------------------------------------------------------------


class CountingClock:
    """Time passes only where an action says so."""

    def __init__(self):
        self.now, self.ticks = 0, []

    def start(self):
        self.ticks.clear()

    def tick(self):
        self.ticks.append(self.now)

    def instants_ns(self):
        return np.array(self.ticks)


def test_stages_of_cases_that_take_turns_are_told_apart():
    clock, seen = CountingClock(), []

    def case(name, forward, backward):
        def action(tick):
            seen.append(name)
            clock.now += forward + len(seen)  # a machine that becomes slower
            tick()
            clock.now += backward
            tick()

        return action

    cases = {"a": case("a", 100, 200), "b": case("b", 1000, 2000)}
    timed = common.time_cases(cases, ("forward", "backward"), warmup=2, repetitions=4, clock=clock)
    assert seen == ["a", "b"] * 2 + ["a", "b", "b", "a"] * 2
    assert list(timed["a"]["forward"]) == [105, 108, 109, 112]
    assert list(timed["b"]["forward"]) == [1006, 1007, 1010, 1011]
    assert list(timed["a"]["backward"]) == [200] * 4 and list(timed["b"]["backward"]) == [2000] * 4


def test_no_gpu_is_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [device.type for device in common.devices("auto", both=True)] == ["cpu"]
    with pytest.raises(UserError, match="--device gpu: torch sees no GPU here"):
        common.devices("gpu")


def test_a_gpu_is_taken_where_there_is_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [device.type for device in common.devices("auto")] == ["cuda"]
    assert [device.type for device in common.devices("auto", both=True)] == ["cpu", "cuda"]
    assert [device.type for device in common.devices("cpu", both=True)] == ["cpu"]


# --- layers -------------------------------------------------------------------------------------------


def test_a_spec_comes_back_as_it_was_written():
    for text in [*LAYERS, "Conv2d(3, 64, (7, 3), stride=2)@256,3,224,224"]:
        assert str(layer_spec.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Conv2d(3, 64, 7)", "after @ stands the shape"),
        ("Conv2d(3, 64, 7)@3,x", "after @ stands the shape"),
        ("ReLU()@0,3", "its input is empty"),
        ("Conv2d@1,3,8,8", "no call of a class of torch.nn"),
        ("torch.nn.ReLU()@3", "no call of a class of torch.nn"),
        ("Conv2d(3, 64@1,3", "no call of a class of torch.nn"),
        ("Linear(__import__('os').getpid(), 3)@4,4", "must be plain values"),
        ("Linear(*[3, 3])@4,3", "must be plain values"),
        ("Linear(**{'in_features': 3})@4,3", "must be plain values"),
        ("Conv2D(3, 64, 7)@1,3,8,8", "did you mean 'Conv2d'?"),
        ("Module()@3", "torch.nn has no layer 'Module'"),
        ("Conv2d(3)@1,3,8,8", "Conv2d(3) does not build"),
        ("Linear(5, 3)@4,4", "does not take its input"),
        ("Bilinear(4, 4, 4)@4,4", "does not take its input"),
        ("GroupNorm(0, 4)@1,4,8,8", "GroupNorm(0, 4) does not build"),
        ("PixelUnshuffle(0)@1,4,8,8", "does not take its input"),
        ("LPPool2d(0, 2)@1,3,8,8", "does not take its input"),
        (f"ReLU()@{10**20 - 1}", "does not take its input"),
        ("ReLU()@99999999999,99999999999", "does not take its input"),
        (f"ReLU()@{'9' * 5000}", "is no sensible number"),
    ],
)  # fmt: skip
def test_a_layer_that_cannot_be_is_one_line(text, said):
    with pytest.raises(UserError) as caught:
        layer_spec.check(layer_spec.parse(text))
    assert said in str(caught.value) and "\n" not in str(caught.value)


def test_operators_are_counted_without_computing():
    passes = Passes(layer_spec.parse("Conv2d(3, 128, 3, padding=1)@256,3,224,224"), torch.device("meta"))
    forward, backward, unknown = operators.count(passes.forward, passes.backward)
    output, data, weight = 256 * 128 * 224 * 224, 256 * 3 * 224 * 224, 128 * 27
    assert not unknown
    assert forward.flops == 2 * output * 27 and backward.flops == 2 * forward.flops
    assert forward.bytes == 4 * (output + data + weight + 128)


@pytest.mark.parametrize("text", ["Linear(25088, 4096)@256,25088", "MaxPool2d(2, 2)@8,3,32,32"])
def test_bytes_of_a_layer_are_those_of_its_tensors(text):
    passes = Passes(layer_spec.parse(text), torch.device("meta"))
    forward, _, unknown = operators.count(passes.forward, passes.backward)
    tensors = [passes.data, passes.gradient, *passes.layer.parameters()]
    indices = 8 * passes.gradient.numel() if "Pool" in text else 0
    assert forward.bytes == sum(tensor.nbytes for tensor in tensors) + indices and not unknown


def test_memory_of_a_layer_is_what_its_tensors_take():
    passes = Passes(layer_spec.parse("ReLU()@64,3,32,32"), torch.device("cpu"))
    taken = memory.measure(passes.device, passes.forward, passes.backward)
    one = 64 * 3 * 32 * 32 * 4
    assert taken.retained == one  # the output, which the backward pass reads
    assert taken.peak == 2 * one  # and the gradient


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("can't start new thread"),
    ],
)
def test_a_want_of_memory_is_known(error):
    assert memory.is_out_of_memory(error)
    assert not memory.is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


class Load:
    """A device that takes half a second a call, and by its own clock draws 100 W for 2 s, then 300 W."""

    def __init__(self, every_w=None):
        self.now, self.every_w = 0.0, every_w
        self.read = threading.Semaphore(0)

    def __call__(self):
        self.now += 0.5

    def and_wait_for_the_reader(self):
        self()
        for _ in range(2):  # the first may have begun before
            assert self.read.acquire(timeout=30)

    def joules(self):
        return 100 * min(self.now, 2) + 300 * max(0, self.now - 2)

    def watts(self):
        power_w = 100.0 if self.now <= 2 else 300.0
        self.read.release()
        return power_w

    def clock(self):
        return self.now


def test_power_is_what_the_counter_adds_over_time():
    load = Load()
    meters = energy.Meters(load.joules, None, load.clock)
    used = power.counted(meters, load, 3.0, settle_s=1.0, clock=load.clock)
    # From 1 s on: 1 s of 100 W, 2 s of 300 W.
    assert used == power.Metered(pytest.approx(700 / 3), 3.0, 6, "energy counted over 3.00 s")


def test_a_counter_that_fails_costs_the_power_and_says_so():
    load, told = Load(), iter([1.0, float("nan")])
    meters = energy.Meters(lambda: next(told), None, load.clock)
    used = power.counted(meters, load, 1.0, settle_s=0, clock=load.clock)
    assert used.watts is None and used.note == "NVML did not report the energy of this GPU after the batches"


def test_power_is_metered_several_times_and_settles_before_the_first():
    load = Load()
    meters = energy.Meters(load.joules, None, load.clock)
    used = power.several(partial(power.counted, meters, clock=load.clock), load, 4.0, times=4)
    # After the second that does not count: 1 s of 100 W, then of 300 W each.
    assert [one.watts for one in used] == [100, 300, 300, 300] and {one.calls for one in used} == {2}
    failed = energy.Meters(lambda: float("nan"), None, load.clock)
    (told,) = power.several(partial(power.counted, failed, clock=load.clock), load, 4.0)
    assert told.watts is None and "NVML" in told.note


def test_what_a_gpu_drew_before_it_settled_does_not_count():
    load = Load()
    settled, calls = 2.0, []

    def action():
        calls.append(load.now)
        load() if load.now < settled else load.and_wait_for_the_reader()

    used = power.sampled(load.watts, action, 2.0, settle_s=settled, period_s=1e-4, clock=load.clock)
    assert (used.watts, used.seconds, used.calls, len(calls)) == (300, 2.0, 4, 8)


def test_the_mean_power_is_over_time_and_of_what_could_be_read():
    assert power.mean_of([(3.0, 100.0), (1.0, 300.0), (9.0, float("nan"))]) == (150, 1)
    assert power.mean_of([(1.0, float("nan"))]) == (None, 1)


def test_a_layers_energy_is_that_above_idle_of_each_metering(answer_of, monkeypatch):
    draws = iter([10.0, 11, 12, 13, 14, 30, 31, 32, 33, 44])

    def meter(action, seconds, settle_s=0.0):
        action()
        return power.Metered(next(draws), 0.5, 5, "planted")

    monkeypatch.setattr(power, "open_meter", lambda device: (meter, "a made-up meter"))
    flags = ("--layer", "ReLU()@2,3,8,8", "--device", "cpu", "--repetitions", "4")
    (row,) = answer_of(layers.main, *flags).csv
    assert (float(row["power_w"]), float(row["idle_power_w"])) == (34, 12)
    # 20 W more for a tenth of a second, four times, and once 30 W.
    assert float(row["energy_above_idle_j"]) == pytest.approx(2.2)
    low, high = float(row["energy_above_idle_low_j"]), float(row["energy_above_idle_high_j"])
    assert (low, high) == pytest.approx((2.0, 3.0))
    assert (float(row["power_low_w"]), float(row["power_high_w"])) == (30, 44)


def test_a_meter_that_fails_once_costs_that_metering_alone():
    watts = iter([10.0, None, 12.0])
    made = power.several(lambda *_given, **_more: power.Metered(next(watts), 1.0, 1, ""), print, 3.0, times=3)
    assert [used.watts for used in made] == [10, 12]


def test_energy_counters_that_wrap_around(tmp_path):
    for number, (start, whole) in enumerate([(900, 999), (0, 10_000_000)]):
        package = tmp_path / f"intel-rapl:{number}"
        package.mkdir()
        (package / "energy_uj").write_text(str(start))
        (package / "max_energy_range_uj").write_text(str(whole))
    clock = iter([10.0, 12.0])
    meter = energy.Rapl(sorted(tmp_path.iterdir()), lambda: next(clock))
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("100")  # 200 more, over the end
    (tmp_path / "intel-rapl:1" / "energy_uj").write_text("3000000")
    assert meter.watts() == pytest.approx((200 + 3_000_000) / 1e6 / 2)


def test_a_machine_without_a_meter_says_so(tmp_path):
    assert power.open_meter(torch.device("cpu"), tmp_path) == (
        None,
        "RAPL is not available on this machine (no /sys/class/powercap/intel-rapl:*)",
    )


def test_the_usual_layers_are_sized_and_it_is_said():
    flags = common.study_parser("layers", "")
    flags.add_argument("--layer", action="append")
    notes = []
    small = flags.parse_args(["--batch", "2", "--image-size", "32"])
    assert [spec.shape for spec in specs_of(small, "cpu", notes)] == [(2, 3, 32, 32)] * 3 + [(2, 25088)]
    assert notes == ["sized down: batch 2, not 256", "sized down: images of 32, not 224 pixels a side"]
    assert [str(spec) for spec in specs_of(flags.parse_args([]), "cuda", [])] == list(LAYERS)
    assert {spec.shape[0] for spec in specs_of(flags.parse_args([]), "cpu", [])} == {16}
    with pytest.raises(UserError, match="says the shape of its input"):
        specs_of(flags.parse_args(["--layer", "ReLU()@3", "--batch", "2"]), "cpu", [])


def test_layers_from_the_command_line(answer_of, tmp_path):
    told = answer_of(
        layers.main, "--device", "cpu", "--layer", "ReLU()@2,3,32,32", "--layer", "Linear(64, 8)@4,64",
        "--warmup", "1", "--repetitions", "4",
    )  # fmt: skip
    assert told.code == 0 and [row["layer"] for row in told.csv] == ["ReLU()", "Linear(64, 8)"]
    for row in told.csv:
        # No two of four values hold their median in 95 % of cases.
        assert float(row["forward_ms"]) > 0 and row["forward_low_ms"] == row["forward_high_ms"] == ""
        assert float(row["backward_ms"]) > 0 and float(row["forward_roof_of_measured_pct"]) > 0
    assert sorted(path.name for path in (tmp_path / "result").iterdir()) == [
        "durations.parquet", "manifest.json", "quantities.parquet",
    ]  # fmt: skip
    assert tables.read(tmp_path / "result", "durations").num_rows == 2 * 2 * 4


# --- order --------------------------------------------------------------------------------------------


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
    assert "gives the same output" in told.err and "sized down on cpu: batch 1, not 128" in told.err


def test_a_batch_that_a_model_does_not_take_is_one_line(answer_of, tmp_path):
    with pytest.raises(
        UserError, match="resnet18 does not take batches of 1 images of 32 x 32: Expected more"
    ):
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
    assert told.code == 0 and told.csv == [] and "batch 1 does not fit on cpu" in told.err


# --- many small products, or one merged ---------------------------------------------------------------


def test_products_that_are_merged_are_the_same(answer_of):
    flags = ("--device", "cpu", "--batch", "4", "--hidden", "32", "--steps", "3", "--repetitions", "6")
    ran = answer_of(gemm.main, *flags)
    assert ran.code == 0
    separate, merged = ran.csv
    assert (separate["way"], merged["way"]) == ("separate", "merged")
    assert (float(separate["products"]), float(merged["products"])) == (12, 3)
    assert separate["same_output"] == merged["same_output"] == "True"
    flops = 2 * 4 * 32 * 32 * 4 * 3
    assert float(merged["flops_per_s"]) == pytest.approx(flops / float(merged["time_ms"]) * 1e3)
    assert float(merged["gain"]) > 0 and separate["gain"] == ""
    assert "hidden 32: 4 products merged into one" in ran.err and "sized down on cpu: batch 4" in ran.err


def test_a_layer_reads_an_image_by_its_rows(answer_of):
    flags = ("--device", "cpu", "--batch", "2", "--hidden", "16", "--image-size", "8", "--repetitions", "4")
    ran = answer_of(gemm.main, *flags)
    assert ran.code == 0
    separate, merged = ran.csv
    assert (float(separate["products"]), float(merged["products"])) == (4 * 8, 8)
    assert float(merged["inputs"]) == 3 * 8 and merged["same_output"] == "True"
    flops = 2 * 2 * 24 * 16 * 4 * 8
    assert float(merged["flops_per_s"]) == pytest.approx(flops / float(merged["time_ms"]) * 1e3)


def test_a_size_that_is_none_is_one_line(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["study", "--hidden", "0"])
    with pytest.raises(UserError, match="at least 1"):
        gemm.main()


# --- capacity -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [1, 2, 16, 100, 5000])
@pytest.mark.parametrize("largest", [1, 2, 15, 16, 17, 123, 999, 1000])
def test_the_boundary_is_found_in_few_tries(largest, start):
    asked = []

    def fits(layers):
        asked.append(layers)
        return layers <= largest

    assert search.boundary(fits, start, most=1000) == (largest, largest + 1)
    assert len(asked) == len(set(asked)) <= 2 * 10 and all(1 <= layers <= 1000 for layers in asked)


def test_a_boundary_that_is_nowhere():
    assert search.boundary(lambda _: False, 16, most=100) == (0, 1)
    assert search.boundary(lambda _: True, 16, most=100) == (100, 101)


@pytest.mark.parametrize("start", [1, 8, 15])
@pytest.mark.parametrize("weights", [[1] * 16, [9] * 3 + [1] * 13, [1] * 13 + [9] * 3, [1, 1]])
def test_the_balance_is_found(weights, start):
    def attempt(place):
        return None, sum(weights[:place]) - sum(weights[place:])

    best, tried = search.balance(attempt, start, len(weights) - 1)
    least = min(abs(attempt(place)[1]) for place in range(1, len(weights)))
    assert abs(attempt(best)[1]) == least and len(tried) <= 5


def test_a_side_that_does_not_fit_moves_the_split():
    def attempt(place):
        return None, float("inf") if place > 6 else float("-inf") if place < 6 else -1.0

    best, tried = search.balance(attempt, 2, 15)
    assert best == 6 and len(tried) > 1
    assert search.balance(lambda place: (None, float("nan")), 2, 15)[0] is None


def test_the_network_grows_in_its_proportion():
    assert [capacity.proportion(layers, 1, 1) for layers in (1, 123, 124)] == [(0, 1), (61, 62), (62, 62)]
    assert capacity.proportion(12, 3, 1) == (9, 3) and capacity.proportion(5, 0, 8) == (0, 5)


def test_stages_are_the_networks_layers():
    facts = {"convolutions": 2, "linears": 3, "batch": 1, "image_size": 8, "device": "cpu", "limit_bytes": 0,
             "warmup": 0, "repetitions": 1, "threads": 1, "seed": 0, "answer": "answer"}  # fmt: skip
    kinds = [
        [type(layer).__name__ for layer in attempt.build(attempt.Task(first=first, last=last, **facts))]
        for first, last in [(0, 5), (0, 3), (3, 5)]
    ]
    assert kinds[0] == kinds[1] + kinds[2] == ["Conv2d"] * 2 + ["Linear"] * 3
    deep = attempt.build(attempt.Task(**{**facts, "linears": 60, "first": 2, "last": 62}))
    spread = float(deep(torch.randn(1, 64, 8, 8)).detach().std())
    assert 1e-3 < spread < 1e3  # and so no denormal numbers, at any depth


def test_sizes_are_read_with_their_units():
    read = [capacity.size(text) for text in ("2GiB", "512 MiB", "1.5gb", "4096", "1kb")]
    assert read == [2 << 30, 512 << 20, 1_500_000_000, 4096, 1000]
    for wrong in ("", "2 parsecs", "-1GiB", "0"):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
            capacity.size(wrong)


FITS = {
    "fits": True,
    "reason": "",
    "limit": 9,
    "base": 1,
    "peak": 5,
    "held": 0,
    "missed": 0,
    "durations_ns": {},
}
WANTS = {**FITS, "fits": False, "reason": "DefaultCPUAllocator: can't allocate memory"}


@pytest.mark.parametrize(
    ("answers", "code", "printed", "fit"),
    [
        ([FITS], 0, "", [True]),
        ([WANTS], 1, "", [False]),
        ([None], -9, "", [False]),  # the kernel's killer
        ([None], -6, "terminate called after throwing an instance of 'std::bad_alloc'\n", [False]),
        ([WANTS, None], 1, "Connection closed by peer", [False, True]),
        ([None, WANTS], 1, "Connection closed by peer", [True, False]),
    ],
)
def test_a_want_of_memory_is_told_from_other_ends(answers, code, printed, fit):
    assert [side["fits"] for side in capacity.judged(answers, Ended(code), printed)] == fit


@pytest.mark.parametrize("died", [0, 1])
@pytest.mark.parametrize(("code", "printed"), [(-9, ""), (-6, "what(): std::bad_alloc")])
def test_of_two_stages_the_one_that_died_does_not_fit(died, code, printed):
    """Neither left an answer: the other was ended since its peer had gone."""
    sides = capacity.judged([None, None], Ended(code, process=died), printed)
    assert [side["fits"] for side in sides] == [died == 1, died == 0]
    assert sides[died]["reason"] and not sides[1 - died]["reason"]


def test_a_reason_does_not_say_where_in_pytorchs_source():
    said = RuntimeError(
        "[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
        "to allocate 6422528 bytes."
    )
    assert attempt.reason_of(said).startswith("DefaultCPUAllocator: can't allocate memory: you tried")
    assert attempt.reason_of(MemoryError()) == "MemoryError"


@pytest.mark.parametrize("code", [1, -11])
def test_any_other_end_is_an_error(code):
    with pytest.raises(UserError, match="rank 0 ended: ValueError: wrong"):
        capacity.judged([None], Ended(code, "rank 0 ended"), "Traceback\nValueError: wrong\n")


def test_a_limit_is_set_and_lifted_within_the_hard_one(monkeypatch):
    hard, was_set = 5 << 40, []
    monkeypatch.setattr(attempt.resource, "getrlimit", lambda _: (1 << 40, hard))
    monkeypatch.setattr(attempt.resource, "setrlimit", lambda _, limits: was_set.append(limits))
    assert attempt._limited(torch.device("cpu"), 2 << 40)[1] == 2 << 40
    assert attempt._limited(torch.device("cpu"), 9 << 40)[1] == hard
    attempt._unlimited()
    assert was_set == [(2 << 40, hard), (hard, hard), (hard, hard)]


def test_looks_that_memory_was_wanting_for_are_counted(monkeypatch):
    looks, enough = iter([100, 300, MemoryError(), OSError(), 200]), threading.Event()

    def look():
        said = next(looks, None)
        if said is None:
            enough.set()
            return 0
        if isinstance(said, Exception):
            raise said
        return said

    monkeypatch.setattr(attempt, "data_bytes", look)
    assert attempt._peak(torch.device("cpu"), 0, lambda: enough.wait(30)) == (300, 0, 2)


def test_what_others_keep_beside_a_result_stays(monkeypatch, tmp_path):
    """The tries of a study write into a folder of their own, which goes with them."""
    (tmp_path / "try-1-notes.txt").write_text("mine")
    flags = argparse.Namespace(
        convolutions=0, linears=1, batch=1, image_size=8, memory_limit=None, warmup=0, repetitions=1,
        threads=1, seed=0,
    )  # fmt: skip
    there = []

    def run_fresh(commands, directory, _):
        there.extend(path.name for path in directory.rglob("*.json"))
        return Ended(-9, process=0), ""

    monkeypatch.setattr(studies, "run_fresh", run_fresh)
    tries = capacity.Capacity(studies.Recorder("capacity", {}, tmp_path), flags, ["cpu"], gpu=False)
    (told,) = tries._attempt(1, [(0, 1)])
    assert there == ["0.json"] and not told["fits"]
    assert [path.name for path in tmp_path.iterdir()] == ["try-1-notes.txt"]


def test_no_second_gpu_is_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    flags = argparse.Namespace(devices=2)
    with pytest.raises(UserError, match="there is no second GPU here; use --devices 1"):
        capacity._device_names(flags, gpu=True)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel limits memory on Linux only")
def test_capacity_from_the_command_line(answer_of):
    small = ["--device", "cpu", "--batch", "384", "--image-size", "28", "--warmup", "0", "--repetitions", "1"]
    one = ["--linears", "1", "--convolutions", "0"]
    with pytest.raises(UserError, match="too small for the interpreter and PyTorch alone") as caught:
        answer_of(capacity.main, *small, *one, "--memory-limit", "32MiB")
    base = int(re.search(r"which take (\d+) MiB", str(caught.value))[1])
    # Tensors are of 73.5 MiB. A step of one layer takes six of them and 9 MiB, and as a stage 24 MiB more, of
    # threads that send and receive; a step of two layers takes a tensor more. The limit is half-way.
    told = answer_of(capacity.main, *small, *one, "--memory-limit", f"{base + 499}MiB")
    assert told.code == 0, told.err
    sides = {row["boundary"]: row for row in told.csv if row["boundary"]}
    inside, outside = sides["largest that fits"], sides["smallest that does not"]
    assert int(outside["linears"]) == int(inside["linears"]) + 1
    assert "memory" in outside["reason"] and float(inside["step_ms"]) > 0
    assert base << 20 < float(inside["peak_bytes"]) <= float(inside["limit_bytes"])
    halves = [row for row in told.csv if row["chosen"] == "True"]
    assert [row["device"] for row in halves] == ["cpu, device 0", "cpu, device 1"]
    assert sum(int(row["linears"]) for row in halves) == int(outside["linears"])
    assert all(float(row["own_ms"]) > 0 and float(row["free_bytes"]) > 0 for row in halves)
    assert all("room for" in row["why_free"] for row in halves)


# --- a GPU's side, on what one said -------------------------------------------------------------------

GIB = 1 << 30


@pytest.fixture
def gpu(monkeypatch):
    """What torch.cuda said of a GPU of 80 GiB, 10 of them taken, and NVML of its power."""
    said = {
        "set_device": None, "synchronize": None, "reset_peak_memory_stats": None,
        "mem_get_info": (70 * GIB, 80 * GIB), "memory_allocated": 3 * GIB, "memory_reserved": 2 * GIB,
        "max_memory_allocated": 5 * GIB,
        "max_memory_reserved": 7 * GIB, "get_device_properties": argparse.Namespace(uuid="1-2"),
    }  # fmt: skip
    for name, value in said.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    fractions = []
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, _: fractions.append(share)
    )
    return fractions


def test_a_gpus_own_memory_is_its_limit(gpu):
    device = torch.device("cuda", 0)
    # Of 10 GiB that are taken the allocator has 2, with which it must not exceed what the others leave.
    assert attempt._limited(device, 0) == (8 * GIB, 80 * GIB) and not gpu
    assert attempt._limited(device, 100 * GIB) == (8 * GIB, 80 * GIB) and not gpu
    assert attempt._limited(device, 40 * GIB) == (8 * GIB, 40 * GIB) and gpu == [32 / 80]
    assert attempt._limited(device, 4 * GIB) == (8 * GIB, 4 * GIB) and gpu == [32 / 80]  # too small
    assert attempt._peak(device, 8 * GIB, lambda: None) == (13 * GIB, 2 * GIB, 0)


def test_a_gpus_allocator_says_what_a_layer_takes(gpu, monkeypatch):
    """Of what was taken before, after the forward pass, and at most since the peak was set back."""
    called = []
    recorded = {
        "reset_peak_memory_stats": [None], "memory_allocated": [3 * GIB, 7 * GIB],
        "max_memory_allocated": [12 * GIB],
    }  # fmt: skip
    for name, said in recorded.items():
        each = iter(said)
        monkeypatch.setattr(
            torch.cuda, name, lambda _, name=name, each=each: called.append(name) or next(each)
        )
    taken = memory.measure(
        torch.device("cuda", 0), lambda: called.append("forward"), lambda _: called.append("backward")
    )
    assert (taken.peak, taken.retained) == (9 * GIB, 4 * GIB)
    assert called == [
        "reset_peak_memory_stats", "memory_allocated", "forward", "memory_allocated", "backward",
        "max_memory_allocated",
    ]  # fmt: skip


def test_a_gpus_power_comes_from_nvml(gpu, monkeypatch):
    import pynvml

    asked = []
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: asked.append(uuid) or "handle")
    millijoules = iter([5, 1_000_000, 1_123_400])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", lambda _: next(millijoules))
    meter, told = power.open_meter(torch.device("cuda", 0))
    assert asked == [b"GPU-1-2"] and told == "NVML's energy counter, for the whole board"
    used = meter(lambda: None, 0, settle_s=0)
    assert used.watts * used.seconds == pytest.approx(123.4)


def test_an_older_gpu_is_asked_for_its_power(gpu, monkeypatch):
    import pynvml

    def has_none(_):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda _: "handle")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", has_none)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", lambda _: 123_400)
    meter, told = power.open_meter(torch.device("cuda", 0))
    assert meter(lambda: None, 0, settle_s=0).watts == pytest.approx(123.4) and "power" in told
    monkeypatch.setattr(pynvml, "nvmlDeviceGetPowerUsage", has_none)
    failed = meter(lambda: None, 0, settle_s=0)
    assert failed.watts is None and "more failed" in failed.note
    assert power.open_meter(torch.device("cuda", 0)) == (
        None,
        "NVML does not report power here (Not Supported)",
    )
