"""Sweeps on the virtual cluster with ranks that train nothing: how they start, and what they left."""

from dataclasses import dataclass
from pathlib import Path

from jobs import store
from jobs.store import Manifest
from profiling import tables
from tests.cluster.virtual import FOREGROUND, ROOT, Cluster
from tests.ended_runs import ended_runs

BATCHES, BATCH_NS = 10, 50_000_000


def make_templates(folder: Path, ranks: int = 16) -> None:
    """What scripted ranks leave as their batches."""
    for rank in range(ranks):
        starts = [1_800_000_000_000_000_000 + index * BATCH_NS for index in range(BATCHES)]
        stages = ("load_ns", "forward_ns", "backward_ns", "update_ns")
        rows = {
            "rank": [rank] * BATCHES, "batch_index": list(range(BATCHES)), "start_ns": starts,
            "end_ns": [start + BATCH_NS for start in starts], "images": [2] * BATCHES,
            "loss": [1.0] * BATCHES, "attributed": [False] * BATCHES,
            **dict.fromkeys(stages, [BATCH_NS // 4] * BATCHES),
        }  # fmt: skip
        tables.write(tables.as_table("batches", rows), folder, "batches").rename(folder / f"{rank}.parquet")


def leave_out_calibration(results: Path) -> None:
    """Have a sweep not measure the machine's peaks: its tests are about something else."""
    nothing = store.Calibration(
        gemm_flops_per_s={}, copy_bytes_per_s={}, allreduce_bus_bytes_per_s={}, device="cpu", seconds=0
    )
    store.write_record(results / store.CALIBRATION, nothing)


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
        tiny = f"gpus_per_node: {ranks}, threads: 1, batches: {BATCHES}, batch: 2"
        self.file.write_text(f"{more}\nrun: {{{run}, {tiny}}}\n")
        self.results.mkdir(parents=True)
        leave_out_calibration(self.results)
        templates = self.folder / "templates"
        templates.mkdir()
        make_templates(templates, in_all)
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
        scripted = Path(__file__).parent / "scripted"
        return {
            "PYTHONSAFEPATH": "1", "PYTHONPATH": f"{scripted}:{ROOT}", "REPORT": "no",
            "TEMPLATES": str(self.folder / "templates"),
        }  # fmt: skip

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
