"""Start a run on this machine only: one process per rank, with torchrun's variables."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

from jobs.checks import Node, why_not_on
from jobs.launchers.base import Launcher, Process, thread_environment
from jobs.machine import Machine, this_machine
from jobs.run import Run
from jobs.site import Site


@dataclass(frozen=True)
class Local(Launcher):
    """Ranks on this machine; without GPUs they share the CPU's cores."""

    name: ClassVar = "local"

    machine: Machine = field(default_factory=this_machine)

    @classmethod
    def open(cls, site: Site, environment: Mapping[str, str]) -> Self:
        return cls()

    def reasons_against(self, run: Run) -> Iterator[str]:
        if run.nodes > 1:
            yield f"{run.nodes} nodes requested; launcher local has one (use slurm or mpirun)"
        yield from why_not_on(Node(self.machine), run)

    def processes(self, run: Run, command: list[str], directory: Path) -> list[Process]:
        ranks = run.ranks_per_node
        shared = {
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            # A file of the run's own: no two jobs on a machine can meet on a port.
            "SCALEPROF_RENDEZVOUS": (directory / "rendezvous").absolute().as_uri(),
            **thread_environment(run, self.machine.cores),
        }
        return [
            Process(list(command), {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(ranks)
        ]
