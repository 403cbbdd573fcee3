"""How busy was one device? From the times of its kernels, and what the tool estimated of their launches."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.measures.batches.overlap import Intervals, covered, length, union

READ = ("start_ns", "duration_ns", "class", "device", "blocks_per_sm", "occupancy_pct")
_NO_KERNELS = ("memcpy", "memset")
ON_CPU = "a CPU has no multiprocessors: utilization, SM efficiency and occupancy are defined for GPUs only"
NOT_RECORDED = "the profiler did not record blocks per multiprocessor and occupancy (profile: torch does)"


@dataclass(frozen=True)
class Kernels:
    """Kernels of one device: arrays of one length; NaN where not recorded."""

    start_ns: np.ndarray
    end_ns: np.ndarray
    collective: np.ndarray
    blocks_per_sm: np.ndarray
    occupancy_pct: np.ndarray

    @property
    def times(self) -> Intervals:
        return self.start_ns, self.end_ns

    @cached_property
    def busy(self) -> Intervals:
        """When at least one of them runs, disjoint and in order."""
        return union(*self.times)


def gpu_utilization_pct(kernels: Kernels, windows: Intervals) -> float:
    """Time in which at least one kernel runs over that of ``windows`` (disjoint, in order)."""
    return 100 * int(covered(windows, kernels.busy).sum()) / length(windows)


def sm_efficiency_pct(kernels: Kernels, windows: Intervals) -> float | None:
    """Mean over ``windows`` of the multiprocessors that have work: blocks a multiprocessor, at most one.

    Of kernels that run at once the blocks add up before they are cut to one; where none runs it is 0. None
    where no kernel has blocks.
    """
    known = kernels.blocks_per_sm > 0
    if not known.any():
        return None
    blocks = kernels.blocks_per_sm[known].astype(float)
    times = np.concatenate([kernels.start_ns[known], kernels.end_ns[known]])
    order = np.argsort(times, kind="stable")
    level = np.cumsum(np.concatenate([blocks, -blocks])[order])[:-1]
    pieces = (times[order][:-1], times[order][1:])
    # What sums of floats leave where no kernel runs is no work.
    working = np.where(level > 1e-9, np.minimum(level, 1.0), 0.0)
    return 100 * float((working * covered(pieces, windows)).sum()) / length(windows)


def achieved_occupancy_pct(kernels: Kernels, windows: Intervals) -> float | None:
    """Mean of the kernels' estimated occupancies, weighted by their time in ``windows``; None: unknown."""
    known = kernels.occupancy_pct >= 0
    times = covered((kernels.start_ns[known], kernels.end_ns[known]), windows)
    whole = int(times.sum())
    return float((kernels.occupancy_pct[known] * times).sum()) / whole if whole else None


def communication_pct(kernels: Kernels, windows: Intervals) -> float | None:
    """Collectives in the summed time of kernels in ``windows``; None without any kernel."""
    times = covered(kernels.times, windows)
    whole = int(times.sum())
    return 100 * int(times[kernels.collective].sum()) / whole if whole else None


def of_device(kernels: Kernels, windows: Intervals, on_cpu: bool) -> dict[str, Any]:
    """The figures of one device, and ``unknown``: why there are not all."""
    row: dict[str, Any] = {
        "profiled_ms": length(windows) / 1e6,
        "communication_pct": communication_pct(kernels, windows),
    }
    if on_cpu:
        return {**row, "unknown": ON_CPU}
    row |= {
        "gpu_utilization_pct": gpu_utilization_pct(kernels, windows),
        "sm_efficiency_pct": sm_efficiency_pct(kernels, windows),
        "achieved_occupancy_pct": achieved_occupancy_pct(kernels, windows),
    }
    known = row["sm_efficiency_pct"] is not None and row["achieved_occupancy_pct"] is not None
    return {**row, "unknown": "" if known else NOT_RECORDED}


def by_device(table: pa.Table) -> dict[int, Kernels]:
    """The kernels (no copies, no sets; those with a time) of each device of a ``kernels`` table.

    Those that name no device are of none.
    """
    columns = {name: table[name].to_numpy() for name in READ}
    # What is null is NaN here, and not 0 or more.
    timed = ~np.isnan(columns["start_ns"].astype(float)) & (columns["duration_ns"].astype(float) >= 0)
    wanted = timed & ~np.isin(columns["class"], _NO_KERNELS)
    columns = {name: values[wanted] for name, values in columns.items()}
    start = columns["start_ns"].astype(np.int64)
    end = start + columns["duration_ns"].astype(np.int64)
    collective = columns["class"] == "communication"
    kernels_of = {}
    devices = columns["device"].astype(float)  # null is NaN
    for device in np.unique(devices[~np.isnan(devices)]):
        mine = columns["device"] == device
        blocks, occupancy = (columns[name][mine].astype(float) for name in ("blocks_per_sm", "occupancy_pct"))
        kernels_of[int(device)] = Kernels(start[mine], end[mine], collective[mine], blocks, occupancy)
    return kernels_of
