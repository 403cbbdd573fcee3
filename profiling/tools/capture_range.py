"""How does a process tell a profiler that watches it from outside to record only some batches?"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiling.markers import nvtx_emitter
from profiling.tools.base import Profiler

# Set by the command that starts the process under a profiler: by which of these it is switched on.
VARIABLE = "SCALEPROF_CAPTURE"
BY_RANGE, BY_CUDA = "nvtx", "cuda"
RANGE = "scaleprof capture"  # the profiler records while this range of NVTX is open


class RangeCapture:
    """Opens and closes the recording; the tables are made when the process has ended."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self._by = environment.get(VARIABLE, "")
        self._nvtx = nvtx_emitter(environment) if self._by == BY_RANGE else None
        self._running = False

    def prepare(self, model: Any = None) -> None:
        """Nothing: a profiler from outside takes no schedule."""

    def start(self, model: Any = None, first_batch: int = 0) -> None:
        """Switch the profiler on; nothing where it records all."""
        if self._by and not self._running:
            self._running = True
            if self._nvtx is not None:
                self._nvtx.push(RANGE)
            elif self._by == BY_CUDA and (cuda := _cuda()) is not None:
                cuda.start()

    def stop(self) -> None:
        """Switch it off; a second call does nothing."""
        if self._running:
            self._running = False
            if self._nvtx is not None:
                self._nvtx.pop(RANGE)
            elif self._by == BY_CUDA and (cuda := _cuda()) is not None:
                cuda.stop()

    def write(self) -> list[str]:
        """No table is written yet; what is wrong with the set-up is said."""
        self.stop()
        if self._by == BY_RANGE and self._nvtx is None:
            return ["the profiler waits for an NVTX range, and no library emits any (libnvtoolsext1)"]
        if self._by == BY_CUDA and _cuda() is None:
            return ["the profiler records GPU activity only, and this rank has no GPU: nothing is recorded"]
        return []


def _cuda() -> Any:
    """What switches a profiler of CUDA; None without a GPU."""
    import torch

    return torch.cuda.profiler if torch.cuda.is_available() else None


class SwitchedOn(Profiler):
    """A profiler around a rank that the rank itself switches on and off."""

    def open_capture(
        self, directory: Path, rank: int, keep_raw: bool, mode: str, all_threads: bool
    ) -> RangeCapture:
        """What switches it on; the tables are made when the process has ended."""
        return RangeCapture()
