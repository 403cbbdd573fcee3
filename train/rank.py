"""What does one rank do from its start to its report? It sets up, trains, checks itself, writes its files."""

import hashlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from jobs.run import GPU_LOADERS, Run
from jobs.store import RANK_REPORT, RankReport, write_record
from profiling import tables
from profiling.errors import UserError
from profiling.markers import open_markers
from profiling.tools import open_capture
from train import loop, timing
from train.backends import Backend, open_backend
from train.loaders import build_loader
from train.loaders.base import Loader
from train.models import build_model, flops_per_image
from train.precision import Precision
from train.world import World

MOMENTUM = 0.9
_SAY_EVERY_S = 0.2


@dataclass(frozen=True)
class Finished:
    """What a rank has done: its report, and its global batch rate."""

    report: RankReport
    images_per_s: float
    wrong: str  # why the run does not count; "" if it is right


def run_rank(run: Run, world: World, out: Path, keep_raw: bool, say: Callable[[str], None]) -> Finished:
    """Train as one rank of ``run`` and write ``batches.parquet``, ``rank.json`` and the profiler's tables.

    Args:
        out: the run's directory; this rank writes below ``rank_0000``.
        say: prints a line (of rank 0).

    Raises:
        UserError: the run cannot be done on this machine or with these data.
    """
    device = choose_device(run, world)
    _set_threads(device, world)
    torch.manual_seed(run.seed)
    directory = tables.rank_directory(out, world.rank)
    directory.mkdir(parents=True, exist_ok=True)
    precision = Precision(run, device)
    # Data that are not there are found before the ranks meet: no rank waits for one that has given up.
    loader = build_loader(run, world.rank, world.size, device)
    backend = open_backend(run, world, device)
    try:
        bare, model = _models(run, device, backend)
        optimizer = torch.optim.SGD(model.parameters(), lr=run.learning_rate, momentum=MOMENTUM)
        capture = open_capture(run.profile, directory, world.rank, keep_raw)
        clock = timing.open_clock(device.type)
        on_batch = _speaker(run, device, say)
        markers = open_markers()
        backend.barrier()
        startup_ns = _since_process_start_ns()
        recorded = loop.train(run, model, optimizer, loader, precision, markers, clock, capture, on_batch)
        # Profilers end before MPI does: a library that leaves MPI early would take the last marks with it.
        backend.barrier()
        findings = capture.write() + loader.findings
        _write_batches(run, world, directory, recorded)
        digests = backend.gather(parameter_digest(bare))
        report = _report(run, world, device, backend, loader, bare, recorded, startup_ns, digests, findings)
        write_record(directory / RANK_REPORT, report)
        backend.barrier()
    finally:
        loader.close()
        backend.close()
    return Finished(report, _rate(run, recorded), _why_wrong(report, digests))


def choose_device(run: Run, world: World) -> torch.device:
    """The device of a rank: the GPU of its local rank, or the CPU.

    Raises:
        UserError: the run wants a GPU and there is none for this rank.
    """
    gpus = torch.cuda.device_count() if run.device != "cpu" and torch.cuda.is_available() else 0
    if gpus == 0:
        if run.device == "gpu" or run.loader in GPU_LOADERS:
            wants = f"loader {run.loader}" if run.loader in GPU_LOADERS else "device gpu"
            raise UserError(f"{wants} needs a GPU, and torch sees none here; use dali-cpu, or --device cpu")
        return torch.device("cpu")
    # Under Slurm or MPI with one GPU bound to each rank, every rank sees its own as number 0.
    index = world.local_rank if gpus > 1 or world.local_size == 1 else 0
    if index >= gpus or (gpus == 1 and world.local_size > 1 and not _bound_to_one_gpu()):
        raise UserError(f"local rank {world.local_rank} has no GPU: this node has {gpus}; use --device cpu")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _bound_to_one_gpu() -> bool:
    """Whether the launcher gave this rank a GPU of its own."""
    return "," not in os.environ.get("CUDA_VISIBLE_DEVICES", ",")


def _set_threads(device: torch.device, world: World) -> None:
    if device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        torch.set_num_threads(max(1, cores // world.local_size))


def _models(run: Run, device: torch.device, backend: Backend) -> tuple[torch.nn.Module, torch.nn.Module]:
    """(the bare model, the one that is trained: in its memory format, compiled, wrapped by the backend)."""
    bare = build_model(run.model).to(device)
    if run.channels_last:
        # The overload for memory formats is not in the stubs.
        bare = bare.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    compiled = torch.compile(bare) if run.compile else bare
    return bare, backend.wrap(compiled)  # type: ignore[arg-type]


def _speaker(
    run: Run, device: torch.device, say: Callable[[str], None]
) -> Callable[[int, torch.Tensor], None]:
    """Says which batch is under way, a few times a second; the loss where reading it waits for nothing."""
    last = 0.0

    def speak(index: int, loss: torch.Tensor) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _SAY_EVERY_S or index + 1 == run.batches:
            last = now
            text = f" loss {loss.item():.4f}" if device.type == "cpu" else ""
            say(f"batch {index + 1}/{run.batches}{text}")

    return speak


def _write_batches(run: Run, world: World, directory: Path, recorded: loop.Recorded) -> None:
    first = None if run.profile == "none" else run.first_attributed
    columns = timing.batch_columns(
        recorded.instants_ns, world.rank, run.batch, recorded.losses, first_attributed=first
    )
    tables.write(tables.as_table("batches", columns), directory, "batches")


def parameter_digest(model: torch.nn.Module) -> str:
    """SHA-256 of a model's parameters; buffers (batch norm's statistics) are each rank's own."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _report(
    run: Run,
    world: World,
    device: torch.device,
    backend: Backend,
    loader: Loader,
    model: torch.nn.Module,
    recorded: loop.Recorded,
    startup_ns: int,
    digests: list[str],
    findings: list[str],
) -> RankReport:
    on_gpu = device.type == "cuda"
    # Analytic, the same on every rank: one counts.
    flops = flops_per_image(run.model, run.image_size) if world.rank == 0 else (None, None)
    return RankReport(
        rank=world.rank,
        world_size=world.size,
        local_rank=world.local_rank,
        hostname=socket.gethostname(),
        device=torch.cuda.get_device_name(device) if on_gpu else "cpu",
        backend=backend.description,
        threads=torch.get_num_threads(),
        batches_done=len(recorded.losses),
        images_done=len(recorded.losses) * run.batch,
        images_corrupt=loader.images_corrupt,
        losses_finite=bool(np.isfinite(recorded.losses).all()),
        parameter_digest=digests[world.rank],
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        forward_flops_per_image=flops[0],
        training_flops_per_image=flops[1],
        startup_ns=startup_ns,
        peak_memory_bytes=peak_memory_bytes(),
        peak_device_memory_bytes=torch.cuda.max_memory_allocated(device) if on_gpu else None,
        versions=_versions(on_gpu),
        findings=findings,
    )


def peak_memory_bytes() -> int:
    """The most memory this process has held (resident set)."""
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux KiB


def _versions(on_gpu: bool) -> dict[str, str]:
    found: dict[str, str] = {"torch": str(torch.__version__)}
    if on_gpu:
        found |= {"cuda": torch.version.cuda or "?", "cudnn": str(torch.backends.cudnn.version())}
        if torch.distributed.is_nccl_available():
            found["nccl"] = ".".join(str(part) for part in torch.cuda.nccl.version())
    return found


def _since_process_start_ns() -> int:
    import psutil

    return int((time.time() - psutil.Process().create_time()) * 1e9)


def _rate(run: Run, recorded: loop.Recorded) -> float:
    seconds = (recorded.instants_ns[-1] - recorded.instants_ns[0]) / 1e9
    return run.world_size * run.batches * run.batch / seconds


def _why_wrong(report: RankReport, digests: list[str]) -> str:
    if not report.losses_finite:
        return "a loss is not finite; lower --learning-rate, or use another --compute precision"
    different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    return f"ranks 0 and {different[0]} ended with different parameters" if different else ""
