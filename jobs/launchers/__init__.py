"""Launchers, which start the processes of a run: one file each, and a line in :data:`LAUNCHERS`."""

from jobs.launchers.base import Launcher, Local
from jobs.launchers.flux import Flux
from jobs.launchers.jsrun import Jsrun
from jobs.launchers.mpirun import Mpirun
from jobs.launchers.slurm import Slurm

LAUNCHERS: dict[str, type[Launcher]] = {each.name: each for each in (Local, Mpirun, Slurm, Jsrun, Flux)}
