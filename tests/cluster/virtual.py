"""A virtual Slurm cluster, as tests handle it."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "slurm" / "virtual_cluster.sh"
NEEDS = ("slurmctld", "slurmd", "munged", "srun", "ip", "tc", "unshare")
# Nodes for the tests that run one after the other, while what takes its time happens on the rest.
FOREGROUND = ("n31", "n32")
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL"}


# How long what Slurm said of its jobs is taken for true.
JOBS_S = 0.5


@dataclass
class Jobs:
    """What Slurm said last of all jobs: a dozen threads wait for theirs, and a question is four processes."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    at: float = 0.0
    by_id: dict[str, dict[str, str]] = field(default_factory=dict)


@dataclass(frozen=True)
class Cluster:
    """A cluster whose state is in ``home``; commands run on its login node, from the project's root."""

    home: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    jobs: Jobs = field(default_factory=Jobs, repr=False)

    @property
    def path(self) -> str:
        """The PATH of its users: the MPI of the tests' requirements comes before the machine's."""
        # mpi4py was not made for that one.
        return f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    def control(self, *arguments: str, timeout_s: float = 180) -> str:
        """``slurm/virtual_cluster.sh ARGUMENTS``; an error is raised if it fails."""
        answer = self._run([str(SCRIPT), *arguments], timeout_s)
        assert answer.returncode == 0, f"{arguments}: {answer.stderr or answer.stdout}"
        return answer.stdout

    def run(self, *command: str, timeout_s: float = 300, **variables: str) -> subprocess.CompletedProcess:
        """A user's command on the login node, whatever its exit code."""
        return self._run([str(SCRIPT), "exec", *command], timeout_s, variables)

    def sbatch(self, *arguments: str, **variables: str) -> str:
        """The id of a submitted job."""
        answer = self.run("sbatch", "--parsable", *arguments, **variables)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout.strip()

    def job(self, job: str) -> dict[str, str]:
        """What ``scontrol show job`` said of it in the last half second: JobState, NodeList, Restarts ..."""
        with self.jobs.lock:
            if job not in self.jobs.by_id or time.monotonic() - self.jobs.at > JOBS_S:
                lines = self.control("exec", "scontrol", "--oneliner", "show", "job").splitlines()
                said = [dict(re.findall(r"(\w+(?:[/:]\w+)*)=(\S*)", line)) for line in lines]
                self.jobs.by_id = {one["JobId"]: one for one in said if "JobId" in one}
                self.jobs.at = time.monotonic()
            return self.jobs.by_id[job]

    def wait(self, job: str, timeout_s: float = 300) -> dict[str, str]:
        """The job once it has ended."""
        self.until(lambda: self.job(job)["JobState"] in ENDED, timeout_s)
        return self.job(job)

    def until(self, condition: Callable[[], bool], timeout_s: float = 240) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"it did not come to pass within {timeout_s:g} s"
            time.sleep(0.2)

    def _run(
        self, command: list[str], timeout_s: float, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess:
        # A shell that was itself started by a launcher must not lend its variables to the tests' jobs.
        inherited = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "OMPI_"))
        }
        environment = {
            **inherited,
            **self.environment,
            "PATH": self.path,
            "VIRTUAL_CLUSTER": str(self.home),
            **(variables or {}),
        }
        return subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
        )
