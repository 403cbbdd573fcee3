"""How does a run start on this machine alone? One process a rank, with torchrun's variables."""

from dataclasses import dataclass, field
from pathlib import Path

from jobs.launchers.base import Process
from jobs.machine import Machine, this_machine
from jobs.run import GPU_LOADERS, Run

RENDEZVOUS = "rendezvous"


@dataclass(frozen=True)
class Local:
    """Ranks on this machine; without GPUs they share the CPU's cores."""

    machine: Machine = field(default_factory=this_machine)
    name: str = "local"

    def cannot(self, run: Run) -> str | None:
        gpus = 0 if run.device == "cpu" else len(self.machine.gpus)
        ranks = run.gpus_per_node
        if run.nodes > 1:
            return f"{run.nodes} nodes asked, but launcher local has this one only"
        if gpus == 0 and run.device == "gpu":
            return "device gpu asked, but this machine has no usable GPU (python -m jobs.doctor says why)"
        if gpus == 0 and run.loader in GPU_LOADERS:
            return f"loader {run.loader} needs a GPU, and this machine has none; dali-cpu does without"
        if gpus and ranks > gpus:
            return f"{ranks} GPUs asked, but this machine has {gpus}"
        if not gpus and ranks > self.machine.cores:
            return f"{ranks} ranks asked, but this machine has {self.machine.cores} CPU cores and no GPU"
        if run.loader.startswith("dali") and not self.machine.has_dali:
            return f"loader {run.loader} needs NVIDIA DALI, which is not installed (it exists for Linux only)"
        return None

    def processes(self, run: Run, command: list[str], directory: Path) -> list[Process]:
        ranks = run.gpus_per_node
        shared = {
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            # A file of the run's own: no two jobs on a machine can meet on a port.
            "SCALEPROF_RENDEZVOUS": (directory / RENDEZVOUS).absolute().as_uri(),
            # Ranks that share cores must not each start a thread for every core.
            "OMP_NUM_THREADS": str(run.threads or max(1, self.machine.cores // ranks)),
            # GNU OpenMP's threads wait for each other by spinning. With as many threads as cores, one other
            # busy process slows ResNet18 30-fold (2 cores, 64 x 64: 165 -> 5 images/s), with a short spin
            # 4-fold.
            "GOMP_SPINCOUNT": "10000",
        }
        return [
            Process(list(command), {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(ranks)
        ]
