"""Start a run in a Slurm allocation: one srun, one task per rank, on exactly the run's number of nodes."""

import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

from jobs.checks import Node, why_not_on
from jobs.cluster import Allocation, Partition, gpus_per_node, partition, read_allocation
from jobs.launchers.base import OnNodes, Process, in_allocation, in_container, rank_environment
from jobs.machine import Machine, this_machine
from jobs.run import Run
from jobs.site import Site

# srun ends the other tasks when the first has ended badly (its own default is to wait for ever).
_WAIT_S = 30


@dataclass(frozen=True)
class Slurm(OnNodes):
    """Ranks as tasks of one job step."""

    name: ClassVar = "slurm"
    program: ClassVar = "srun"
    install: ClassVar = "run this on a node of a Slurm cluster"

    site: Site
    allocation: Allocation | None  # None outside a job
    machine: Machine  # a node of it, which the others are taken to be like
    environment: Mapping[str, str] = field(default_factory=dict)
    has_srun: bool = True
    gpus_per_node: int | None = None  # of the allocation, where the site has GPUs; None: unknown
    node_cpus: int = 0  # of a node, also those that other jobs have
    partition: Partition | None = None  # where a job would run; None in a job

    @classmethod
    def open(cls, site: Site, environment: Mapping[str, str]) -> Self:
        has_srun = shutil.which("srun", path=environment.get("PATH")) is not None
        allocation = read_allocation(environment)
        gpus = gpus_per_node(allocation.job) if allocation and site.gpus_per_node else None
        return cls(site, allocation, this_machine(), environment, has_srun, gpus, os.cpu_count() or 0)

    @property
    def place(self) -> str:
        return f"in the partition {self.partition.name}" if self.partition else "here"

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.allocation.nodes if self.allocation else ()

    def without(self, nodes: frozenset[str]) -> Self:
        return replace(self, allocation=self.allocation and self.allocation.less(nodes))

    def planned(self) -> Self:
        """With the nodes of the partition that a job of this site would run in."""
        if self.allocation is not None or not self.has_srun:
            return self
        part = partition(self.site.partition, self.environment)
        node = replace(self.machine, cores=part.cpus, gpus=("GPU",) * part.gpus)
        return replace(self, partition=part, machine=node, gpus_per_node=part.gpus, node_cpus=part.cpus)

    def reasons_against(self, run: Run) -> Iterator[str]:
        part, held, site = self.partition, self.allocation, self.site.where
        has = part.nodes if part else len(held.nodes) if held else 0
        place = f"the partition {part.name}" if part else "the allocation"
        if not self.has_srun:
            yield "launcher slurm: no srun on the PATH; is this a node of a Slurm cluster?"
        elif not has:
            yield "launcher slurm runs in an allocation: sbatch slurm/sweep.sh, or salloc first"
        if run.nodes > has:
            left_out = held.nodes_at_start - has if held else 0
            yield f"{run.nodes} nodes requested, but {place} has {has}" + (
                f" ({left_out} left out)" if left_out else ""
            )
        if run.device != "cpu" and (by_site := self.site.gpus_per_node):
            asked, there = run.gpus_per_node, self.gpus_per_node
            if asked > by_site:
                yield f"{asked} GPUs per node requested, but {site} says gpus_per_node: {by_site}"
            if there is not None and asked > there:
                yield (
                    f"{asked} GPUs per node requested, but {place} has {there}: correct gpus_per_node in "
                    f"{site}, or submit with --gpus-per-node={asked}"
                )
        ranks, cpus = run.ranks_per_node, self._cpus
        if ranks > cpus:
            why = f"a node has {cpus} CPUs: set gpus_per_node to at most {cpus} in the sweep "
            why += f"(on nodes with GPUs: gpus_per_node in the site file {site})"
            if ranks <= self.node_cpus:
                why = f"the job has {cpus} of {self.node_cpus} CPUs; submit with --exclusive"
            yield f"{ranks} ranks per node requested, but {why}"
        # In a container the data may be elsewhere, and modules that a job loads bring programs.
        outside = self.site.container is None
        node = Node(
            in_allocation(self.machine, held),
            f"a node of partition {part.name}" if part else "this machine",
            sees_data=outside,
            sees_programs=outside and not (part and self.site.modules),
        )
        yield from why_not_on(node, run)

    @property
    def _cpus(self) -> int:
        return self.allocation.cpus if self.allocation else self.machine.cores

    def processes(self, run: Run, command: list[str], directory: Path) -> list[Process]:
        nodes = self.allocation.nodes[: run.nodes] if self.allocation else ()
        cores = self._cpus
        gpus = run.device != "cpu" and bool(self.site.gpus_per_node or self.machine.gpus)
        argv = [
            "srun",
            f"--nodes={run.nodes}",
            *([f"--nodelist={','.join(nodes)}"] if nodes else []),
            f"--ntasks={run.ranks}",
            f"--ntasks-per-node={run.ranks_per_node}",
            "--distribution=block",
            f"--cpus-per-task={max(1, cores // run.ranks_per_node)}",
            # Tasks without GPUs stay on their own cores; with GPUs a rank binds itself (train.device).
            f"--cpu-bind={'none' if gpus else 'cores'}",
            *([f"--gpus-per-node={run.gpus_per_node}", "--gpu-bind=none"] if gpus else []),
            *([f"--mpi={self.site.mpi.srun}"] if self.site.mpi.srun else []),
            # The nodes are ours alone. Without this, a job that has lost a node gets no step any more: Slurm
            # (22.05) does not give back what the lost step held.
            "--overlap",
            "--kill-on-bad-exit=1",
            f"--wait={_WAIT_S}",
            # The job may have been submitted with --export=NONE; ranks need the environment all the same.
            "--export=ALL",
            "--job-name=scaleprof",
            *self._container(),
            *self.site.srun,
            *in_container(command, self.site, gpus),
        ]
        return [Process(argv, rank_environment(run, self.site, self.environment, cores), name="srun")]

    def _container(self) -> list[str]:
        box = self.site.container
        if box is None or box.runtime != "pyxis":
            return []
        mounts = [bind if ":" in bind else f"{bind}:{bind}" for bind in box.binds]
        words = [f"--container-image={box.image}", "--container-workdir=" + str(Path.cwd())]
        return words + ([f"--container-mounts={','.join(mounts)}"] if mounts else [])
