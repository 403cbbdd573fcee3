"""What a layer takes of memory, and what a want of memory looks like."""

import pytest
import torch

from tests.train.studies.conftest import GIB
from train.studies import layers, memory
from train.studies.layers import Passes


def test_memory_of_a_layer_is_what_its_tensors_take():
    passes = Passes(layers.parse("ReLU()@64,3,32,32"), torch.device("cpu"))
    taken = memory.measure(passes.device, passes.forward, passes.backward)
    one = 64 * 3 * 32 * 32 * 4
    assert taken.retained == one  # the output, which the backward pass reads
    assert taken.peak == 2 * one  # and the gradient


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory"),
        RuntimeError("std::bad_alloc"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
        RuntimeError("can't start new thread"),
        torch.AcceleratorError("CUDA error: out of memory"),
        torch.distributed.DistBackendError(
            "NCCL error: unhandled cuda error\nCuda failure 2 'out of memory'"
        ),
    ],
)
def test_a_want_of_memory_is_known(error):
    assert memory.is_out_of_memory(error)
    assert not memory.is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_a_gpus_allocator_says_what_a_layer_takes(gpu, monkeypatch):
    """Of what was taken before, after the forward pass, and at most since the peak was set back."""
    called = []
    recorded = {
        "reset_peak_memory_stats": [None], "memory_allocated": [3 * GIB, 7 * GIB],
        "max_memory_allocated": [12 * GIB],
    }  # fmt: skip
    for name, said in recorded.items():
        each = iter(said)
        monkeypatch.setattr(
            torch.cuda, name, lambda _, name=name, each=each: called.append(name) or next(each)
        )
    taken = memory.measure(
        torch.device("cuda", 0), lambda: called.append("forward"), lambda _: called.append("backward")
    )
    assert (taken.peak, taken.retained) == (9 * GIB, 4 * GIB)
    assert called == [
        "reset_peak_memory_stats", "memory_allocated", "forward", "memory_allocated", "backward",
        "max_memory_allocated",
    ]  # fmt: skip
