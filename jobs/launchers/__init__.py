"""How does a run become processes? One file a launcher, one line in :data:`LAUNCHERS`."""

from collections.abc import Callable, Mapping

from jobs.launchers.base import Launcher
from jobs.launchers.local import Local
from jobs.launchers.mpirun import open_mpirun
from jobs.launchers.slurm import open_slurm
from jobs.site import Site

LAUNCHERS: dict[str, Callable[[Site, Mapping[str, str]], Launcher]] = {
    "local": lambda site, environment: Local(),
    "mpirun": open_mpirun,
    "slurm": open_slurm,
}
