"""Sweeps on the virtual cluster with ranks that train nothing: how they start, and what they left."""

from dataclasses import dataclass
from pathlib import Path

from jobs import store
from jobs.store import Manifest
from tests.cluster.virtual import ROOT, Cluster

SCRIPTED = {
    "PYTHONSAFEPATH": "1",
    "PYTHONPATH": f"{Path(__file__).parent / 'scripted'}:{ROOT}",
    "REPORT": "no",
}
NODES = "nodes: [1, 2, 4]"


@dataclass(frozen=True)
class Sweep:
    """A sweep file with its results in a folder of the test's own."""

    cluster: Cluster
    folder: Path
    name: str = "s"

    def write(self, run: str = NODES, more: str = "repetitions: 1") -> "Sweep":
        tiny = "gpus_per_node: 2, threads: 1, batches: 10, batch: 2"
        self.file.write_text(f"{more}\nrun: {{{run}, {tiny}}}\n")
        return self

    @property
    def file(self) -> Path:
        return self.folder / f"{self.name}.yaml"

    @property
    def results(self) -> Path:
        return self.folder / "results" / self.name

    def submit(self, *sbatch: str, words: tuple[str, ...] = (), **variables: str) -> str:
        """The job's id; its output is in ``folder/JOB.out``."""
        out = f"--output={self.folder}/%j.out"
        script = ["slurm/sweep.sh", str(self.file), "--out", str(self.folder / "results"), *words]
        return self.cluster.sbatch(out, *sbatch, *script, **{**SCRIPTED, **variables})

    def said(self, job: str) -> str:
        return (self.folder / f"{job}.out").read_text()

    def manifests(self) -> dict[str, Manifest]:
        return {
            path.name: store.read_record(path / store.MANIFEST, Manifest)
            for _, path in store.ended_runs(self.results)
        }

    def done(self) -> list[int]:
        """The numbers of nodes of the points that are done."""
        return sorted(manifest.run.nodes for manifest in self.manifests().values() if manifest.done)

    def running(self) -> list[str]:
        return [path.name for path in self.results.glob("run_*") if "_ret_" not in path.name]
