"""How busy was each GPU, and what did more of them gain?"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

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
from analysis.display.numbers import plain
from analysis.display.terminal import Part
from analysis.measures.batches.overlap import covered, union
from analysis.measures.scaling import figures
from analysis.measures.scaling.busy import READ, by_device, of_device
from analysis.measures.scaling.certainty import open_intervals, without_unusable_intervals
from analysis.measures.scaling.point import points_of
from analysis.results.counted_steps import counted_steps, in_steps
from analysis.results.query import note_left_out, untimed_launches
from analysis.results.source import Source, reading
from analysis.results.study import Study
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
        "share of the time in which at least one kernel runs (copies and memory sets do not count)",
        "GPU\nutil. %",
        places=1,
    ),
    Metric(
        "sm_efficiency_pct",
        "estimated: blocks per multiprocessor of the running kernels, at most 1, mean over time",
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
        "images/s of all ranks, from the slowest rank's time, for the run's configuration (from unprofiled "
        "runs if there are any)",
    ),
    Metric(
        "speedup",
        "images/s relative to one rank of the same configuration (strong scaling: of the same global batch "
        "size)",
        "speedup",
        CONFIDENCE,
        places=2,
        priority=2,
    ),
    Metric("unknown", "reason why a value is missing", text=True),
)
COLUMNS = {"Columns: run, the fields of the run, then": METRICS}
_OF_RUN = ("images_per_s", "speedup", "speedup_low", "speedup_high")


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
    table = tables.read(directory, "kernels", list(READ))
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
    """The answer's rows; the columns: analysis/utilization.py.

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
            study.note(f"kernels of rank {one.rank} that name no device are left out: {one.nowhere}", source)
    devices = [row for one in ranks for row in one.devices]
    # A batch in which nothing ran was not idle, but not recorded.
    recorded = sum(len(one.busy) for one in ranks)
    without = recorded - sum(int(one.busy.sum()) for one in ranks)
    note_left_out(study, source, without, recorded, untimed_launches(study, source))
    if not devices:
        study.note(
            "no kernel in a profiled step has a time and a device: utilization is not available", source
        )
    return [{**row, "device_name": source.device_by_rank.get(row["rank"])} for row in devices]


def _speedups(study: Study) -> dict[str, dict[str, Any]]:
    """Images a second and speedup of each run's configuration, by the run's id."""
    by_run = {}
    for point in points_of(study, None):
        all_of = figures.figures([point])
        row = {"images_per_s": all_of["images_per_s"]}
        if all_of["base_world_size"] == 1:
            row |= {name: all_of[name] for name in _OF_RUN if name in all_of}
        else:
            study.note(f"{point.label}: no run of this configuration on one {study.unit}, so no speedup")
        for source, _ in (*point.timed, *point.profiled):
            by_run[source.id] = row
    return by_run


# What is said of a column below the table, where a row has it.
_EXPLAINED = {
    "sm_efficiency_pct": "SM efficiency and occupancy are estimated from the size of each launch.",
    "speedup": "Speedup: images/s relative to one {unit}, from the slowest rank's time.",
}


def caption(rows: Rows, unit: str) -> str:
    """What stands below the table: of the columns that it has.

    Args:
        unit: what a rank computes on, of ``study.unit``.
    """
    known = [name for name in _EXPLAINED if any(plain(row.get(name)) is not None for row in rows)]
    explained = (_EXPLAINED[name].format(unit=unit) for name in known)
    return " ".join(["Shares are of the time of profiled steps.", *explained])


def columns_of() -> list[Metric]:
    """The columns of :func:`rows`."""
    return [*OF_A_RUN[:-1], *METRICS]


def part(some: Rows, every: Rows, title: str, lines: Sequence[str]) -> Part:
    """The table, without empty columns: a CPU has no multiprocessors, and a trace no images/s.

    Args:
        some: the rows of ``every`` that are shown.
        lines: below it.
    """
    left_out = {"device_name", "attributed_steps", "profiled_ms", "unknown"}
    if all(row["gpu"] < 0 for row in every):
        left_out.add("gpu")  # every rank's is the CPU
    wanted = [metric for metric in METRICS if metric.name not in left_out]
    shown = [without_unusable_intervals(row) for row in some]
    columns_shown = filled(columns([*fields(telling(every, TELLING)), *wanted]), shown)
    return Part(title, shown, columns_shown, "\n".join([*lines, *open_intervals(shown)]))


def notes_of(rows: Rows) -> list[str]:
    """Why figures are not known, each once."""
    return list(dict.fromkeys(f"not available: {row['unknown']}" for row in rows if row["unknown"]))
