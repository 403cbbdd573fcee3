"""What power does a device draw while something runs on it, and how much of that when idle?

A GPU is asked through NVML, a CPU through RAPL's energy counters where they may be read; a thread reads them
while the action is repeated. Where there is no meter, :func:`open_meter` says why.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from train.energy import POWERCAP, open_rapl

PERIOD_S = 0.02  # between two readings; NVML's own are 20 to 100 ms apart

# Watts at (NVML), or since the last call before (RAPL), now.
Watts = Callable[[], float]


@dataclass(frozen=True)
class Sampled:
    """Mean power while an action was repeated.

    Attributes:
        watts: mean over time.
        seconds: that it took in all, for so many calls.
    """

    watts: float
    seconds: float
    calls: int
    readings: int


def sample(watts: Watts, action: Callable[[], object], seconds: float, period_s: float = PERIOD_S) -> Sampled:
    """Repeat ``action`` for at least ``seconds`` and read the meter in a thread meanwhile.

    ``action`` returns when the device has done it.
    """
    readings: list[tuple[float, float]] = []
    done = threading.Event()

    def read() -> None:
        watts()  # a counter's first reading begins the first interval
        last = time.perf_counter()
        while True:
            ended = done.wait(period_s)
            now = time.perf_counter()
            readings.append((now - last, watts()))
            last = now
            if ended:
                return

    reader = threading.Thread(target=read, daemon=True)
    start = time.perf_counter()
    reader.start()
    calls = 0
    try:
        while calls == 0 or time.perf_counter() - start < seconds:
            action()
            calls += 1
    finally:
        spent = time.perf_counter() - start
        done.set()
        reader.join()
    over = sum(duration for duration, _ in readings)
    mean = sum(duration * power for duration, power in readings) / over if over else float("nan")
    return Sampled(mean, spent, calls, len(readings))


def open_meter(device: torch.device, powercap: Path = POWERCAP) -> tuple[Watts | None, str]:
    """A device's meter and what it is, or None and why there is none."""
    return _nvml(device) if device.type == "cuda" else _rapl(powercap)


def _nvml(device: torch.device) -> tuple[Watts | None, str]:
    import pynvml

    try:
        pynvml.nvmlInit()
        # By its UUID: NVML numbers all GPUs, PyTorch those of CUDA_VISIBLE_DEVICES.
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        pynvml.nvmlDeviceGetPowerUsage(handle)
    except pynvml.NVMLError as error:
        return None, f"NVML tells no power here ({error})"
    return (lambda: pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3), "NVML, the whole board"


def _rapl(powercap: Path) -> tuple[Watts | None, str]:
    counters = open_rapl(powercap)
    if isinstance(counters, str):
        return None, counters
    return counters.watts, f"RAPL, {len(counters)} package{'s' if len(counters) > 1 else ''}"
