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

import torch

from profiling.findings import Finding

POWERCAP = Path("/sys/class/powercap")
MOST_W = 1000.0  # of a processor package that does not say its limit
GPU_COUNTS_EVERY_S = 0.1  # NVML's counter of energy is renewed so often
_LONG_ENOUGH_S = 5.0  # then that is 2 %
_MICRO, _MILLI = 1e-6, 1e-3
# Of the action before it is metered.
SETTLE_S = 1.0
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


class Meters:
    """A rank's meters: :meth:`start` before what is metered, :meth:`stop` after it; neither raises.

    Args:
        device: reads the joules of its GPU (NaN: it failed), or why there is no counter; None: no GPU.
        processors: the node's counters, or why there are none; None: another rank reads them.
    """

    def __init__(
        self,
        device: Callable[[], float] | str | None,
        processors: "Rapl | str | None",
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._device, self._processors, self._clock = device, processors, clock
        self._why_not = [meter for meter in (device, processors) if isinstance(meter, str)]
        self._at = self._device_j = 0.0

    def start(self) -> None:
        if callable(self._device):
            self._device_j = self._device()
        if isinstance(self._processors, Rapl):
            try:
                self._processors.used()
            except (OSError, ValueError) as error:
                self._processors = f"RAPL at start: {error}"
                self._why_not.append(self._processors)
        self._at = self._clock()

    def stop(self) -> Used:
        seconds, why_not = self._clock() - self._at, list(self._why_not)
        device_j = self._device() - self._device_j if callable(self._device) else None
        if device_j is not None and math.isnan(device_j):
            device_j = None
            why_not.append("NVML: energy unreadable")
        processors_j = None
        if isinstance(self._processors, Rapl):
            try:
                processors_j = self._processors.used()
            except (OSError, ValueError) as error:
                why_not.append(f"RAPL at end: {error}")
            if seconds >= self._processors.unambiguous_s:
                processors_j = None
                why_not.append(f"RAPL: ambiguous after {self._processors.unambiguous_s:.0f} s")
        return Used(seconds, device_j, processors_j, why_not)


def open_meters(
    devices: Sequence[torch.device],
    local_rank: int,
    powercap: Path = POWERCAP,
    clock: Callable[[], float] = time.perf_counter,
) -> Meters:
    """The meters that a rank reads, which drives these devices."""
    boards = [gpu_energy(device) for device in devices if device.type == "cuda"]
    processors = open_rapl(powercap) if local_rank == 0 else None
    return Meters(added(boards) if boards else None, processors, clock)


# --- GPUs ---------------------------------------------------------------------------------------------


def gpu_energy(device: torch.device) -> Callable[[], float] | str:
    """What reads the joules of a GPU since its driver was loaded; before Volta, why there is none."""
    import pynvml

    # NVML numbers all GPUs, PyTorch those of CUDA_VISIBLE_DEVICES; this is the same to both.
    return nvml_counter(pynvml, f"GPU-{torch.cuda.get_device_properties(device).uuid}")


def nvml_counter(nvml: Any, uuid: str) -> Callable[[], float] | str:
    """What reads a GPU's joules by ``nvml``, the module ``pynvml`` (NaN: it failed); or why there is none."""
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

    return reading


def added(counters: Sequence[Callable[[], float] | str]) -> Callable[[], float] | str:
    """One counter for several; why not, if one of them is not there."""
    readers = [counter for counter in counters if not isinstance(counter, str)]
    if len(readers) < len(counters):
        return next(counter for counter in counters if isinstance(counter, str))
    return lambda: sum(counter() for counter in readers)


# --- processors ---------------------------------------------------------------------------------------


def open_rapl(powercap: Path = POWERCAP) -> "Rapl | str":
    """The counters of a node's processor packages; why there are none."""
    packages = []
    for path in sorted(powercap.glob("intel-rapl:*")):
        # Neither cores (intel-rapl:0:0), which are part of one, nor the machine (psys), which one is part of.
        name = path / "name"
        if path.name.count(":") == 1 and not (name.is_file() and name.read_text().startswith("psys")):
            packages.append(path)
    if not packages:
        return f"no RAPL ({powercap}/intel-rapl:*)"
    try:
        return Rapl(packages)
    except OSError as error:
        return f"RAPL: {error.strerror}; sudo chmod a+r {packages[0]}/energy_uj"
    except ValueError as error:
        return f"RAPL: {error}"


class Rapl:
    """Energy of processor packages, from counters that wrap around.

    Attributes:
        unambiguous_s: the least time in which a counter wraps around.

    Raises:
        OSError, ValueError: they may not be read, or hold no numbers.
    """

    def __init__(self, packages: Sequence[Path]) -> None:
        self.packages = packages
        self._ranges = [int((path / "max_energy_range_uj").read_text()) for path in packages]
        self._last = self._read()
        seconds = []
        for counts, package in zip(self._ranges, packages, strict=True):
            most_w = 0.0
            with suppress(OSError, ValueError):
                most_w = int((package / "constraint_0_power_limit_uw").read_text()) * _MICRO
            seconds.append(counts * _MICRO / (most_w or MOST_W))
        self.unambiguous_s = min(seconds)

    def _read(self) -> list[int]:
        return [int((path / "energy_uj").read_text()) for path in self.packages]

    def used(self) -> float:
        """Joules since the last call."""
        now = self._read()
        counted = zip(now, self._last, self._ranges, strict=True)
        self._last = now
        return sum((new - old) % (counts + 1) for new, old, counts in counted) * _MICRO


# --- power ---------------------------------------------------------------------------------------------

Action = Callable[[], object]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Metered:
    """Mean power while an action was repeated, after it has settled."""

    watts: float | None  # None: the meter failed
    seconds: float
    calls: int
    note: str  # how it was measured, or why it was not


# Meters an action, repeated for at least so many seconds after it has been repeated to settle.
Meter = Callable[..., Metered]


def several(meter: Meter, action: Action, seconds: float, times: int = TIMES) -> list[Metered]:
    """An action metered ``times``, for ``seconds`` in all, without failures; one of these if all failed."""
    metered = [meter(action, seconds / times, 0.0 if number else SETTLE_S) for number in range(times)]
    return [used for used in metered if used.watts is not None] or metered[-1:]


def counted(
    meters: Meters, action: Action, seconds: float, settle_s: float = SETTLE_S,
    clock: Clock = time.perf_counter,
) -> Metered:  # fmt: skip
    """Mean power by counters of energy; ``action`` returns when the device has done it."""
    repeat(action, settle_s, clock)
    meters.start()
    calls = repeat(action, seconds, clock)
    used = meters.stop()
    joules = used.processors_j if used.device_j is None else used.device_j
    if joules is None:
        return Metered(None, used.seconds, calls, "; ".join(used.why_not))
    return Metered(joules / used.seconds, used.seconds, calls, f"energy counted over {used.seconds:.2f} s")


def repeat(action: Action, seconds: float, clock: Clock) -> int:
    """Repeat an action for at least so many seconds, once at least; how often."""
    start, calls = clock(), 0
    while calls == 0 or clock() - start < seconds:
        action()
        calls += 1
    return calls


def open_meter(device: torch.device, powercap: Path = POWERCAP) -> tuple[Meter | None, str]:
    """A device's meter and what it is, or None and why there is none."""
    if device.type != "cuda":
        counters = open_rapl(powercap)
        if isinstance(counters, str):
            return None, counters
        return partial(counted, Meters(None, counters)), f"RAPL, packages: {len(counters.packages)}"
    counter = gpu_energy(device)
    if isinstance(counter, str):
        return None, counter
    return partial(counted, Meters(counter, None)), "NVML's energy counter"
