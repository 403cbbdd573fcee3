"""The studies on this CPU: merged products, the order of ReLU and pooling, layers, what memory holds."""

import argparse
import re
import sys
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from jobs.failures import Ended
from profiling import tables
from profiling.errors import UserError
from tests.analysis.commands import run
from train import energy
from train.studies import capacity, common, gemm, layers, order
from train.studies.layers import LAYERS, specs_of

pytestmark = pytest.mark.long
TINY = ("--device", "cpu", "--repetitions", "4")
USUAL = [text.format(batch=256, size=224) for text in LAYERS]


@pytest.fixture
def answer_of(monkeypatch, tmp_path):
    """Runs a study's command and the one that it becomes, in this process, and gives the latter's end."""

    def run_study(main, *arguments):
        became = []
        monkeypatch.setattr("os.execv", lambda _, words: became.append(words))
        flags = [*arguments, "--out", str(tmp_path / "result"), "--format", "csv", "--threads", "1"]
        monkeypatch.setattr(sys, "argv", ["study", *flags])
        threads = torch.get_num_threads()
        try:
            main()
        finally:
            torch.set_num_threads(threads)
        ((python, _, module, *rest),) = became
        assert python == sys.executable and module == "analysis.studies"
        return run("analysis.studies", *rest)

    return run_study


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
    monkeypatch.setattr(common, "saved_bytes", Mock(side_effect=MemoryError))
    flags = ("--model", "squeezenet1_1", "--batch", "1", "--image-size", "32", "--warmup", "0")
    answer = answer_of(order.main, *flags, *TINY)
    assert answer.code == 0 and answer.csv == [] and "not enough memory" in answer.err


# --- the frame of the studies: stages timed in turns, memory of passes, and which device ---------------


class CountingClock:
    """Time passes only where a stage advances it."""

    def __init__(self):
        self.now, self.ticks = 0, []

    def start(self):
        self.ticks.clear()

    def tick(self):
        self.ticks.append(self.now)

    def instants_ns(self):
        return np.array(self.ticks)


def test_stages_of_cases_that_take_turns_are_told_apart(monkeypatch):
    clock, seen = CountingClock(), []
    monkeypatch.setattr(common, "open_clock", lambda _: clock)

    def case(name, forward_ns, backward_ns):
        def forward():
            seen.append(name)
            clock.now += forward_ns + len(seen)  # a machine that becomes slower
            return name

        def backward(output):
            assert output == name
            clock.now += backward_ns

        return [forward, backward]

    cases = {"a": case("a", 100, 200), "b": case("b", 1000, 2000)}
    flags = argparse.Namespace(warmup=2, repetitions=4)
    timed = common.time_cases(torch.device("cpu"), cases, ("forward", "backward"), flags)
    assert seen == ["a", "b"] * 2 + ["a", "b", "b", "a"] * 2
    assert list(timed["a"]["forward"]) == [105, 108, 109, 112]
    assert list(timed["b"]["forward"]) == [1006, 1007, 1010, 1011]
    assert list(timed["a"]["backward"]) == [200] * 4 and list(timed["b"]["backward"]) == [2000] * 4


def test_the_devices_of_a_study(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [device.type for device in common.devices("auto", both=True)] == ["cpu"]
    with pytest.raises(UserError, match="--device gpu: torch sees no GPU here"):
        common.devices("gpu")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [device.type for device in common.devices("auto")] == ["cuda"]
    assert [device.type for device in common.devices("auto", both=True)] == ["cpu", "cuda"]
    assert [device.type for device in common.devices("cpu", both=True)] == ["cpu"]


# --- the study of layers on this CPU, for real, at a small size ----------------------------------------


def test_a_spec_comes_back_as_it_was_written():
    for text in [*USUAL, "Conv2d(3, 64, (7, 3), stride=2)@256,3,224,224"]:
        assert layers.parse(text).case == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *(
            (text, "not a class of torch.nn")
            for text in (
                "Conv2d(3, 64, 7)", "Conv2d(3, 64, 7)@3,x", "ReLU()@0,3", "Conv2d@1,3,8,8",
                "Conv2d(3, 64@1,3", "Linear(__import__('os').getpid(), 3)@4,4", f"ReLU()@{'9' * 5000}",
            )
        ),
        ("Conv2D(3, 64, 7)@1,3,8,8", "did you mean 'Conv2d'?"),
        ("Conv2d(3)@1,3,8,8", "Conv2d(3) does not build"),
        ("Linear(5, 3)@4,4", "does not take its input"),
        (f"ReLU()@{10**20 - 1}", "does not take its input"),
    ],
)  # fmt: skip
def test_a_layer_that_cannot_be_is_one_line(text, reason):
    with pytest.raises(UserError) as caught:
        layers.count(layers.parse(text))
    assert reason in str(caught.value) and "\n" not in str(caught.value)


def test_only_errors_of_the_layer_are_the_users(monkeypatch):
    class Apart(torch.nn.ReLU):
        def forward(self, data):
            return super().forward(data).detach()

    with pytest.raises(UserError, match="has no output with gradients"):
        layers.count(layers.LayerSpec("Apart()@2", Apart, (2,)))

    monkeypatch.setattr(layers, "operator_cost", Mock(side_effect=ZeroDivisionError))
    with pytest.raises(ZeroDivisionError):
        layers.count(layers.parse("ReLU()@2"))


def test_the_usual_layers_are_sized():
    flags = common.study_parser("layers", "")
    flags.add_argument("--layer", action="append")
    small = flags.parse_args(["--batch", "2", "--image-size", "32"])
    assert [spec.shape for spec in specs_of(small, "cpu")] == [(2, 3, 32, 32)] * 3 + [(2, 25088)]
    assert [spec.case for spec in specs_of(flags.parse_args([]), "cuda")] == USUAL
    assert {spec.shape[0] for spec in specs_of(flags.parse_args([]), "cpu")} == {16}
    with pytest.raises(UserError, match="says the shape of its input"):
        specs_of(flags.parse_args(["--layer", "ReLU()@3", "--batch", "2"]), "cpu")


def test_layers_from_the_command_line(answer_of, tmp_path):
    flags = ("--layer", "ReLU()@2,3,32,32", "--layer", "Linear(64, 8)@4,64", "--warmup", "1")
    answer = answer_of(layers.main, *flags, *TINY)
    assert answer.code == 0 and [row["layer"] for row in answer.csv] == ["ReLU()", "Linear(64, 8)"]
    for row in answer.csv:
        # No two of four values hold their median in 95 % of cases.
        assert float(row["forward_ms"]) > 0 and row["forward_low_ms"] == row["forward_high_ms"] == ""
        assert float(row["backward_ms"]) > 0 and float(row["forward_roof_of_measured_pct"]) > 0
    written = sorted(path.name for path in (tmp_path / "result").iterdir())
    assert written == ["durations.parquet", "manifest.json", "quantities.parquet"]
    assert tables.read(tmp_path / "result", "durations").num_rows == 2 * 2 * 4


def test_a_layers_energy_is_that_above_idle_of_each_metering(answer_of, monkeypatch):
    draws = iter([10.0, 11, 12, 13, 14, 30, 31, 32, 33, 44])

    def meter(action, seconds, settle_s=0.0):
        action()
        return energy.Metered(next(draws), 0.5, 5, "planted")

    monkeypatch.setattr(energy, "open_meter", lambda device: meter)
    flags = ("--layer", "ReLU()@2,3,8,8", "--device", "cpu", "--repetitions", "4")
    (row,) = answer_of(layers.main, *flags).csv
    assert (float(row["power_w"]), float(row["idle_power_w"])) == (34, 12)
    # 20 W more for a tenth of a second, four times, and once 30 W.
    assert float(row["energy_above_idle_j"]) == pytest.approx(2.2)
    low, high = float(row["energy_above_idle_low_j"]), float(row["energy_above_idle_high_j"])
    assert (low, high) == pytest.approx((2.0, 3.0))
    assert (float(row["power_low_w"]), float(row["power_high_w"])) == (30, 44)


# --- the study of what memory holds: searches, limits, ends of tries, and for real on this CPU ---------

GIB = 1 << 30
FITS = capacity.Attempt(fits=True, limit=9, base=1, peak=5)
FAILS = capacity.Attempt(fits=False, reason="DefaultCPUAllocator: can't allocate memory", limit=9, base=1)


@pytest.mark.parametrize("weights", [[1] * 16, [9] * 3 + [1] * 13, [1] * 13 + [9] * 3, [1, 1]])
def test_the_balance_is_found(weights):
    tried = []

    def excess(place):
        tried.append(place)
        return sum(weights[:place]) - sum(weights[place:])

    best = capacity.balance(excess, len(weights) - 1)
    assert len(tried) <= 5
    least = min(abs(excess(place)) for place in range(1, len(weights)))
    assert abs(excess(best)) == least


@pytest.mark.parametrize("largest", [1, 15, 20, 1543, 1551, 1560])
def test_two_small_networks_tell_how_many_layers_fill_a_device(tmp_path, monkeypatch, largest):
    """Each try is a process, and of 80 GB one that trains for seconds: doubling and halving took 18."""
    flags = argparse.Namespace(convolutions=8, linears=8, device="cpu", threads=None, seed=0, out=tmp_path)
    study = capacity.Capacity(common.Study("capacity", flags), ["gpu"])
    asked, limit = [], 700 + (1551 if largest > 20 else largest) * 52

    def attempt(network, place=None):
        layers = sum(network)
        asked.append(layers)
        sizes = {"limit": limit, "base": 500, "peak": 700 + 50 * layers, "held": 2 * layers}
        return [FITS.model_copy(update=sizes) if layers <= largest else FAILS]

    monkeypatch.setattr(study, "attempt", attempt)
    assert sum(study.grow()) == largest + 1
    assert asked[0] == 16 and len(asked) == len(set(asked)) <= 10


@pytest.mark.parametrize(
    ("a_side", "error_at", "largest"),
    [(20, None, "20+20"), (17, None, "17+17"), (11, None, "11+11"), (20, 41, None)],
)
def test_the_largest_network_that_two_devices_hold(tmp_path, monkeypatch, a_side, error_at, largest):
    usual = {"device": "cpu", "threads": None, "seed": 0, "out": tmp_path, "balance": "memory"}
    recorder = common.Study("capacity", argparse.Namespace(convolutions=8, linears=8, **usual))
    study, asked = capacity.Capacity(recorder, ["gpu", "gpu"]), []

    def attempt(network, place=None):
        if sum(network) == error_at and asked[-1][0] == network:
            raise UserError("a try ended with exit code 1")
        asked.append((network, place))
        sizes = [sum(part) for part in capacity.stages_of(network, place)]
        return [FITS.model_copy(update={"peak": 5 + k}) if k <= a_side else FAILS for k in sizes]

    monkeypatch.setattr(study, "attempt", attempt)
    assert study.split((10, 11))
    study.grow_on_two(21)
    study.record()
    assert len(asked) == len(set(asked)) <= 18
    rows = recorder._rows["quantities"]
    chosen = {case.split()[0] for case, _, name, value, _ in rows if name == "chosen" and value}
    assert chosen == {"10+11", largest} - {None}
    networks = {case.split()[0] for case, *_ in rows}
    assert "10+11" in networks and ("20+21" in networks) == (largest == "20+20")
    assert [finding.code for finding in recorder.findings] == ["not_recorded"] * bool(error_at)


def test_stages_are_the_networks_layers():
    assert [capacity.proportion(layers, 1, 1) for layers in (1, 123, 124)] == [(0, 1), (61, 62), (62, 62)]
    assert capacity.proportion(12, 3, 1) == (9, 3) and capacity.proportion(5, 0, 8) == (0, 5)

    def built(part):
        return capacity.build(argparse.Namespace(convolutions=part[0], linears=part[1], image_size=8))

    whole, *halves = (
        [type(layer).__name__ for layer in built(part)] for part in ((2, 3), *capacity.stages_of((2, 3), 3))
    )
    assert whole == halves[0] + halves[1] == ["Conv2d"] * 2 + ["Linear"] * 3 and len(halves[0]) == 3
    assert capacity.stages_of((2, 3), 1) == [(1, 0), (1, 3)] and capacity.stages_of((2, 3), None) == [(2, 3)]
    spread = float(built((0, 60))(torch.randn(1, 64, 8, 8)).detach().std())
    assert 1e-3 < spread < 1e3  # and so no denormal numbers, at any depth


def test_a_limit_is_within_what_the_device_has(monkeypatch):
    hard, limits, fractions = 5 << 40, [], []
    monkeypatch.setattr(capacity.resource, "getrlimit", lambda _: (1 << 40, hard))
    monkeypatch.setattr(capacity.resource, "setrlimit", lambda _, both: limits.append(both))
    cpu, gpu = torch.device("cpu"), torch.device("cuda", 0)
    assert [capacity._limited(cpu, wanted)[1] for wanted in (2 << 40, 9 << 40)] == [2 << 40, hard]
    assert limits == [(2 << 40, hard), (hard, hard)]
    said = {
        "synchronize": None, "reset_peak_memory_stats": None, "mem_get_info": (70 * GIB, 80 * GIB),
        "memory_reserved": 2 * GIB, "max_memory_allocated": 5 * GIB, "max_memory_reserved": 7 * GIB,
    }  # fmt: skip
    for name, value in said.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda of, _: fractions.append(of))
    # Of 10 GiB that are taken the allocator has 2, with which it must not exceed what the others leave.
    for wanted, given in ((0, 80), (100, 80), (40, 40), (4, 4)):  # the last too small
        assert capacity._limited(gpu, wanted * GIB) == (8 * GIB, given * GIB)
    assert fractions == [32 / 80]
    assert capacity._peak(gpu, 8 * GIB, lambda: None) == (13 * GIB, 2 * GIB)


def test_sizes_are_read_with_their_units():
    sizes = [capacity.size(text) for text in ("2GiB", "512 MiB", "1.5gb", "4096", "1kb")]
    assert sizes == [2 << 30, 512 << 20, 1_500_000_000, 4096, 1000]
    for wrong in ("", "2 parsecs", "-1GiB", "0"):
        with pytest.raises(argparse.ArgumentTypeError, match="is not a size"):
            capacity.size(wrong)
    assert capacity.network_of("18+19") == (18, 19)
    for wrong in ("18", "0+0", "1+99999", "a+b"):
        with pytest.raises(argparse.ArgumentTypeError, match="is no network"):
            capacity.network_of(wrong)


@pytest.mark.parametrize(
    ("answers", "ended", "printed", "fit"),
    [
        ([FITS], Ended(0), "", [True]),
        ([FAILS], Ended(1), "", [False]),
        ([None], Ended(-9), "", [False]),  # the kernel's killer
        ([None], Ended(-6), "terminate called after throwing an instance of 'std::bad_alloc'\n", [False]),
        ([FAILS, None], Ended(1), "Connection closed by peer", [False, True]),
        ([None, FAILS], Ended(1), "Connection closed by peer", [True, False]),
        # Neither left an answer: one died, the other was ended since its peer had gone.
        ([None, None], Ended(-9, process=0), "", [False, True]),
        ([None, None], Ended(-6, process=1), "what(): std::bad_alloc", [True, False]),
    ],
)
def test_a_lack_of_memory_is_told_from_other_ends(answers, ended, printed, fit):
    assert [side.fits for side in capacity.judged(answers, ended, printed)] == fit


@pytest.mark.wide
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel limits memory on Linux only")
def test_capacity_from_the_command_line(answer_of):
    flags = ["--device", "cpu", "--batch", "384", "--image-size", "28", "--warmup", "0", "--repetitions", "1",
             "--linears", "1", "--convolutions", "0"]  # fmt: skip
    with pytest.raises(UserError, match="too small for the interpreter and PyTorch alone") as caught:
        answer_of(capacity.main, *flags, "--memory-limit", "32MiB")
    base = int(re.search(r"which take (\d+) MiB", str(caught.value))[1])
    # Tensors are of 73.5 MiB. A step of one layer takes six of them and 9 MiB, and as a stage 24 MiB more, of
    # threads that send and receive; a step of two layers takes a tensor more. The limit is half-way.
    answer = answer_of(capacity.main, *flags, "--memory-limit", f"{base + 499}MiB")
    assert answer.code == 0, answer.err
    sides = {row["boundary"]: row for row in answer.csv if row["boundary"]}
    inside, outside = sides["largest that fits"], sides["smallest that does not"]
    assert int(outside["linears"]) == int(inside["linears"]) + 1
    assert "memory" in outside["reason"] and float(inside["step_ms"]) > 0
    assert base << 20 < float(inside["peak_memory_bytes"]) <= float(inside["limit_bytes"])
    halves = [row for row in answer.csv if row["chosen"] == "True" and row["layers"] == outside["layers"]]
    assert [row["device"] for row in halves] == ["cpu, device 0", "cpu, device 1"]
    assert sum(int(row["linears"]) for row in halves) == int(outside["linears"])
    assert all(float(row["own_ms"]) > 0 and float(row["free_bytes"]) > 0 for row in halves)
