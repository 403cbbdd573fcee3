"""The rank's place in the job: its number (:mod:`profiling.identity`), and where the ranks meet."""

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from profiling.errors import UserError
from profiling.identity import check_mpi, expand_nodes, read_identity

# launcher -> what tells its jobs from one another. Only its own: mpirun's daemons may have been started by
# srun, each in a step, or even a job, of its own.
_JOB_IDS = {
    "torchrun": ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT"),
    "Slurm": ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    "Open MPI": ("OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"),
    "MPICH": ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PMI_JOBID"),
    "jsrun": ("LSB_JOBID", "PMIX_NAMESPACE"),
    "Flux": ("FLUX_JOB_ID",),
    "PALS": ("PBS_JOBID", "PALS_APID"),
    "MVAPICH": ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "PMI_JOBID"),
}


@dataclass(frozen=True)
class World:
    """This rank's place among the ranks.

    Attributes:
        rank: 0 to ``size`` - 1 over all nodes.
        local_rank: among the ranks of this node; the GPU it uses.
        local_size: ranks on this node.
        rendezvous: the ``init_method`` by which torch.distributed's ranks find each other, where the launcher
            names the place; else they meet on ``host`` (:mod:`train.rendezvous`).
        host: where rank 0 is.
        job: what tells this job from others on that host.
        launcher: who started us.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    rendezvous: str = ""
    host: str = ""
    job: str = ""
    launcher: str = "none"

    @property
    def nodes(self) -> int:
        return max(1, self.size // self.local_size)


def read_world(environment: Mapping[str, str]) -> World:
    """The world that a launcher describes in ``environment``; one rank where there was no launcher.

    Raises:
        UserError: the variables contradict each other, or are no numbers.
    """
    me = read_identity(environment)
    if me.launcher == "none":
        return World()
    rendezvous, host = _meeting_place(environment, me.size, me.local_size, me.launcher)
    # Ours come first: they are one for each run.
    ours = tuple(name for name in ("SCALEPROF_JOB", "SCALEPROF_RENDEZVOUS") if name in environment)
    job = "/".join(environment.get(name, "") for name in ours or _JOB_IDS[me.launcher])
    return World(me.rank, me.size, me.local_rank, me.local_size, rendezvous, host, job, me.launcher)


def _meeting_place(
    environment: Mapping[str, str], size: int, local_size: int, launcher: str
) -> tuple[str, str]:
    """(``init_method`` where one is given, the host of rank 0)."""
    if size == 1:
        return "", ""
    if "SCALEPROF_RENDEZVOUS" in environment:
        return environment["SCALEPROF_RENDEZVOUS"], ""
    host = environment.get("MASTER_ADDR", "")
    if host and "MASTER_PORT" in environment:
        return f"tcp://{host}:{environment['MASTER_PORT']}", ""
    if not host and size == local_size:
        host = "127.0.0.1"
    if not host and launcher == "Slurm" and environment.get("SLURM_STEP_NODELIST"):
        host = expand_nodes(environment["SLURM_STEP_NODELIST"])[0]
    host = host or environment.get("SCALEPROF_HOST", "")
    nodes = environment.get("SLURM_JOB_NUM_NODES", "0")
    if not host and environment.get("SLURM_JOB_NODELIST") and int(nodes) * local_size >= size:
        # Every mpirun fills an allocation from its first node on.
        host = expand_nodes(environment["SLURM_JOB_NODELIST"])[0]
    return "", host or _host_by_mpi(size, launcher)


def _host_by_mpi(size: int, launcher: str) -> str:
    """The host of rank 0 as MPI itself tells it: mpirun with a hostfile gives its ranks no list of nodes."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError):
        raise UserError(
            "the ranks are on several nodes, and the launcher does not say where rank 0 is: install mpi4py "
            "(pip install -e '.[mpi]'), or set MASTER_ADDR (mpirun -x MASTER_ADDR)"
        ) from None
    check_mpi(MPI.COMM_WORLD.size, size, f"mpi4py ({' '.join(map(str, MPI.get_vendor()))})", launcher)
    return MPI.COMM_WORLD.bcast(socket.gethostname())


def gloo_interface(environment: Mapping[str, str], world: World) -> dict[str, str]:
    """What Gloo must be told: on one node it goes over loopback, for the host's name may not resolve."""
    if "GLOO_SOCKET_IFNAME" in environment or world.size > world.local_size:
        return {}
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        loopback = [name for _, name in socket.if_nameindex() if name.startswith("lo")]
        return {"GLOO_SOCKET_IFNAME": loopback[0]} if loopback else {}
    return {}


def check_interface(environment: Mapping[str, str], variable: str, network: str) -> None:
    """Raise UserError for network interfaces in ``variable`` that this node does not have.

    Args:
        network: the run's, by which the site file names them.
    """
    here = [name for _, name in socket.if_nameindex()]
    for name in filter(None, environment.get(variable, "").split(",")):
        if name not in here:
            node = f"{socket.gethostname()}, which has {', '.join(here)}"
            raise UserError(
                f"no network interface {name} on {node}: correct network.{network.lower()}.interface in the "
                f"site file (or {variable})"
            )
