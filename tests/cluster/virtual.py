"""A virtual Slurm cluster, as tests handle it, and sweeps on it with ranks that train nothing."""

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.scripted_ranks import scripted, write_sweep
from jobs import store
from jobs.store import Manifest
from tests.builders import ended_runs

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


# --- sweeps on the virtual cluster with ranks that train nothing: how they start, and what they left ---


@dataclass(frozen=True)
class Sweep:
    """A sweep file with its results in a folder of the test's own."""

    cluster: Cluster
    folder: Path
    name: str = "s"
    keep_off: tuple[str, ...] = FOREGROUND

    def write(
        self, run: str = "nodes: [1, 2, 4]", more: str = "repetitions: 1", ranks: int = 1, in_all: int = 16
    ) -> "Sweep":
        """The sweep's file, with so many ranks per node; no run has more than ``in_all``."""
        write_sweep(self.folder, self.name, run, more, ranks, in_all)
        return self

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.yaml"

    @property
    def results(self) -> Path:
        return self.folder / "results" / self.name

    @property
    def scripted(self) -> dict[str, str]:
        """The environment in which ranks train nothing."""
        return scripted(self.folder)

    def submit(self, *sbatch: str, words: tuple[str, ...] = (), **variables: str) -> str:
        """The job's id; its output is in ``folder/JOB.out``."""
        out = f"--output={self.folder}/%j.out"
        script = ["slurm/sweep.sh", str(self.file), "--out", str(self.folder / "results"), *words]
        others = [f"--exclude={','.join(self.keep_off)}"] if self.keep_off else []
        return self.cluster.sbatch(out, *others, *sbatch, *script, **{**self.scripted, **variables})

    def said(self, job: str) -> str:
        path = self.folder / f"{job}.out"
        return path.read_text() if path.exists() else "(the job has not begun)"

    def manifests(self) -> dict[str, Manifest]:
        return {
            path.name: store.read_record(path / store.MANIFEST, Manifest) for path in ended_runs(self.results)
        }

    def done(self) -> list[int]:
        """The numbers of nodes of the runs that are done."""
        return sorted(manifest.run.nodes for manifest in self.manifests().values() if manifest.done)

    def log_of_running(self) -> str:
        logs = [path for path in self.results.glob("run_*/log.txt") if "_ret_" not in path.parent.name]
        return logs[0].read_text() if logs else ""

    def running(self) -> list[str]:
        return [path.name for path in self.results.glob("run_*") if "_ret_" not in path.name]
