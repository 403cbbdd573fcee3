"""Energy of the timed steps and power of a repeated operation, from counters of GPUs (NVML) and CPUs (RAPL).

Counters are read before the first step and after the last. Each rank reads its GPU's; local rank 0 reads the
processors', which count for the node. If a counter is missing, the reason is recorded.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from profiling.findings import Finding

POWERCAP = Path("/sys/class/powercap")
MOST_W = 1000.0  # of a processor package that does not say its limit
GPU_COUNTS_EVERY_S = 0.1  # NVML's counter of energy is renewed so often
_LONG_ENOUGH_S = 5.0  # then that is 2 %
_MICRO, _MILLI = 1e-6, 1e-3
SETTLE_S = 1.0  # of the action before it is metered
TIMES = 5  # an action is metered, one time after the other: how much these differ says how sure the mean is


@dataclass(frozen=True)
class Used:
    """What a rank's meters counted from before the first step to after the last."""

    seconds: float = 0.0
    device_j: float | None = None  # of its GPU (with backend dp of all that it drives), whole boards
    processors_j: float | None = None  # of all processor packages of the node, by local rank 0
    why_not: list[str] = field(default_factory=list)  # why a figure is missing, a line each

    @property
    def findings(self) -> list[Finding]:
        if self.device_j is None or self.seconds >= _LONG_ENOUGH_S:
            return []
        off = min(1.0, GPU_COUNTS_EVERY_S / max(self.seconds, GPU_COUNTS_EVERY_S))
        return [Finding("uncertain", data={"figure": "GPU energy", "why": f"{off:.1%}"})]


@dataclass(frozen=True)
class Counter:
    """A counter of joules."""

    name: str  # NVML, RAPL
    read: Callable[[], float]  # joules since some time in the past; NaN: it cannot be read
    unambiguous_s: float = math.inf  # the least time in which it wraps around


class Meters:
    """A rank's meters: :meth:`start` before what is metered, :meth:`stop` after it; neither raises.

    Args:
        device: of its GPU, or why there is no counter; None: no GPU.
        processors: the node's, or why there is none; None: another rank reads them.
    """

    def __init__(
        self, device: Counter | str | None, processors: Counter | str | None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        self._counters, self._clock = {"device": device, "processors": processors}, clock

    def start(self) -> None:
        counters = {of: each for of, each in self._counters.items() if isinstance(each, Counter)}
        self._before = {of: counter.read() for of, counter in counters.items()}
        self._at = self._clock()

    def stop(self) -> Used:
        seconds = self._clock() - self._at
        joules, why_not = {}, []
        for of, counter in self._counters.items():
            if isinstance(counter, str):
                why_not.append(counter)
            elif counter:
                used = counter.read() - self._before[of]
                if math.isnan(used):
                    why_not.append(f"{counter.name}: energy unreadable")
                elif seconds >= counter.unambiguous_s:
                    why_not.append(f"{counter.name}: ambiguous after {counter.unambiguous_s:.0f} s")
                else:
                    joules[of] = used
        return Used(seconds, joules.get("device"), joules.get("processors"), why_not)


def open_meters(
    devices: Sequence[torch.device], local_rank: int, powercap: Path = POWERCAP,
    clock: Callable[[], float] = time.perf_counter,
) -> Meters:  # fmt: skip
    """The meters that a rank reads, which drives these devices."""
    boards = [gpu_energy(device) for device in devices if device.type == "cuda"]
    processors = open_rapl(powercap) if local_rank == 0 else None
    return Meters(added(boards) if boards else None, processors, clock)


# --- GPUs ---------------------------------------------------------------------------------------------


def gpu_energy(device: torch.device) -> Counter | str:
    """The joules of a GPU since its driver was loaded; before Volta, why there is no counter."""
    import pynvml

    # NVML numbers all GPUs, PyTorch those of CUDA_VISIBLE_DEVICES; this is the same to both.
    return nvml_counter(pynvml, f"GPU-{torch.cuda.get_device_properties(device).uuid}")


def nvml_counter(nvml: Any, uuid: str) -> Counter | str:
    """A GPU's joules by ``nvml``, the module ``pynvml``; or why there is no counter."""
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError as error:
        return f"NVML: {error}"

    def reading() -> float:
        try:
            return nvml.nvmlDeviceGetTotalEnergyConsumption(handle) * _MILLI
        except nvml.NVMLError:
            return math.nan

    return Counter("NVML", reading)


def added(counters: Sequence[Counter | str]) -> Counter | str:
    """One counter for several; why not, if one of them is not there."""
    readers = [counter.read for counter in counters if isinstance(counter, Counter)]
    if len(readers) < len(counters):
        return next(counter for counter in counters if isinstance(counter, str))
    return Counter("NVML", lambda: sum(read() for read in readers))


# --- processors ---------------------------------------------------------------------------------------


def open_rapl(powercap: Path = POWERCAP) -> Counter | str:
    """The counters of a node's processor packages as one; or why there are none."""
    packages = []
    for path in sorted(powercap.glob("intel-rapl:*")):
        # Neither cores (intel-rapl:0:0), which are part of one, nor the machine (psys), which one is part of.
        name = path / "name"
        if path.name.count(":") == 1 and not (name.is_file() and name.read_text().startswith("psys")):
            packages.append(path)
    if not packages:
        return f"no RAPL ({powercap}/intel-rapl:*)"

    def numbers(name: str) -> np.ndarray:
        return np.array([int((path / name).read_text()) for path in packages])

    try:
        ranges, last, total = numbers("max_energy_range_uj"), numbers("energy_uj"), 0
    except OSError as error:
        return f"RAPL: {error.strerror}; sudo chmod a+r {packages[0]}/energy_uj"
    except ValueError as error:
        return f"RAPL: {error}"
    most_w = np.full(len(packages), MOST_W)
    with suppress(OSError, ValueError):
        limits = numbers("constraint_0_power_limit_uw") * _MICRO
        most_w = np.where(limits > 0, limits, MOST_W)

    def reading() -> float:
        nonlocal last, total
        try:
            now = numbers("energy_uj")
        except (OSError, ValueError):
            return math.nan
        total += int(((now - last) % (ranges + 1)).sum())  # each wraps around
        last = now
        return total * _MICRO

    return Counter("RAPL", reading, float((ranges * _MICRO / most_w).min()))


# --- power ---------------------------------------------------------------------------------------------

Action = Callable[[], object]


@dataclass(frozen=True)
class Metered:
    """Mean power while an action was repeated, after it has settled."""

    watts: float | None  # None: there is no meter, or it failed
    seconds: float
    calls: int
    note: str  # how it was measured, or why it was not


# Meters an action, repeated for at least so many seconds after it has been repeated to settle.
Meter = Callable[..., Metered]


def open_meter(device: torch.device, powercap: Path = POWERCAP) -> Meter:
    """A device's meter; where there is none, one that says why."""
    counter = gpu_energy(device) if device.type == "cuda" else open_rapl(powercap)
    if isinstance(counter, str):
        return lambda *_: Metered(None, 0.0, 0, counter)
    return partial(counted, Meters(counter, None))


def several(meter: Meter, action: Action, seconds: float) -> list[Metered]:
    """An action metered :data:`TIMES`, for ``seconds`` in all, without failures; one if all failed."""
    metered = [meter(action, seconds / TIMES, 0.0 if number else SETTLE_S) for number in range(TIMES)]
    return [used for used in metered if used.watts is not None] or metered[-1:]


def counted(meters: Meters, action: Action, seconds: float, settle_s: float = SETTLE_S) -> Metered:
    """Mean power by counters of energy; ``action`` returns when the device has done it."""
    repeat(action, settle_s)
    meters.start()
    calls = repeat(action, seconds)
    used = meters.stop()
    if used.device_j is None:
        return Metered(None, used.seconds, calls, "; ".join(used.why_not))
    return Metered(used.device_j / used.seconds, used.seconds, calls, f"energy of {used.seconds:.2f} s")


def repeat(action: Action, seconds: float) -> int:
    """Repeat an action for at least so many seconds, once at least; how often."""
    start, calls = time.perf_counter(), 0
    while calls == 0 or time.perf_counter() - start < seconds:
        action()
        calls += 1
    return calls
