"""Which rank am I, of how many, and where do the ranks meet?

The one place that reads what launchers put into the environment: torchrun (and our local launcher), Open MPI,
Slurm, MPICH and Intel MPI (PMI), MVAPICH.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass

from profiling.errors import UserError

# launcher -> its variables for (rank, world size, local rank, local world size)
_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "Open MPI": (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_RANK",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
    ),
    "MVAPICH": (
        "MV2_COMM_WORLD_RANK",
        "MV2_COMM_WORLD_SIZE",
        "MV2_COMM_WORLD_LOCAL_RANK",
        "MV2_COMM_WORLD_LOCAL_SIZE",
    ),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "Slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
}
# What tells one job of a user on a node from another, so that their ports differ.
_JOB_IDS = (
    "SLURM_JOB_ID",
    "PBS_JOBID",
    "LSB_JOBID",
    "OMPI_MCA_ess_base_jobid",
    "PMIX_NAMESPACE",
    "PMI_JOBID",
)
_FIRST_PORT, _PORTS = 20000, 12000


@dataclass(frozen=True)
class World:
    """This rank's place among the ranks.

    Attributes:
        rank: 0 to ``size`` - 1 over all nodes.
        local_rank: among the ranks of this node; the GPU it uses.
        local_size: ranks on this node.
        rendezvous: the ``init_method`` by which torch.distributed's ranks find each other.
        launcher: who started us.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    rendezvous: str = ""
    launcher: str = "none"

    @property
    def nodes(self) -> int:
        return max(1, self.size // self.local_size)


def read_world(environment: Mapping[str, str]) -> World:
    """The world that a launcher describes in ``environment``; one rank where there was no launcher.

    Raises:
        UserError: the variables contradict each other, or are no numbers.
    """
    for launcher, names in _LAUNCHERS.items():
        if names[0] not in environment or names[1] not in environment:
            continue
        # An interactive Slurm allocation describes its shell too; that is no launched rank.
        if launcher == "Slurm" and "SLURM_STEP_ID" not in environment:
            continue
        rank, size, local_rank, local_size = _numbers(environment, names, launcher)
        return World(rank, size, local_rank, local_size, _rendezvous(environment, size, local_size), launcher)
    return World()


def _numbers(environment: Mapping[str, str], names: tuple[str, ...], launcher: str) -> tuple[int, ...]:
    rank = _number(environment, names[0], 0)
    size = _number(environment, names[1], 1)
    local_size = _number(environment, names[3], size)
    local_rank = _number(environment, names[2], rank % max(1, local_size))
    if not (0 <= rank < size and 0 <= local_rank < local_size <= size):
        raise UserError(
            f"{launcher} says rank {rank} of {size}, local rank {local_rank} of {local_size}; "
            "start the ranks with one launcher only"
        )
    return rank, size, local_rank, local_size


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    # Slurm writes "2(x3)" for two tasks on each of three nodes.
    text = environment.get(name, str(default)).split("(")[0]
    if not text.isdigit():
        raise UserError(f"{name} is {text!r}, not a number; start the ranks with torchrun, mpirun or srun")
    return int(text)


def _rendezvous(environment: Mapping[str, str], size: int, local_size: int) -> str:
    if size == 1:
        return ""
    if "SCALEPROF_RENDEZVOUS" in environment:
        return environment["SCALEPROF_RENDEZVOUS"]
    port = environment.get("MASTER_PORT") or str(_port_of_job(environment))
    if "MASTER_ADDR" in environment:
        return f"tcp://{environment['MASTER_ADDR']}:{port}"
    if size == local_size:
        return f"tcp://127.0.0.1:{port}"
    if "SLURM_STEP_NODELIST" in environment:
        return f"tcp://{first_host(environment['SLURM_STEP_NODELIST'])}:{port}"
    raise UserError(
        "the ranks are on several nodes: say where rank 0 is with MASTER_ADDR (mpirun -x MASTER_ADDR)"
    )


def first_host(nodelist: str) -> str:
    """The first host of a Slurm node list: ``gpu[03-05,9],x1`` -> ``gpu03``."""
    head, bracket, rest = nodelist.partition("[")
    if not bracket or "," in head:
        return nodelist.split(",")[0]
    return head + rest.split("]")[0].split(",")[0].split("-")[0]


def _port_of_job(environment: Mapping[str, str]) -> int:
    """A port that all ranks of a job compute alike, and other jobs on the node most likely do not."""
    import zlib

    job = "/".join(environment.get(name, "") for name in _JOB_IDS)
    return _FIRST_PORT + zlib.crc32(job.encode()) % _PORTS


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
