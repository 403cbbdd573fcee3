"""Energy of the timed batches: the counters of GPUs (NVML) and of processors (RAPL), read twice.

Counters add up energy by themselves: one reading before the first batch and one after the last say all, and
cost the batches nothing. A GPU's counter is its rank's; the processors' are the node's, whose first rank
(local rank 0) reads them. Where there is no meter, the reason is kept.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from profiling.findings import Finding

POWERCAP = Path("/sys/class/powercap")
MOST_W = 1000.0  # of a processor package that does not say its limit
GPU_COUNTS_EVERY_S = 0.1  # NVML's counter of energy is renewed so often
_LONG_ENOUGH_S = 5.0  # then that is 2 %
_MICRO, _MILLI = 1e-6, 1e-3


@dataclass(frozen=True)
class Used:
    """What a rank's meters counted from before the first batch to after the last.

    Attributes:
        seconds: between the two readings.
        device_j: of its GPU (with backend dp all that it drives), whole boards, joules; None: not known.
        processors_j: of all processor packages of the node; None: not known, or not this rank's to say.
        why_not: why a figure is not there, a line each.
    """

    seconds: float = 0.0
    device_j: float | None = None
    processors_j: float | None = None
    why_not: list[str] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        if self.device_j is None or self.seconds >= _LONG_ENOUGH_S:
            return []
        off = min(1.0, GPU_COUNTS_EVERY_S / max(self.seconds, GPU_COUNTS_EVERY_S))
        return [Finding("uncertain", data={"figure": "GPU energy", "why": f"{off:.1%}"})]


class Meters:
    """A rank's meters: :meth:`start` before what is metered, :meth:`stop` after it.

    A meter that fails costs its figure, and not what is metered: neither raises, ``why_not`` says it.

    Args:
        device: joules that its GPU has used since some moment (NaN: it does not tell any more), or why that
            is not known; None: it has none.
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
            why_not.append("NVML energy: not readable")
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
    """Joules that a GPU has used since its driver was loaded; why not, if NVML does not tell."""
    import pynvml

    return counter_of(pynvml, f"GPU-{torch.cuda.get_device_properties(device).uuid}")


def counter_of(nvml: Any, uuid: str) -> Callable[[], float] | str:
    """The energy counter of the GPU of this UUID; why there is none.

    Args:
        nvml: the module ``pynvml``, or what acts like it.
        uuid: NVML numbers all GPUs, PyTorch those of CUDA_VISIBLE_DEVICES; this is the same to both.
    """
    try:
        nvml.nvmlInit()
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid.encode())
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError as error:
        return f"NVML energy: {error}"

    def joules() -> float:
        try:
            return nvml.nvmlDeviceGetTotalEnergyConsumption(handle) * _MILLI
        except nvml.NVMLError:
            return math.nan  # a meter that fails must not cost the run

    return joules


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

    Raises:
        OSError: they may not be read.
        ValueError: they hold no numbers.
    """

    def __init__(self, packages: Sequence[Path]) -> None:
        self._packages = packages
        self._ranges = [_whole(path / "max_energy_range_uj") for path in packages]
        self._last = self._read()

    def __len__(self) -> int:
        return len(self._packages)

    @property
    def unambiguous_s(self) -> float:
        """How long a counter takes to wrap around at least: longer than that, two readings do not tell."""
        seconds = []
        for whole, package in zip(self._ranges, self._packages, strict=True):
            most_w = 0.0
            with suppress(OSError, ValueError):
                most_w = _whole(package / "constraint_0_power_limit_uw") * _MICRO
            seconds.append(whole * _MICRO / (most_w or MOST_W))
        return min(seconds)

    def _read(self) -> list[int]:
        return [_whole(path / "energy_uj") for path in self._packages]

    def used(self) -> float:
        """Joules since the last call."""
        now = self._read()
        counted = zip(now, self._last, self._ranges, strict=True)
        self._last = now
        return sum((new - old) % (whole + 1) for new, old, whole in counted) * _MICRO


def _whole(path: Path) -> int:
    return int(path.read_text())
