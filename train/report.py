"""What does a rank say of itself when it has ended, and is its run right?"""

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from jobs.run import Run
from jobs.store import RankReport
from profiling.findings import Finding
from profiling.process_facts import facts_of_process
from train.device import driven
from train.device_name import device_name
from train.energy import Used
from train.locality import Place
from train.loop import Recorded
from train.world import World

if TYPE_CHECKING:
    from train.backends import Backend
    from train.loaders import Loader


@dataclass(frozen=True)
class Ended:
    """A rank whose training has ended.

    Attributes:
        model: the bare one, without what the backend or the compiler put around it.
        flops: forward and training, an image; rank 0's to say.
        startup_ns: from the process's start to the first batch's.
        used: what the batches took of energy.
        digests: of every rank's parameters.
        findings: what the profiler and the loader found.
    """

    run: Run
    world: World
    device: torch.device
    place: Place
    backend: "Backend"
    loader: "Loader"
    model: torch.nn.Module
    flops: tuple[float | None, float | None]
    recorded: Recorded
    startup_ns: int
    used: Used
    digests: list[str]
    findings: list[str]


def report_of(ended: Ended) -> RankReport:
    """The report of a rank, for ``rank.json``."""
    run, world, losses = ended.run, ended.world, ended.recorded.losses
    return RankReport(
        rank=world.rank,
        world_size=world.size,
        local_rank=world.local_rank,
        device=device_name(ended.device),
        bound_cpus=ended.place.cpus,
        bound_cards=list(ended.place.cards),
        backend=ended.backend.description,
        batches_done=len(losses),
        images_done=len(losses) * run.rank_batch,
        images_corrupt=ended.loader.images_corrupt,
        losses_finite=bool(np.isfinite(losses).all()),
        parameter_digest=ended.digests[world.rank],
        parameters=sum(parameter.numel() for parameter in ended.model.parameters()),
        # The same on every rank: one says it.
        gradient_elements=gradient_elements(ended.model) if world.rank == 0 else {},
        forward_flops_per_image=ended.flops[0],
        training_flops_per_image=ended.flops[1],
        startup_ns=ended.startup_ns,
        metered_s=ended.used.seconds,
        device_energy_j=ended.used.device_j,
        processors_energy_j=ended.used.processors_j,
        unmetered=ended.used.why_not,
        findings=[Finding.from_json(finding) for finding in ended.findings],
        **facts_of_process(driven(run, ended.device)),
    )


def why_wrong(report: RankReport, digests: list[str]) -> str:
    """Why the figures of a run do not count; "" if they do."""
    if not report.losses_finite:
        return "a loss is not finite; lower --learning-rate, or use another --compute precision"
    different = [rank for rank, digest in enumerate(digests) if digest != digests[0]]
    return f"ranks 0 and {different[0]} ended with different parameters" if different else ""


def parameter_digest(model: torch.nn.Module) -> str:
    """SHA-256 of checksums of a model's parameters; buffers (batch norm's statistics) are each rank's own.

    Of each parameter the words' sum and exclusive or, which differ whenever a rank went its own way. All
    bytes through SHA-256 would take five times as long: 0.4 s of each rank with VGG16.
    """
    digest = hashlib.sha256()
    for parameter in model.parameters():
        words = parameter.detach().float().cpu().contiguous().numpy().reshape(-1).view(np.uint32)
        digest.update(np.array([words.sum(dtype=np.uint32), np.bitwise_xor.reduce(words)]).tobytes())
    return digest.hexdigest()


def gradient_elements(model: torch.nn.Module) -> dict[str, int]:
    """How many elements each trained parameter has, by its name, as the model registers them."""
    trained = ((name, one) for name, one in model.named_parameters() if one.requires_grad)
    return {name: one.numel() for name, one in trained}
