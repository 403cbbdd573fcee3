"""This process's rank and the nodes of its job, from the launcher's environment variables.

All launchers' variables are read here: torchrun (and scaleprof's local launcher), Open MPI, MVAPICH, jsrun,
Flux, Slurm, MPICH and Intel MPI (PMI), and Cray's PALS.
"""

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from profiling.errors import UserError

# A name, or names that differ in the numbers in brackets.
_GROUP = re.compile(r"(?:[^,\[\]]|\[\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*\])+")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")
# launcher -> its variables for (rank, world size, local rank, local world size). The first launcher counts of
# which a process has both rank and size: mpirun inside srun speaks last, so it comes before Slurm.
_MPI = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")
_LAUNCHERS = {
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "Open MPI": tuple(f"OMPI_COMM_WORLD_{name}" for name in _MPI),
    "MVAPICH": tuple(f"MV2_COMM_WORLD_{name}" for name in _MPI),
    "jsrun": tuple(f"JSM_NAMESPACE_{name}" for name in _MPI),
    "Flux": ("FLUX_TASK_RANK", "FLUX_JOB_SIZE", "FLUX_TASK_LOCAL_ID", "FLUX_JOB_NNODES"),
    "Slurm": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    "MPICH": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # Intel MPI's, too
    "PALS": tuple(f"PMI_{name}" for name in _MPI),
}
# Of launchers that say a process's rank, and not all that is needed.
_RANKS = ("ALPS_APP_PE", "PALS_RANKID", "PMIX_RANK", "PMI_RANK")


_START = "start the ranks with torchrun, mpirun or srun"


@dataclass(frozen=True)
class Identity:
    rank: int = 0  # 0 to ``size`` - 1 over all nodes
    size: int = 1
    local_rank: int = 0  # among the ``local_size`` ranks of this node
    local_size: int = 1
    launcher: str = "none"  # ``none`` without one


def is_restarted(environment: Mapping[str, str]) -> bool:
    """Whether this launch repeats an earlier one: torchrun's after a rank has failed, or a requeued job."""
    counts = (environment.get(name, "") for name in ("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT"))
    return any(count.isdecimal() and int(count) > 0 for count in counts)


def read_identity(environment: Mapping[str, str]) -> Identity:
    """What a launcher says of this process, one rank of one without any; UserError: it contradicts itself."""
    for launcher, names in _LAUNCHERS.items():
        if names[0] not in environment or names[1] not in environment:
            continue
        # An interactive allocation describes its shell too; that is no launched rank. MPICH's daemons, which
        # mpirun starts by srun, count ranks per node. (Under srun --mpi=pmi2 both speak, and say the same.)
        if launcher == "Slurm" and ("SLURM_STEP_ID" not in environment or "MPI_LOCALRANKID" in environment):
            continue
        if launcher == "MPICH" and names[2] not in environment and "PMI_LOCAL_RANK" in environment:
            continue
        rank = _number(environment, names[0], 0)
        size = _number(environment, names[1], 1)
        if size > 1 and (absent := [name for name in names[2:] if name not in environment]):
            raise UserError(f"{launcher} gives a rank without {' and '.join(absent)}; {_START}")
        local_size = _number(environment, names[3], size)
        local_rank = _number(environment, names[2], 0)
        if launcher == "Flux":  # which counts nodes
            local_size = -(-size // max(1, local_size))
        if not (0 <= rank < size and 0 <= local_rank < local_size <= size):
            raise UserError(
                f"{launcher} reports rank {rank} of {size}, local rank {local_rank} of {local_size}; start "
                "the ranks with one launcher only"
            )
        return Identity(rank, size, local_rank, local_size, launcher)
    for name in _RANKS:
        if name in environment:
            raise UserError(f"{name} gives a rank without its number on the node; {_START}")
    return Identity()


def rank_on_node(environment: Mapping[str, str], launcher: str) -> tuple[str, str]:
    """The variable that numbers the ranks of a node, or else all ranks, and its value."""
    rank, _, local_rank, _ = _LAUNCHERS[launcher]
    name = local_rank if local_rank in environment else rank
    return name, environment[name]


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    if name == "SLURM_STEP_TASKS_PER_NODE":
        counts, node = expand_counts(text), environment.get("SLURM_NODEID", "0")
        text = str(counts[int(node)]) if node.isdigit() and int(node) < len(counts) else text
    if not text.isdecimal():
        raise UserError(f"invalid {name} {text!r}: not a number; {_START}")
    return int(text)


def check_mpi(seen: int, size: int, library: str, launcher: str) -> None:
    """Raise UserError where a library is built for another MPI: it takes each rank for a job of its own."""
    if seen != size:
        raise UserError(
            f"{library} sees {seen} of the {size} ranks that {launcher} started: it was built for a "
            "different MPI; load the module it was built with, or rebuild it (make horovod)"
        )


def expand_counts(text: str) -> list[int]:
    """A count for each node: ``2(x3),1`` -> 2, 2, 2, 1; none of what is no such text."""
    matches = [_COUNT.fullmatch(part) for part in text.split(",")]
    return [int(one[1]) for one in matches if one for _ in range(int(one[2] or 1))] if all(matches) else []


def expand_nodes(text: str) -> list[str]:
    """``gpu[03-05,9],x1`` -> gpu03, gpu04, gpu05, gpu9, x1; UserError: it is no node list."""
    groups = _GROUP.findall(text)
    if ",".join(groups) != text:
        raise UserError(f"invalid node list {text!r}; expected e.g. node[01-04,7]")

    def numbers(ranges: str) -> list[str]:
        ends = [part.partition("-")[::2] for part in ranges.split(",")]
        return [f"{n:0{len(low)}d}" for low, high in ends for n in range(int(low), int(high or low) + 1)]

    nodes: list[str] = []
    for group in groups:
        # By turns text, and the ranges of a pair of brackets.
        parts = re.split(r"\[(.*?)\]", group)
        choices = [numbers(part) if place % 2 else [part] for place, part in enumerate(parts)]
        nodes += map("".join, itertools.product(*choices))
    return nodes
