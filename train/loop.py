"""The training loop: load, forward, backward, update, and the marker at the end of a step.

Nothing in it waits for the device, unless the run asks for it (``sync_stages``). The loop is one function, so
that the images of a batch and the autograd graph of its loss are freed in the stage that replaces them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from jobs.run import Run
from profiling.markers import Markers
from profiling.step_clock import Clock
from profiling.tools import Capture, switch
from train.loaders import Batch
from train.step import Step

INSTANTS = 6  # a batch: it begins, forward begins, backward begins, update begins, update ends, it ends


@dataclass(frozen=True)
class Recorded:
    """What the loop leaves: :data:`INSTANTS` a batch, shape (6 x batches,), and each batch's loss."""

    instants_ns: np.ndarray
    losses: Sequence[float]

    def columns(self, rank: int, images: int, recordings: Sequence[range]) -> dict[str, Any]:
        """The columns of the ``batches`` table (:mod:`profiling.schemas`).

        Args:
            images: of one batch.
            recordings: the batches that a profiler recorded.
        """
        start, forward, backward, update, updated, end = self.instants_ns.reshape(-1, INSTANTS).T
        index = np.arange(len(start))
        return {
            "rank": np.full(len(start), rank),
            "batch_index": index,
            "start_ns": start,
            "load_ns": forward - start,
            "forward_ns": backward - forward,
            "backward_ns": update - backward,
            "update_ns": updated - update,
            "end_ns": end,
            "images": np.full(len(start), images),
            "loss": np.asarray(self.losses, dtype=float),
            "attributed": np.isin(index, [batch for recording in recordings for batch in recording]),
        }

    @property
    def seconds(self) -> float:
        """From the beginning to the end of each batch, all together."""
        instants = self.instants_ns.reshape(-1, INSTANTS)
        return float((instants[:, -1] - instants[:, 0]).sum()) / 1e9


def train(
    run: Run, step: Step, batches: Iterator[Batch], markers: Markers, clock: Clock, capture: Capture,
    on_batch: Callable[[int, torch.Tensor], None],
) -> Recorded:  # fmt: skip
    """Train for ``run.batches`` batches.

    Args:
        step: what a step does, stage by stage.
        capture: records the batches that the run says (``Run.recordings``).
        on_batch: is told of each batch's index and loss (a tensor on the device) when it has been issued.
    """
    model = step.model
    device = next(model.parameters()).device
    synchronize = torch.cuda.synchronize if run.sync_stages and device.type == "cuda" else lambda: None
    # Losses stay on the device: reading one would wait for it.
    losses = torch.zeros(run.batches, device=device)
    recordings = run.recordings
    model.train()
    clock.start()
    markers.begin()
    # A batch's stages lie between its six ticks: load, forward, backward, update, end. What a profiler takes
    # to start, or a graph to be captured, lies between two batches, in none of them.
    for index in range(run.batches):
        switch(capture, recordings, run.profiler_warm_up, index, getattr(model, "module", model))
        step.prepare()

        clock.tick()
        images, labels = step.take(*next(batches))

        clock.tick()
        with markers.forward:
            loss = step.forward(images, labels)
            synchronize()

        clock.tick()
        with markers.backward:
            step.backward(loss)

        clock.tick()
        with markers.update:
            step.update()
            synchronize()

        clock.tick()
        losses[index] = loss.detach()
        on_batch(index, loss)
        markers.end_of_batch()
        clock.tick()
    instants_ns = clock.instants_ns()
    capture.stop()
    return Recorded(instants_ns, losses.tolist())
