"""The study of layers on this CPU, for real, at a small size."""

import pytest

from profiling import tables
from profiling.errors import UserError
from train import energy
from train.studies import layers
from train.studies.layers import LAYERS


def test_a_spec_comes_back_as_it_was_written():
    for text in [*LAYERS, "Conv2d(3, 64, (7, 3), stride=2)@256,3,224,224"]:
        assert str(layers.parse(text)) == text


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
        layers.check(layers.parse(text))
    assert reason in str(caught.value) and "\n" not in str(caught.value)


def test_layers_from_the_command_line(answer_of, tmp_path):
    answer = answer_of(
        layers.main, "--device", "cpu", "--layer", "ReLU()@2,3,32,32", "--layer", "Linear(64, 8)@4,64",
        "--warmup", "1", "--repetitions", "4",
    )  # fmt: skip
    assert answer.code == 0 and [row["layer"] for row in answer.csv] == ["ReLU()", "Linear(64, 8)"]
    for row in answer.csv:
        # No two of four values hold their median in 95 % of cases.
        assert float(row["forward_ms"]) > 0 and row["forward_low_ms"] == row["forward_high_ms"] == ""
        assert float(row["backward_ms"]) > 0 and float(row["forward_roof_of_measured_pct"]) > 0
    assert sorted(path.name for path in (tmp_path / "result").iterdir()) == [
        "durations.parquet", "manifest.json", "quantities.parquet",
    ]  # fmt: skip
    assert tables.read(tmp_path / "result", "durations").num_rows == 2 * 2 * 4


def test_a_layers_energy_is_that_above_idle_of_each_metering(answer_of, monkeypatch):
    draws = iter([10.0, 11, 12, 13, 14, 30, 31, 32, 33, 44])

    def meter(action, seconds, settle_s=0.0):
        action()
        return energy.Metered(next(draws), 0.5, 5, "planted")

    monkeypatch.setattr(energy, "open_meter", lambda device: (meter, "a made-up meter"))
    flags = ("--layer", "ReLU()@2,3,8,8", "--device", "cpu", "--repetitions", "4")
    (row,) = answer_of(layers.main, *flags).csv
    assert (float(row["power_w"]), float(row["idle_power_w"])) == (34, 12)
    # 20 W more for a tenth of a second, four times, and once 30 W.
    assert float(row["energy_above_idle_j"]) == pytest.approx(2.2)
    low, high = float(row["energy_above_idle_low_j"]), float(row["energy_above_idle_high_j"])
    assert (low, high) == pytest.approx((2.0, 3.0))
    assert (float(row["power_low_w"]), float(row["power_high_w"])) == (30, 44)
