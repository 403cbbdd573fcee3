"""The stages of a step in the precision of the run, kernel by kernel or each as a CUDA graph.

A captured stage is launched as a whole, so that small batches are not host-bound. Each stage is a separate
graph, so that CUDA events between graphs can time the stages and profilers record each graph inside the
marker of its stage. This costs two more launches per step.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from jobs.run import Run
from profiling.errors import UserError
from profiling.findings import Finding

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
        allow_tf32 = run.compute == "tf32"
        torch.backends.cuda.matmul.allow_tf32 = allow_tf32
        torch.backends.cudnn.allow_tf32 = allow_tf32
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
    """The stages of a step, issued kernel by kernel.

    Attributes:
        model: what is trained, as the backend has wrapped it.
    """

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

    def __init__(
        self, run: Run, model: torch.nn.Module, optimizer: torch.optim.Optimizer, precision: Precision
    ) -> None:
        super().__init__(run, model, optimizer, precision)
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
