"""The frame of the studies: stages timed in turns, memory of passes, and which device."""

import numpy as np
import pytest
import torch

from profiling.errors import UserError
from train.studies import common


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


def test_stages_of_cases_that_take_turns_are_told_apart():
    clock, seen = CountingClock(), []

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
    timed = common.time_cases(cases, ("forward", "backward"), warmup=2, repetitions=4, clock=clock)
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
