"""Cost of runs: memory, energy, startup, node-hours; a row a configuration, or a rank of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from analysis.display.metrics import NODE, RANK, Column, Metric, Rows, columns, fields, filled, telling
from analysis.display.numbers import digits, sortable
from analysis.frames.study import Source, Study
from analysis.measures.points import (
    OWN_RUNS,
    POINT_FIELDS,
    PROFILED,
    UNPROFILED,
    point_fields,
)
from jobs import store
from jobs.run import Run
from jobs.run_fields import ID_FIELDS
from jobs.run_id import attempted
from jobs.states import NOT_ENDED
from jobs.store import Manifest, RankReport
from profiling import tables
from profiling.errors import UserError

_METERED = (
    Metric("runs", "number of runs"),
    Metric("kind_of_runs", "kind of the runs that give memory, energy and startup", text=True),
)
_MEMORY = Metric("memory_gb", "peak resident memory of a rank", "memory\nGB")
_ON_DEVICE = (
    Metric("device_memory_gb", "peak memory of tensors on a GPU", "tensors\nGB"),
    Metric("device_reserved_gb", "GPU memory reserved by PyTorch for them", "reserved\nGB"),
    Metric("device_used_gb", "GPU memory in use after the steps, by all processes", "in use\nGB"),
)
_DEVICE = (
    Metric(
        "device_j_per_image",
        "energy of all GPUs (NVML, whole boards) divided by all images, joules",
        "GPU\nJ/image",
    ),
    Metric("device_w", "mean power per GPU", "W per\nGPU"),
)
_START = (
    Metric("startup_s", "start of the process to first step, slowest rank, median over runs", "startup\ns"),
    Metric("first_step_s", "duration of the first step", "first\nstep, s"),
)
METRICS = (
    *_METERED,
    _MEMORY,
    Metric("memory_rank", "rank with the highest memory_gb", "of\nrank"),
    Metric("least_memory_gb", "memory of the rank that needs least"),
    *_ON_DEVICE,
    _DEVICE[0],
    Metric(
        "processors_j_per_image",
        "energy of all nodes' processors (RAPL, all users) divided by all images, joules",
        "processors\nJ/image",
    ),
    _DEVICE[1],
    Metric("processors_w", "mean power of the processors of a node", "CPU W\nper node"),
    Metric("energy_note", "reason why an energy is missing", text=True),
    *_START,
    Metric("node_hours", "nodes x wall time of the runs used", "node\nhours"),
    Metric("failed_node_hours", "nodes x wall time of failed runs", "node hours\nfailed"),
)
RANK_METRICS = (RANK, NODE, *_METERED, _MEMORY, *_ON_DEVICE, *_DEVICE, *_START)
COLUMNS = {"Columns: the fields of a configuration, then": METRICS, "With --by rank:": RANK_METRICS}
_NOT_SHOWN = ("kind_of_runs", "node", "least_memory_gb", "energy_note")
_OLD = "the ranks recorded none (they ran with an older release)"
_OWN_PROGRAM = "profiling.watch does not record it"
Kept = tuple[Source, Manifest]


@dataclass(frozen=True)
class Spent:
    """A run's nodes and wall time."""

    fields: Mapping[str, Any]
    counts: bool
    node_hours: float


def spent(study: Study) -> list[Spent]:
    """All ended runs of a study with their node-hours."""
    counted = {source.path.resolve() for source in study.of_kind("run")}
    sweeps = {source.path.parent for source in study.of_kind("run")} or {study.path}
    folders = sorted(counted)
    if not (study.path / store.MANIFEST).is_file():
        # A run that was started by hand may have any name.
        inside = (path for sweep in sweeps for path in sweep.glob("*") if path.is_dir())
        folders = sorted(path for path in inside if path.name.startswith("run_") or store.is_run(path))
    open_runs = {attempted(one.point): one.kind for one in study.failed if one.kind in NOT_ENDED}
    runs = []
    for directory in folders:
        begun = directory.with_name(attempted(directory.name))
        # A run that ended since the results were loaded has not failed; an attempt before one that is under
        # way has.
        state = None if directory != begun and begun.is_dir() else open_runs.get(begun.name)
        try:
            if state or not (directory / store.MANIFEST).is_file():
                raise UserError("it has not ended")
            manifest = store.read_record(directory / store.MANIFEST, Manifest)
        except UserError:
            study.log.note("not_recorded", directory.name, what="cost")
            continue
        hours = manifest.seconds * manifest.run.nodes / 3600
        runs.append(Spent(manifest.fields, directory.resolve() in counted, hours))
    return runs


def rows(study: Study, by_rank: bool = False) -> Rows:
    """A row a configuration, or a rank of one; columns: :func:`columns_of`.

    Raises:
        UserError: the study holds no run.
    """
    hours: dict[tuple, list[Spent]] = {}
    for run in spent(study):
        hours.setdefault(_key(run.fields), []).append(run)
    if not hours and study.only_traces:
        raise UserError(f"{study.path} holds only traces, which do not tell what a job cost: {OWN_RUNS}")
    if not hours:
        raise UserError(f"{study.path} holds no run with a manifest: its cost is not available")
    runs: dict[tuple, list[Kept]] = {}
    for source in study.of_kind("run"):
        if source.manifest is not None:
            runs.setdefault(_key(source.fields), []).append((source, source.manifest))
    answer: Rows = []
    for key, all_runs in hours.items():
        fields = point_fields(all_runs[0].fields)
        every = runs.get(key, [])
        plain = [run for run in every if run[0].fields["profile"] == "none"]
        metered, on = (plain, UNPROFILED) if plain else (every, PROFILED if every else "")
        if by_rank:
            answer += [{**fields, **row} for row in _of_ranks(study, metered, on)]
            continue
        answer.append({
            **fields,
            "runs": sum(run.counts for run in all_runs),
            "kind_of_runs": on,
            **_memory(metered),
            **_energy(metered),
            **_start(study, metered),
            "node_hours": sum(run.node_hours for run in all_runs if run.counts),
            "failed_node_hours": sum(run.node_hours for run in all_runs if not run.counts),
        })  # fmt: skip
    return sorted(answer, key=lambda row: sortable([row.get(name) for name in (*ID_FIELDS, "rank")]))


def _key(fields: Mapping[str, Any]) -> tuple:
    return tuple((name, str(value)) for name, value in point_fields(fields).items())


def _memory(runs: Sequence[Kept]) -> dict[str, Any]:
    reports = [report for _, manifest in runs for report in manifest.ranks if report.peak_memory_bytes]
    row = _device_memory([report for _, manifest in runs for report in manifest.ranks])
    if reports:
        most = max(reports, key=lambda report: report.peak_memory_bytes)
        least = min(report.peak_memory_bytes for report in reports)
        row |= {
            "memory_gb": most.peak_memory_bytes / 1e9,
            "memory_rank": most.rank,
            "least_memory_gb": least / 1e9,
        }
    return row


def _device_memory(reports: Sequence[RankReport]) -> dict[str, Any]:
    def most(name: str) -> float | None:
        known = [value for report in reports if (value := getattr(report, name)) is not None]
        return max(known) / 1e9 if known else None

    return {
        "device_memory_gb": most("peak_device_memory_bytes"),
        "device_reserved_gb": most("peak_device_reserved_bytes"),
        "device_used_gb": most("device_used_bytes"),
    }


def _energy(runs: Sequence[Kept]) -> dict[str, Any]:
    """Energy over images: summed over runs first; not known where one meter of one run did not tell."""
    reports = [report for _, manifest in runs for report in manifest.ranks]
    nodes = [report for report in reports if report.local_rank == 0]
    row: dict[str, Any] = {}
    for name, meters in (("device", reports), ("processors", nodes)):
        # With backend dp a rank drives several GPUs.
        boards = runs[0][0].gpus_per_rank if runs and name == "device" else 1
        row |= _rates(name, reports, meters, boards)
    notes = dict.fromkeys(why for report in reports for why in report.unmetered)
    for _, manifest in runs:
        if any(not report.metered_s for report in manifest.ranks):
            notes[_OWN_PROGRAM if manifest.run.program else _OLD] = None
    return {**row, "energy_note": "; ".join(notes)}


def _rates(
    name: str, reports: Sequence[RankReport], meters: Sequence[RankReport], boards: int
) -> dict[str, Any]:
    """Energy per image and power of a board; None where no image, or no time, is known.

    Args:
        reports: of the ranks that did the images; meters: of those that read the meters.
    """
    joules = [getattr(report, f"{name}_energy_j") for report in meters]
    if not joules or None in joules:
        return {}
    images = sum(report.images_done for report in reports)
    seconds = sum(report.metered_s for report in meters)
    return {
        f"{name}_j_per_image": sum(joules) / images if images else None,
        f"{name}_w": sum(joules) / seconds / boards if seconds else None,
    }


def _start(study: Study, runs: Sequence[Kept]) -> dict[str, Any]:
    if not runs:
        return {}
    slowest = [max(report.startup_ns for report in manifest.ranks) / 1e9 for _, manifest in runs]
    first = [max(durations) for run in runs if (durations := list(_first_batches(study, *run).values()))]
    return {"startup_s": median(slowest), "first_step_s": median(first) if first else None}


def _first_batches(study: Study, source: Source, manifest: Manifest) -> dict[int, float]:
    """How long each rank's first batch took, s; a study reads it once."""
    kept: dict[str, dict[int, float]] = study.kept("first batches")
    if source.id in kept:
        return kept[source.id]
    durations = kept[source.id] = {}
    for report in manifest.ranks:
        try:
            batches = tables.read(
                tables.rank_directory(source.path, report.rank),
                "batches",
                ["batch_index", "start_ns", "end_ns"],
            )
        except UserError:
            study.note("not_recorded", source, rank=report.rank, what="first step")
            continue
        first = {name: column.to_pylist() for name, column in zip(batches.column_names, batches, strict=True)}
        if 0 in first["batch_index"]:
            at = first["batch_index"].index(0)
            durations[report.rank] = (first["end_ns"][at] - first["start_ns"][at]) / 1e9
    return durations


def _of_ranks(study: Study, runs: Sequence[Kept], on: str) -> Rows:
    first = [_first_batches(study, *run) for run in runs]
    rows: Rows = []
    of_rank: dict[int, list[RankReport]] = {}
    for _, manifest in runs:
        for report in manifest.ranks:
            of_rank.setdefault(report.rank, []).append(report)
    for rank, reports in sorted(of_rank.items()):
        took = [batches[rank] for batches in first if rank in batches]
        row = {
            "rank": rank,
            "node": ", ".join(dict.fromkeys(report.hostname for report in reports)),
            "runs": len(reports),
            "kind_of_runs": on,
            "memory_gb": max(report.peak_memory_bytes for report in reports) / 1e9 or None,
            **_device_memory(reports),
            "startup_s": median(report.startup_ns for report in reports) / 1e9,
            "first_step_s": median(took) if took else None,
        }
        row |= _rates("device", reports, reports, runs[0][0].gpus_per_rank)
        rows.append(row)
    return rows


def columns_of(by_rank: bool = False) -> list[Metric]:
    """The columns of :func:`rows`."""
    return [*fields(POINT_FIELDS), *(RANK_METRICS if by_rank else METRICS)]


def shown(rows: Rows) -> list[Column]:
    """The tables' columns: fields that vary, and figures that are known."""
    figures = RANK_METRICS if "rank" in rows[0] else METRICS
    wanted = [metric for metric in figures if metric.name not in _NOT_SHOWN]
    return filled(columns([*fields(telling(rows, Run.model_fields)), *wanted]), rows)


def node_hours(runs: Sequence[Spent]) -> str:
    """The node-hours of used and of failed runs."""
    used, failed = (sum(run.node_hours for run in runs if run.counts is counts) for counts in (True, False))
    return f"Node-hours: {digits(used, 3)}" + (f", of failed runs: {digits(failed, 3)}" if failed else "")
