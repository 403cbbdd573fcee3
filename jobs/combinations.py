"""Which values of a run's fields do not go together? Each answer is one line; "" if they do."""

from profiling.errors import UserError
from profiling.tools import check_mode


def why_not_dp(nodes: int, grad: str, channels_last: bool, compiled: bool | str) -> str:
    """Why ``backend: dp`` cannot train so."""
    if nodes > 1:
        return f"backend dp drives the GPUs of one node, not of {nodes}; use ddp"
    if grad != "fp32":
        return f"backend dp sums gradients in fp32; for grad {grad} use ddp"
    if channels_last:
        return "backend dp copies weights to the other GPUs as NCHW; for channels_last use ddp"
    if compiled:
        return "backend dp copies the model to each GPU, which a compiled model does not allow; use ddp"
    return ""


def why_no_graph(
    device: str, backend: str, compiled: bool | str, batches: int, profiled_from: int | None, first: int
) -> str:
    """Why steps cannot be captured in a CUDA graph.

    Args:
        profiled_from: the step in which the profiler starts; None: the run is unprofiled.
        first: the first step that a graph can hold.
    """
    if device == "cpu":
        return "graph true needs a GPU; on device cpu use graph false"
    if backend in ("dp", "horovod"):
        return f"graph true: backend {backend} cannot be captured in a CUDA graph; use ddp or single"
    if compiled in ("max-autotune", "reduce-overhead"):
        return f"compile {compiled} makes CUDA graphs itself; with graph true use compile true or false"
    if batches <= first:
        return f"graph true: the first {first} steps run without it; use batches {first + 1} or more"
    if profiled_from is not None and profiled_from < first:
        return (
            f"graph true: the first {first} steps run without it, and the profiler would start at step "
            f"{profiled_from}; use attribute_from {first} or more"
        )
    return ""


def why_no_mode(profile: str, mode: str) -> str:
    """Why a profiler does not record what ``profile_mode`` says."""
    try:
        check_mode(profile, mode)
    except UserError as error:
        return str(error)
    return ""
