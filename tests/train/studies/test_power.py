"""Power from counters and from readings, of processors and of GPUs."""

import threading
from functools import partial

import pytest
import torch

from train import energy
from train import energy as power


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


def test_power_is_metered_several_times_and_settles_before_the_first():
    load = Load()
    meters = energy.Meters(load.joules, None, load.clock)
    used = power.several(partial(power.counted, meters, clock=load.clock), load, 4.0, times=4)
    # After the second that does not count: 1 s of 100 W, then of 300 W each.
    assert [one.watts for one in used] == [100, 300, 300, 300] and {one.calls for one in used} == {2}
    failed = energy.Meters(lambda: float("nan"), None, load.clock)
    (told,) = power.several(partial(power.counted, failed, clock=load.clock), load, 4.0)
    assert told.watts is None and told.note


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


def test_a_gpus_power_comes_from_nvml(gpu, monkeypatch):
    import pynvml

    asked = []
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: None)
    monkeypatch.setattr(pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: asked.append(uuid) or "handle")
    millijoules = iter([5, 1_000_000, 1_123_400])
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", lambda _: next(millijoules))
    meter, told = power.open_meter(torch.device("cuda", 0))
    assert asked == [b"GPU-1-2"] and told.startswith("NVML")
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
    assert failed.watts is None
    assert power.open_meter(torch.device("cuda", 0)) == (None, "NVML: Not Supported")
