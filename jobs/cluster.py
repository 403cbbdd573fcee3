"""What does Slurm say, in a job or on a login node: of the cluster, its partitions, queued and new jobs?"""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiling.errors import UserError, did_you_mean

_TIMEOUT_S = 10.0
_ROW = "%P|%D|%c|%G"  # partition (* marks the default one), nodes, CPUs and generic resources of each
# In what Slurm says of a job that it will never take as it is. Others may wait, e.g. for a reservation.
_REFUSAL = re.compile(r"\binvalid\b|\bnot permitted\b|\bdenied to\b", re.IGNORECASE)


class NoAnswer(UserError):
    """Slurm's commands are not on this machine, or its controller does not answer them."""


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


@dataclass(frozen=True)
class QueuedJob:
    """A job that waits or runs.

    Attributes:
        folder: in which it was submitted.
        command: its script with the arguments, which Slurm joins by blanks.
        comment: of ``sbatch --comment``.
    """

    id: str
    folder: str
    command: str
    comment: str


def queued_jobs(environment: Mapping[str, str]) -> list[QueuedJob]:
    """The user's jobs that wait or run.

    Raises:
        NoAnswer: Slurm does not answer.
    """
    states = "--states=PENDING,RUNNING,SUSPENDED"
    command = ["squeue", "--noheader", f"--user={os.getuid()}", states, "--format=%i|%Z|%o|%k"]
    rows = _ask(command, environment).splitlines()
    return [QueuedJob(*(part.strip() for part in row.split("|", 3))) for row in rows if row.count("|") >= 3]


def why_refused(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """Why Slurm would refuse a job for good, e.g. for its account; "" if it would take it, or does not say.

    Args:
        words: of sbatch: its options, and the script.
    """
    try:
        _ask(["sbatch", "--test-only", *words], environment)
    except UserError as error:
        why = re.sub(r"^.*?(sbatch: error: |allocation failure: )+", "", str(error))
        return why if _REFUSAL.search(why) else ""
    return ""


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


def time_limit_s(job: str, environment: Mapping[str, str]) -> float:
    """The time limit of a job; 0 if it has none, or Slurm does not say."""
    try:
        said = _ask(["squeue", "--noheader", f"--jobs={job}", "--format=%l"], environment).strip()
    except UserError:
        return 0.0
    match = re.fullmatch(r"(?:(\d+)-)?((?:\d+:)?\d+:\d+)", said)  # 1-12:00:00, 12:00:00, 5:00
    if not match:
        return 0.0
    seconds = 0
    for part in match[2].split(":"):
        seconds = seconds * 60 + int(part)
    return int(match[1] or 0) * 86400.0 + seconds


def partition(name: str | None, environment: Mapping[str, str]) -> Partition:
    """The partition of this name (or names, ``a,b``), or the default one.

    Raises:
        UserError: there is none.
        NoAnswer: Slurm does not answer.
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


def mpi_types(environment: Mapping[str, str]) -> list[str]:
    """How srun can meet MPI here: ``none``, ``pmi2``, ...; none where it does not say.

    Slurm has written the list to standard error, and to standard output, in other words with each release: a
    line a type, or all behind a colon.
    """
    try:
        answer = subprocess.run(
            ["srun", "--mpi=list"],
            env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=_TIMEOUT_S, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return []
    words = re.sub(r"^(srun: )?.*(types are|available)\b[ .:]*", "", answer.stdout, flags=re.MULTILINE)
    return re.findall(r"\w+", words.replace("srun:", ""))


def count_gpus(resources: str) -> int:
    """The GPUs among a node's generic resources: 4 of ``gpu:a100:4(S:0-1),shard:8``."""
    return sum(map(int, re.findall(r"\bgpu(?::[^:,()]+)*?:(\d+)(?=[(,\s]|$)", resources)))


def _ask(command: list[str], environment: Mapping[str, str]) -> str:
    """What a command of Slurm's prints.

    Raises:
        NoAnswer: it is not here, or fails; its own last words say why.
    """
    try:
        answer = subprocess.run(
            command, env=dict(environment), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoAnswer(f"Slurm does not answer: {error}") from None
    if answer.returncode:
        words = answer.stderr.strip().splitlines() or [f"{command[0]} ended with {answer.returncode}"]
        raise NoAnswer(f"Slurm does not answer: {words[-1]}")
    return answer.stdout
