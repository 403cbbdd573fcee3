"""Start a run in a job of LSF with IBM's jsrun: a resource set for each node, which holds the node's ranks.

Options as in IBM's documentation of JSM 10.4 and OLCF's guide for Summit. jsrun chooses the nodes itself, so
one that has failed cannot be left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from jobs.launchers.base import OnNodes
from jobs.run import Run


@dataclass(frozen=True)
class Jsrun(OnNodes):
    name: ClassVar = "jsrun"
    program: ClassVar = "jsrun"
    install: ClassVar = "run this in a job of LSF on a cluster with IBM's JSM"

    def without(self, nodes: frozenset[str]) -> Self:
        return self

    def words(self, run: Run, nodes: Sequence[str], cores: int, added: Mapping[str, str]) -> list[str]:
        return [
            "jsrun",
            *("--nrs", str(run.nodes), "--rs_per_host", "1"),
            *("--tasks_per_rs", str(run.ranks_per_node), "--cpu_per_rs", "ALL_CPUS"),
            *(["--gpu_per_rs", "ALL_GPUS"] if self.uses_gpus(run) else []),
            *("--launch_distribution", "packed", "--bind", f"packed:{cores}" if cores else "none"),
            *("--exit_on_error", "1"),
            *self.site.mpi.flags,
        ]
