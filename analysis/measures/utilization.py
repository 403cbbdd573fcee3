"""Utilization of each GPU in profiled steps, and the speedup of more of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from analysis.display.metrics import CONFIDENCE, OF_A_RUN, RANK, Metric
from analysis.display.output import Answer
from analysis.frames.divide import Intervals, covered, length, union
from analysis.frames.kernel_sums import note_left_out, untimed_launches
from analysis.frames.measure import measure
from analysis.frames.steps import counted_steps, in_steps
from analysis.frames.study import Source, Study, in_threads, reading
from analysis.measures.points import points_of, runs_of
from analysis.measures.scaled import against_base, without_unusable_intervals
from profiling import tables
from profiling.errors import UserError

METRICS = (
    RANK,
    Metric("gpu", "index of the GPU; -1: the CPU", "GPU", key=True,
           show=lambda index: "CPU" if index < 0 else str(index)),
    Metric("device_name", "name of the device", text=True, table=False),
    Metric("device_memory_gb", "memory of the GPU, 1e9 bytes", table=False),
    Metric("compute_capability", "compute capability of the GPU", text=True, table=False),
    Metric("attributed_steps", "profiled steps with kernels; basis of the next five columns", table=False),
    Metric("profiled_ms", "duration of the profiled steps", table=False),
    Metric("gpu_utilization_pct", "share of the time in which a kernel runs", "GPU\nutil. %", places=1),
    Metric("sm_efficiency_pct", "estimated: blocks per multiprocessor of running kernels, at most 1",
           "est. SM\neff. %", places=1),
    Metric("achieved_occupancy_pct", "estimated: achieved occupancy of kernels, weighted by time",
           "est.\noccup. %", places=1),
    Metric("communication_pct", "share of collectives in kernel time", "comm. of\nkernels %", places=1),
    Metric("epoch_ms", "number of steps x mean step: an epoch, if the run is one", "epoch, ms", places=0),
    Metric("images_per_s", "images/s of all ranks, for the run's configuration"),
    Metric("speedup", "images/s relative to one rank", "speedup", CONFIDENCE, places=2, priority=2),
    Metric("unknown", "reason why a value is missing", text=True, table=False),
)  # fmt: skip
COLUMNS = {"Columns: run, the fields of the run, then": METRICS}
_OF_RUN = ("epoch_ms", "images_per_s", "speedup", "speedup_low", "speedup_high")
_READ = ("start_ns", "duration_ns", "class", "device", "blocks_per_sm", "occupancy_pct")
# Values of unknown.
_ON_CPU = "a CPU has no multiprocessors: utilization, SM efficiency and occupancy are defined for GPUs only"
_NOT_RECORDED = "the profiler did not record blocks per multiprocessor and occupancy (profile: torch does)"
_MOST_GPUS = 24  # of a run, all of which a table shows
_IDLEST, _BUSIEST = 8, 3  # of more GPUs


def by_device(table: pa.Table) -> dict[int, pd.DataFrame]:
    """The kernels (no copies, no sets; those with a time) of each device that a ``kernels`` table names.

    Columns: ``start_ns, end_ns, class, blocks_per_sm, occupancy_pct``; NaN where not recorded.
    """
    placed = pc.field("start_ns").is_valid() & (pc.field("duration_ns") >= 0) & pc.field("device").is_valid()
    kernels = table.select(_READ).filter(placed).to_pandas()
    kernels = kernels[~kernels["class"].isin(["memcpy", "memset"])]
    kernels["end_ns"] = kernels["start_ns"] + kernels["duration_ns"]
    return {int(device): of_device for device, of_device in kernels.groupby("device")}


def times_of(kernels: pd.DataFrame) -> Intervals:
    return kernels["start_ns"].to_numpy(), kernels["end_ns"].to_numpy()


def of_device(kernels: pd.DataFrame, windows: Intervals, on_cpu: bool = False) -> dict[str, Any]:
    """The figures of one device, and ``unknown``: why there are not all.

    Kernel times are those inside ``windows`` (disjoint, in order). Of kernels that run at once the blocks add
    up before they are cut to one a multiprocessor.
    """
    whole_ns, inside_ns = length(windows), covered(times_of(kernels), windows)
    talks = (kernels["class"] == "communication").to_numpy()
    row: dict[str, Any] = {"profiled_ms": whole_ns / 1e6, "communication_pct": 100 * _mean(talks, inside_ns)}
    if on_cpu:
        return {**row, "unknown": _ON_CPU}
    row["gpu_utilization_pct"] = 100 * int(covered(windows, union(*times_of(kernels))).sum()) / whole_ns
    occupancy = kernels["occupancy_pct"].to_numpy(float)
    known = occupancy >= 0
    row["achieved_occupancy_pct"] = _mean(occupancy[known], inside_ns[known])
    blocky = kernels[kernels["blocks_per_sm"] > 0]
    blocks, times = blocky["blocks_per_sm"].to_numpy(float), np.concatenate(times_of(blocky))
    order = np.argsort(times, kind="stable")
    level = np.cumsum(np.concatenate([blocks, -blocks])[order])[:-1]
    # What sums of floats leave where no kernel runs is no work.
    working = np.where(level > 1e-9, np.minimum(level, 1.0), 0.0)
    worked = (working * covered((times[order][:-1], times[order][1:]), windows)).sum()
    row["sm_efficiency_pct"] = 100 * float(worked) / whole_ns if len(blocky) else np.nan
    recorded = not np.isnan([row["sm_efficiency_pct"], row["achieved_occupancy_pct"]]).any()
    return {**row, "unknown": "" if recorded else _NOT_RECORDED}


def _mean(values: np.ndarray, weights: np.ndarray) -> float:
    return float((values * weights).sum() / weights.sum()) if weights.any() else np.nan


@measure(COLUMNS)
def utilization(study: Study) -> Answer:
    """A row a rank and device of each profiled run."""
    found = [frame for _, frame in study.each(study.recorded, lambda source: _of_run(study, source))]
    if not found or all(frame.empty for frame in found):
        needs = "this needs a profiled run (profile: torch)"
        raise UserError(f"{study.path} holds no timed kernel of a profiled step: {needs}")
    rows = study.with_fields(pd.concat(found, ignore_index=True)).drop(columns="repetition")
    rows = rows.merge(_speedups(study), on="run", how="left")
    on_cpus = bool((rows["gpu"] < 0).all())
    # Every rank's is the CPU.
    metrics = [replace(one, table=False) if on_cpus and one.name == "gpu" else one for one in METRICS]
    whose = "rank" if on_cpus or study.on_cpus else "GPU"
    columns = [*OF_A_RUN[:-1], *metrics]
    return Answer(rows, columns, title=f"Utilization of each {whose}", notable=notable(rows))


def _of_run(study: Study, source: Source) -> pd.DataFrame:
    counted = counted_steps(study, source)
    folders = [path.parent for path in source.tables("kernels")]
    with reading(source):
        found = list(in_threads(lambda folder: _of_rank(folder, counted.steps), folders))
    reports = {report.rank: report for report in source.manifest.ranks} if source.manifest else {}
    devices = list[dict[str, Any]]()
    for folder, (of_devices, _, unnamed) in zip(folders, found, strict=True):
        rank = tables.rank_of(folder)
        if unnamed:
            study.note("rows_left_out", source, rank=rank, n=unnamed, what="kernels without a device")
        facts = {"run": source.id, "rank": rank, "device_name": source.device_by_rank.get(rank)}
        if report := reports.get(rank):
            facts["device_memory_gb"] = (report.device_memory_bytes or np.nan) / 1e9
            facts["compute_capability"] = report.compute_capability
        devices += [facts | row for row in of_devices]
    # A step in which nothing ran was not idle, but not recorded.
    busy = np.concatenate([of_rank for _, of_rank, _ in found] or [np.zeros(0, bool)])
    note_left_out(study, source, int((~busy).sum()), len(busy), untimed_launches(study, source))
    return pd.DataFrame(devices)


def _of_rank(directory: Path, steps: range) -> tuple[list[dict[str, Any]], np.ndarray, int]:
    """A rank: a row a device, which of its recorded steps have kernels, how many kernels name no device."""
    batches = tables.read(directory, "batches", ["batch_index", "start_ns", "end_ns", "attributed"])
    recorded = batches.filter(batches["attributed"])
    recorded = recorded.filter(in_steps(recorded["batch_index"].to_numpy(), steps))
    table = tables.read(directory, "kernels", list(_READ))
    kernels_by_device = by_device(table)
    start, end = recorded["start_ns"].to_numpy(), recorded["end_ns"].to_numpy()
    busy = np.zeros(len(recorded) if kernels_by_device else 0, bool)
    for kernels in kernels_by_device.values():
        busy |= covered((start, end), union(*times_of(kernels))) > 0
    windows = union(start[busy], end[busy])
    devices = [
        {"gpu": device, "attributed_steps": int(busy.sum()), **of_device(kernels, windows, device < 0)}
        for device, kernels in kernels_by_device.items()
        if busy.any()
    ]
    return devices, busy, table["device"].null_count


def _speedups(study: Study) -> pd.DataFrame:
    """Images/s of each run's configuration, and its speedup where that is over one rank."""
    points = points_of(study, None)
    if points.empty:
        return pd.DataFrame(columns=["run", *_OF_RUN])
    frame = against_base(points, pd.Series(points.index, points.index))
    frame.loc[frame["base_world_size"] != 1, list(_OF_RUN[2:])] = np.nan
    epoch_ms, runs = points["batches"] * points["mean_ns"] / 1e6, points.apply(runs_of, axis=1)
    frame = frame.assign(epoch_ms=epoch_ms, images_per_s=points["images_per_s"], run=runs).explode("run")
    return frame[["run", *_OF_RUN]].assign(run=[source.id for source in frame["run"]])


def notable(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows that a table shows: of runs of many GPUs those that are busy least, and most."""
    busy = rows.get("gpu_utilization_pct", pd.Series(np.nan, rows.index)).fillna(np.inf)
    groups = busy.groupby(rows["run"], sort=False)
    place, count = groups.rank(method="first"), groups.transform("size")
    shown = rows[(count <= _MOST_GPUS) | (place <= _IDLEST) | (place > count - _BUSIEST)]
    return without_unusable_intervals(shown)
