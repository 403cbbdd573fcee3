"""What the single-node studies share: stages that are timed in turns, and on which device."""

import numpy as np
import pytest
import torch

from profiling.errors import UserError
from train.studies import common


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
