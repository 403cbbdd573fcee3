"""Small Kineto traces made by code: one call an event, times in microseconds."""

import gzip
import json
from pathlib import Path
from typing import Any


class Trace:
    """Collects events and writes them as PyTorch does; host events on thread 1, a GPU's on stream 7."""

    def __init__(self, **facts: Any) -> None:
        self.facts = {"schemaVersion": 1, "deviceProperties": [], **facts}
        self.events: list[dict[str, Any]] = []
        self.number = 0

    def host(
        self, name: str, start: float, end: float, category: str = "cpu_op", thread: int = 1, **args: Any
    ):
        """An operator (or range); arguments with spaces are given as a dict under ``more``."""
        self.number += 1
        given = {"External id": self.number, **args.pop("more", {}), **args}
        event = {"ph": "X", "cat": category, "name": name, "pid": 9, "tid": thread}
        self.events.append({**event, "ts": start, "dur": end - start, "args": given})
        return self.number

    def range(self, name: str, start: float, end: float, thread: int = 1):
        return self.host(name, start, end, "user_annotation", thread)

    def kernel(self, name: str, launched: float, start: float, end: float, thread: int = 1, **args: Any):
        """A device activity and its launch."""
        self.number += 1
        launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 9, "tid": thread}
        self.events.append({**launch, "ts": launched, "dur": 1, "args": {"correlation": self.number}})
        device = {"ph": "X", "cat": args.pop("category", "kernel"), "name": name, "pid": 0, "tid": 7}
        given = {
            "device": 0,
            "stream": 7,
            "correlation": self.number,
            "grid": [2, 1, 1],
            "block": [64, 1, 1],
            **args,
        }
        self.events.append({**device, "ts": start, "dur": end - start, "args": given})
        return self.number

    def text(self, indent: int | None = 2) -> bytes:
        return json.dumps({**self.facts, "traceEvents": self.events}, indent=indent).encode()

    def write(self, path: Path) -> Path:
        path.write_bytes(gzip.compress(self.text()) if path.suffix == ".gz" else self.text())
        return path


def tensors(*sizes: list[int], values: list[str] | None = None, kind: str = "float") -> dict[str, Any]:
    """The recorded inputs of an operator: tensors of one type, then ``values`` as concrete inputs."""
    extra = values or []
    return {
        "Input Dims": [*sizes, *([] for _ in extra)],
        "Input type": [*(kind for _ in sizes), *("Scalar" for _ in extra)],
        "Concrete Inputs": [*("" for _ in sizes), *extra],
    }


def convolution(batch: int = 2, channels: int = 3, out: int = 4, size: int = 8) -> dict[str, Any]:
    """Inputs of ``aten::convolution`` with a 3 x 3 kernel, stride 1, padding 1."""
    values = ["", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
    return tensors([batch, channels, size, size], [out, channels, 3, 3], values=values)


def training_step(trace: Trace, at: float, batch: int | None = None, markers: bool = True) -> float:
    """One batch on a GPU: loading, forward, backward, update; where it ended.

    Kernels run 100 microseconds behind their launches. A convolution and a loss forward, their backwards on
    autograd's thread 2, one multi-tensor update.
    """
    step = at
    if markers:
        trace.range("Forward Pass", at + 10, at + 30)
        trace.range("Backward Pass", at + 30, at + 60)
        trace.range("Model Update", at + 60, at + 80)
        trace.range("End of Batch", at + 90, at + 90.5)
    if batch is not None:
        trace.range(f"ProfilerStep#{batch}", at, at + 95)
    trace.host("aten::copy_", at + 2, at + 5)
    trace.kernel(
        "Memcpy HtoD (Pageable -> Device)", at + 3, at + 103, at + 104, category="gpu_memcpy", bytes=4096
    )
    trace.range("Layer: conv1", at + 11, at + 20)
    trace.host("aten::conv2d", at + 12, at + 19, more={"Sequence number": 5, "Fwd thread id": 0})
    trace.host("aten::cudnn_convolution", at + 13, at + 18, more=cudnn(convolution()))
    trace.kernel("void nchwToNhwcKernel<float>(float*)", at + 14, at + 114, at + 115)
    trace.kernel("sm80_xmma_fprop_implicit_gemm_f32", at + 15, at + 115, at + 119)
    trace.host("aten::nll_loss", at + 22, at + 28, more={"Sequence number": 6, "Fwd thread id": 0})
    trace.kernel("void nll_loss_forward_reduce<float>(float*)", at + 23, at + 123, at + 124)
    node = {"Sequence number": 5, "Fwd thread id": 1, **tensors([2, 4, 8, 8])}
    trace.host("ConvolutionBackward0", at + 35, at + 50, thread=2, more=node)
    backward = tensors(
        [2, 4, 8, 8], [2, 3, 8, 8], [4, 3, 3, 3], values=["[0]", "[1, 1]", "[True, True, False]"]
    )
    trace.host("aten::convolution_backward", at + 36, at + 49, thread=2, more=backward)
    trace.kernel("sm80_xmma_dgrad_implicit_gemm_f32", at + 37, at + 137, at + 139, thread=2)
    trace.kernel("sm80_xmma_wgrad_implicit_gemm_f32", at + 39, at + 139, at + 143, thread=2)
    trace.range("Optimizer.step#SGD.step", at + 62, at + 78)
    trace.kernel("void multi_tensor_apply_kernel<float>(float*)", at + 65, at + 165, at + 167)
    trace.kernel("void vectorized_elementwise_kernel<float>(float*)", at + 67, at + 167, at + 168)
    return step + 100


def cudnn(inputs: dict[str, Any]) -> dict[str, Any]:
    """A convolution's inputs in the order of cuDNN's operator: padding before stride."""
    return {
        **inputs,
        "Concrete Inputs": ["", "", "[1, 1]", "[1, 1]", "[1, 1]", "1", "False", "False", "False"],
    }
