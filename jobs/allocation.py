"""Which nodes has the batch system given us, and how are they named in its shorthand?"""

import re
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from jobs.cluster import count_gpus
from profiling.errors import UserError
from profiling.identity import expand_counts, expand_nodes

_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Allocation:
    """The nodes of a job of Slurm's.

    Attributes:
        job: its id.
        nodes: the nodes' names, in the order of the allocation.
        cpus: processors of the job on its first node.
        restarts: how often the job was requeued.
    """

    job: str
    nodes: tuple[str, ...]
    cpus: int = 1
    restarts: int = 0
    nodes_at_start: int = 0  # how many nodes there were before any was lost or left out

    def less(self, nodes: Iterable[str]) -> "Allocation":
        """The allocation without such nodes."""
        out = set(nodes)
        return replace(self, nodes=tuple(node for node in self.nodes if node not in out))

    def lost(self) -> frozenset[str]:
        """The nodes that Slurm has taken from the job since it began."""
        now = _ask_slurm(self.job)
        return frozenset() if now is None else frozenset(self.nodes) - frozenset(now)


def read_allocation(environment: Mapping[str, str]) -> Allocation | None:
    """The allocation that ``environment`` describes; None outside one."""
    if "SLURM_JOB_ID" not in environment or "SLURM_JOB_NODELIST" not in environment:
        return None
    nodes = tuple(expand_nodes(environment["SLURM_JOB_NODELIST"]))
    return Allocation(
        job=environment["SLURM_JOB_ID"],
        nodes=nodes,
        nodes_at_start=len(nodes),
        cpus=(expand_counts(environment.get("SLURM_JOB_CPUS_PER_NODE", "")) or [1])[0],
        restarts=int(environment.get("SLURM_RESTART_COUNT", "0")),
    )


def gpus_per_node(job: str) -> int | None:
    """How many GPUs a job of Slurm's has on each of its nodes, at least; None if Slurm does not say."""
    command = ["scontrol", "show", "job", "--details", job]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return read_gpus(answer.stdout)


def read_gpus(details: str) -> int | None:
    """The GPUs of each node, at least, in what ``scontrol show job --details`` says; None if it says nothing.

    A line for nodes that are alike: ``Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES=gpu:a100:4(IDX:0-3),shard:8``.
    """
    lines = re.findall(r"^\s*Nodes=\S+ .*\bGRES=(.*)$", details, re.MULTILINE)
    return min(map(count_gpus, lines), default=None)


def _ask_slurm(job: str) -> list[str] | None:
    """The nodes that a job has now; None if Slurm does not say."""
    command = ["squeue", "--noheader", f"--jobs={job}", "--format=%N"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        return expand_nodes(answer.stdout.strip()) or None
    except (OSError, subprocess.SubprocessError, UserError):
        return None
