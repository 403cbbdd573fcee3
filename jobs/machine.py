"""Facts about this machine and its software, for the doctor, launchers and manifests."""

import ctypes
import importlib.metadata
import os
import platform
import re
import socket
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from jobs import ROOT
from profiling.errors import UserError
from profiling.presence import is_importable

# Releases of PyTorch that the tests run on: the oldest and the newest. The environment pins the newest.
TESTED_TORCH = ((2, 11), (2, 13))
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
    """This machine's facts, looked up once."""
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


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that matter to a measurement; absent ones are not named."""
    installed = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
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
    recorded = {n: value for n, value in variables if _ALLOWED.fullmatch(n) and not _SECRET.search(n)}
    return {
        "environment": recorded,
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
    """Whether the tests run on this release of PyTorch."""
    match = re.match(r"(\d+)\.(\d+)", version)
    return match is not None and TESTED_TORCH[0] <= (int(match[1]), int(match[2])) <= TESTED_TORCH[1]


def check_built_for(capability: tuple[int, int], built_for: Sequence[str], name: str) -> None:
    """Refuse a GPU for which this PyTorch has no kernels.

    ``built_for``, as ``torch.cuda.get_arch_list()`` says: ``sm_90`` is code for 9.0 and later of its major
    version, ``sm_90a`` for 9.0 alone, ``compute_90`` what the driver compiles for whatever comes later.
    """

    def serves(arch: str) -> bool:
        match = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", arch)
        if not match:
            return False
        built = int(match[2]), int(match[3])
        if match[4]:
            return built == capability
        return built <= capability and (match[1] == "compute" or built[0] == capability[0])

    if not built_for or any(map(serves, built_for)):
        return
    remedy = "install a newer PyTorch" if capability >= _CUDA_13 else _FOR_CUDA_12
    remedy = remedy if capability >= _CUDA_12 else "use --device cpu"
    raise UserError(
        f"{name} has compute capability {capability[0]}.{capability[1]}, PyTorch is built for "
        f"{', '.join(built_for)}; {remedy}"
    )
