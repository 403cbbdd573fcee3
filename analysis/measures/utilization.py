"""Utilization of each GPU in profiled steps, and the speedup of more of them.

Of one device from the times of its kernels, and what the tool estimated of their launches.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from analysis.display.metrics import (
    CONFIDENCE,
    OF_A_RUN,
    RANK,
    TELLING,
    Metric,
    Rows,
    columns,
    fields,
    filled,
    telling,
)
from analysis.display.terminal import Part
from analysis.frames.divide import Intervals, covered, length, union
from analysis.frames.kernel_sums import note_left_out, untimed_launches
from analysis.frames.steps import counted_steps, in_steps
from analysis.frames.study import Source, Study, reading
from analysis.measures.certainty import without_unusable_intervals
from analysis.measures.points import points_of
from analysis.measures.scaled import figures
from profiling import tables
from profiling.errors import UserError
from profiling.workers import in_threads

METRICS = (
    RANK,
    Metric(
        "gpu",
        "index of the GPU; -1: the CPU",
        "GPU",
        show=lambda index: "CPU" if index < 0 else str(index),
        key=True,
    ),
    Metric("device_name", "name of the device", text=True),
    Metric(
        "attributed_steps",
        "profiled steps with kernels; the next five columns cover only their time",
    ),
    Metric("profiled_ms", "duration of these steps"),
    Metric(
        "gpu_utilization_pct",
        "share of the time in which a kernel runs (no copies, no memory sets)",
        "GPU\nutil. %",
        places=1,
    ),
    Metric(
        "sm_efficiency_pct",
        "estimated: blocks per multiprocessor of running kernels, at most 1, mean over time",
        "est. SM\neff. %",
        places=1,
    ),
    Metric(
        "achieved_occupancy_pct",
        "estimated: achieved occupancy, mean over kernels weighted by time",
        "est.\noccup. %",
        places=1,
    ),
    Metric(
        "communication_pct", "share of collectives in the summed kernel time", "comm. of\nkernels %", places=1
    ),
    Metric(
        "images_per_s",
        "images/s of all ranks, for the run's configuration, from the slowest rank's time",
    ),
    Metric(
        "speedup",
        "images/s relative to one rank of the same configuration",
        "speedup",
        CONFIDENCE,
        places=2,
        priority=2,
    ),
    Metric("unknown", "reason why a value is missing", text=True),
)
COLUMNS = {"Columns: run, the fields of the run, then": METRICS}
_OF_RUN = ("images_per_s", "speedup", "speedup_low", "speedup_high")
_READ = ("start_ns", "duration_ns", "class", "device", "blocks_per_sm", "occupancy_pct")
_NO_KERNELS = ("memcpy", "memset")
# Values of unknown.
_ON_CPU = "a CPU has no multiprocessors: utilization, SM efficiency and occupancy are defined for GPUs only"
_NOT_RECORDED = "the profiler did not record blocks per multiprocessor and occupancy (profile: torch does)"
_NO_DEVICE = "kernels without a device"
_MOST_GPUS = 24  # of a run, all of which a table shows
_IDLEST, _BUSIEST = 8, 3  # of more GPUs


# --- one device -------------------------------------------------------------------------------------------


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
        return {**row, "unknown": _ON_CPU}
    row |= {
        "gpu_utilization_pct": gpu_utilization_pct(kernels, windows),
        "sm_efficiency_pct": sm_efficiency_pct(kernels, windows),
        "achieved_occupancy_pct": achieved_occupancy_pct(kernels, windows),
    }
    known = row["sm_efficiency_pct"] is not None and row["achieved_occupancy_pct"] is not None
    return {**row, "unknown": "" if known else _NOT_RECORDED}


def by_device(table: pa.Table) -> dict[int, Kernels]:
    """The kernels (no copies, no sets; those with a time) of each device of a ``kernels`` table.

    Those that name no device are of none.
    """
    columns = {name: table[name].to_numpy() for name in _READ}
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


# --- all ranks --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rank:
    """One rank.

    Attributes:
        devices: a row for each of its devices.
        busy: which of its recorded batches that count have kernels, of which the figures are.
        nowhere: how many of its kernels name no device.
    """

    rank: int
    devices: Rows
    busy: np.ndarray
    nowhere: int


def _of_rank(directory: Path, steps: range | None) -> _Rank:
    """A rank by its tables.

    Args:
        steps: the batches that count; None: all.
    """
    batches = tables.read(directory, "batches", ["batch_index", "start_ns", "end_ns", "attributed"])
    recorded = batches.filter(batches["attributed"])
    recorded = recorded.filter(in_steps(recorded["batch_index"].to_numpy(), steps))
    table = tables.read(directory, "kernels", list(_READ))
    kernels_by_device = by_device(table)
    rank, nowhere = tables.rank_of(directory), table["device"].null_count
    start, end = recorded["start_ns"].to_numpy(), recorded["end_ns"].to_numpy()
    busy = np.zeros(len(recorded) if kernels_by_device else 0, bool)
    for kernels in kernels_by_device.values():
        busy |= covered((start, end), kernels.busy) > 0
    if not busy.any():
        return _Rank(rank, [], busy, nowhere)
    windows = union(start[busy], end[busy])
    devices = [
        {
            "rank": rank,
            "gpu": device,
            "attributed_steps": int(busy.sum()),
            **of_device(kernels, windows, device < 0),
        }
        for device, kernels in kernels_by_device.items()
    ]
    return _Rank(rank, devices, busy, nowhere)


def rows(study: Study) -> Rows:
    """A row a rank and device of each profiled run; columns: :func:`columns_of`.

    Raises:
        UserError: no run has kernels in batches that a profiler recorded.
    """
    of_run = _speedups(study)
    answer: Rows = []
    for source, ranks in study.each(study.recorded, lambda source: _of_run(study, source)):
        answer += [{"run": source.id, **source.fields, **row, **of_run.get(source.id, {})} for row in ranks]
    if not answer:
        raise UserError(
            f"{study.path} holds no timed kernel of a profiled step: this needs a profiled run (profile: "
            "torch)"
        )
    return answer


def _of_run(study: Study, source: Source) -> Rows:
    counted = counted_steps(study, source)

    def of_rank(path: Path) -> _Rank:
        with reading(source):
            return _of_rank(path.parent, counted.steps if counted else None)

    ranks = list(in_threads(of_rank, source.tables("kernels")))
    for one in ranks:
        if one.nowhere:
            study.note("rows_left_out", source, rank=one.rank, n=one.nowhere, what=_NO_DEVICE)
    devices = [row for one in ranks for row in one.devices]
    # A batch in which nothing ran was not idle, but not recorded.
    recorded = sum(len(one.busy) for one in ranks)
    without = recorded - sum(int(one.busy.sum()) for one in ranks)
    note_left_out(study, source, without, recorded, untimed_launches(study, source))
    return [{**row, "device_name": source.device_by_rank.get(row["rank"])} for row in devices]


def _speedups(study: Study) -> dict[str, dict[str, Any]]:
    """Images a second and speedup of each run's configuration, by the run's id."""
    by_run = {}
    for point in points_of(study, None):
        all_of = figures([point])
        row = {"images_per_s": all_of["images_per_s"]}
        if all_of["base_world_size"] == 1:
            row |= {name: all_of[name] for name in _OF_RUN if name in all_of}
        for source, _ in (*point.timed, *point.profiled):
            by_run[source.id] = row
    return by_run


def notable(rows: Rows) -> Rows:
    """The GPUs that a reader looks for, of runs of many: those that are busy least, and most."""

    def busy(row: Mapping[str, Any]) -> float:
        share = row.get("gpu_utilization_pct")
        return np.inf if share is None else float(share)

    kept: set[int] = set()
    for run in dict.fromkeys(row["run"] for row in rows):
        order = sorted((row for row in rows if row["run"] == run), key=busy)
        some = order if len(order) <= _MOST_GPUS else [*order[:_IDLEST], *order[-_BUSIEST:]]
        kept |= {id(row) for row in some}
    return [row for row in rows if id(row) in kept]


def columns_of() -> list[Metric]:
    """The columns of :func:`rows`."""
    return [*OF_A_RUN[:-1], *METRICS]


def part(some: Rows, every: Rows, title: str) -> Part:
    """The table, without empty columns: a CPU has no multiprocessors, and a trace no images/s.

    Args:
        some: the rows of ``every`` that are shown.
    """
    left_out = {"device_name", "attributed_steps", "profiled_ms", "unknown"}
    if all(row["gpu"] < 0 for row in every):
        left_out.add("gpu")  # every rank's is the CPU
    wanted = [metric for metric in METRICS if metric.name not in left_out]
    shown = [without_unusable_intervals(row) for row in some]
    columns_shown = filled(columns([*fields(telling(every, TELLING)), *wanted]), shown)
    count = f"{len(some)} of {len(every)} rows (--wide: all)" if len(some) < len(every) else ""
    return Part(title, shown, columns_shown, count)
