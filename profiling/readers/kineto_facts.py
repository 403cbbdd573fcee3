"""What do the fields of a Kineto trace outside its events say of the job, and what its file's name?"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from profiling.traced_job import ProcessGroup, TraceFacts
from profiling.wording import in_a_row

# As torch.profiler.tensorboard_trace_handler names files: host_pid.time.pt.trace.json.
_HANDLER = re.compile(r"^(?P<host>.+)_\d+\.\d+\.pt\.trace\.json(\.gz)?$")
_VERSIONS = {
    "cuda_runtime_version": "CUDA", "cuda_driver_version": "CUDA driver", "cupti_version": "CUPTI",
    "hip_runtime_version": "HIP", "hip_driver_version": "HIP driver", "roctracer_version": "roctracer",
    "pytorch_version": "PyTorch", "torch_version": "PyTorch",
}  # fmt: skip
_COMPARED = ("cuda:", "hip:", "xpu:")  # of a backend's configuration: cpu:gloo,cuda:nccl
_MOST_RANKS = 1 << 24


def facts_of(facts: Mapping[str, Any], path: Path) -> TraceFacts:
    """What is said before the events."""
    told = facts.get("distributedInfo")
    distributed: Mapping[str, Any] = told if isinstance(told, dict) else {}
    rank, world_size = (_count(distributed.get(name)) for name in ("rank", "world_size"))
    name = _HANDLER.match(path.name)
    versions = {
        title: str(facts[key])
        for key, title in _VERSIONS.items()
        if isinstance(facts.get(key), int | float | str)
    }
    if isinstance(distributed.get("nccl_version"), str):
        versions["NCCL"] = distributed["nccl_version"]
    return TraceFacts(
        rank=rank,
        world_size=world_size or None,
        host=str(facts.get("host_name") or (name["host"] if name else "")),
        device=_device(facts.get("deviceProperties")),
        backend=str(distributed.get("backend") or ""),
        groups=_groups(distributed.get("pg_config")),
        versions=versions,
        shapes=bool(facts["record_shapes"]) if "record_shapes" in facts else None,
    )


def _device(properties: Any) -> str:
    """The name of the devices, all if they differ; ``cpu`` where the profiler says that none is there."""
    if properties == []:
        return "cpu"
    listed = properties if isinstance(properties, list) else []
    names = {str(one["name"]) for one in listed if isinstance(one, dict) and one.get("name")}
    return in_a_row(sorted(names)) if names else ""


def _groups(listed: Any) -> list[ProcessGroup]:
    groups = []
    for one in listed if isinstance(listed, list) else []:
        if not isinstance(one, dict):
            continue
        ranks = one.get("ranks")
        members = ranks if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks) else []
        groups.append(
            ProcessGroup(
                name=str(one.get("pg_name", "")),
                backend=_backend(str(one.get("backend_config") or one.get("backend_name") or "")),
                ranks=members,
                size=_count(one.get("pg_size")) or len(members),
                description=str(one.get("pg_desc", "")),
            )
        )
    return groups


def _backend(configured: str) -> str:
    """``nccl`` of ``cpu:gloo,cuda:nccl``."""
    for prefix in _COMPARED:
        if prefix in configured:
            return configured.split(prefix)[1].split(",")[0]
    return configured.rpartition(":")[2]


def _count(value: Any) -> int | None:
    """A number of ranks, or one of them; None: it is none."""
    try:
        number = int(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 <= number < _MOST_RANKS else None
