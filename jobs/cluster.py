"""Batch systems: the nodes of this job; Slurm's cluster and partitions; in which words the others take a job.

Sources of :data:`BATCH_SYSTEMS`: qsub(1B) and pbs_resources(7B) of OpenPBS; IBM's command reference of LSF
(bsub) and OLCF's user guide of Summit; flux-batch(1), flux-resource(1) and RFC 36 of Flux.
"""

import os
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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


@dataclass(frozen=True)
class BatchSystem:
    """In which words a batch system other than Slurm takes a job, and how a job knows its nodes."""

    launcher: str  # that starts runs in its jobs
    job_id: str  # the variable that holds a job's id
    hostfile: str  # the variable that names the file of a job's nodes; "": it is asked
    submit: str  # the command that takes a job script as its input
    again: str  # the same, of a job that submits itself again, with SCALEPROF_JOB_ID for the new one
    prefix: str  # of a line of options in a job script
    # A line each, where the job or its site has a value for the name.
    options: Mapping[str, str]
    between: str  # ids of the jobs that another comes ``after``
    cancel: str


BATCH_SYSTEMS = {
    "pbs": BatchSystem(
        "mpirun", "PBS_JOBID", "PBS_NODEFILE", "qsub", "qsub -v SCALEPROF_JOB_ID", "#PBS",
        {
            "name": "-N {name} -j oe",
            "nodes": "-l select={nodes}{chunk}",
            "time_s": "-l walltime={hours}:{minutes:02}:{seconds:02}",
            "partition": "-q {partition}",
            "account": "-A {account}",
            "after": "-W depend=afterany:{after}",
        },
        ":", "qdel",
    ),
    "lsf": BatchSystem(
        "jsrun", "LSB_JOBID", "LSB_DJOB_HOSTFILE", "bsub", "bsub", "#BSUB",
        {
            "name": "-J {name} -o {name}.o%J",
            "nodes": "-nnodes {nodes}",
            "time_s": "-W {hours}:{minutes:02}",
            "partition": "-q {partition}",
            "account": "-P {account}",
            "reservation": "-U {reservation}",
            "after": '-w "ended({after})"',
        },
        ") && ended(", "bkill",
    ),
    "flux": BatchSystem(
        "flux", "FLUX_ENCLOSING_ID", "", "flux batch", "flux --parent batch", "#flux:",
        {
            "name": "--job-name={name} --output={name}.o{{{{id}}}}",
            "nodes": "--nodes={nodes} --exclusive",
            "time_s": "--time-limit={time_s}s",
            "partition": "--queue={partition}",
            "account": "--bank={account}",
            "after": "--dependency=afterany:{after}",
        },
        " --dependency=afterany:", "flux cancel",
    ),
}  # fmt: skip
# Of a job that was submitted again: the id of the one that was first.
FIRST_JOB = "SCALEPROF_JOB_ID"
# Hosts of LSF's list that start jobs and hold no ranks, as OLCF's guide leaves them out.
_LAUNCH_NODE = re.compile(r"(batch|login)\d*")


def job_id(environment: Mapping[str, str]) -> str:
    """The id of the job around this process, the first one of a job that was submitted again; "" outside."""
    names = (FIRST_JOB, "SLURM_JOB_ID", *(system.job_id for system in BATCH_SYSTEMS.values()))
    return next((environment[name] for name in names if environment.get(name)), "")


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
    """Whether this process is on a node of a job; shells of salloc and jobs of jsrun's LSF are elsewhere."""
    return any(name in environment for name in ("SLURMD_NODENAME", "PBS_NODEFILE", "FLUX_ENCLOSING_ID"))


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
    """The nodes of a job, in the order of the allocation."""

    job: str
    nodes: tuple[str, ...]
    cpus: int = 0  # of the job on its first node; 0: unknown
    nodes_at_start: int = 0  # before any was lost or left out
    slurm: bool = True  # whether it is Slurm's

    def less(self, nodes: Iterable[str]) -> "Allocation":
        """The allocation without such nodes."""
        out = set(nodes)
        return replace(self, nodes=tuple(node for node in self.nodes if node not in out))

    def lost(self) -> frozenset[str]:
        """The nodes that the batch system has taken from the job since it began; of PBS and LSF none."""
        try:
            if self.slurm:
                answer = _ask(["squeue", "--noheader", f"--jobs={self.job}", "--format=%N"], os.environ)
                left = expand_nodes(answer.strip())
            else:
                now = read_allocation(os.environ)
                left = list(now.nodes) if now else []
        except UserError:
            return frozenset()
        return frozenset(self.nodes) - frozenset(left) if left else frozenset()


def read_allocation(environment: Mapping[str, str]) -> Allocation | None:
    """The allocation that ``environment`` describes; None outside one."""
    if "SLURM_JOB_ID" in environment and "SLURM_JOB_NODELIST" in environment:
        nodes = tuple(expand_nodes(environment["SLURM_JOB_NODELIST"]))
        cpus = (expand_counts(environment.get("SLURM_JOB_CPUS_PER_NODE", "")) or [1])[0]
        return Allocation(environment["SLURM_JOB_ID"], nodes, cpus, len(nodes))
    for name, system in BATCH_SYSTEMS.items():
        job = environment.get(system.job_id)
        if job and system.hostfile in environment:
            lines = read_hostfile(Path(environment[system.hostfile]), system.hostfile)
            nodes = tuple(dict.fromkeys(host for host in lines if not _LAUNCH_NODE.fullmatch(host)))
            # LSF has a line for each CPU, PBS for each process that the job said it would start.
            return Allocation(job, nodes, lines.count(nodes[0]) if name == "lsf" else 0, len(nodes), False)
        if job and not system.hostfile:
            command = ["flux", "resource", "list", "-n", "-s", "up", "-o", "{nodelist} {ncores}"]
            listed, cores = _ask(command, environment, "Flux").split()
            nodes = tuple(expand_nodes(listed))
            return Allocation(job, nodes, int(cores) // len(nodes), len(nodes), False)
    return None


def read_hostfile(path: Path, said_by: str) -> list[str]:
    """The hosts of a hostfile, a line each: the first word; slots are ours to say."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{said_by} cannot be read: {error}") from None
    words = [line.partition("#")[0].split() for line in lines]
    hosts = [word[0].partition(":")[0] for word in words if word]
    if not hosts:
        raise UserError(f"the hostfile {path} names no hosts; it should have one line per node")
    return hosts


def gpus_per_node(job: str) -> int | None:
    """How many GPUs a job of Slurm's has on each of its nodes, at least; None if Slurm does not say."""
    try:
        details = _ask(["scontrol", "show", "job", "--details", job], os.environ)
    except UserError:
        return None
    # Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES=gpu:a100:4(IDX:0-3)
    lines = re.findall(r"^\s*Nodes=\S+ .*\bGRES=(.*)$", details, re.MULTILINE)
    return min(map(count_gpus, lines), default=None)


def _ask(command: list[str], environment: Mapping[str, str], system: str = "Slurm") -> str:
    """What a command of a batch system's prints."""
    answer = ask(command, environment)
    if answer.returncode:
        words = answer.stderr.strip().splitlines() or [f"{command[0]} ended with {answer.returncode}"]
        raise NoAnswer(f"{system} does not answer: {words[-1]}")
    return answer.stdout
