"""One rank from start to report: set up, train, check the result, write the files."""

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from jobs.run import Run
from jobs.store import RANK_REPORT, RankReport, write_record
from profiling import tables
from profiling.clocks import open_clock, set_clock
from profiling.errors import EXIT_FAILED, UserError
from profiling.findings import Finding
from profiling.markers import open_markers
from profiling.process import facts_of_process, process_age_ns
from profiling.tools import open_capture
from train import loop
from train.backends import Backend, open_backend, peers_lost
from train.device import (
    Place,
    bind_near,
    choose_device,
    device_name,
    driven,
    is_out_of_memory,
    set_kernels,
    set_threads,
)
from train.energy import open_meters
from train.loaders import Loader, build_loader
from train.loop import Precision, make_step, stream_of
from train.models import build_model, check_images, flops_per_image
from train.world import World

MOMENTUM = 0.9
_SAY_EVERY_S = 0.2


@dataclass(frozen=True)
class Finished:
    """What a rank has done: its report, and its global batch rate."""

    report: RankReport
    images_per_s: float
    wrong: str  # why the run does not count; "" if it is right
    out: Path  # the run's directory


class OutOfMemory(UserError):
    """The run needs more memory than there is."""

    exit_code = EXIT_FAILED


class PeersLost(Exception):
    """Another rank has failed; that one says why."""


def run_rank(
    run: Run, world: World, out: Path | Callable[[], Path], keep_raw: bool, say: Callable[[str], None]
) -> Finished:
    """Train as one rank of ``run`` and write ``batches.parquet``, ``rank.json`` and the profiler's tables.

    Args:
        out: the run's directory, or what makes it, which rank 0 calls when all ranks have met.
        say: prints a line (of rank 0), the first one when a step is done.

    Raises:
        OutOfMemory, PeersLost.
        UserError: the run cannot be done on this machine or with these data.
    """
    opened = Opened()
    try:
        finished = _run_rank(run, world, out, keep_raw, say, opened)
    except BaseException as error:
        # First: a rank that has failed must not wait for others, or it could not say why.
        opened.end(failed=True)
        if not isinstance(error, RuntimeError | ValueError | AssertionError):
            raise
        # Before lost peers: NCCL's lack of memory comes as an error of the exchange.
        if is_out_of_memory(error):
            size = f"batch {run.batch} of {run.image_size} x {run.image_size} images"
            raise OutOfMemory(
                f"not enough memory for {size} through {run.model}; lower --batch or --image-size"
            ) from None
        if peers_lost(error):
            raise PeersLost(f"rank {world.rank} stops: another rank has failed") from error
        check_images(run.model, run.image_size, run.batch)
        raise
    # Graphs, for which NCCL would wait, and the model, which would keep the group, are gone by now. With the
    # group end Gloo's threads, which could abort the process as Python exits (pytorch#190489).
    opened.end(failed=False)
    return finished


@dataclass
class Opened:
    loader: Loader | None = None
    backend: Backend | None = None

    def end(self, failed: bool) -> None:
        """Close it: with the other ranks after success, without them after failure."""
        if self.backend:
            self.backend.abandon() if failed else self.backend.close()
        if self.loader:
            self.loader.close()


def _run_rank(
    run: Run, world: World, out: Path | Callable[[], Path], keep_raw: bool, say: Callable[[str], None],
    opened: Opened,
) -> Finished:  # fmt: skip
    device = choose_device(run, world)
    place = bind_near(device, os.environ) if run.gpus_per_rank == 1 else Place()
    set_threads(run, device, world)
    set_kernels(run, device)
    torch.manual_seed(run.seed)
    precision = Precision(run, device)
    # Before the ranks meet: no rank waits for one whose data are missing.
    loader = opened.loader = build_loader(run, world.rank, world.size, device)
    bare = bare_model(run, device)
    # Analytic, and the same on every rank.
    flops = flops_per_image(bare, run.image_size) if world.rank == 0 else (None, None)
    backend = opened.backend = open_backend(run, world, device)
    if not isinstance(out, Path):
        made = out() if world.rank == 0 else Path()
        paths = backend.gather(str(made.absolute()))
        out = made if world.rank == 0 else Path(paths[0])
    directory = tables.rank_directory(out, world.rank)
    directory.mkdir(parents=True, exist_ok=True)
    replicas = run.gpus_per_rank > 1  # DataParallel's run in a thread each
    capture = open_capture(run.profile, directory, world.rank, keep_raw, run.profile_mode, replicas)
    clock, markers = open_clock(device.type), open_markers()
    speak, meters = speaker(run, device, say), open_meters(driven(run, device), world.local_rank)
    with stream_of(run, device):
        model = backend.wrap(compiled(bare, run))
        optimizer = backend.wrap_optimizer(make_optimizer(model, run, device), model)
        backend.barrier()
        startup_ns = process_age_ns()
        meters.start()
        step = make_step(run, model, optimizer, precision)
        recorded = loop.train(run, step, loader, markers, clock, capture, speak)
        used = meters.stop()
    backend.barrier()  # profilers end before MPI, or the last marks may be lost
    found = [*capture.write(), *precision.findings, *backend.findings, *used.findings]
    found += graph_findings(run, device)
    recordings = [] if run.profile == "none" else run.recordings
    columns = recorded.columns(world.rank, run.rank_batch, recordings)
    tables.write(tables.as_table("batches", columns), directory, "batches")
    found += set_clock(directory, run.profile)
    # From here on no rank waits for another.
    digests = backend.gather(parameter_digest(bare))
    losses = recorded.losses
    trained = {name: weight.numel() for name, weight in bare.named_parameters() if weight.requires_grad}
    report = RankReport(
        rank=world.rank,
        world_size=world.size,
        local_rank=world.local_rank,
        device=device_name(device),
        bound_cpus=place.cpus,
        bound_cards=list(place.cards),
        backend=backend.description,
        batches_done=len(losses),
        images_done=len(losses) * run.rank_batch,
        losses_finite=bool(np.isfinite(losses).all()),
        parameter_digest=digests[world.rank],
        parameters=sum(parameter.numel() for parameter in bare.parameters()),
        gradient_elements={} if world.rank else trained,
        forward_flops_per_image=flops[0],
        training_flops_per_image=flops[1],
        startup_ns=startup_ns,
        metered_s=used.seconds,
        device_energy_j=used.device_j,
        processors_energy_j=used.processors_j,
        unmetered=used.why_not,
        findings=[Finding.from_json(finding) for finding in found],
        **facts_of_process(driven(run, device)),
    )
    write_record(directory / RANK_REPORT, report)
    wrong = ""
    if not report.losses_finite:
        wrong = "a loss is not finite; lower --learning-rate, or use another --compute precision"
    elif other := [rank for rank, digest in enumerate(digests) if digest != digests[0]]:
        wrong = f"ranks 0 and {other[0]} ended with different parameters"
    return Finished(report, run.world_size * run.batches * run.batch / recorded.seconds, wrong, out)


def bare_model(run: Run, device: torch.device) -> torch.nn.Module:
    """The model in its memory format, on its device; neither compiled nor wrapped by a backend."""
    bare = build_model(run.model).to(device)
    # The overload for memory formats is not in the stubs.
    return bare.to(memory_format=torch.channels_last) if run.channels_last else bare  # type: ignore[call-overload]


def compiled(model: torch.nn.Module, run: Run) -> torch.nn.Module:
    """The model as the run has it compiled, or as it is."""
    if not run.compile:
        return model
    return torch.compile(model, mode=None if run.compile is True else run.compile)  # type: ignore[return-value]


def graph_findings(run: Run, device: torch.device) -> list[Finding]:
    """A profile of CUDA graphs knows neither layers, operators nor FLOPs."""
    graphs = run.graph or run.compile in ("max-autotune", "reduce-overhead")
    profiled = device.type == "cuda" and run.profile != "none"
    data = {"option": "CUDA graphs", "limit": "layers, FLOPs unknown"}
    return [Finding("option_limited", data=data)] if graphs and profiled else []


def make_optimizer(model: torch.nn.Module, run: Run, device: torch.device) -> torch.optim.Optimizer:
    """SGD with momentum; on a GPU in one kernel, which does not wait for a scaled loss (not with Horovod)."""
    fused = device.type == "cuda" and run.backend != "horovod"
    return torch.optim.SGD(model.parameters(), lr=run.learning_rate, momentum=MOMENTUM, fused=fused or None)


def speaker(
    run: Run, device: torch.device, say: Callable[[str], None]
) -> Callable[[int, torch.Tensor], None]:
    """Says which step is under way, a few times a second, on a CPU with the loss."""
    last = 0.0

    def speak(index: int, loss: torch.Tensor) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _SAY_EVERY_S or index + 1 == run.batches:
            last = now
            text = f" loss {loss.item():.4f}" if device.type == "cpu" else ""
            say(f"step {index + 1}/{run.batches}{text}")

    return speak


def parameter_digest(model: torch.nn.Module) -> str:
    """SHA-256 of each parameter's sum and exclusive or of words: five times as fast as of all bytes.

    Without buffers: batch norm's statistics are each rank's own.
    """
    digest = hashlib.sha256()
    for parameter in model.parameters():
        words = parameter.detach().float().cpu().contiguous().numpy().reshape(-1).view(np.uint32)
        digest.update(np.array([words.sum(dtype=np.uint32), np.bitwise_xor.reduce(words)]).tobytes())
    return digest.hexdigest()
