"""What does Slurm say of the cluster itself, in a job or on a login node: its name, a partition's nodes?"""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from profiling.errors import UserError, did_you_mean

_TIMEOUT_S = 10.0
_ROW = "%P|%D|%c|%G"  # partition (* marks the default one), nodes, CPUs and generic resources of each


@dataclass(frozen=True)
class Partition:
    """A partition of the cluster; of several, from which Slurm chooses one, the best of each.

    Attributes:
        nodes: how many it has.
        cpus, gpus: of the node that has most.
    """

    name: str
    nodes: int
    cpus: int
    gpus: int


def cluster_name(environment: Mapping[str, str]) -> str | None:
    """Slurm's name of this cluster; None where there is no Slurm. Only jobs find it in their environment."""
    if name := environment.get("SLURM_CLUSTER_NAME"):
        return name
    try:
        said = _ask(["scontrol", "show", "config"], environment)
    except UserError:
        return None
    match = re.search(r"^ClusterName\s*=\s*(\S+)", said, re.MULTILINE)
    return match[1] if match else None


def on_compute_node(environment: Mapping[str, str]) -> bool:
    """Whether Slurm has started this process on a node of a job; a shell of salloc is on the login node."""
    return "SLURMD_NODENAME" in environment


def queued_jobs(comment: str, environment: Mapping[str, str]) -> list[str]:
    """The ids of the user's jobs with this comment (``sbatch --comment``) that wait or run.

    Raises:
        UserError: Slurm does not answer.
    """
    states = "--states=PENDING,RUNNING,SUSPENDED"
    command = ["squeue", "--noheader", f"--user={os.getuid()}", states, "--format=%i|%k"]
    rows = [row.strip().partition("|") for row in _ask(command, environment).splitlines()]
    return [job for job, _, its_comment in rows if its_comment == comment]


def was_requeued(job: str, restarts: int, environment: Mapping[str, str]) -> bool:
    """Whether Slurm has put a job back into the queue since its last start; False if Slurm does not say.

    Args:
        restarts: how often the job had been requeued when it started.
    """
    try:
        said = _ask(["scontrol", "show", "job", job], environment)
    except UserError:
        return False
    match = re.search(r"\bRestarts=(\d+)", said)
    return match is not None and int(match[1]) > restarts


def partition(name: str | None, environment: Mapping[str, str]) -> Partition:
    """The partition of this name (or names, ``a,b``), or the default one.

    Raises:
        UserError: there is none, or Slurm does not answer.
    """
    return read_partition(_ask(["sinfo", "--noheader", "--noconvert", f"--format={_ROW}"], environment), name)


def read_partition(rows: str, name: str | None) -> Partition:
    """A partition, of what ``sinfo --format=%P|%D|%c|%G`` prints: a line for nodes that are alike.

    Raises:
        UserError: it is not among them; or ``name`` is None, and none is the default.
    """
    of: dict[str, list[list[str]]] = {}
    default: str | None = None
    for row in rows.splitlines():
        marked, *rest = row.strip().split("|")
        of.setdefault(marked.rstrip("*"), []).append(rest)
        default = marked.rstrip("*") if marked.endswith("*") else default
    wanted = name or default
    if wanted is None:
        known = ", ".join(of)
        raise UserError(f"Slurm has no default partition: set `partition` in the site file; one of: {known}")
    for one in wanted.split(","):
        if one not in of:
            raise UserError(f"Slurm has no partition {one!r}{did_you_mean(one, of)}")
    partitions = [of[one] for one in wanted.split(",")]
    nodes = [alike for partition in partitions for alike in partition]
    return Partition(
        wanted,
        nodes=max(sum(int(count) for count, _, _ in partition) for partition in partitions),
        cpus=max(int(cpus.rstrip("+")) for _, cpus, _ in nodes),
        gpus=max(count_gpus(resources) for _, _, resources in nodes),
    )


def count_gpus(resources: str) -> int:
    """The GPUs among a node's generic resources: 4 of ``gpu:a100:4(S:0-1),shard:8``."""
    return sum(map(int, re.findall(r"\bgpu(?::[^:,()]+)*?:(\d+)(?=[(,\s]|$)", resources)))


def _ask(command: list[str], environment: Mapping[str, str]) -> str:
    """What a command of Slurm's prints.

    Raises:
        UserError: it is not here, or fails; its own last words say why.
    """
    try:
        answer = subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UserError(f"Slurm does not answer: {error}") from None
    if answer.returncode:
        words = answer.stderr.strip().splitlines() or [f"{command[0]} ended with {answer.returncode}"]
        raise UserError(f"Slurm does not answer: {words[-1]}")
    return answer.stdout
