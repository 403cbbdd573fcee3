"""What a step asks of a fake GPU, counted: copies, waits, launches. Run by the fake GPU's own Python.

python -m tests.gpu.fake.counted OUT DATA        prints a JSON object: case -> counts of one step
"""

import ctypes
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from jobs.run import make_run
from train import rank
from train.world import World

# The fields of FakeCounters, in libraries/cudart.cpp.
NAMES = (
    "kernels", "h2d", "d2h", "d2d", "h2d_bytes", "pageable_h2d", "sync_stream", "sync_device", "sync_event",
    "events", "waits", "mallocs", "frees", "pageable_d2h", "waited_ns", "graph_launches",
)  # fmt: skip
TINY = {"model": "resnet18", "image_size": 64, "batch": 4, "batches": 12, "device": "gpu", "workers": 0}
GRAPH = {"graph": True, "batches": 18}
COUNTED = 4  # steps, which end one before the last: memory is allocated, the optimizer has its state


class Counters(ctypes.Structure):
    """What the stand-in of CUDA's runtime has been asked for."""

    _fields_ = [(name, ctypes.c_longlong) for name in NAMES]

    @classmethod
    def now(cls) -> dict[str, int]:
        there = cls.in_dll(ctypes.CDLL("libcudart.so.13"), "fake_counters")
        return {name: getattr(there, name) for name in NAMES}


def a_step(out: Path, fields: Mapping[str, object]) -> dict[str, float]:
    """Counts of one step of a run, and the types in which DataParallel's replicas multiply."""
    run, at = make_run({**TINY, **fields}), {}
    speaker = rank.speaker

    def counting(*given):
        speak = speaker(*given)

        def counted(index, loss):
            at[index] = Counters.now()
            speak(index, loss)

        return counted

    rank.speaker = counting
    try:
        rank.run_rank(run, World(), out, False, lambda text: None)
    finally:
        rank.speaker = speaker
    last = run.batches - 2
    return {name: (at[last][name] - at[last - COUNTED][name]) / COUNTED for name in NAMES}


def types_of_replicas(out: Path) -> list[str]:
    """What each of two GPUs multiplies in, under DataParallel and bf16."""
    seen: dict[str, str] = {}
    build = rank.build_model

    def with_watched_convolutions(name):
        model = build(name)
        model.conv1.register_forward_hook(lambda module, given, result: seen.update(
            {str(result.device): str(result.dtype)}))  # fmt: skip
        return model

    rank.build_model = with_watched_convolutions
    try:
        pair = {**TINY, "backend": "dp", "gpus_per_node": 2, "compute": "bf16", "batches": 2}
        rank.run_rank(make_run(pair), World(), out, False, lambda text: None)
    finally:
        rank.build_model = build
    return [seen.get(f"cuda:{number}", "none") for number in range(2)]


def main() -> None:
    out, data = Path(sys.argv[1]), sys.argv[2]
    cases = {
        **{compute: {"compute": compute} for compute in ("fp32", "tf32", "bf16", "fp16")},
        "channels_last": {"compute": "bf16", "channels_last": True},
        "pytorch": {"loader": "pytorch", "data": data},
        "sync_stages": {"sync_stages": True},
        "ddp": {"backend": "ddp"},
        "ddp without buffers": {"backend": "ddp", "broadcast_buffers": False},
        "graph": {**GRAPH},
        "graph fp16": {**GRAPH, "compute": "fp16"},
        "graph channels_last": {**GRAPH, "compute": "bf16", "channels_last": True},
        "graph ddp": {**GRAPH, "backend": "ddp", "grad": "bf16"},
        "graph pytorch": {**GRAPH, "loader": "pytorch", "data": data},
    }
    counted: dict[str, object] = {name: a_step(out / name, fields) for name, fields in cases.items()}
    counted["replicas"] = types_of_replicas(out / "dp")
    print(json.dumps(counted))


if __name__ == "__main__":
    main()
