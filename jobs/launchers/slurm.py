"""Start a run in a Slurm allocation: one srun, one task per rank, on exactly the run's number of nodes."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from jobs.launchers.base import OnNodes, why_not_on
from jobs.machine import Partition, gpus_per_node, partition
from jobs.run import Run
from jobs.site import Site


@dataclass(frozen=True)
class Slurm(OnNodes):
    name: ClassVar = "slurm"
    program: ClassVar = "srun"
    install: ClassVar = "run this on a node of a Slurm cluster"
    tells_host: ClassVar = False  # srun does

    gpus_per_node: int | None = None  # of the allocation, where the site has GPUs; None: unknown
    node_cpus: int = 0  # of a node, also those that other jobs have
    partition: Partition | None = None  # where a job would run; None in a job
    place: str = "here"

    @classmethod
    def open(cls, site: Site, environment: Mapping[str, str]) -> Self:
        here = super().open(site, environment)
        gpus = gpus_per_node(here.allocation.job) if here.allocation and site.gpus_per_node else None
        return replace(here, gpus_per_node=gpus, node_cpus=os.cpu_count() or 0)

    def planned(self) -> Self:
        """With the nodes of the partition that a job of this site would run in."""
        if self.allocation is not None or not self.has_program:
            return self
        part = partition(self.site.partition, self.environment)
        node = replace(self.machine, cores=part.cpus, gpus=("GPU",) * part.gpus)
        there = replace(self, partition=part, place=f"in the partition {part.name}", machine=node)
        return replace(there, gpus_per_node=part.gpus, node_cpus=part.cpus)

    def reasons_against(self, run: Run) -> Iterator[str]:
        part, held, site = self.partition, self.allocation, self.site.where
        has = part.nodes if part else len(held.nodes) if held else 0
        place = f"the partition {part.name}" if part else "the allocation"
        if not self.has_program:
            yield "launcher slurm: no srun on the PATH; is this a node of a Slurm cluster?"
        elif not has:
            yield "launcher slurm runs in an allocation: sbatch slurm/sweep.sh, or salloc first"
        if run.nodes > has:
            left_out = held.nodes_at_start - has if held else 0
            without = f" ({left_out} left out)" if left_out else ""
            yield f"{run.nodes} nodes requested, but {place} has {has}{without}"
        if run.device != "cpu" and (by_site := self.site.gpus_per_node):
            asked, there = run.gpus_per_node, self.gpus_per_node
            wrong = f"{asked} GPUs per node requested, but"
            if asked > by_site:
                yield f"{wrong} {site} says gpus_per_node: {by_site}"
            if there is not None and asked > there:
                remedy = f"correct gpus_per_node in {site}, or submit with --gpus-per-node={asked}"
                yield f"{wrong} {place} has {there}: {remedy}"
        ranks, cpus = run.ranks_per_node, self.cores
        if cpus < ranks <= self.node_cpus:
            why = f"the job has {cpus} of {self.node_cpus} CPUs; submit with --exclusive"
            yield f"{ranks} ranks per node requested, but {why}"
        elif cpus < ranks:
            why = f"a node has {cpus} CPUs: set gpus_per_node to at most {cpus} in the sweep"
            yield f"{ranks} ranks per node requested, but {why} (with GPUs: in the site file {site})"
        # In a container the data may be elsewhere, and modules that a job loads bring programs.
        outside = self.site.container is None
        name = f"a node of partition {part.name}" if part else "this machine"
        yield from why_not_on(self.node, run, name, outside, outside and not (part and self.site.modules))

    def words(self, run: Run, nodes: Sequence[str], cores: int, added: Mapping[str, str]) -> list[str]:
        in_pyxis: list[str] = []
        if (box := self.site.container) and box.runtime == "pyxis":
            in_pyxis = [f"--container-image={box.image}", f"--container-workdir={Path.cwd()}"]
            mounts = ",".join(bind if ":" in bind else f"{bind}:{bind}" for bind in box.binds)
            in_pyxis += [f"--container-mounts={mounts}"] if mounts else []
        return [
            "srun", f"--nodes={run.nodes}", *([f"--nodelist={','.join(nodes)}"] if nodes else []),
            f"--ntasks={run.ranks}", f"--ntasks-per-node={run.ranks_per_node}", "--distribution=block",
            f"--cpus-per-task={max(1, self.cores // run.ranks_per_node)}",
            f"--cpu-bind={'cores' if cores else 'none'}",
            *([f"--gpus-per-node={run.gpus_per_node}", "--gpu-bind=none"] if self.uses_gpus(run) else []),
            *([f"--mpi={self.site.mpi.srun}"] if self.site.mpi.srun else []),
            # The nodes are ours alone. Without this, a job that has lost a node gets no step any more: Slurm
            # (22.05) does not give back what the lost step held.
            "--overlap", "--kill-on-bad-exit=1",
            "--wait=30",  # s, for other tasks when the first has ended badly; by default for ever
            # The job may have been submitted with --export=NONE; ranks need the environment all the same.
            "--export=ALL", "--job-name=scaleprof", *in_pyxis, *self.site.srun,
        ]  # fmt: skip
