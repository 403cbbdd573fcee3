"""Sweeps on the virtual cluster with ranks that train nothing: how they start, and what they left."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.scripted_ranks import scripted, write_sweep
from jobs import store
from jobs.store import Manifest
from tests.builders import ended_runs
from tests.cluster.virtual import FOREGROUND, Cluster


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
