"""A sweep's results with planted truth: real records and tables, made by arithmetic instead of training.

Everything that an analysis should find is known: the duration of a batch by world size, the noise, the slow
batches at the head, the time of kernels and of communication and how much of it is hidden, FLOPs and bytes.
"""

import json
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from jobs import store
from jobs.run import Run
from jobs.run_fields import format_id
from jobs.store import Allreduce, Calibration, Manifest, RankReport
from profiling import tables

START_NS = 1_790_000_000_000_000_000
MS = 1_000_000
_MADE: dict[str, dict[Path, bytes]] = {}  # the files of each run that was asked for, by its arguments


@dataclass
class Truth:
    """What is planted.

    Attributes:
        step_ms: world size -> duration of a steady batch of the job, ms.
        noise_ms: standard deviation of a batch's duration, ms.
        run_noise_ms: standard deviation between runs, ms.
        warmup: slow batches at the head of each run, of ``warmup_factor`` times the duration.
        perturbation: how much slower a batch is that the profiler records.
        slowest_extra_ms: how much later the last rank ends a batch than the others (the job's batch is its).
        kernel_ms: time of model kernels in a batch of one rank, ms, the rest is idle.
        communication_ms, hidden_ms: collectives in a batch (where P > 1), and how much of it is hidden.
        wait_ms: world size -> how long a batch's kernels wait for the loader; by default none do.
        queued_ms: how long before it begins a kernel is launched.
        flops, bytes: of one batch of one rank.
        device: what the ranks report.
    """

    step_ms: dict[int, float] = field(default_factory=lambda: {1: 100.0, 2: 110.0, 4: 125.0})
    noise_ms: float = 1.0
    run_noise_ms: float = 0.0
    warmup: int = 3
    warmup_factor: float = 4.0
    perturbation: float = 1.25
    slowest_extra_ms: float = 0.0
    kernel_ms: float = 60.0
    communication_ms: float | dict[int, float] = 20.0
    hidden_ms: float = 15.0
    wait_ms: dict[int, float] = field(default_factory=dict)
    queued_ms: float = 1.0
    flops: float = 7.4e11
    bytes: float = 4e10
    training_flops_per_image: float = 2.4e10
    device: str = "NVIDIA A100-SXM4-40GB"


def run_of(**fields: Any) -> Run:
    """A run with the defaults of these tests."""
    return Run(**{"batches": 40, "batch": 32, "workers": 2, "loader": "synthetic", **fields})


def write_sweep(
    directory: Path,
    runs: list[Run],
    truth: Truth | None = None,
    repetitions: dict[str, int] | None = None,
    calibration: bool = True,
    excluded: tuple[tuple[str, str], ...] = (),
) -> Truth:
    """Write a sweep's results.

    Args:
        repetitions: by profile; by default two of each unprofiled run and one of each profiled.
    """
    truth = truth or Truth()
    repetitions = repetitions or {"none": 2, "torch": 1}
    directory.mkdir(parents=True, exist_ok=True)
    for run in runs:
        for repetition in range(repetitions.get(run.profile, 1)):
            write_run(directory, run, truth, repetition)
    write_sweep_record(directory, excluded)
    if calibration:
        measured = Calibration(
            gemm_flops_per_s={1: 15e12, 2: 14e12}, copy_bytes_per_s={1: 1.2e12, 2: 1.1e12},
            allreduces=[Allreduce(nodes=1, ranks_per_node=2, network="eth", bus_bytes_per_s=2e11)],
            device=truth.device, seconds=1.0,
        )  # fmt: skip
        store.write_record(directory / store.CALIBRATION, measured)
    return truth


def write_sweep_record(directory: Path, excluded: tuple[tuple[str, str], ...] = ()) -> None:
    left_out = [{"id": name, "reason": reason} for name, reason in excluded]
    record = {"sweep": {}, "order_seed": 1, "launcher": "local", "order": [], "excluded": left_out}
    store.write_text(directory / store.SWEEP, json.dumps(record))


def write_run(
    directory: Path,
    run: Run,
    truth: Truth,
    repetition: int = 0,
    exit_code: int = 0,
    reason: str = "",
    outside: Sequence[str] = (),
    **report: Any,
) -> Path:
    """Write one run's directory; ``report`` changes fields of the ranks' reports.

    Args:
        outside: fields that the sweep varies and the id does not hold by itself.
    """
    ended = directory / format_id(run, repetition, exit_code, outside=outside)
    ended.mkdir(parents=True)
    # Hundreds of tests plant the same few runs: their files are made once.
    asked = repr((run, truth, repetition, exit_code, reason, report))
    if asked not in _MADE:
        _make_run(ended, run, truth, repetition, exit_code, reason, **report)
        _MADE[asked] = {p.relative_to(ended): p.read_bytes() for p in ended.rglob("*") if p.is_file()}
        return ended
    for name, content in _MADE[asked].items():
        (ended / name).parent.mkdir(exist_ok=True)
        (ended / name).write_bytes(content)
    return ended


def _make_run(
    ended: Path, run: Run, truth: Truth, repetition: int, exit_code: int, reason: str, **report: Any
) -> None:
    seed = zlib.crc32(format_id(run, repetition).encode())
    durations = _durations(run, truth, np.random.default_rng(seed))
    for rank in range(run.ranks):
        _write_rank(tables.rank_directory(ended, rank), rank, run, truth, durations)
    reports = [_report(rank, run, truth, **report) for rank in range(run.ranks)]
    seconds = float(durations.sum()) / 1e9 + 20
    manifest = Manifest(
        run=run, repetition=repetition, exit_code=exit_code, reason=reason, ranks=reports, seconds=seconds,
        command=["python", "-m", "train"],
        started="2026-01-01T00:00:00+00:00", ended="2026-01-01T00:01:00+00:00",
    )  # fmt: skip
    store.write_record(ended / store.MANIFEST, manifest)
    (ended / store.LOG).write_text(reason)


def _durations(run: Run, truth: Truth, generator: np.random.Generator) -> np.ndarray:
    centre = truth.step_ms[run.world_size] + generator.normal(0, truth.run_noise_ms)
    milliseconds = centre + generator.normal(0, truth.noise_ms, run.batches)
    milliseconds[: truth.warmup] *= truth.warmup_factor
    if run.profile != "none":
        milliseconds[run.first_attributed :] *= truth.perturbation
    return (milliseconds * MS).round().astype(np.int64)


def _report(rank: int, run: Run, truth: Truth, **changes: Any) -> RankReport:
    values = {
        "rank": rank, "world_size": run.ranks, "hostname": "node0", "device": truth.device,
        "backend": "ddp/nccl" if run.world_size > 1 else "single",
        "batches_done": run.batches, "images_done": run.batches * run.rank_batch,
        "losses_finite": True, "parameter_digest": "0" * 64, "startup_ns": 5_000 * MS,
        "training_flops_per_image": truth.training_flops_per_image,
        "forward_flops_per_image": truth.training_flops_per_image / 3,
    }  # fmt: skip
    return RankReport(**{**values, **changes})


def _write_rank(directory: Path, rank: int, run: Run, truth: Truth, durations: np.ndarray) -> None:
    # All ranks but the last end each batch earlier; the next batch of each starts where its own ended.
    early = 0 if rank == run.ranks - 1 else round(truth.slowest_extra_ms * MS)
    ends = START_NS + np.cumsum(durations)
    starts = np.concatenate([[START_NS], ends[:-1]])
    own = ends - starts - early
    load, forward, update = own // 10, own * 3 // 10, own // 10
    if truth.wait_ms:
        load = np.full(run.batches, round(truth.wait_ms[run.world_size] * MS))
    attributed = (np.arange(run.batches) >= run.first_attributed) & (run.profile != "none")
    columns = {
        "rank": np.full(run.batches, rank),
        "batch_index": np.arange(run.batches),
        "start_ns": starts,
        "load_ns": load,
        "forward_ns": forward,
        "backward_ns": own - load - forward - update,
        "update_ns": update,
        "end_ns": starts + own,
        "images": np.full(run.batches, run.rank_batch),
        "loss": np.linspace(7, 1, run.batches),
        "attributed": attributed,
    }
    tables.write(tables.as_table("batches", columns), directory, "batches")
    store.write_record(directory / store.RANK_REPORT, _report(rank, run, truth))
    if attributed.any():
        recorded = np.flatnonzero(attributed)
        rows = [row for i in recorded for row in _kernels(rank, int(i), int(starts[i]), run, truth)]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        tables.write(tables.as_table("kernels", columns), directory, "kernels")


def _kernels(rank: int, batch: int, start: int, run: Run, truth: Truth) -> list[dict[str, Any]]:
    """Four kernels of arithmetic back to back, two that credit FLOPs; a collective beside and after them."""
    start += round(truth.wait_ms.get(run.world_size, 0.0) * MS)
    talk = truth.communication_ms
    talk_ms = talk if isinstance(talk, float) else talk[run.world_size]
    piece = truth.kernel_ms * MS / 4
    parts = [
        ("conv_fprop", "convolution", "fprop", truth.flops / 3, truth.bytes / 4),
        ("relu", "pointwise", "fprop", 0.0, truth.bytes / 4),
        ("conv_bprop", "convolution", "bprop", truth.flops * 2 / 3, truth.bytes / 4),
        ("sgd", "optimizer", "update", 0.0, truth.bytes / 4),
    ]

    def row(name: str, kind: str, direction: str, at: float, length: float, flops: float, moved: float):
        return {
            "rank": rank, "batch_index": batch, "start_ns": start + round(at), "duration_ns": round(length),
            "name": f"void {name}<float>(float*)", "short_name": name, "class": kind, "direction": direction,
            "device": 0, "stream": 20 if kind == "communication" else 7, "flops": flops, "bytes": moved,
            "launch_ns": None if truth.device == "cpu" else start + round(at - truth.queued_ms * MS),
        }  # fmt: skip

    rows = [row(*part[:3], number * piece, piece, *part[3:]) for number, part in enumerate(parts)]
    rows.append(row("copy", "memcpy", "loader", 4 * piece, 2 * MS, 0.0, 1e9))
    if run.world_size > 1:
        at = truth.kernel_ms * MS - truth.hidden_ms * MS
        rows.append(row("ncclAllReduce", "communication", "bprop", at, talk_ms * MS, 0.0, 1e8))
    return rows


def change(directory: Path, name: str, /, **columns: Any) -> None:
    """Write a rank's table anew; a column is a value for all rows, or made of the column that there was."""
    table = tables.read(directory, name).to_pydict()
    rows = len(next(iter(table.values())))
    made = {of: new(table[of]) if callable(new) else [new] * rows for of, new in columns.items()}
    tables.write(tables.as_table(name, table | made), directory, name)


def change_rows(directory: Path, name: str, changed: Callable[[list[dict]], list[dict]]) -> None:
    """Write a rank's table anew with what is made of its rows."""
    rows = changed(tables.read(directory, name).to_pylist())
    columns = {column: [row[column] for row in rows] for column in (rows[0] if rows else ())}
    tables.write(tables.as_table(name, columns), directory, name)


def change_manifest(directory: Path, of_rank: Callable[[RankReport], dict], **fields: Any) -> None:
    """Write a run's manifest anew, with other fields, and others of each rank's report."""
    manifest = store.read_record(directory / store.MANIFEST, Manifest)
    ranks = [report.model_copy(update=of_rank(report)) for report in manifest.ranks]
    store.write_record(directory / store.MANIFEST, manifest.model_copy(update={"ranks": ranks, **fields}))


# --- the reference's kinds of files -----------------------------------------------------------------------

PYPROF_NAME = "run_0_config_{nodes}_2_ib_nvprof_2_resnet50_dali-gpu_32_fp16_fp32_ret_0_0.gzip"


def write_pyprof(
    directory: Path, forward: int = 5, attributed: int = 2, nodes: int = 1, trials: int = 3,
    name: str = PYPROF_NAME,
) -> Path:  # fmt: skip
    """A PyProf kernel table with known batches.

    A forward pass: convolution (6 GFLOP, 3 us, 3 MB) and two launches of the loss; a backward pass: two of
    the loss and two convolutions (6 and 0 GFLOP, 4 us each, 2 MB); an update: one tensor operation. Batch 0
    has ``trials`` more convolutions; only the last ``attributed`` backward passes are assigned. One kernel of
    the loader (1 us) a batch.
    """
    rows: list[tuple] = []

    def add(kernel: str, direction: str, module: str, op: str | None, ns: int, flops=0.0, moved=0.0):
        rows.append((len(rows) + 1, direction, module, op, kernel, ns, flops, moved))

    functional = "torch.nn.functional"
    for batch in range(forward):
        for _ in range(trials if batch == 0 else 0):
            add("conv_trial", "fprop", functional, "conv2d", 5000, 6e9, 3e6)
        add("conv", "fprop", functional, "conv2d", 3000, 6e9, 3e6)
        add("dali::resize", "fprop", "na", None, 1000)
        add("softmax", "fprop", functional, "cross_entropy", 10)
        add("nll", "fprop", functional, "cross_entropy", 10)
        known = batch >= forward - attributed
        backward = ("bprop", functional) if known else ("fprop", "na")
        loss, conv = ("cross_entropy", "conv2d") if known else (None, None)
        add("nll_grad", *backward, loss, 10)
        add("softmax_grad", *backward, loss, 10)
        add("dgrad", *backward, conv, 4000, 6e9 if known else 0.0, 2e6 if known else 0.0)
        add("wgrad", *backward, conv, 4000, 0.0, 2e6 if known else 0.0)
        add("elementwise_kernel", "fprop", "Tensor", "add_", 500, 1e3, 1e3)
    columns = ("Idx", "Direction", "Module", "Op", "Kernel", "Sil(ns)", "FLOPs", "Bytes")
    table = pa.table(dict(zip(columns, map(list, zip(*rows, strict=True)), strict=True)))
    path = directory / name.format(nodes=nodes)
    directory.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression="gzip")
    return path


def write_tau(
    path: Path, seconds: dict[tuple[int, int, int], list[float]], network: str = "eth", grad: str = "fp32"
) -> Path:
    """A TAU interval table: (nodes, GPUs a node, batch size) -> application time of each repetition, s.

    The last rank is the slowest; the others take half a second less.
    """
    rows = []
    for (nodes, gpus, batch), repetitions in seconds.items():
        for number, duration in enumerate(repetitions):
            for rank in range(nodes * gpus):
                own = duration if rank == nodes * gpus - 1 else duration - 0.5
                for function, time in ((".tau application", own), ("mpi_allreduce", own / 2)):
                    rows.append({
                        "run": number, "nodes": nodes, "gpus_per_node": gpus, "network_backend": network,
                        "profile_level": "tau_exec", "workers": 2, "neural_network": "resnet50",
                        "data_loader": "dali-gpu", "batch_size_per_gpu": batch, "grad_precision": grad,
                        "compute_precision": "fp32", "gpu": rank, "thread": 0, "function": function,
                        "calls": 1, "subcalls": 0, "exc_time": 0, "inc_time": round(time * 1e6),
                    })  # fmt: skip
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path
