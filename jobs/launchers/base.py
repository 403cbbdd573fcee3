"""Base class of the launchers, and what they have in common."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

from jobs.cluster import Allocation
from jobs.machine import Machine
from jobs.run import Run
from jobs.site import Site, network_environment
from profiling.presence import Presence, of_program


@dataclass(frozen=True)
class Process:
    """A process to start: its arguments, what is added to the environment, and what it is to the user."""

    argv: list[str]
    environment: Mapping[str, str] = field(default_factory=dict)
    name: str = "rank"


class Launcher(ABC):
    """A launcher on this machine alone; one that has nodes overrides what it does with them.

    It starts nothing: it gives argument lists and environments, which :mod:`jobs.processes` starts.
    """

    name: ClassVar[str]  # as ``--launcher`` has it
    program: ClassVar[str] = ""  # that must be on the PATH
    install: ClassVar[str] = ""  # how one gets it, for :mod:`jobs.doctor`

    @classmethod
    @abstractmethod
    def open(cls, site: Site, environment: Mapping[str, str]) -> Self:
        """The launcher as it is here, whether or not it can start anything."""

    @classmethod
    def presence(cls) -> Presence:
        """Whether it can be used on this machine, for :mod:`jobs.doctor`."""
        if cls.program:
            return of_program([cls.program, "--version"], cls.install)
        return Presence(cls.name, True, "built in")

    @property
    def place(self) -> str:
        """Where runs would start, as it follows ``no run can start``."""
        return "here"

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

    @abstractmethod
    def reasons_against(self, run: Run) -> Iterator[str]:
        """Why a run cannot start here, a line each."""

    def why_not(self, run: Run) -> str:
        """The first of :meth:`reasons_against`; "" if the run can start here."""
        return next(self.reasons_against(run), "")

    @abstractmethod
    def processes(self, run: Run, command: list[str], directory: Path) -> list[Process]:
        """The processes that run ``command`` on every rank of ``run``; ``directory`` is the run's own."""


class OnNodes(Launcher):
    """A launcher on the nodes of an allocation, if there is one."""

    allocation: Allocation | None

    def refreshed(self) -> Self:
        return self.without(self.allocation.lost()) if self.allocation else self


def in_allocation(machine: Machine, allocation: Allocation | None) -> Machine:
    """A node of ``allocation`` like ``machine``, with at least the cores that the job has there."""
    return replace(machine, cores=max(machine.cores, allocation.cpus)) if allocation else machine


def thread_environment(run: Run, cores: int) -> dict[str, str]:
    """Variables that give each of a node's ranks its share of the node's ``cores``."""
    return {
        # Ranks that share cores must not each start a thread for every core.
        "OMP_NUM_THREADS": str(run.threads or max(1, cores // run.ranks_per_node)),
        # GNU OpenMP's threads wait for each other by spinning. With as many threads as cores, one other busy
        # process slows ResNet18 30-fold (2 cores, 64 x 64: 165 -> 5 images/s), with a short spin 4-fold.
        "GOMP_SPINCOUNT": "10000",
    }


def rank_environment(run: Run, site: Site, environment: Mapping[str, str], cores: int) -> dict[str, str]:
    """The variables that a launcher adds for ranks on nodes: threads, network, the site's own."""
    of_site = {name: value for name, value in site.environment.items() if name not in environment}
    scratch = {"TMPDIR": str(site.scratch)} if site.scratch else {}
    return thread_environment(run, cores) | network_environment(run, site, environment) | of_site | scratch


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
