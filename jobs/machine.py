"""This machine, its software, and the batch system around it.

Sources of :data:`BATCH_SYSTEMS`: qsub(1B) and pbs_resources(7B) of OpenPBS; IBM's command reference of LSF
(bsub) and OLCF's user guide of Summit; flux-batch(1), flux-resource(1) and RFC 36 of Flux.
"""

import ctypes
import importlib.metadata
import os
import platform
import re
import shlex
import socket
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from jobs import ROOT
from profiling.errors import UserError, did_you_mean
from profiling.identity import expand_counts, expand_nodes
from profiling.tools import is_importable

# Releases of PyTorch that the tests run on: the oldest and the newest. The environment pins the newest.
TESTED = ((2, 11), (2, 13))
NO_AMD = "AMD GPUs are not supported; --device cpu trains on the CPU"
_CUDA_13 = (7, 5)  # below, PyTorch's builds for CUDA 13 have no kernels
_FOR_CUDA_12 = "install PyTorch for CUDA 12.6 and nvidia-dali-cuda120 (environment-cuda12.yml)"
_CUDA_12 = (5, 0)  # below, those for CUDA 12.6 have none either
_MAJOR, _MINOR = 75, 76  # of cuDeviceGetAttribute: the compute capability
_DRIVER = Path("/sys/module/nvidia/version")  # Jetson has none

LIBRARIES = (
    "torch", "torchvision", "nvidia-dali-cuda130", "horovod", "mpi4py", "numpy", "pandas", "pyarrow",
)  # fmt: skip

# Variables that say how a run was set up. Anything else stays out of results: environments hold secrets.
_ALLOWED = re.compile(
    r"(OMP|GOMP|MKL|NCCL|GLOO|UCX|OMPI_MCA|I_MPI|MV2|HOROVOD|CUDA|TORCH|PYTORCH|DALI"
    r"|SLURM_(JOB|NNODES|NTASKS|NODELIST|CPUS|GPUS|PARTITION))[A-Z0-9_]*|WORLD_SIZE|LOCAL_WORLD_SIZE|SCALEPROF_[A-Z_]+"
)
# Variables that ranks on other nodes need as they are here: what is recorded, and where programs are found.
_FORWARDED = re.compile(r"PATH|LD_LIBRARY_PATH|PYTHONPATH|PYTHONUNBUFFERED|VIRTUAL_ENV|CONDA_PREFIX|TMPDIR")
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)


@dataclass(frozen=True)
class Machine:
    """The facts of one machine that decide what can run on it."""

    hostname: str
    os: str
    cpu: str
    cores: int  # that this process may use
    memory_bytes: int
    gpus: tuple[str, ...]
    driver: str | None
    has_dali: bool
    capability: tuple[int, int] | None = None  # compute capability of the first GPU


@cache
def this_machine() -> Machine:
    gpus, driver, capability = _gpus()
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.is_file() else ""
    cpu = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return Machine(
        hostname=socket.gethostname(),
        os=platform.platform(),
        cpu=cpu[1].strip() if cpu else platform.processor() or platform.machine(),
        # A batch system gives fewer cores than the machine has.
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory_bytes=psutil.virtual_memory().total,
        gpus=gpus,
        driver=driver,
        has_dali=is_importable("nvidia.dali"),
        capability=capability,
    )


def _gpus() -> tuple[tuple[str, ...], str | None, tuple[int, int] | None]:
    """Names of the GPUs that CUDA programs here may use, the driver's version, the first's capability.

    As CUDA itself counts them, after CUDA_VISIBLE_DEVICES and a job's part of a node, with NVML or without.
    """
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return (), None, None

    def number(function: Any, *arguments: int) -> int:
        answer = ctypes.c_int()
        return answer.value if function(ctypes.byref(answer), *arguments) == 0 else 0

    def name(device: int) -> str:
        text = ctypes.create_string_buffer(128)
        return text.value.decode() if cuda.cuDeviceGetName(text, len(text), device) == 0 else "NVIDIA GPU"

    driver = _DRIVER.read_text().strip() if _DRIVER.exists() else None
    if cuda.cuInit(0):
        return (), driver, None  # no device, all are hidden, or no driver below the library
    release = number(cuda.cuDriverGetVersion)
    names = tuple(name(device) for device in range(number(cuda.cuDeviceGetCount)))
    major, minor = (number(cuda.cuDeviceGetAttribute, which, 0) for which in (_MAJOR, _MINOR))
    driver = driver or f"for CUDA {release // 1000}.{release % 1000 // 10}"
    return names, driver, (major, minor) if names else None


def ask(
    command: Sequence[str], environment: Mapping[str, str] | None = None, timeout_s: float = 30.0,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """What a program prints, and its exit code; of one that does not start or end, why, as its errors."""
    try:
        return subprocess.run(
            command, env=None if environment is None else dict(environment), cwd=cwd, capture_output=True,
            text=True, errors="replace", timeout=timeout_s, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return subprocess.CompletedProcess(command, 127, "", str(error))


def refused_by(check: Callable[..., None], *arguments: Any) -> Iterator[str]:
    """What a check says that refuses; nothing if it passes."""
    try:
        check(*arguments)
    except UserError as error:
        yield str(error)


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that matter to a measurement; absent ones are not named."""
    installed = {"python": platform.python_version()}
    for name in LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


def git_state(root: Path) -> tuple[str | None, bool | None]:
    """(revision, whether a tracked file has uncommitted changes); (None, None) outside a repository."""
    # Without locks: a git that is killed with one would leave the user's repository locked.
    git = ["git", "--no-optional-locks", "-C", str(root)]
    head = ask([*git, "rev-parse", "HEAD"], timeout_s=10)
    status = ask([*git, "status", "--porcelain", "--untracked-files=no"], timeout_s=10)
    if head.returncode or status.returncode:
        return None, None
    return head.stdout.strip(), bool(status.stdout.strip())


def forwarded(name: str) -> bool:
    """Whether a variable is to be handed on to ranks by a launcher that would drop it."""
    # The batch system's and MPI's own describe a place, which is another one for each rank.
    own = re.match(r"(SLURM|OMPI_(?!MCA_(pml|btl|coll|osc|mpi))|PMIX?)_", name)
    return bool(_FORWARDED.fullmatch(name) or (_ALLOWED.fullmatch(name) and not own))


def facts(environment: Mapping[str, str], started: datetime) -> dict[str, Any]:
    """The fields of :class:`jobs.store.Facts`, but for the command, of a measurement that ends now."""
    here, now = this_machine(), datetime.now(UTC)
    revision, dirty = git_state(ROOT)
    variables = sorted({**os.environ, **environment}.items())
    return {
        "environment": {n: of for n, of in variables if _ALLOWED.fullmatch(n) and not _SECRET.search(n)},
        "started": started.isoformat(),
        "ended": now.isoformat(),
        "seconds": (now - started).total_seconds(),
        "git_revision": revision,
        "git_dirty": dirty,
        "host": {name: getattr(here, name) for name in ("hostname", "os", "cpu", "cores", "memory_bytes")},
        "gpus": list(here.gpus),
        "driver": here.driver,
        "versions": versions(),
    }


def is_tested(version: str) -> bool:
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and TESTED[0] <= (int(match[1]), int(match[2])) <= TESTED[1]


def check_built_for(capability: tuple[int, int], built_for: Sequence[str], name: str) -> None:
    """Refuse a GPU for which this PyTorch has no kernels.

    ``built_for``, as ``torch.cuda.get_arch_list()`` says: ``sm_90`` is code for 9.0 and later of its major
    version, ``sm_90a`` for 9.0 alone, ``compute_90`` what the driver compiles for whatever comes later.
    """
    for match in filter(None, (re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch) for arch in built_for)):
        built = int(match[2]), int(match[3])
        later = built <= capability and (match[1] == "compute" or built[0] == capability[0])
        if built == capability or (later and not match[4]):
            return
    if not built_for:
        return
    remedy = "install a newer PyTorch" if capability >= _CUDA_13 else _FOR_CUDA_12
    remedy = remedy if capability >= _CUDA_12 else "use --device cpu"
    raise UserError(
        f"{name} has compute capability {capability[0]}.{capability[1]}, PyTorch is built for "
        f"{', '.join(built_for)}; {remedy}"
    )


# --- batch systems: the nodes of a job, Slurm's cluster and partitions, in which words others take jobs ----

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
    answer = ask(["scontrol", "show", "config"], environment).stdout
    match = re.search(r"^ClusterName\s*=\s*(\S+)", answer, re.MULTILINE)
    return match[1] if match else None


def on_compute_node(environment: Mapping[str, str]) -> bool:
    """Whether this process is on a node of a job; shells of salloc and jobs of jsrun's LSF are elsewhere."""
    return any(name in environment for name in ("SLURMD_NODENAME", "PBS_NODEFILE", "FLUX_ENCLOSING_ID"))


def check_accepted(words: Sequence[str], environment: Mapping[str, str]) -> None:
    """Refuse a job that Slurm would refuse for good, e.g. for its account."""
    try:
        _answer(["sbatch", "--test-only", *words], environment)
    except UserError as error:
        why = _SBATCH.sub("", str(error))
        if _REFUSAL.search(why):
            raise UserError(f"Slurm refuses jobs: {why} ({shlex.join(words)})") from None


def partition(name: str | None, environment: Mapping[str, str]) -> Partition:
    """The partition of this name (or names, ``a,b``), or the default one."""
    rows_of: dict[str, list[list[str]]] = {}  # a row for nodes that are alike
    default: str | None = None
    # Its name (* marks the default one), nodes, CPUs and generic resources of each.
    answer = _answer(["sinfo", "--noheader", "--noconvert", "--format=%P|%D|%c|%G"], environment)
    for row in answer.splitlines():
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
    nodes = max(sum(int(count) for count, _, _ in partition) for partition in partitions)
    cpus = max(int(cpus.rstrip("+")) for partition in partitions for _, cpus, _ in partition)
    gpus = max(count_gpus(resources) for partition in partitions for _, _, resources in partition)
    return Partition(chosen, nodes, cpus, gpus)


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

    def less(self, nodes: Collection[str]) -> "Allocation":
        return replace(self, nodes=tuple(node for node in self.nodes if node not in nodes))

    def lost(self) -> frozenset[str]:
        """The nodes that the batch system has taken from the job since it began; of PBS and LSF none."""
        try:
            if self.slurm:
                command = ["squeue", "--noheader", f"--jobs={self.job}", "--format=%N"]
                left = frozenset(expand_nodes(_answer(command, os.environ).strip()))
            else:
                left = frozenset((read_allocation(os.environ) or self).nodes)
        except UserError:
            return frozenset()
        return frozenset(self.nodes) - left if left else frozenset()


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
            listed, cores = _answer(command, environment, "Flux").split()
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
    details = ask(["scontrol", "show", "job", "--details", job]).stdout
    # Nodes=n[1-2] CPU_IDs=0-7 Mem=0 GRES=gpu:a100:4(IDX:0-3)
    lines = re.findall(r"^\s*Nodes=\S+ .*\bGRES=(.*)$", details, re.MULTILINE)
    return min(map(count_gpus, lines), default=None)


def _answer(command: list[str], environment: Mapping[str, str], system: str = "Slurm") -> str:
    answer = ask(command, environment)
    if answer.returncode:
        words = answer.stderr.strip().splitlines() or [f"{command[0]} ended with {answer.returncode}"]
        raise NoAnswer(f"{system} does not answer: {words[-1]}")
    return answer.stdout
