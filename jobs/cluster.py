"""Query Slurm, in a job or on a login node: the cluster, its partitions, this allocation."""

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from jobs.machine import ask
from profiling.errors import UserError, did_you_mean
from profiling.identity import expand_counts, expand_nodes

_ROW = "%P|%D|%c|%G"  # partition (* marks the default one), nodes, CPUs and generic resources of each
# In what Slurm says of a job that it will never take as it is. Others may wait, e.g. for a reservation.
_SBATCH = re.compile(r"^.*?(sbatch: error: |allocation failure: )+")
_REFUSAL = re.compile(r"\binvalid\b|\bnot permitted\b|\bdenied to\b", re.IGNORECASE)


class NoAnswer(UserError):
    """Slurm's commands are not on this machine, or its controller does not answer them."""


@dataclass(frozen=True)
class Partition:
    """A partition of the cluster; of several, from which Slurm chooses one, the best of each."""

    name: str
    nodes: int  # how many
    cpus: int  # of the node that has most
    gpus: int


def cluster_name(environment: Mapping[str, str]) -> str | None:
    """Slurm's name of this cluster; None where there is no Slurm. Only jobs find it in their environment."""
    if name := environment.get("SLURM_CLUSTER_NAME"):
        return name
    try:
        answer = _ask(["scontrol", "show", "config"], environment)
    except UserError:
        return None
    match = re.search(r"^ClusterName\s*=\s*(\S+)", answer, re.MULTILINE)
    return match[1] if match else None


def on_compute_node(environment: Mapping[str, str]) -> bool:
    """Whether Slurm has started this process on a node of a job; a shell of salloc is on the login node."""
    return "SLURMD_NODENAME" in environment


def check_accepted(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Refuse a job that Slurm would refuse for good, e.g. for its account."""
    try:
        _ask(["sbatch", "--test-only", *words], environment)
    except UserError as error:
        why = _SBATCH.sub("", str(error))
        if _REFUSAL.search(why):
            raise UserError(f"Slurm refuses jobs: {why} ({shlex.join(words)})") from None


def partition(name: str | None, environment: Mapping[str, str]) -> Partition:
    """The partition of this name (or names, ``a,b``), or the default one."""
    rows_of: dict[str, list[list[str]]] = {}  # a row for nodes that are alike
    default: str | None = None
    for row in _ask(["sinfo", "--noheader", "--noconvert", f"--format={_ROW}"], environment).splitlines():
        marked, *rest = row.strip().split("|")
        rows_of.setdefault(marked.rstrip("*"), []).append(rest)
        default = marked.rstrip("*") if marked.endswith("*") else default
    chosen = name or default
    if chosen is None:
        known = ", ".join(rows_of)
        raise UserError(f"Slurm has no default partition: set `partition` in the site file; one of: {known}")
    for each in chosen.split(","):
        if each not in rows_of:
            raise UserError(f"Slurm has no partition {each!r}{did_you_mean(each, rows_of)}")
    partitions = [rows_of[each] for each in chosen.split(",")]
    rows = [row for partition in partitions for row in partition]
    return Partition(
        chosen,
        nodes=max(sum(int(count) for count, _, _ in partition) for partition in partitions),
        cpus=max(int(cpus.rstrip("+")) for _, cpus, _ in rows),
        gpus=max(count_gpus(resources) for _, _, resources in rows),
    )


def count_gpus(resources: str) -> int:
    """The GPUs among a node's generic resources: 4 of ``gpu:a100:4(S:0-1),shard:8``."""
    return sum(map(int, re.findall(r"\bgpu(?::[^:,()]+)*?:(\d+)(?=[(,\s]|$)", resources)))


@dataclass(frozen=True)
class Allocation:
    """The nodes of a job of Slurm's, in the order of the allocation."""

    job: str
    nodes: tuple[str, ...]
    cpus: int = 1  # of the job on its first node
    nodes_at_start: int = 0  # before any was lost or left out

    def less(self, nodes: Iterable[str]) -> "Allocation":
        """The allocation without such nodes."""
        out = set(nodes)
        return replace(self, nodes=tuple(node for node in self.nodes if node not in out))

    def lost(self) -> frozenset[str]:
        """The nodes that Slurm has taken from the job since it began."""
        try:
            answer = _ask(["squeue", "--noheader", f"--jobs={self.job}", "--format=%N"], os.environ)
            now = expand_nodes(answer.strip())
        except UserError:
            return frozenset()
        return frozenset(self.nodes) - frozenset(now) if now else frozenset()


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
    )


def gpus_per_node(job: str) -> int | None:
    """How many GPUs a job of Slurm's has on each of its nodes, at least; None if Slurm does not say."""
    try:
        details = _ask(["scontrol", "show", "job", "--details", job], os.environ)
    except UserError:
        return None
    # Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES=gpu:a100:4(IDX:0-3)
    lines = re.findall(r"^\s*Nodes=\S+ .*\bGRES=(.*)$", details, re.MULTILINE)
    return min(map(count_gpus, lines), default=None)


def _ask(command: list[str], environment: Mapping[str, str]) -> str:
    """What a command of Slurm's prints."""
    answer = ask(command, environment)
    if answer.returncode:
        words = answer.stderr.strip().splitlines() or [f"{command[0]} ended with {answer.returncode}"]
        raise NoAnswer(f"Slurm does not answer: {words[-1]}")
    return answer.stdout
