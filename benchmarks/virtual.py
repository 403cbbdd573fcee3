"""The virtual cluster (slurm/virtual_cluster.sh), as benchmarks use it."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from profiling.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "slurm" / "virtual_cluster.sh"


@dataclass(frozen=True)
class Cluster:
    """A virtual cluster with its state in ``home``."""

    home: Path

    def control(self, *words: str, **variables: str) -> str:
        """What a command of slurm/virtual_cluster.sh prints."""
        environment = {**os.environ, "VIRTUAL_CLUSTER": str(self.home), **variables}
        done = subprocess.run(
            [str(SCRIPT), *words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise UserError(f"{' '.join(words[:3])} failed: {(done.stderr or done.stdout).strip()[-500:]}")
        return done.stdout

    def batch(self, nodes: int, out: Path, *script: str) -> None:
        """Run a batch script in a job on so many nodes and wait; what it prints is in ``out``."""
        words = ["sbatch", "--wait", f"--nodes={nodes}", f"--output={out}", *script]
        out.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.control("exec", *words, REPORT="no")
        except UserError as error:
            said = out.read_text()[-500:] if out.exists() else ""
            raise UserError(f"{error}; the job said: {said}") from None

    def sweep(self, nodes: int, file: Path, results: Path, *words: str) -> Path:
        """Run a sweep in a job on so many nodes; its directory."""
        self.batch(nodes, results / "job.txt", "slurm/sweep.sh", str(file), "--out", str(results), *words)
        return results / file.stem


@contextmanager
def virtual_cluster(nodes: int) -> Iterator[tuple[Cluster, Path]]:
    """A cluster and a folder for results; both go with the block.

    Raises:
        UserError: this machine cannot have one (no Slurm, no root).
    """
    with tempfile.TemporaryDirectory() as scratch:
        cluster = Cluster(Path(scratch) / "cluster")
        cluster.control("start", str(nodes), VIRTUAL_CLUSTER_OWNER=str(os.getpid()))
        try:
            yield cluster, Path(scratch)
        finally:
            cluster.control("stop")
