"""Mean power of a device while something is repeated on it, and when it is idle.

Counters of energy are read twice: a GPU's through NVML, a CPU's through RAPL where it may be read. A GPU
without such a counter (before Volta) is asked for its power in a thread while the action is repeated.
"""

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch

from train.energy import POWERCAP, Meters, gpu_energy, open_rapl

PERIOD_S = 0.02  # between two readings of a GPU's power; NVML's own are 20 to 100 ms apart
# Of the action before it is metered: what NVML calls power may be the mean over the second before.
SETTLE_S = 1.0
TIMES = 5  # an action is metered, one time after the other: how much these differ says how sure the mean is

Action = Callable[[], object]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Metered:
    """Mean power while an action was repeated.

    Attributes:
        watts: mean over time; None: the meter failed.
        seconds: that so many calls took, those of settling not included.
        note: how it was measured, or why it was not.
    """

    watts: float | None
    seconds: float
    calls: int
    note: str


class Meter(Protocol):
    """Meters an action, repeated for at least so many seconds, after it has been repeated to settle."""

    def __call__(self, action: Action, seconds: float, settle_s: float = SETTLE_S) -> Metered: ...


def several(meter: Meter, action: Action, seconds: float, times: int = TIMES) -> list[Metered]:
    """An action metered so many times, for ``seconds`` in all, less what failed; one of these if all did."""
    metered = [meter(action, seconds / times, 0.0 if number else SETTLE_S) for number in range(times)]
    return [used for used in metered if used.watts is not None] or metered[-1:]


def counted(
    meters: Meters, action: Action, seconds: float, settle_s: float = SETTLE_S,
    clock: Clock = time.perf_counter,
) -> Metered:  # fmt: skip
    """Mean power by counters of energy of one device or of the processors, read before and after.

    Args:
        action: returns when the device has done it.
    """
    repeat(action, settle_s, clock)
    meters.start()
    calls = repeat(action, seconds, clock)
    used = meters.stop()
    joules = used.processors_j if used.device_j is None else used.device_j
    if joules is None:
        return Metered(None, used.seconds, calls, "; ".join(used.why_not))
    return Metered(joules / used.seconds, used.seconds, calls, f"energy counted over {used.seconds:.2f} s")


def sampled(
    watts: Callable[[], float], action: Action, seconds: float, settle_s: float = SETTLE_S,
    period_s: float = PERIOD_S, clock: Clock = time.perf_counter,
) -> Metered:  # fmt: skip
    """Mean power by readings in a thread.

    Args:
        watts: the power now; not a number where it cannot be read.
        action: returns when the device has done it.
    """
    repeat(action, settle_s, clock)
    readings: list[tuple[float, float]] = []
    done = threading.Event()

    def read() -> None:
        last, ended = clock(), False
        while not ended:
            ended = done.wait(period_s)
            now = clock()
            readings.append((now - last, watts()))
            last = now

    reader = threading.Thread(target=read, daemon=True)
    start = clock()
    reader.start()
    try:
        calls = repeat(action, seconds, clock)
    finally:
        spent = clock() - start
        done.set()
        reader.join()
    mean, failed = mean_of(readings)
    return Metered(
        mean, spent, calls, f"readings in {spent:.2f} s: {len(readings) - failed}, failed: {failed}"
    )


def repeat(action: Action, seconds: float, clock: Clock) -> int:
    """Repeat an action for at least so many seconds, once at least; how often."""
    start, calls = clock(), 0
    while calls == 0 or clock() - start < seconds:
        action()
        calls += 1
    return calls


def mean_of(readings: Sequence[tuple[float, float]]) -> tuple[float | None, int]:
    """(mean over time, how many failed) of readings (seconds, W); W of one that failed is NaN."""
    valid = [(seconds, power) for seconds, power in readings if not math.isnan(power)]
    over = sum(seconds for seconds, _ in valid)
    mean = sum(seconds * power for seconds, power in valid) / over if over else None
    return mean, len(readings) - len(valid)


def open_meter(device: torch.device, powercap: Path = POWERCAP) -> tuple[Meter | None, str]:
    """A device's meter and what it is, or None and why there is none."""
    if device.type == "cuda":
        counter = gpu_energy(device)
        if isinstance(counter, str):
            return _nvml_power(device)
        return partial(counted, Meters(counter, None)), "NVML's energy counter"
    counters = open_rapl(powercap)
    if isinstance(counters, str):
        return None, counters
    return partial(counted, Meters(None, counters)), f"RAPL, packages: {len(counters)}"


def _nvml_power(device: torch.device) -> tuple[Meter | None, str]:
    import pynvml

    def watts(handle: Any) -> float:
        try:
            return pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3
        except pynvml.NVMLError:
            return math.nan  # a reading that fails must not cost the others

    try:
        pynvml.nvmlInit()
        # By its UUID: NVML numbers all GPUs, PyTorch those of CUDA_VISIBLE_DEVICES.
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        pynvml.nvmlDeviceGetPowerUsage(handle)
    except pynvml.NVMLError as error:
        return None, f"NVML: {error}"
    return partial(sampled, partial(watts, handle)), "NVML's power readings"
