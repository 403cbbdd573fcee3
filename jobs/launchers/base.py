"""Launchers' base classes, and the one that starts ranks on this machine, with torchrun's variables."""

import shutil
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

from jobs import ROOT
from jobs.machine import Allocation, Machine, read_allocation, refused_by, this_machine
from jobs.processes import Process
from jobs.run import INSTALL_DALI, LOADERS, MAKE_DATA, Run, check_data
from jobs.site import Site, network_environment
from jobs.sweep_file import check_can_start
from profiling.tools import Options, Presence, check_can_record, of_program


def why_not_on(
    machine: Machine, run: Run, name: str = "this machine", sees_data: bool = True, sees_programs: bool = True
) -> Iterator[str]:
    """Why a node cannot hold its share of a run's ranks.

    Args:
        machine: the node, or one like it.
        sees_data: whether paths of data mean the same there (not in a container).
        sees_programs: whether it has the PATH of this process.
    """
    loader = LOADERS[run.loader]
    gpus = 0 if run.device == "cpu" else len(machine.gpus)
    if not gpus and run.device == "gpu":
        yield f"device gpu requested, but {name} has no usable GPU (see python -m jobs.doctor)"
    if not gpus and run.graph:
        yield f"graph true needs a GPU, and {name} has none; use graph false"
    if run.program and sees_data:
        yield from refused_by(check_can_start, run, Path.cwd())
    if loader.on_cpu and not gpus:
        yield f"loader {run.loader} needs a GPU, and {name} has none; on a CPU use {loader.on_cpu}"
    if loader.by_dali and not machine.has_dali:
        yield f"loader {run.loader} needs NVIDIA DALI, not installed: {INSTALL_DALI}"
    if loader.reads_data and run.data is None:
        yield f"loader {run.loader} needs data: a folder of images or TFRecord files; {MAKE_DATA}"
    elif loader.reads_data and sees_data:
        yield from refused_by(check_data, ROOT / str(run.data), run.data_format)
    options = Options(run.profile_mode, gpu=gpus != 0, world_size=run.ranks)
    yield from refused_by(check_can_record, run.profile, options, sees_programs)
    if gpus and run.gpus_per_node > gpus:
        yield f"{run.gpus_per_node} GPUs requested, but {name} has {gpus}"
    if not gpus and run.ranks_per_node > machine.cores:
        yield (
            f"{run.ranks_per_node} ranks per node requested, but {name} has {machine.cores} CPU cores and no "
            f"GPU: set gpus_per_node (without GPUs: ranks per node) to at most {machine.cores}"
        )


class Launcher:
    """A launcher on this machine alone; one that has nodes overrides what it does with them.

    It starts nothing: it gives argument lists and environments, which :mod:`jobs.processes` starts.
    """

    name: ClassVar[str]  # as ``--launcher`` has it
    program: ClassVar[str] = ""  # that must be on the PATH
    install: ClassVar[str] = ""  # how one gets it, for :mod:`jobs.doctor`
    machine: Machine  # where ranks run, or one like it
    place: str = "here"  # where runs would start, as it follows ``no run can start``

    @classmethod
    def open(cls, site: Site, environment: Mapping[str, str]) -> Self:
        """The launcher as it is here, whether or not it can start anything."""
        return cls()

    @classmethod
    def presence(cls) -> Presence:
        """Whether it can be used on this machine, for :mod:`jobs.doctor`."""
        if cls.program:
            return of_program([cls.program, "--version"], cls.install)
        return Presence(cls.name, True, "built in")

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes it has; empty if it has this machine only."""
        return ()

    def without(self, nodes: frozenset[str]) -> Self:
        """The launcher less such nodes, which have failed."""
        return self

    def refreshed(self) -> Self:
        """The launcher with the nodes that it has now: a batch system takes away those that fail."""
        return self

    def planned(self) -> Self:
        """The launcher as a batch job would find it, for a dry run outside one."""
        return self

    def reasons_against(self, run: Run) -> Iterator[str]:
        """Why a run cannot start here, a line each."""
        if run.nodes > 1:
            yield f"{run.nodes} nodes requested; launcher local has one (use slurm or mpirun)"
        yield from why_not_on(self.machine, run)

    def why_not(self, run: Run) -> str:
        """The first of :meth:`reasons_against`; "" if the run can start here."""
        return next(self.reasons_against(run), "")

    def processes(self, run: Run, command: list[str], directory: Path) -> list[Process]:
        """The processes that run ``command`` on every rank of ``run``; ``directory`` is the run's own."""
        ranks = run.ranks_per_node
        shared = {
            **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(ranks)),
            # A file of the run's own: no two jobs on a machine can meet on a port.
            "SCALEPROF_RENDEZVOUS": (directory / "rendezvous").absolute().as_uri(),
            **thread_environment(run, self.machine.cores),
        }
        of_ranks = ({"RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(ranks))
        return [Process(list(command), shared | of_rank) for of_rank in of_ranks]


@dataclass(frozen=True)
class Local(Launcher):
    name: ClassVar = "local"
    machine: Machine = field(default_factory=this_machine)


@dataclass(frozen=True)
class OnNodes(Launcher, ABC):
    """A launcher on the nodes of a job, which starts all ranks of a run with one command."""

    tells_host: ClassVar[bool] = True  # whether the ranks must be told where rank 0 is
    least_nodes: ClassVar[int] = 0  # that it has outside a job

    site: Site
    allocation: Allocation | None  # None outside a job
    machine: Machine  # a node of it, which the others are taken to be like
    environment: Mapping[str, str] = field(default_factory=dict)
    has_program: bool = True
    planning: bool = False  # for a job that is to be submitted, on nodes that are not known yet

    @classmethod
    def open(cls, site: Site, environment: Mapping[str, str]) -> Self:
        found = shutil.which(cls.program, path=environment.get("PATH")) is not None
        return cls(site, read_allocation(environment), this_machine(), environment, found)

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.allocation.nodes if self.allocation else ()

    @property
    def cores(self) -> int:
        """Of the job on a node."""
        return (self.allocation and self.allocation.cpus) or self.machine.cores

    @property
    def node(self) -> Machine:
        """A node like the machine, with at least the cores that the job has there."""
        return replace(self.machine, cores=max(self.machine.cores, self.cores))

    def without(self, nodes: frozenset[str]) -> Self:
        return replace(self, allocation=self.allocation and self.allocation.less(nodes))

    def refreshed(self) -> Self:
        return self.without(self.allocation.lost()) if self.allocation else self

    def planned(self) -> Self:
        if self.allocation is not None or self.site.batch == "slurm":
            return self
        node = replace(self.machine, gpus=("GPU",) * (self.site.gpus_per_node or 0))
        return replace(self, planning=True, machine=node)

    def reasons_against(self, run: Run) -> Iterator[str]:
        has, machine = max(self.least_nodes, len(self.nodes)), self.node
        if self.planning:
            machine = replace(machine, cores=max(machine.cores, run.ranks_per_node))
        elif not self.has_program:
            yield f"launcher {self.name}: no {self.program} on the PATH ({self.install})"
        elif not has:
            yield f"launcher {self.name} runs in a job: python -m jobs.submit, or an interactive job first"
        if run.nodes > has and not self.planning:
            yield f"{run.nodes} nodes requested, but there are {has} (allocation or mpi.hostfile)"
        outside = self.site.container is None
        yield from why_not_on(machine, run, "this machine", outside, outside and not self.planning)

    @abstractmethod
    def words(self, run: Run, nodes: Sequence[str], cores: int, added: Mapping[str, str]) -> list[str]:
        """The launcher's own words before the ranks' command.

        Args:
            nodes: those of the run.
            cores: of each rank; 0: they are not to be bound, for with GPUs a rank binds itself
                (:mod:`train.device`).
            added: what is added to the environment.
        """

    def processes(self, run: Run, command: list[str], directory: Path) -> list[Process]:
        nodes, gpus, site = self.nodes[: run.nodes], self.uses_gpus(run), self.site
        added = thread_environment(run, self.cores) | network_environment(run, site, self.environment)
        added |= {name: value for name, value in site.environment.items() if name not in self.environment}
        added |= {"TMPDIR": str(site.scratch)} if site.scratch else {}
        if self.tells_host:
            # Not every MPI tells its ranks. And what sets this job apart from others there.
            added |= {"SCALEPROF_HOST": nodes[0] if nodes else "127.0.0.1"} if nodes or run.nodes == 1 else {}
            added["SCALEPROF_JOB"] = str(directory.absolute())
        words = self.words(run, nodes, 0 if gpus else self.cores // run.ranks_per_node, added)
        return [Process([*words, *in_container(command, site, gpus)], added, name=self.program)]

    def uses_gpus(self, run: Run) -> bool:
        return run.device != "cpu" and bool(self.site.gpus_per_node or self.machine.gpus)


def thread_environment(run: Run, cores: int) -> dict[str, str]:
    """Variables that give each of a node's ranks its share of the node's ``cores``."""
    return {
        # Ranks that share cores must not each start a thread for every core.
        "OMP_NUM_THREADS": str(run.threads or max(1, cores // run.ranks_per_node)),
        # GNU OpenMP's threads wait for each other by spinning. With as many threads as cores, one other busy
        # process slows ResNet18 30-fold (2 cores, 64 x 64: 165 -> 5 images/s), with a short spin 4-fold.
        "GOMP_SPINCOUNT": "10000",
    }


def in_container(command: list[str], site: Site, gpus: bool) -> list[str]:
    """``command`` (it begins with Python) as it starts in the site's container; pyxis is srun's own doing."""
    box = site.container
    if box is None:
        return command
    inside = [box.python, *command[1:]]
    if box.runtime == "pyxis":
        return inside
    binds = [word for bind in box.binds for word in ("--bind", bind)]
    return [box.runtime, "exec", *(["--nv"] if gpus else []), *binds, box.image, *inside]
