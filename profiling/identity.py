"""Which rank did a launcher start this process as?

The one place that reads what launchers put into the environment: torchrun (and our local launcher), Open MPI,
MVAPICH, Slurm, MPICH and Intel MPI (PMI).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from profiling.errors import UserError
from profiling.slurm_text import expand_counts

# launcher -> its variables for (rank, world size, local rank, local world size). The first launcher counts of
# which a process has both rank and size: mpirun inside srun speaks last, so it comes before Slurm.
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
    "Slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # Intel MPI's, too
}


@dataclass(frozen=True)
class Identity:
    """What a launcher says of this process.

    Attributes:
        rank: 0 to ``size`` - 1 over all nodes.
        local_rank: among the ``local_size`` ranks of this node.
        launcher: who said so; ``none`` where nobody did.
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1
    launcher: str = "none"


def is_restarted(environment: Mapping[str, str]) -> bool:
    """Whether this launch repeats an earlier one: torchrun's after a rank has failed, or a requeued job."""
    counts = (environment.get(name, "") for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))
    return any(count.isdecimal() and int(count) > 0 for count in counts)


def read_identity(environment: Mapping[str, str]) -> Identity:
    """What a launcher wrote into ``environment``; one rank of one where there was no launcher.

    Raises:
        UserError: the variables contradict each other, or are not numbers.
    """
    for launcher, names in _LAUNCHERS.items():
        if names[0] not in environment or names[1] not in environment:
            continue
        if launcher == "Slurm" and not _is_task(environment):
            continue
        return Identity(*_numbers(environment, names, launcher), launcher)
    return Identity()


def rank_on_node(environment: Mapping[str, str], launcher: str) -> tuple[str, str]:
    """The variable by which a launcher tells the ranks of a node apart, or else all ranks, and its value."""
    rank, _, local_rank, _ = _LAUNCHERS[launcher]
    name = local_rank if local_rank in environment else rank
    return name, environment[name]


def _is_task(environment: Mapping[str, str]) -> bool:
    """Whether this process is a task of srun, and not what mpirun started through one (a daemon per node)."""
    # An interactive allocation describes its shell too; that is no launched rank.
    if "SLURM_STEP_ID" not in environment:
        return False
    # Under srun --mpi=pmi2 both speak, and say the same. MPICH's own daemons count ranks per node as well.
    return "MPI_LOCALRANKID" not in environment


def _numbers(
    environment: Mapping[str, str], names: tuple[str, ...], launcher: str
) -> tuple[int, int, int, int]:
    rank = _number(environment, names[0], 0)
    size = _number(environment, names[1], 1)
    local_size = _number(environment, names[3], size)
    local_rank = _number(environment, names[2], rank % max(1, local_size))
    if not (0 <= rank < size and 0 <= local_rank < local_size <= size):
        raise UserError(
            f"{launcher} reports rank {rank} of {size}, local rank {local_rank} of {local_size}; start the "
            "ranks with one launcher only"
        )
    return rank, size, local_rank, local_size


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    if name == "SLURM_STEP_TASKS_PER_NODE":
        counts, node = expand_counts(text), environment.get("SLURM_NODEID", "0")
        text = str(counts[int(node)]) if node.isdigit() and int(node) < len(counts) else text
    if not text.isdecimal():
        raise UserError(
            f"invalid {name} {text!r}: not a number; start the ranks with torchrun, mpirun or srun"
        )
    return int(text)


def check_mpi(seen: int, size: int, library: str, launcher: str) -> None:
    """A library built for one MPI and launched by another takes each rank for a job of its own.

    Args:
        seen: the world size that the library reports.
        size: how many ranks ``launcher`` started.

    Raises:
        UserError: the two differ; the message names both.
    """
    if seen != size:
        raise UserError(
            f"{library} sees {seen} of the {size} ranks that {launcher} started: it was built for a "
            "different MPI; load the module it was built with, or rebuild it (make horovod)"
        )
