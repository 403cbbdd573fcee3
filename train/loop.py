"""The training loop: load, forward, backward, update, and the marker at the end of a step.

Nothing in it waits for the device, unless the run asks for it (``sync_stages``). The loop is one function, so
that the images of a batch and the autograd graph of its loss are freed in the stage that replaces them.

Stages run in the precision of the run, kernel by kernel or each as a CUDA graph. A captured stage is launched
as a whole, so that small batches are not host-bound. Each stage is a separate graph, so that CUDA events
between graphs can time the stages and profilers record each graph inside the marker of its stage. This costs
two more launches per step.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from jobs.run import Run
from profiling.clocks import Clock
from profiling.errors import UserError
from profiling.findings import Finding
from profiling.markers import Markers
from profiling.tools import Capture, switch
from train.loaders import Batch

INSTANTS = 6  # a batch: it begins, forward begins, backward begins, update begins, update ends, it ends


@dataclass(frozen=True)
class Recorded:
    """What the loop leaves: :data:`INSTANTS` a batch, shape (6 x batches,), and each batch's loss."""

    instants_ns: np.ndarray
    losses: Sequence[float]

    def columns(self, rank: int, images: int, recordings: Sequence[range]) -> dict[str, Any]:
        """The columns of table ``batches``; ``images``: of one; ``recordings``: what a profiler recorded."""
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
    run: Run, step: "Step", batches: Iterator[Batch], markers: Markers, clock: Clock, capture: Capture,
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


_AMPERE = (8, 0)
AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Precision:
    """What the training loop needs for one compute precision.

    fp32: true fp32 on every device. tf32: fp32 tensors, multiplied in TensorFloat-32. bf16, fp16: autocast;
    fp16 scales the loss, since its gradients would underflow.
    """

    def __init__(self, run: Run, device: torch.device) -> None:
        self._type = AUTOCAST.get(run.compute)
        self._device = device.type
        if device.type == "cpu" and run.compute in ("tf32", "fp16"):
            raise UserError(f"compute {run.compute} needs a GPU; on a CPU use fp32 or bf16")
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = run.compute == "tf32"
        self.findings: list[Finding] = []
        if device.type == "cuda" and run.compute in ("tf32", "bf16"):
            # Before Ampere: tf32 is done in fp32, bf16 emulated without tensor cores.
            capability = torch.cuda.get_device_capability(device)
            if capability < _AMPERE:
                limit = "emulated, compute capability {}.{}".format(*capability)
                data = {"option": f"compute {run.compute}", "limit": limit}
                self.findings.append(Finding("option_limited", data=data))
        self._scaler = torch.amp.GradScaler(device.type) if run.compute == "fp16" else None

    def forward(self) -> AbstractContextManager:
        """The context of the forward pass and the loss."""
        return torch.autocast(self._device, self._type) if self._type else nullcontext()

    def backward(self, loss: torch.Tensor) -> None:
        (self._scaler.scale(loss) if self._scaler else loss).backward()

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        if self._scaler is None:
            optimizer.step()
        else:
            self._scaler.step(optimizer)
            self._scaler.update()


class Step:
    """The stages of a step of ``model``, as the backend has wrapped it, issued kernel by kernel."""

    def __init__(
        self, run: Run, model: torch.nn.Module, optimizer: torch.optim.Optimizer, precision: Precision
    ) -> None:
        self.model, self._optimizer, self._precision = model, optimizer, precision
        self._layout = torch.channels_last if run.channels_last else None
        self._criterion = torch.nn.CrossEntropyLoss()

    def prepare(self) -> None:
        """A step is about to begin."""

    def take(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch as the stages read it: images (N, 3, H, W) in the model's layout, labels (N,)."""
        return (images.contiguous(memory_format=self._layout) if self._layout else images), labels

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        # Not at the end of the step before: there the C library returns the gradients' memory to the system,
        # and 4,600 page faults a step (ResNet18 on a CPU) make the loop 7 % slower.
        self._optimizer.zero_grad()
        with self._precision.forward():
            loss: torch.Tensor = self._criterion(self.model(images), labels)
        return loss

    def backward(self, loss: torch.Tensor) -> None:
        self._precision.backward(loss)

    def update(self) -> None:
        self._precision.step(self._optimizer)


class GraphedStep(Step):
    """The stages of a step, each a CUDA graph once the first steps (``Run.steps_before_graph``) are done.

    Those are issued kernel by kernel: libraries choose their algorithms, and DDP its buckets. The model must
    be wrapped, and all steps done, in :func:`stream_of`.
    """

    def __init__(self, run: Run, *others: Any) -> None:
        super().__init__(run, *others)
        self._left = run.steps_before_graph
        self._graphs: list[torch.cuda.CUDAGraph] = []
        self._batch: tuple[torch.Tensor, torch.Tensor] | None = None  # where the graphs read it
        self._copied: torch.Tensor | None = None  # the images that are there
        self._loss = torch.empty(0)

    def prepare(self) -> None:
        if self._left == 0:
            self._capture()
        self._left -= 1

    def take(self, images: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        taken = super().take(images, labels)
        if self._batch is None:
            self._batch = torch.empty_like(taken[0]), torch.empty_like(taken[1])
        # The synthetic batch is always the same: it is copied once.
        if images is not self._copied:
            for place, tensor in zip(self._batch, taken, strict=True):
                place.copy_(tensor)
            self._copied = images
        return self._batch

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        if not self._graphs:
            return super().forward(images, labels)
        self._graphs[0].replay()
        return self._loss

    def backward(self, loss: torch.Tensor) -> None:
        self._graphs[1].replay() if self._graphs else super().backward(loss)

    def update(self) -> None:
        self._graphs[2].replay() if self._graphs else super().update()

    def _capture(self) -> None:
        """Record the stages, which does not run them."""
        assert self._batch is not None
        graphs = [torch.cuda.CUDAGraph() for _ in range(3)]
        pool = torch.cuda.graph_pool_handle()
        stream = torch.cuda.current_stream()

        def into(graph: torch.cuda.CUDAGraph) -> torch.cuda.graph:
            # Threads of loaders and NCCL's watchdog go on meanwhile, which the strictest mode forbids.
            return torch.cuda.graph(graph, pool=pool, stream=stream, capture_error_mode="thread_local")

        with into(graphs[0]):
            loss = super().forward(*self._batch)
        with into(graphs[1]):
            super().backward(loss)
        with into(graphs[2]):
            super().update()
        self._graphs, self._loss = graphs, loss.detach()


def make_step(
    run: Run, model: torch.nn.Module, optimizer: torch.optim.Optimizer, precision: Precision
) -> Step:
    """The step of a run."""
    return (GraphedStep if run.graph else Step)(run, model, optimizer, precision)


@contextmanager
def stream_of(run: Run, device: torch.device) -> Iterator[None]:
    """The stream in which a run's model is wrapped and trained: for graphs one of its own, as neither the
    default stream can be captured nor autograd nodes that DDP has created in it.
    """
    if not run.graph:
        yield
        return
    default, own = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    own.wait_stream(default)
    with torch.cuda.stream(own):
        yield
    default.wait_stream(own)
