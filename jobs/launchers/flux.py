"""Start a run in a job of Flux (or any instance of it) with flux run, on exactly the run's number of nodes.

Options as in flux-run(1) and flux-shell-options(7) of flux-core 0.88.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from jobs.launchers.base import OnNodes
from jobs.run import Run


@dataclass(frozen=True)
class Flux(OnNodes):
    name: ClassVar = "flux"
    program: ClassVar = "flux"
    install: ClassVar = "run this on a node of a cluster with Flux"

    def words(self, run: Run, nodes: Sequence[str], cores: int, added: Mapping[str, str]) -> list[str]:
        return [
            *("flux", "run", f"--nodes={run.nodes}", f"--tasks-per-node={run.ranks_per_node}", "--exclusive"),
            *([f"--requires=host:{','.join(dict.fromkeys(nodes))}"] if nodes else []),
            *("--setopt=exit-on-error", f"--setopt=cpu-affinity={'per-task' if cores else 'off'}"),
            *("--setopt=gpu-affinity=off", "--job-name=scaleprof"),
            *self.site.mpi.flags,
        ]
