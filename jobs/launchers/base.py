"""What every launcher offers, and what they have in common."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, Self

from jobs.cluster import Allocation
from jobs.loaders import LOADERS, check_data
from jobs.machine import Machine
from jobs.program import check_can_start
from jobs.run import Run
from jobs.site import Site
from profiling.errors import UserError
from profiling.presence import Presence, of_program
from profiling.tools import Options, check_can_record

ROOT = Path(__file__).resolve().parents[2]  # where ranks start: relative paths of data are relative to it


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
    starts: ClassVar[str]  # what, for the docs
    where: ClassVar[str]  # it can, for the docs
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

    def on(self, nodes: tuple[str, ...]) -> Self:
        """The launcher on such of its nodes only."""
        return self.without(frozenset(self.nodes) - frozenset(nodes))

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
    def check(self, run: Run) -> None:
        """Refuse a run that cannot start here."""

    def can(self, run: Run) -> bool:
        """Whether a run can start here."""
        try:
            self.check(run)
        except UserError:
            return False
        return True

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


def check_node(
    run: Run,
    machine: Machine,
    site: Site,
    node: str = "this machine",
    *,
    sees_data: bool = True,
    sees_programs: bool = True,
) -> None:
    """Refuse a run whose share of ranks a node like ``machine`` cannot hold."""
    gpus = 0 if run.device == "cpu" else len(machine.gpus)
    ranks, cores, loader = run.ranks_per_node, machine.cores, LOADERS[run.loader]
    if not gpus and run.device == "gpu":
        raise UserError(f"device gpu requested, but {node} has no usable GPU (see python -m jobs.doctor)")
    if not gpus and run.graph:
        raise UserError(f"graph true needs a GPU, and {node} has none; use graph false")
    if run.program and sees_data:
        check_can_start(run, Path.cwd())
    loader.check(run.loader, gpus > 0, machine.libraries, run.data, node)
    if run.data and loader.reads_data and sees_data:
        check_data(ROOT / run.data, run.data_format)
    # Ranks have the PATH of this process.
    options = Options(run.profile_mode, gpu=gpus != 0, world_size=run.ranks)
    check_can_record(run.profile, options, here=sees_programs)
    if gpus and run.gpus_per_node > gpus:
        raise UserError(f"{run.gpus_per_node} GPUs requested, but {node} has {gpus}")
    if not gpus and ranks > cores:
        raise UserError(
            f"{ranks} ranks per node requested, but {node} has {cores} CPU cores and no GPU: set "
            f"gpus_per_node (without GPUs: ranks per node) to at most {cores}"
        )


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


def network_environment(run: Run, site: Site, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that make NCCL, Gloo, UCX and MPI use ``run.network``.

    A run on one node uses no network, and is given none. Who has set one, the user or the site, knows why.
    """
    if run.nodes == 1:
        return {}
    fast = run.network.lower() == "ib"
    network = site.network.ib if fast else site.network.eth
    interface, device = network.interface, network.device
    if fast:
        wanted = {"NCCL_IB_DISABLE": "0", "OMPI_MCA_pml": "ucx"}
        if device:
            # UCX names a port, NCCL a device; "=" makes NCCL match the name whole, not as a prefix.
            ports = ",".join(name if ":" in name else f"{name}:1" for name in device.split(","))
            wanted |= {"NCCL_IB_HCA": f"={device}", "UCX_NET_DEVICES": ports}
    else:
        wanted = {
            "NCCL_IB_DISABLE": "1",
            # That stops NCCL's own InfiniBand alone, and no plugin for a fabric (EFA, Slingshot).
            "NCCL_NET": "Socket",
            # Where UCX is built in, Open MPI would take InfiniBand by itself.
            "OMPI_MCA_pml": "ob1",
            "OMPI_MCA_btl": "^openib,uct,ofi,usnic",
            "UCX_TLS": "tcp,sm,self,cuda_copy,cuda_ipc",
            **({"UCX_NET_DEVICES": interface} if interface else {}),
        }
    if interface:
        names = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "HOROVOD_GLOO_IFACE")
        wanted |= dict.fromkeys((*names, "OMPI_MCA_btl_tcp_if_include"), interface)
    wanted |= network.variables
    return {name: value for name, value in wanted.items() if name not in environment}


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
