"""Which rank a launcher started this process as, and on which nodes.

The one place that reads what launchers put into the environment: torchrun (and our local launcher), Open MPI,
MVAPICH, Slurm, MPICH and Intel MPI (PMI).
"""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from profiling.errors import UserError

# A name, or names that differ in the numbers in brackets.
_GROUP = re.compile(
    r"(?:[^,\[\]]|\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\])+"
)  # one name, or names that differ in numbers
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")
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
    rank: int = 0  # 0 to ``size`` - 1 over all nodes
    size: int = 1
    local_rank: int = 0  # among the ``local_size`` ranks of this node
    local_size: int = 1
    launcher: str = "none"  # who said so; ``none`` where nobody did


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


# --- Slurm's lists of nodes ---------------------------------------------------------------------------


def expand_counts(text: str) -> list[int]:
    """A count for each node: ``2(x3),1`` -> 2, 2, 2, 1; none of what is no such text."""
    matches = [_COUNT.fullmatch(part) for part in text.split(",")]
    return [int(one[1]) for one in matches if one for _ in range(int(one[2] or 1))] if all(matches) else []


def expand_nodes(text: str) -> list[str]:
    """The names of a node list: ``gpu[03-05,9],x1`` -> gpu03, gpu04, gpu05, gpu9, x1.

    Raises:
        UserError: it is none.
    """
    groups = _GROUP.findall(text)
    if ",".join(groups) != text:
        raise UserError(f"invalid node list {text!r}; expected e.g. node[01-04,7]")
    nodes: list[str] = []
    for group in groups:
        # By turns text, and the ranges of a pair of brackets.
        parts = re.split(r"\[(.*?)\]", group)
        choices = [_numbers_in(part) if place % 2 else [part] for place, part in enumerate(parts)]
        nodes += map("".join, itertools.product(*choices))
    return nodes


def _numbers_in(ranges: str) -> list[str]:
    """``03-05,9`` -> 03, 04, 05, 9."""
    ends = [part.partition("-")[::2] for part in ranges.split(",")]
    return [
        f"{number:0{len(first)}d}"
        for first, last in ends
        for number in range(int(first), int(last or first) + 1)
    ]
